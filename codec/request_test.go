package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// genText draws a string of n0 to n1 bytes of any value.
func genText(n0, n1 int) *rapid.Generator[string] {
	return rapid.Map(rapid.SliceOfN(rapid.Byte(), n0, n1), func(b []byte) string { return string(b) })
}

var genMessage = rapid.Custom(func(t *rapid.T) *Message {
	m := &Message{Body: rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "body")}
	for range rapid.IntRange(0, 4).Draw(t, "headers") {
		m.Headers = append(m.Headers, Header{genText(0, 20).Draw(t, "key"), genText(0, 20).Draw(t, "value")})
	}
	if len(m.Headers) == 0 && len(m.Body) == 0 {
		m.Body = []byte{0}
	}
	return m
})

func genPayload(t *rapid.T) (payload []byte, n int) {
	n = rapid.IntRange(1, 5).Draw(t, "messages")
	for range n {
		payload = AppendMessage(payload, genMessage.Draw(t, "message"))
	}
	return payload, n
}

// genRequest draws a valid request: its bytes and what parsing must tell.
func genRequest(t *rapid.T) ([]byte, *Request) {
	topic := genText(0, 200).Draw(t, "topic")
	trace := genText(0, MaxTrace).Draw(t, "trace")
	r := &Request{Topic: []byte(topic), Trace: []byte(trace)}
	r.Command = rapid.SampledFrom([]Command{Sub, Pub, CreateTopic, DeleteTopic, Delay, Alive, Replica, TopicInfo,
		ValidList, List}).Draw(t, "command")
	switch r.Command {
	case Sub:
		who := rapid.StringMatching(`[a-zA-Z0-9 é_-]{0,40}`).Draw(t, "who")
		r.Who = []byte(who)
		r.EventID = rapid.Int64().Draw(t, "event")
		r.Batch = rapid.IntRange(1, MaxBatch).Draw(t, "batch")
		r.AckTimeoutNs = rapid.Int64Min(0).Draw(t, "ack")
		return AppendSub(nil, &Subscription{Topic: topic, Who: who, Trace: trace, EventID: r.EventID,
			Batch: r.Batch, AckTimeoutNs: r.AckTimeoutNs}), r
	case Pub:
		r.Payload, r.Messages = genPayload(t)
		return AppendPub(nil, topic, trace, r.Payload), r
	case Delay:
		r.Payload, r.Messages = genPayload(t)
		r.DelayMs = rapid.Int64().Draw(t, "delay")
		return AppendDelay(nil, topic, trace, r.DelayMs, r.Payload), r
	case CreateTopic:
		r.ExpireAtMs = rapid.Int64().Draw(t, "expire")
		return AppendCreateTopic(nil, topic, trace, r.ExpireAtMs), r
	case ValidList, Replica:
		r.Topic = nil
		r.EventID = rapid.Int64().Draw(t, "event")
		if r.Command == Replica && rapid.Bool().Draw(t, "extended") {
			g := genGreeting(t)
			b, err := AppendReplica(nil, trace, r.EventID, &g)
			if err != nil {
				t.Fatal(err)
			}
			r.Extended, r.Greeting = true, b[len(b)-int(binary.LittleEndian.Uint32(b[RequestHeaderSize+len(trace)+8:])):]
			return b, r
		}
		return AppendEventRequest(nil, r.Command, trace, r.EventID), r
	}
	return AppendPlain(nil, r.Command, topic, trace), r
}

func TestRequestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, want := genRequest(t)
		tail := rapid.SliceOfN(rapid.Byte(), 0, 30).Draw(t, "what follows")
		var got Request
		n, err := ParseRequest(append(b[:len(b):len(b)], tail...), &testLimits, &got)
		if err != nil || n != len(b) {
			t.Fatalf("n %d of %d, error %v", n, len(b), err)
		}
		if !equalRequests(&got, want) {
			t.Fatalf("parsed %+v\nwant   %+v", got, *want)
		}
	})
}

// checkPrefixes fails unless each strict prefix of the request b is reported
// as short, with a size that is larger than the prefix, within the request,
// and never shrinking as more arrives.
func checkPrefixes(t interface{ Fatalf(string, ...any) }, b []byte) {
	known := 0
	for i := range len(b) {
		var r Request
		n, err := ParseRequest(b[:i:i], &testLimits, &r)
		if err != ErrShort || n <= i || n > len(b) || n < known {
			t.Fatalf("prefix %d of %d: size %d after %d, error %v", i, len(b), n, known, err)
		}
		known = n
	}
}

func TestEveryPrefixIsShort(t *testing.T) {
	for _, v := range goldenRequests {
		checkPrefixes(t, unhex(t, v.literal))
	}
	rapid.Check(t, func(t *rapid.T) {
		b, _ := genRequest(t)
		checkPrefixes(t, b)
	})
}

// withPayload is a PUB or DELAY header that claims size bytes, with have bytes
// of its payload.
func withPayload(c Command, size uint32, have []byte) []byte {
	b := AppendPlain(nil, c, "t", "")
	binary.LittleEndian.PutUint32(b[3:], size)
	if c == Delay {
		b = binary.LittleEndian.AppendUint64(b, 5000)
	}
	return append(b, have...)
}

func payloadOf(size int) []byte {
	if size <= MessageOverhead {
		return make([]byte, size)
	}
	return AppendMessage(nil, &Message{Body: make([]byte, size-MessageOverhead)})
}

func TestPayloadSizeLimits(t *testing.T) {
	lim := Limits{MaxMessageSize: 100, MaxBatchMessages: 10, MaxWhoLength: 10}
	for _, c := range []Command{Pub, Delay} {
		small := map[Command]*RequestError{Pub: errPayloadSize, Delay: errDelayRequest}[c]
		for size, invalid := range map[int]*RequestError{0: small, 1: small, 8: small, 9: nil, 99: nil, 100: nil} {
			b := withPayload(c, uint32(size), payloadOf(size))
			var r Request
			n, err := ParseRequest(b, &lim, &r)
			if err != nil || n != len(b) || r.Invalid != invalid || len(r.Payload) != size {
				t.Errorf("%v of %d: n %d of %d, error %v, invalid %v", c, size, n, len(b), err, r.Invalid)
			}
		}
		for _, size := range []uint32{101, 1 << 31, 0xFFFFFFF0, 0xFFFFFFFF} {
			// The header alone is enough to refuse.
			var r Request
			n, err := ParseRequest(withPayload(c, size, nil)[:RequestHeaderSize], &lim, &r)
			if frame := (*FrameError)(nil); n != 0 || !errors.As(err, &frame) {
				t.Errorf("%v of %d: n %d, error %v", c, size, n, err)
			}
		}
	}
}

func TestBatchMessageLimit(t *testing.T) {
	lim := Limits{MaxMessageSize: 1 << 20, MaxBatchMessages: 3}
	for n, invalid := range map[int]*RequestError{1: nil, 2: nil, 3: nil, 4: errBatchMessages} {
		payload := []byte{}
		for range n {
			payload = AppendMessage(payload, textMessage("x"))
		}
		var r Request
		b := AppendPub(nil, "t", "", payload)
		if size, err := ParseRequest(b, &lim, &r); err != nil || size != len(b) || r.Invalid != invalid {
			t.Errorf("%d messages: size %d, error %v, invalid %v", n, size, err, r.Invalid)
		}
	}
}

func TestWhoLimits(t *testing.T) {
	lim := Limits{MaxWhoLength: 10}
	for _, timeout := range []int64{0, 1e9} {
		for size := range 13 {
			b := AppendSub(nil, &Subscription{Topic: "t", Who: strings.Repeat("w", size), AckTimeoutNs: timeout, Batch: 1})
			var r Request
			n, err := ParseRequest(b, &lim, &r)
			if size > 10 {
				if frame := (*FrameError)(nil); n != 0 || !errors.As(err, &frame) {
					t.Errorf("who of %d: n %d, error %v", size, n, err)
				}
				continue
			}
			if err != nil || n != len(b) || len(r.Who) != size || r.Invalid != nil || r.AckTimeoutNs != timeout {
				t.Errorf("who of %d: n %d, error %v, %+v", size, n, err, r)
			}
		}
	}
	huge := AppendSub(nil, &Subscription{Topic: "t"})
	binary.LittleEndian.PutUint32(huge[len(huge)-4:], 0xFFFFFFFF)
	var r Request
	if n, err := ParseRequest(huge, &lim, &r); n != 0 || err != errWhoLength {
		t.Errorf("claim of 4 GiB: n %d, error %v", n, err)
	}
	for _, who := range []string{"a\tb", "a\nb", "\x00", "\xff", "a\u2028b", "\u202egnp"} {
		b := AppendSub(nil, &Subscription{Topic: "t", Who: who})
		if n, err := ParseRequest(b, &lim, &r); err != nil || n != len(b) || r.Invalid != errWho {
			t.Errorf("who %q: n %d, error %v, invalid %v", who, n, err, r.Invalid)
		}
	}
}

func TestAckTimeoutOnlyBehindItsMark(t *testing.T) {
	// Byte 4 is a mark for the value 1 alone, and what is not positive is the
	// server's default.
	for _, ns := range []int64{-1, -1 << 63, 0} {
		b := AppendSub(nil, &Subscription{Topic: "t", Who: "w", AckTimeoutNs: 1})
		binary.LittleEndian.PutUint64(b[RequestHeaderSize+1+8:], uint64(ns))
		var r Request
		if n, err := ParseRequest(b, &testLimits, &r); err != nil || n != len(b) || r.AckTimeoutNs != 0 {
			t.Errorf("timeout %d: n %d, error %v, read %d", ns, n, err, r.AckTimeoutNs)
		}
	}
	b := AppendSub(nil, &Subscription{Topic: "t", Who: "w"})
	b[4] = 2
	var r Request
	if n, err := ParseRequest(b, &testLimits, &r); err != nil || n != len(b) || string(r.Who) != "w" {
		t.Errorf("mark 2: n %d, error %v, who %q", n, err, r.Who)
	}
}

func TestUnknownCommands(t *testing.T) {
	known := map[Command]bool{Sub: true, Pub: true, CreateTopic: true, DeleteTopic: true, Delay: true, Alive: true,
		Replica: true, TopicInfo: true, ValidList: true, List: true, Copy: true}
	for c := range 256 {
		if known[Command(c)] {
			continue
		}
		for _, claim := range []uint32{0, 1, 64, uint32(testLimits.MaxMessageSize)} {
			b := AppendPlain(nil, Command(c), "topic", "trace")
			binary.LittleEndian.PutUint32(b[3:], claim)
			// Twenty bytes decide: how long it is, and that it is refused.
			var r Request
			n, err := ParseRequest(b[:RequestHeaderSize], &testLimits, &r)
			if err != errUnknownCommand || n != len(b)+int(claim) {
				t.Fatalf("command %d, body of %d: n %d, error %v", c, claim, n, err)
			}
			if n, err = ParseRequest(b[:RequestHeaderSize-1], &testLimits, &r); err != ErrShort || n != RequestHeaderSize {
				t.Fatalf("command %d, half a header: n %d, error %v", c, n, err)
			}
		}
		b := AppendPlain(nil, Command(c), "", "")
		binary.LittleEndian.PutUint32(b[3:], uint32(testLimits.MaxMessageSize)+1)
		var r Request
		if n, err := ParseRequest(b, &testLimits, &r); n != 0 || err != errMessageSize {
			t.Fatalf("command %d with too large a body: n %d, error %v", c, n, err)
		}
	}
	if got := errUnknownCommand.Error(); got != TextUnknownCommand {
		t.Errorf("text %q", got)
	}
}

func TestNamesAndTracesOfEveryLength(t *testing.T) {
	for _, topicLen := range []int{0, 1, 127, 128, 129, 255, 256, 65535} {
		for _, traceLen := range []int{0, 1, 254, 255} {
			b := AppendPlain(nil, TopicInfo, strings.Repeat("n", topicLen), strings.Repeat("t", traceLen))
			var r Request
			n, err := ParseRequest(b, &testLimits, &r)
			if err != nil || n != len(b) || len(r.Topic) != topicLen || len(r.Trace) != traceLen {
				t.Errorf("topic %d, trace %d: n %d, error %v, read %d and %d", topicLen, traceLen, n, err, len(r.Topic), len(r.Trace))
			}
		}
	}
}

// What does not fit its length field is cut, so that the frame stays whole.
func TestAppendNeverBreaksTheFrame(t *testing.T) {
	b := AppendPlain(nil, TopicInfo, strings.Repeat("n", 65536), strings.Repeat("t", 256))
	var r Request
	if n, err := ParseRequest(b, &testLimits, &r); err != nil || n != len(b) || len(r.Topic) != 65535 || len(r.Trace) != 255 {
		t.Errorf("n %d of %d, error %v, topic %d, trace %d", n, len(b), err, len(r.Topic), len(r.Trace))
	}
	for batch, want := range map[int]int{-1: 1, 0: 1, 1: 1, 255: 255, 256: 255, 1000: 255} {
		b := AppendSub(nil, &Subscription{Topic: "t", Batch: batch})
		if _, err := ParseRequest(b, &testLimits, &r); err != nil || r.Batch != want {
			t.Errorf("batch %d: read %d, error %v", batch, r.Batch, err)
		}
	}
}

func TestParseOverwritesTheRequest(t *testing.T) {
	var r Request
	if _, err := ParseRequest(AppendPub(nil, "t", "tr", payloadOf(20)), &testLimits, &r); err != nil {
		t.Fatal(err)
	}
	if _, err := ParseRequest(AppendPlain(nil, Alive, "", ""), &testLimits, &r); err != nil {
		t.Fatal(err)
	}
	if !equalRequests(&r, &Request{Command: Alive}) {
		t.Errorf("left over: %+v", r)
	}
}

func TestTopicNames(t *testing.T) {
	valid := []string{"t", "order", "a.b", "...", ".a", "-", "订单", "🚀", strings.Repeat("n", 128), strings.Repeat("é", 64),
		"0", "99", "CON", "\ufffd", "e\u0301"}
	invalid := []string{"", ".", "..", strings.Repeat("n", 129), strings.Repeat("é", 64) + "n", "a b", " ", "a\tb", "a\nb",
		"a\rb", "a\x0bb", "a\x1bb", "a\x7fb", "a\x00b", "\u0085", "a\u2028b", "a\u2029b", "a\u202eb", "a\u200fb",
		"a/b", "/etc/x", "../..", "../../../binlog", `a\b`, "a\xff\xfeb", "\xc3", "\xed\xa0\x80", "\xc0\xaf", "\xf4\x90\x80\x80"}
	for _, name := range valid {
		if !ValidTopicName([]byte(name)) {
			t.Errorf("%q is refused", name)
		}
	}
	for _, name := range invalid {
		if ValidTopicName([]byte(name)) {
			t.Errorf("%q is accepted", name)
		}
	}
	for c := range 256 {
		want := c >= 0x21 && c <= 0x7e && c != '/' && c != '\\' && c != '.'
		if got := ValidTopicName([]byte{byte(c)}); got != want {
			t.Errorf("one byte %#x: %v", c, got)
		}
	}
}

func TestCommandNames(t *testing.T) {
	if got := fmt.Sprint(Pub, DelayApply, Command(7)); got != "PUB DELAY_APPLY COMMAND_7" {
		t.Error(got)
	}
}

func FuzzParseRequest(f *testing.F) {
	for _, v := range goldenRequests {
		f.Add(v.built)
	}
	f.Add(withPayload(Pub, 0xFFFFFFF0, nil))
	f.Add(withPayload(DelayApply, 64, make([]byte, 64)))
	lim := Limits{MaxMessageSize: 4096, MaxBatchMessages: 16, MaxWhoLength: 64}
	const longest = RequestHeaderSize + 65535 + MaxTrace + 8 + 8 + 4 + 4096
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Request
		n, err := ParseRequest(b, &lim, &r)
		switch {
		case err == nil:
			if n < RequestHeaderSize || n > len(b) {
				t.Fatalf("whole request of %d in %d bytes", n, len(b))
			}
			checkReparse(t, b[:n], &lim, &r)
		case err == ErrShort:
			if n <= len(b) || n > longest {
				t.Fatalf("short, takes %d, have %d", n, len(b))
			}
		case errors.As(err, new(*RequestError)):
			if n < RequestHeaderSize || n > longest {
				t.Fatalf("refused, takes %d", n)
			}
		case errors.As(err, new(*FrameError)):
			if n != 0 {
				t.Fatalf("closing, takes %d", n)
			}
		default:
			t.Fatalf("unexpected error %v", err)
		}
	})
}

// checkReparse fails unless appending what was parsed from b and parsing that
// tells the same.
func checkReparse(t *testing.T, b []byte, lim *Limits, r *Request) {
	var again []byte
	topic, trace := string(r.Topic), string(r.Trace)
	switch r.Command {
	case Sub:
		again = AppendSub(nil, &Subscription{topic, string(r.Who), trace, r.EventID, r.Batch, r.AckTimeoutNs})
	case Pub:
		again = AppendPub(nil, topic, trace, r.Payload)
	case Delay:
		again = AppendDelay(nil, topic, trace, r.DelayMs, r.Payload)
	case CreateTopic:
		again = AppendCreateTopic(nil, topic, trace, r.ExpireAtMs)
	case ValidList, Replica:
		again = AppendEventRequest(nil, r.Command, trace, r.EventID)
		if r.Extended {
			again[3] = 1
			again = append(binary.LittleEndian.AppendUint32(again, uint32(len(r.Greeting))), r.Greeting...)
		}
		r.Topic = nil // these have none when built here
	default:
		again = AppendPlain(nil, r.Command, topic, trace)
	}
	var second Request
	n, err := ParseRequest(again, lim, &second)
	if err != nil || n != len(again) || !equalRequests(r, &second) {
		t.Fatalf("%x parsed as %+v; appended and parsed again %+v, error %v", b, *r, second, err)
	}
}
