package reactor

import (
	"bytes"
	"testing"

	"smss/codec"
)

// expectReplies counts the replies to a stream of requests, up to the first
// SUB, behind which they depend on the topic. closes says that the last is
// one after which the server closes.
func expectReplies(b []byte, lim *codec.Limits) (n int, sub, closes bool) {
	for len(b) > 0 {
		var req codec.Request
		size, err := codec.ParseRequest(b, lim, &req)
		switch err.(type) {
		case nil:
			if req.Command == codec.Sub {
				return n, true, false
			}
			n++
		case *codec.RequestError:
			n++
		case *codec.FrameError:
			return n + 1, false, true
		default:
			return n, false, false
		}
		b = b[min(size, len(b)):]
	}
	return n, false, false
}

// FuzzSession puts any bytes in any pieces into a session. Every request is
// answered once, all input is accounted for, and nothing stays behind.
func FuzzSession(f *testing.F) {
	sub := reqSub("t", "w")
	for _, seed := range [][]byte{
		reqAlive(), reqList(), reqCreate("t"), reqDelete("t"), reqPub("t", "m"), sub,
		bytes.Join([][]byte{reqCreate("t"), reqPub("t", "m"), sub}, nil),
		bytes.Join([][]byte{reqPub("t", "m"), rawRequest(7, 30), reqAlive(), rawRequest(16, 20), reqList()}, nil),
		append(reqPub("t", "m"), rawRequest(1, 1<<10)[:codec.RequestHeaderSize]...),
		append(bytes.Clone(sub), 0, 0, 1, 0),
		bytes.Repeat(reqPub("t", "m"), 20),
	} {
		f.Add(seed, []byte{0}, uint8(0))
		f.Add(seed, []byte{1, 2, 0}, uint8(1))
		f.Add(seed, []byte{19, 200}, uint8(2))
	}
	f.Fuzz(func(t *testing.T, stream, cuts []byte, end uint8) {
		h := newHarness(t, setup{cfg: func(c *Config) {
			c.Window, c.MaxUnread, c.MaxInput = 4, 1<<10, 1<<20
			c.Codec = codec.Limits{MaxMessageSize: 1 << 10, MaxBatchMessages: 100, MaxWhoLength: 100}
		}})
		c := h.open()
		b := stream
		for i := 0; len(b) > 0 && !c.closed; i++ {
			n := len(b)
			if len(cuts) > 0 {
				n = min(1+int(cuts[i%len(cuts)]), n)
			}
			c.put(b[:n])
			b = b[n:]
			if got, want := h.r.input.Load(), int64(c.session.waits()); got != want {
				t.Fatalf("%d bytes are charged, %d wait", got, want)
			}
			if end&4 != 0 {
				h.el.runAll()
			}
		}
		overrun := c.closed // more at once than the limits allow
		if !overrun {
			h.settle()
		}
		want, isSub, closes := expectReplies(stream, &h.r.cfg.Codec)
		if !overrun && !isSub {
			n := 0
			for ; len(c.sent) > 0; n++ {
				c.next(false)
			}
			if n != want {
				t.Fatalf("%d replies to %d requests", n, want)
			}
			if got := c.session.state; (got == closing) != closes {
				t.Fatalf("state %d, a bad frame is %v", got, closes)
			}
		}
		switch end % 4 {
		case 1:
			c.halfClose()
		case 2:
			c.put(reqAlive())
			c.hangUp()
		}
	})
}
