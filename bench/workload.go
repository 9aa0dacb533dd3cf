package bench

import (
	"fmt"
	"math/rand/v2"
	"strconv"

	"smss/codec"
)

// workload is the bytes that the generator sends, built once and shared by
// all connections, which only read them: one PUB request after the other,
// each to the next topic, all of the same size. A connection's position in it
// is a number that goes round at cycle.
type workload struct {
	bytes   []byte // the cycle, then its beginning again, so that a write need not stop at its end
	cycle   int
	request int // bytes of one request
	batch   int // messages of one request
	body    int // body bytes of one request
}

// writeAhead is how far bytes goes beyond the cycle at least, where the
// requests in flight are as many.
const writeAhead = 256 << 10

func newWorkload(topic string, topics, size, batch, pipeline int) *workload {
	payload := newPayload(size, batch)
	w := &workload{batch: batch, body: size * batch}
	for i := range topics {
		w.bytes = codec.AppendPub(w.bytes, topicName(topic, topics, i), "", payload)
	}
	w.cycle = len(w.bytes)
	w.request = w.cycle / topics
	ahead := min(pipeline*w.request, max(writeAhead, w.request))
	for i := 0; ahead > 0; i++ {
		n := min(ahead, w.cycle)
		w.bytes = append(w.bytes, w.bytes[:n]...)
		ahead -= n
	}
	return w
}

// newPayload makes messages of bytes that do not compress and are the same in
// every run.
func newPayload(size, batch int) []byte {
	var seed [32]byte
	random := rand.NewChaCha8(seed)
	body := make([]byte, size)
	var payload []byte
	for range batch {
		random.Read(body)
		payload = codec.AppendMessage(payload, &codec.Message{Body: body})
	}
	return payload
}

// topicName names topic i of n. The numbers have the same width, so that all
// requests have the same size.
func topicName(prefix string, n, i int) string {
	if n == 1 {
		return prefix
	}
	return fmt.Sprintf("%s-%0*d", prefix, len(strconv.Itoa(n-1)), i)
}
