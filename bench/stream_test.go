package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"smss/codec"
)

// pushForTest is a push of messages with the given event ids, each with a
// stamp and a little more.
func pushForTest(stamp int64, ids ...int64) []byte {
	b := codec.AppendPushHeader(nil)
	for _, id := range ids {
		body := append(binary.LittleEndian.AppendUint64(nil, uint64(stamp)), "and more"...)
		b = codec.AppendPushed(b, codec.Pushed{EventID: id}, codec.AppendMessage(nil, &codec.Message{Body: body}))
	}
	codec.FinishPush(b, len(ids))
	return b
}

// subscribeForTest takes a SUB request off c.
func subscribeForTest(c net.Conn) {
	header := make([]byte, codec.RequestHeaderSize)
	io.ReadFull(c, header)
	rest := int(binary.LittleEndian.Uint16(header[1:])) + 8 + 8 // topic, event id, ack timeout
	io.ReadFull(c, make([]byte, rest))
	var size [4]byte
	io.ReadFull(c, size[:])
	io.ReadFull(c, make([]byte, binary.LittleEndian.Uint32(size[:])))
}

func receiverForTest(t *testing.T, handle func(net.Conn)) *receiver {
	t.Helper()
	r, err := newReceiver(serve(t, handle), time.Now(), true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	if err := r.subscribe("t", "who", 16); err != nil {
		t.Fatal(err)
	}
	return r
}

// Frames that arrive in pieces of any size are the same frames.
func TestReceiverFollowsPieces(t *testing.T) {
	t.Parallel()
	pushes := append(pushForTest(1, 5), codec.AppendCode(nil, codec.CodeAlive)...)
	pushes = append(pushes, pushForTest(2, 6, 9)...)
	for _, piece := range []int{1, 7, 48, 49, 1000} {
		acks := make(chan []byte, 1)
		r := receiverForTest(t, func(c net.Conn) {
			subscribeForTest(c)
			for b := pushes; len(b) > 0; {
				n := min(piece, len(b))
				c.Write(b[:n])
				b = b[n:]
			}
			got := make([]byte, 4)
			io.ReadFull(c, got)
			acks <- got
		})
		r.expect = 3
		r.from.Store(2)
		if err := r.run(10 * time.Second); err != nil {
			t.Fatal(err)
		}
		if want := append(codec.AppendAck(nil, codec.AckNext), codec.AppendAck(nil, codec.AckEnd)...); !bytes.Equal(<-acks, want) {
			t.Errorf("pieces of %d: acks are not %v", piece, want)
		}
		if r.delivered.Load() != 3 || r.pushes.Load() != 2 || r.latency.TotalCount() != 2 {
			t.Errorf("pieces of %d: %d messages, %d pushes, %d recorded", piece, r.delivered.Load(), r.pushes.Load(), r.latency.TotalCount())
		}
	}
}

func TestReceiverRefuses(t *testing.T) {
	t.Parallel()
	short := codec.AppendPushHeader(nil)
	short = codec.AppendPushed(short, codec.Pushed{EventID: 1}, codec.AppendMessage(nil, &codec.Message{Body: []byte("1")}))
	codec.FinishPush(short, 1)
	for _, tt := range []struct {
		name, want string
		answer     []byte
	}{
		{"error", "refused: topic not exist", codec.AppendError(nil, codec.TextTopicNotExist)},
		{"end", "deleted", codec.AppendCode(nil, codec.CodeEnd)},
		{"code", "got code 77", codec.AppendCode(nil, 77)},
		{"empty push", "without messages", codec.AppendCode(nil, codec.CodeOK)},
		{"order", "event 4 after 5", append(pushForTest(1, 5), pushForTest(1, 4)...)},
		{"twice", "event 5 after 5", pushForTest(1, 5, 5)},
		{"no time", "without a time", append(short, pushForTest(1, 2)...)},
		{"closed", "connection closed by the server", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := receiverForTest(t, func(c net.Conn) {
				subscribeForTest(c)
				c.Write(tt.answer)
				if tt.answer != nil {
					io.Copy(io.Discard, c)
				}
			})
			if err := r.run(10 * time.Second); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("%v, want %q", err, tt.want)
			}
		})
	}
}

func TestReceiverNoticesSilence(t *testing.T) {
	t.Parallel()
	r := receiverForTest(t, func(c net.Conn) { io.Copy(io.Discard, c) })
	if err := r.run(30 * time.Millisecond); err == nil || !strings.Contains(err.Error(), "no message within 30ms") {
		t.Fatal(err)
	}
}

func publisherForTest(t *testing.T, handle func(net.Conn), n int) *publisher {
	t.Helper()
	p, err := newPublisher(serve(t, handle), "t", n, 20, 10*time.Second, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	return p
}

// answerAfter answers each request of size bytes, the first only after stall.
func answerAfter(size int, stall time.Duration) func(net.Conn) {
	return func(c net.Conn) {
		request := make([]byte, size)
		for first := true; ; first = false {
			if _, err := io.ReadFull(c, request); err != nil {
				return
			}
			if first {
				time.Sleep(stall)
			}
			c.Write(codec.AppendCode(nil, codec.CodeOK))
		}
	}
}

// A server that stalls for 200 ms at 1,000 requests a second must show some
// 200 late replies. A loop that waits for each reply would see one.
func TestOpenLoopCountsWhatAStallDelays(t *testing.T) {
	t.Parallel()
	size := len(codec.AppendPub(nil, "t", "", newPayload(20, 1)))
	p := publisherForTest(t, answerAfter(size, 200*time.Millisecond), 1)
	p.rate, p.count = 1000, 400
	if err := p.run(0); err != nil {
		t.Fatal(err)
	}
	if p.succeeded != 400 || p.failed != 0 || p.latency.TotalCount() != 400 {
		t.Fatalf("%d succeeded, %d failed", p.succeeded, p.failed)
	}
	if p50 := p.latency.ValueAtQuantile(20); p50 > 150_000 {
		t.Errorf("those that came after the stall waited too: %d µs", p50)
	}
	if p75 := p.latency.ValueAtQuantile(75); p75 < 50_000 {
		t.Errorf("a stall of half the run shows as %d µs at the 75th percentile", p75)
	}
}

func TestPublisherStamps(t *testing.T) {
	t.Parallel()
	size := len(codec.AppendDelay(nil, "t", "", 0, newPayload(20, 1)))
	requests := make(chan []byte, 3)
	p := publisherForTest(t, func(c net.Conn) {
		for {
			b := make([]byte, size)
			if _, err := io.ReadFull(c, b); err != nil {
				return
			}
			requests <- b
			c.Write(codec.AppendCode(nil, codec.CodeOK))
		}
	}, 1)
	p.delayed("t", 20, func(n int64) time.Duration { return time.Duration(n) * 5 * time.Second })
	p.count, p.window = 3, 2
	if err := p.run(0); err != nil {
		t.Fatal(err)
	}
	limits := &codec.Limits{MaxMessageSize: 1 << 20, MaxBatchMessages: 100}
	for n := range int64(3) {
		var req codec.Request
		if _, err := codec.ParseRequest(<-requests, limits, &req); err != nil || req.Invalid != nil || req.Command != codec.Delay {
			t.Fatalf("%+v, %v", req, err)
		}
		m, _, _ := codec.ParseMessage(req.Payload)
		stamp := time.Duration(binary.LittleEndian.Uint64(m.Body))
		// The first is due now, which the protocol makes a second from now.
		want := max(time.Duration(n)*5*time.Second, time.Second)
		if req.DelayMs > want.Milliseconds() || req.DelayMs < want.Milliseconds()-900 {
			t.Errorf("delay %d of message %d, due in %s", req.DelayMs, n, want)
		}
		if late := stamp - want; late < 0 || late > 900*time.Millisecond {
			t.Errorf("message %d is stamped %s", n, stamp)
		}
	}
}

// What a server that is always a little behind has taken is not kept.
func TestPublisherKeepsOnlyWhatIsUnsent(t *testing.T) {
	t.Parallel()
	p := publisherForTest(t, func(c net.Conn) { io.Copy(io.Discard, c) }, 1)
	p.begin(0)
	o, size := p.outlets[0], len(p.request)
	const left = 3
	for i := range 10_000 {
		p.put(o, time.Duration(i), 0)
		o.inFlight--
		p.inFlight--
		o.sent = max(o.sent, len(o.pending)-left*size)
		if next := binary.LittleEndian.Uint64(o.pending[o.sent+p.stampAt:]); next != uint64(max(0, i-left+1)) {
			t.Fatalf("behind request %d the next to be sent is %d", i, next)
		}
	}
	if n := cap(o.pending); n > 20*size {
		t.Errorf("%d bytes for %d requests of %d that are not sent", n, left, size)
	}
	p.rate, p.request = 1, make([]byte, 1<<20)
	p.begin(0)
	if n := len(o.due); n != maxBehindBytes>>20 {
		t.Errorf("%d requests of 1 MiB may be unanswered", n)
	}
}

func TestPublisherFailures(t *testing.T) {
	t.Parallel()
	size := len(codec.AppendPub(nil, "t", "", newPayload(20, 1)))
	for _, tt := range []struct {
		name, want string
		handle     func(net.Conn)
	}{
		{"refused", codec.TextTopicNotExist, func(c net.Conn) {
			for io.ReadFull(c, make([]byte, size)); ; {
				c.Write(codec.AppendError(nil, codec.TextTopicNotExist))
				if _, err := io.ReadFull(c, make([]byte, size)); err != nil {
					return
				}
			}
		}},
		{"closed", "connection", func(c net.Conn) { io.ReadFull(c, make([]byte, size)) }},
		{"strange", "reply code 255", func(c net.Conn) {
			io.ReadFull(c, make([]byte, size))
			c.Write(codec.AppendCode(nil, codec.CodeEnd))
			io.Copy(io.Discard, c)
		}},
		{"silent", "no reply within 50ms", func(c net.Conn) { io.Copy(io.Discard, c) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := publisherForTest(t, tt.handle, 2)
			p.count, p.timeout = 10, 50*time.Millisecond
			if err := p.run(0); err != nil {
				t.Fatal(err)
			}
			if p.failed == 0 || p.succeeded != 0 || p.inFlight != 0 {
				t.Fatalf("%d failed, %d succeeded, %d in flight", p.failed, p.succeeded, p.inFlight)
			}
			for text := range p.errors {
				if !strings.HasPrefix(text, tt.want) {
					t.Errorf("%q, want %q", text, tt.want)
				}
			}
		})
	}
}

// Not parallel: allocations are counted over the whole process.
func TestStreamDoesNotAllocatePerMessage(t *testing.T) {
	s := &settings{Mode: "fanout", Flush: 1, dir: t.TempDir(), Topic: "t", Threads: 1, Subscribers: 3, Size: 20, Loops: 1,
		Timeout: duration(10 * time.Second)}
	srv, err := startServer(testContext(t), s, program{"real", smssForTest(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.stop()
	topic, _, err := freshTopic(testContext(t), s, srv)
	if err != nil {
		t.Fatal(err)
	}
	st, err := openStream(testContext(t), s, srv, topic, 16)
	if err != nil {
		t.Fatal(err)
	}
	defer st.close()
	st.listen(testContext(t))
	st.publisher.count = 500
	if err := st.publish(testContext(t), 0); err != nil {
		t.Fatal(err)
	}
	ctx := testContext(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err = st.publish(ctx, 0)
	runtime.ReadMemStats(&after)
	if err != nil || st.publisher.succeeded != 500 {
		t.Fatalf("%d, %v", st.publisher.succeeded, err)
	}
	if n := after.Mallocs - before.Mallocs; n > 100 {
		t.Errorf("%d allocations for 500 messages to 3 subscribers", n)
	}
}

// Ctrl-C in the middle of each mode that runs for a time: what was measured is
// printed, and the server is gone.
func TestInterruptedModes(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		"latency -duration 1h -warmup 0s", "fanout -duration 1h -warmup 0s -subscribers 2 -batch 16",
		"idle -subscribers 2 -settle 10ms -duration 1h",
		"delay -delays 1000 -rate 10 -lead 1s -form spread -duration 1h",
	} {
		name, _, _ := strings.Cut(line, " ")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(testContext(t))
			defer cancel()
			dir := t.TempDir()
			var stdout bytes.Buffer
			stderr := &cancelWriter{text: " %  ", cancel: cancel}
			status := run(ctx, append(strings.Fields(line), "-server", "real="+smssForTest(t), "-dir", dir), output{&stdout, stderr}, noEnv)
			if status != 0 || !strings.Contains(stdout.String(), "interrupted: figures up to then") || !strings.Contains(stdout.String(), "seconds") {
				t.Fatalf("%d %q %q", status, stdout.String(), stderr.seen.String())
			}
			mustBeEmpty(t, dir)
		})
	}
}

// Two runs in a row have topics of their own.
func TestFreshTopics(t *testing.T) {
	t.Parallel()
	addr := bareForTest(t)
	s := &settings{Topic: "t", Timeout: duration(time.Second)}
	names := map[string]bool{}
	for range 3 {
		name, _, err := freshTopic(testContext(t), s, &server{addr: addr})
		if err != nil || !codec.ValidTopicName([]byte(name)) {
			t.Fatal(name, err)
		}
		names[name] = true
	}
	if len(names) != 3 {
		t.Fatal("names " + strconv.Itoa(len(names)))
	}
}
