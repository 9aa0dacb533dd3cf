package reactor

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"smss/codec"
	"smss/engine"
)

// rawRequest is a request of any command with a body of n bytes, or of the
// only size that its command has. The filler looks like ALIVE requests, so
// that a stream out of step is answered too often.
func rawRequest(cmd byte, n int) []byte {
	b := make([]byte, codec.RequestHeaderSize)
	b[0], b[1], b[19] = cmd, 3, 2
	b = append(b, "n/a"...)
	b = append(b, 17, 17)
	body := bytes.Repeat([]byte{17}, n)
	switch codec.Command(cmd) {
	case codec.Sub:
		body = binary.LittleEndian.AppendUint32(make([]byte, 8), uint32(n))
		body = append(body, bytes.Repeat([]byte{'w'}, n)...)
	case codec.CreateTopic, codec.ValidList, codec.Replica:
		body = make([]byte, 8)
	case codec.DeleteTopic, codec.Alive, codec.TopicInfo, codec.List:
		body = nil
	case codec.Delay:
		binary.LittleEndian.PutUint32(b[3:], uint32(n))
		body = append(make([]byte, 8), body...)
	default:
		binary.LittleEndian.PutUint32(b[3:], uint32(n))
	}
	return append(b, body...)
}

// TestRefusedStaysInStep: whatever is refused, the next request is read from
// the right place.
func TestRefusedStaysInStep(t *testing.T) {
	h := newHarness(t, setup{})
	for cmd := range 256 {
		c := h.open()
		for n := range 41 {
			req := rawRequest(byte(cmd), n)
			both := append(bytes.Clone(req), reqAlive()...)
			switch n % 3 {
			case 0:
				c.put(both)
			case 1:
				c.split(both, len(req)/2, len(req)-n/2)
			case 2:
				c.split(both, codec.RequestHeaderSize, len(req)+5)
			}
			want := codec.CodeError
			switch codec.Command(cmd) {
			case codec.Alive:
				want = codec.CodeAlive
			case codec.List, codec.ValidList:
				want = codec.CodeOK
			}
			if r := c.next(false); r.code != want {
				t.Fatalf("command %d, %d bytes: %v, want %d", cmd, n, r, want)
			}
			if r := c.next(false); r.code != codec.CodeAlive {
				t.Fatalf("command %d, %d bytes: then %v instead of 201", cmd, n, r)
			}
		}
		c.nothing()
		c.wantOpen()
		c.hangUp()
	}
}

// TestSkip cuts a refused request, whose body is thrown away, at every byte.
func TestSkip(t *testing.T) {
	h := newHarness(t, setup{})
	c := h.open()
	for n := range 41 {
		both := append(rawRequest(77, n), reqAlive()...)
		for at := 1; at <= len(both); at++ {
			if c.put(both[:at]); at < len(both) {
				c.put(both[at:])
			}
			c.want(codec.CodeError, codec.TextUnknownCommand)
			c.want(codec.CodeAlive, "")
		}
	}
	c.nothing()
}

// script is requests and the replies that they must get, in order.
type script struct {
	send []byte
	want []reply
}

func randomScript(random *rand.Rand, n int) (s script) {
	add := func(b []byte, code codec.Code, text string) {
		s.send = append(s.send, b...)
		s.want = append(s.want, reply{code: code, text: text})
	}
	for range n {
		switch random.IntN(12) {
		case 0:
			add(reqAlive(), codec.CodeAlive, "")
		case 1:
			add(reqPub("missing", "m"), codec.CodeError, codec.TextTopicNotExist)
		case 2:
			add(reqCreate("t"), codec.CodeError, codec.TextTopicExist)
		case 3:
			add(reqCreate("a b"), codec.CodeError, codec.TextTopicName)
		case 4:
			add(rawRequest(77, random.IntN(300)), codec.CodeError, codec.TextUnknownCommand)
		case 5:
			add(codec.AppendPlain(nil, codec.TopicInfo, "missing", ""), codec.CodeError, codec.TextTopicNotExist)
		case 6:
			add(codec.AppendEventRequest(nil, codec.ValidList, "", -1), codec.CodeOK, "")
		case 7:
			add(codec.AppendPub(nil, "t", "", make([]byte, random.IntN(9))), codec.CodeError, codec.TextPayloadSize)
		case 8:
			add(reqSub("missing", "w"), codec.CodeError, codec.TextTopicNotExist)
		default:
			add(reqPub("t", fmt.Sprint(random.IntN(1e9))), codec.CodeOK, "")
		}
	}
	return s
}

func (c *fakeConn) wantScript(s script) {
	c.h.tb.Helper()
	for i, want := range s.want {
		if got := c.next(false); got.code != want.code || got.text != want.text {
			c.h.tb.Fatalf("reply %d of %d is %v, want %v", i, len(s.want), got, want)
		}
	}
	if len(c.sent) > 0 {
		c.h.tb.Fatalf("%d bytes too many: %.60x", len(c.sent), c.sent)
	}
}

// TestPipelining: however small ring, window and budget of bytes are, every
// request of every connection is answered in order, and nothing spins while
// the writer stands still.
func TestPipelining(t *testing.T) {
	tests := map[string]setup{
		"window of 1":     {cfg: func(c *Config) { c.Window = 1 }},
		"ring of 2":       {engine: func(c *engine.Config) { c.RingSize = 2 }},
		"both":            {cfg: func(c *Config) { c.Window = 1 }, engine: func(c *engine.Config) { c.RingSize = 2 }},
		"little inflight": {engine: func(c *engine.Config) { c.MaxInflightBytes = 1000 }},
		"synced":          {engine: func(c *engine.Config) { c.RingSize, c.FlushLevel = 8, 2 }},
		"plenty":          {},
	}
	for name, o := range tests {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			h := newHarness(t, o)
			h.client("t")
			gate := h.blockReaders()
			var scripts []script
			for range 12 {
				s := randomScript(random, 200)
				scripts = append(scripts, s)
				c := h.open()
				for b := s.send; len(b) > 0; {
					n := min(1+random.IntN(3000), len(b))
					c.put(b[:n])
					b = b[n:]
					if random.IntN(4) == 0 {
						h.el.runAll()
					}
				}
			}
			gate()
			for i, s := range scripts {
				h.conns[1+i].wantScript(s)
			}
			h.settle()
			if n := h.e.Stats().InflightBytes; n != 0 {
				t.Errorf("%d bytes are in flight with nothing under way", n)
			}
		})
	}
}

// TestRingFull: with the writer standing still, sessions wait in line without
// being looked at, and go on once it moves.
func TestRingFull(t *testing.T) {
	h := newHarness(t, setup{hold: true, engine: func(c *engine.Config) { c.RingSize = 2 }})
	for range 20 {
		c := h.open()
		c.put(bytes.Repeat(reqPub("t", "m"), 100))
	}
	gone, half := h.conns[5], h.conns[6]
	gone.hangUp()
	half.halfClose()
	runs := h.el.runs
	h.advance(10 * time.Second)
	if n := h.el.runs - runs; n > 3 {
		t.Errorf("the loop was woken %d times with nothing to do", n)
	}
	h.release()
	h.settle()
	for _, c := range h.conns {
		got := c.sent
		if c == half {
			var eof bool
			if got, eof = c.last(); !eof {
				t.Error("the half-closed connection is still open")
			}
		}
		if one := codec.AppendError(nil, codec.TextTopicNotExist); c != gone && !bytes.Equal(got, bytes.Repeat(one, 100)) {
			t.Errorf("%d bytes of replies instead of %d", len(got), 100*len(one))
		}
		c.sent = nil
	}
}

// TestRingFullOfOthers: the room that other loops' commands leave is told.
func TestRingFullOfOthers(t *testing.T) {
	h := newHarness(t, setup{hold: true, engine: func(c *engine.Config) { c.RingSize = 2 }})
	var pool engine.CommandPool
	other := engine.NewMailbox(func() {})
	for {
		cmd := pool.Get()
		cmd.Kind, cmd.Mailbox, cmd.Messages = engine.Publish, other, 1
		cmd.SetText([]byte("missing"), nil, payload("m"))
		if !h.e.Push(cmd) {
			break
		}
	}
	c := h.open()
	c.put(append(reqPub("missing", "m"), reqAlive()...))
	h.release()
	c.want(codec.CodeError, codec.TextTopicNotExist)
	c.want(codec.CodeAlive, "")
}

// blockReaders keeps the engine's readers busy until the returned function is
// called.
func (h *harness) blockReaders() (release func()) {
	gate := make(chan struct{})
	other := engine.NewMailbox(func() {})
	for range 2 {
		h.e.Read(&engine.Read{Kind: engine.ListAll, Mailbox: other, Render: func(*engine.Read) { <-gate }})
	}
	return func() { close(gate) }
}

// TestReadersFull: lists that find the readers' queue full of another loop's
// reads wait without spinning, and are made later without anybody's help.
func TestReadersFull(t *testing.T) {
	h := newHarness(t, setup{hold: true})
	other := engine.NewMailbox(func() {})
	for h.e.Read(&engine.Read{Kind: engine.ListAll, Mailbox: other}) {
	}
	for range 5 {
		h.open().put(append(reqList(), reqAlive()...))
	}
	gone, half := h.conns[1], h.conns[2]
	gone.hangUp()
	half.halfClose()
	runs := h.el.runs
	h.advance(10 * time.Second)
	if n := h.el.runs - runs; n > int(10*time.Second/slotEvery)+1 {
		t.Errorf("the loop was woken %d times in 10 s", n)
	}
	h.release()
	// Once one more read is done the queue has room, of which nobody tells the
	// loop.
	done := make(chan struct{})
	for !h.e.Read(&engine.Read{Kind: engine.ListAll, Mailbox: other, Render: func(*engine.Read) { close(done) }}) {
		time.Sleep(time.Millisecond)
	}
	<-done
	h.advance(2 * slotEvery)
	h.settle()
	want := codec.AppendCode(codec.AppendJSON(nil, nil), codec.CodeAlive)
	for i, c := range h.conns {
		got := c.sent
		if c == half {
			got, _ = c.last()
		}
		if c != gone && !bytes.Equal(got, want) {
			t.Errorf("connection %d got %x, want %x", i, got, want)
		}
		c.sent = nil
	}
}

// TestUnreadLimit: input that must wait is limited, whatever it waits for.
func TestUnreadLimit(t *testing.T) {
	const limit = 1000
	small := func(c *Config) { c.Window, c.MaxUnread = 2, limit }
	for name, first := range map[string][]byte{
		"behind the window":             bytes.Repeat(reqPub("t", "m"), 2),
		"behind what is answered there": append(reqPub("t", "m"), reqAlive()...),
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, setup{hold: true, cfg: small})
			c := h.open()
			c.put(first)
			for c.session.waits() < limit {
				c.put([]byte{17})
			}
			c.wantOpen()
			c.put([]byte{17})
			c.wantClosed("more unread requests than limits.maxUnreadBytes")
		})
	}
	t.Run("what was answered before is sent", func(t *testing.T) {
		h := newHarness(t, setup{hold: true, cfg: small})
		c := h.open()
		c.put(bytes.Join([][]byte{reqAlive(), reqPub("t", "m"), reqAlive(), make([]byte, limit)}, nil))
		c.wantClosed("more unread requests than limits.maxUnreadBytes")
		if want := codec.AppendCode(nil, codec.CodeAlive); !bytes.Equal(c.sent, want) {
			t.Errorf("sent %x, want %x", c.sent, want)
		}
	})
	t.Run("one request may be larger", func(t *testing.T) {
		h := newHarness(t, setup{cfg: small})
		c := h.client("t")
		for _, b := range reqPub("t", string(make([]byte, 5*limit))) {
			c.put([]byte{b})
		}
		c.ok()
		c.wantOpen()
	})
}

// TestInputBudget: the budget of all connections closes the one that exceeds
// it, and is given back.
func TestInputBudget(t *testing.T) {
	h := newHarness(t, setup{cfg: func(c *Config) { c.MaxInput = 1000 }})
	a, b := h.client("t"), h.open()
	long := reqPub("t", string(make([]byte, 950)))
	a.put(long[:600])
	b.put(long[:400])
	b.wantOpen()
	b.put(long[400:401])
	b.wantClosed("input of all connections is over limits.maxInputBytes")
	a.put(long[600:])
	a.ok()
	if n := h.r.input.Load(); n != 0 {
		t.Errorf("%d bytes are charged with no input waiting", n)
	}
}

// TestTooLarge: what is over the limits is answered with an error and closed
// once the peer had time to read it.
func TestTooLarge(t *testing.T) {
	h := newHarness(t, setup{})
	c := h.client("t")
	b := reqPub("t", "m")
	binary.LittleEndian.PutUint32(b[3:], 0xfffffff0)
	c.put(append(reqPub("t", "m"), b...)) // the reply before must come first
	c.ok()
	if r := c.next(false); r.code != codec.CodeError {
		t.Fatalf("%v instead of an error", r)
	}
	c.put(make([]byte, 1000)) // is not looked at
	h.advance(lingerTimeout - slotEvery)
	c.put(make([]byte, 1000)) // gains no time
	c.nothing()
	c.wantOpen()
	h.advance(3 * slotEvery)
	if !c.closed {
		t.Error("still open")
	}
}

// TestCloseInsideWrite: gnet closes inside a write that fails. Everything
// that follows must bear it.
func TestCloseInsideWrite(t *testing.T) {
	tests := map[string]func(h *harness, c *fakeConn){
		"in the callback": func(h *harness, c *fakeConn) { c.put(bytes.Repeat(append(reqAlive(), reqPub("t", "m")...), 5)) },
		"of a completion": func(h *harness, c *fakeConn) { c.put(bytes.Repeat(reqPub("t", "m"), 500)) },
		"of a list":       func(h *harness, c *fakeConn) { c.put(append(reqList(), reqList()...)) },
		"of a push":       func(h *harness, c *fakeConn) { c.put(reqSub("full", "w")) },
		"of a heartbeat":  func(h *harness, c *fakeConn) { c.put(reqSub("empty", "w")); h.settle(); h.advance(time.Minute) },
		"of the end": func(h *harness, c *fakeConn) {
			c.put(reqSub("empty", "w"))
			h.settle()
			h.conns[0].put(reqDelete("empty"))
		},
		"of an error": func(h *harness, c *fakeConn) { c.put(append(reqSub("missing", "w"), reqAlive()...)) },
		"of a last reply": func(h *harness, c *fakeConn) {
			c.put(append([]byte{1, 1, 0, 0xff, 0xff, 0xff, 0xff}, make([]byte, 100)...))
		},
		"of a wrong position": func(h *harness, c *fakeConn) {
			c.put(codec.AppendSub(nil, &codec.Subscription{Topic: "full", Who: "w", EventID: 1 << 40}))
		},
	}
	for name, act := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, setup{})
			p := h.client("t", "full", "empty")
			p.put(reqPub("full", "m"))
			p.ok()
			c := h.open()
			c.broken = true
			act(h, c)
			h.until(func() bool { return c.closed && h.idle() })
			p.sent = nil
			// Whatever name it had is free.
			again := h.open()
			again.put(reqSub("full", "w"))
			if r := again.next(true); r.code != codec.CodeOK || r.n != 1 {
				t.Errorf("the next subscriber of that name got %v", r)
			}
		})
	}
}

// TestChoked: a peer that does not read its replies is asked to, by not being
// listened to.
func TestChoked(t *testing.T) {
	h := newHarness(t, setup{hold: true, cfg: func(c *Config) { c.MaxOutbound = 100 }})
	c := h.open()
	c.room = 0
	c.put(append(bytes.Repeat(reqAlive(), 20), reqPub("t", "m")...))
	c.put(reqAlive())
	c.put(reqAlive())
	h.advance(time.Second)
	if c.drain(0); len(c.buffer) != 200 {
		t.Fatalf("%d bytes of replies, want those of the first read only", len(c.buffer))
	}
	// All is sent, and then a reply is written before the next look.
	c.room = -1
	c.drain(0)
	h.release()
	h.settle()
	h.advance(2 * slotEvery)
	got := c.take(200 + 10 + len(codec.TextTopicNotExist) + 20)
	if !bytes.HasSuffix(got, codec.AppendCode(codec.AppendCode(nil, codec.CodeAlive), codec.CodeAlive)) {
		t.Errorf("replies end in %x", got[200:])
	}
	c.nothing()
}
