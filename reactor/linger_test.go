package reactor

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smss/codec"
)

// wantLast checks what came after the half-close, and that it ends there.
func (c *fakeConn) wantLast(want []byte) {
	c.h.tb.Helper()
	c.h.settle()
	got, eof := c.last()
	if !bytes.Equal(got, want) {
		c.h.tb.Errorf("after the half-close came %d bytes %.80x, want %d bytes %.80x", len(got), got, len(want), want)
	}
	if !eof {
		c.h.tb.Error("the connection is still open")
	}
}

// TestHalfClose: what a peer has asked for before it closed its sending side
// is answered whole, in order and once, and then the connection ends.
func TestHalfClose(t *testing.T) {
	ok := codec.AppendCode(nil, codec.CodeOK)
	alive := codec.AppendCode(nil, codec.CodeAlive)
	missing := codec.AppendError(nil, codec.TextTopicNotExist)
	list := codec.AppendJSON(nil, nil)
	cat := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	tests := map[string]struct{ send, want []byte }{
		"a command":          {reqPub("t", "m"), missing},
		"commands":           {bytes.Repeat(reqPub("t", "m"), 500), bytes.Repeat(missing, 500)},
		"all kinds":          {cat(reqCreate("x"), reqAlive(), reqPub("t", "m"), reqAlive()), cat(ok, alive, missing, alive)},
		"a list":             {cat(reqList(), reqAlive()), cat(list, alive)},
		"a refused SUB":      {cat(reqPub("t", "m"), reqSub("t", "w")), cat(missing, missing)},
		"a SUB":              {cat(reqCreate("t"), reqSub("t", "w")), ok},
		"half a request":     {cat(reqPub("t", "m"), reqPub("t", "m")[:30]), missing},
		"what ends the talk": {cat(reqPub("t", "m"), []byte{1, 0, 0, 255, 255, 255, 255}, make([]byte, 50)), cat(missing, codec.AppendError(nil, "payload is larger than the server accepts, see limits.maxMessageSize"))},
	}
	for name, x := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, setup{hold: true})
			c := h.open()
			c.put(x.send)
			c.halfClose()
			if n := h.r.conns.Load(); n != 1 {
				t.Errorf("%d connections are counted while one lingers", n)
			}
			h.release()
			c.wantLast(x.want)
			if n := h.r.conns.Load(); n != 0 {
				t.Errorf("%d connections are counted", n)
			}
			if len(c.sent) > 0 {
				t.Errorf("%d bytes were sent before", len(c.sent))
			}
		})
	}
	t.Run("nothing", func(t *testing.T) {
		h := newHarness(t, setup{})
		c := h.open()
		c.put(append(reqAlive(), reqAlive()[:7]...))
		c.halfClose()
		if !bytes.Equal(c.sent, alive) || !c.session.gone() {
			t.Errorf("sent %x, gone is %v", c.sent, c.session.gone())
		}
	})
	t.Run("unsent replies before", func(t *testing.T) {
		// Replies that gnet could not send are lost when it closes: what is
		// behind them must not appear in their place.
		h := newHarness(t, setup{hold: true})
		c := h.open()
		c.room = 5
		c.put(append(reqAlive(), reqPub("t", "m")...))
		c.halfClose()
		if !c.session.gone() || !bytes.Equal(c.sent, alive[:5]) {
			t.Errorf("sent %x, gone is %v", c.sent, c.session.gone())
		}
	})
	t.Run("unsent replies that can be sent", func(t *testing.T) {
		h := newHarness(t, setup{hold: true})
		c := h.open()
		c.room = 5
		c.put(append(reqAlive(), reqPub("t", "m")...))
		c.room = -1
		c.halfClose()
		h.release()
		c.wantLast(missing)
		if !bytes.Equal(c.sent, alive) {
			t.Errorf("sent %x", c.sent)
		}
	})
	t.Run("no descriptor", func(t *testing.T) {
		h := newHarness(t, setup{hold: true})
		c := h.open()
		c.put(reqPub("t", "m"))
		c.pair = [2]int{1 << 30, 1 << 30} // cannot be duplicated
		c.halfClose()
		if c.pair = [2]int{-1, -1}; !c.session.gone() {
			t.Error("the session lingers without a descriptor")
		}
	})
}

// largeList makes LIST's reply larger than a socket takes at once.
func (h *harness) largeList() (replySize int) {
	p := h.client()
	for i := range 500 {
		p.put(reqCreate(fmt.Sprintf("%0100d", i)))
	}
	for range 500 {
		p.ok()
	}
	p.put(reqList())
	return len(p.next(false).text) + codec.ReplyHeaderSize
}

// TestHalfCloseLarge: replies that do not fit into the socket leave as the
// peer reads, and a peer that does not read is let go.
func TestHalfCloseLarge(t *testing.T) {
	h := newHarness(t, setup{cfg: func(c *Config) { c.MaxOutbound = 1000 }})
	size := h.largeList()
	start := func() *fakeConn {
		gate := h.blockReaders()
		c := h.open()
		c.put(append(reqList(), append(reqList(), reqAlive()...)...))
		fd, err := c.Dup()
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(fd)
		if err := unix.SetsockoptInt(c.pair[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 4<<10); err != nil {
			t.Fatal(err)
		}
		c.halfClose()
		gate()
		return c
	}
	c := start()
	var got []byte
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		b, eof := c.last()
		if got = append(got, b...); eof {
			break
		}
		h.within(time.Millisecond, h.idle)
		h.advance(slotEvery)
	}
	if want := 2*size + codec.ReplyHeaderSize; len(got) != want || !bytes.HasSuffix(got, codec.AppendCode(nil, codec.CodeAlive)) || !bytes.Equal(got[:size], got[size:2*size]) {
		t.Errorf("%d bytes came, want %d", len(got), want)
	}

	c = start()
	h.until(func() bool { return len(c.session.out) > 0 })
	h.advance(h.r.cfg.WriteTimeout - slotEvery)
	if c.session.gone() {
		t.Error("let go too early")
	}
	h.advance(3 * slotEvery)
	if !c.session.gone() {
		t.Error("a peer that does not read keeps its connection")
	}

	c = start()
	h.until(func() bool { return len(c.session.out) > 0 })
	c.last()
	_ = unix.Close(c.pair[1]) // the peer is gone altogether
	c.pair[1] = -1
	h.advance(2 * slotEvery)
	if !c.session.gone() {
		t.Error("a peer that is gone keeps its connection")
	}
}
