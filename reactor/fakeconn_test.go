package reactor

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/panjf2000/gnet/v2"
	"golang.org/x/sys/unix"

	"smss/codec"
)

// fakeConn is a connection whose socket is memory, apart from a second
// descriptor for half-closed ones.
type fakeConn struct {
	gnet.Conn // nil: what is not overridden is not called
	h         *harness
	session   *session
	ctx       any
	in        []byte
	sent      []byte // what the peer was sent
	buffer    []byte // what the socket did not take
	room      int    // bytes that the socket takes still; -1 = any number
	broken    bool   // writes fail
	closed    bool
	pair      [2]int // of the half-closed: the server's end and the peer's
}

// open accepts a connection as Reactor.admit does.
func (h *harness) open() *fakeConn {
	c := &fakeConn{h: h, room: -1, pair: [2]int{-1, -1}}
	c.session = &session{linger: -1}
	c.ctx = c.session
	h.conns = append(h.conns, c)
	h.r.conns.Add(1)
	h.r.OnOpen(c)
	return c
}

func (c *fakeConn) EventLoop() gnet.EventLoop { return c.h.el }
func (c *fakeConn) Context() any              { return c.ctx }
func (c *fakeConn) SetContext(ctx any)        { c.ctx = ctx }
func (c *fakeConn) RemoteAddr() net.Addr      { return &net.TCPAddr{} }
func (c *fakeConn) Fd() int                   { return -1 }
func (c *fakeConn) OutboundBuffered() int     { return len(c.buffer) }

func (c *fakeConn) Next(n int) ([]byte, error) {
	if n != -1 {
		c.h.tb.Fatalf("Next(%d)", n)
	}
	b := c.in
	c.in = nil
	return b, nil
}

// Write behaves as gnet's: it buffers what the socket does not take, and
// closes inside the call where the socket fails.
func (c *fakeConn) Write(b []byte) (int, error) {
	if c.closed {
		c.h.tb.Error("write after close")
		return 0, net.ErrClosed
	}
	if len(c.buffer) > 0 {
		c.buffer = append(c.buffer, b...)
		return len(b), nil
	}
	if c.broken {
		c.closeWith(unix.EPIPE)
		return 0, unix.EPIPE
	}
	if c.room < 0 {
		c.sent = append(c.sent, b...)
		return len(b), nil
	}
	c.buffer = append(c.buffer, b...)
	c.drain(0)
	return len(b), nil
}

func (c *fakeConn) Writev(bs [][]byte) (int, error) { return c.Write(bytes.Join(bs, nil)) }

func (c *fakeConn) Flush() error {
	c.drain(0)
	return nil
}

// drain lets the socket take more bytes, as a peer that reads does.
func (c *fakeConn) drain(more int) {
	n := len(c.buffer)
	if c.room >= 0 {
		c.room += more
		n = min(n, c.room)
		c.room -= n
	}
	c.sent = append(c.sent, c.buffer[:n]...)
	c.buffer = c.buffer[n:]
}

func (c *fakeConn) Dup() (int, error) {
	if c.pair[0] < 0 {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return -1, err
		}
		c.pair = fds
	}
	return unix.FcntlInt(uintptr(c.pair[0]), unix.F_DUPFD_CLOEXEC, 0)
}

func (c *fakeConn) closeWith(err error) {
	if c.closed {
		return
	}
	c.closed = true
	c.h.r.OnClose(c, err)
	c.drain(0)
	c.ctx = nil
}

// hangUp ends the connection as a peer does that is gone.
func (c *fakeConn) hangUp() { c.closeWith(os.NewSyscallError("read", unix.ECONNRESET)) }

// halfClose ends the peer's sending side.
func (c *fakeConn) halfClose() { c.closeWith(os.NewSyscallError("read", io.EOF)) }

func (c *fakeConn) release() {
	for i, fd := range c.pair {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		c.pair[i] = -1
	}
}

// last takes what came through the second descriptor, and reports whether the
// server has closed it.
func (c *fakeConn) last() (b []byte, eof bool) {
	c.h.tb.Helper()
	if c.pair[0] >= 0 { // as gnet closes its own after OnClose
		_ = unix.Close(c.pair[0])
		c.pair[0] = -1
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(c.pair[1], buf)
		switch {
		case err == unix.EAGAIN:
			return b, false
		case err != nil:
			c.h.tb.Fatal(err)
		case n == 0:
			return b, true
		}
		b = append(b, buf[:n]...)
	}
}

// put is input that arrives in one read. The bytes are overwritten after it,
// as gnet's buffer is.
func (c *fakeConn) put(b []byte) {
	if c.closed {
		return
	}
	c.in = append([]byte(nil), b...)
	in := c.in
	c.h.r.OnTraffic(c)
	for i := range in {
		in[i] = 0xa5
	}
}

// split puts b in pieces that end at the given places.
func (c *fakeConn) split(b []byte, at ...int) {
	from := 0
	for _, to := range append(at, len(b)) {
		if to > from {
			c.put(b[from:to])
			from = to
		}
	}
}

// take removes n bytes of what the peer was sent, waiting for them.
func (c *fakeConn) take(n int) []byte {
	c.h.tb.Helper()
	c.h.until(func() bool { return len(c.sent) >= n })
	b := c.sent[:n:n]
	c.sent = c.sent[n:]
	return b
}

// reply is one reply or stream frame.
type reply struct {
	code codec.Code
	text string // of an error, or JSON
	push []byte // all behind a push header
	n    int    // messages of a push
}

func (r reply) String() string {
	return fmt.Sprintf("%d %.80q (%d messages, %d bytes)", r.code, r.text, r.n, len(r.push))
}

// next takes the next reply; stream says that 200 is a push.
func (c *fakeConn) next(stream bool) reply {
	c.h.tb.Helper()
	h := codec.ParseReplyHeader(c.take(codec.ReplyHeaderSize))
	r := reply{code: h.Code}
	switch {
	case h.Code == codec.CodeError:
		r.text = string(c.take(h.TextSize))
	case h.Code == codec.CodeOK && stream:
		r.n, r.push = h.Messages, c.take(int(h.PushSize))
	case h.Code == codec.CodeOK:
		r.text = string(c.take(int(h.JSONSize)))
	}
	return r
}

func (c *fakeConn) want(code codec.Code, text string) {
	c.h.tb.Helper()
	if r := c.next(false); r.code != code || r.text != text {
		c.h.tb.Fatalf("got %v, want %d %q", r, code, text)
	}
}

func (c *fakeConn) ok()    { c.h.tb.Helper(); c.want(codec.CodeOK, "") }
func (c *fakeConn) alive() { c.h.tb.Helper(); c.put(reqAlive()); c.want(codec.CodeAlive, "") }

// nothing checks that the peer was sent nothing more, with nothing under way.
func (c *fakeConn) nothing() {
	c.h.tb.Helper()
	c.h.settle()
	if len(c.sent) > 0 {
		c.h.tb.Fatalf("%d bytes too many: %.60x", len(c.sent), c.sent)
	}
}

// wantClosed checks that the server has closed, for the reason that begins so.
func (c *fakeConn) wantClosed(why string) {
	c.h.tb.Helper()
	if !c.closed {
		c.h.tb.Fatalf("the connection is open, want it closed: %s", why)
	}
	if n := len(c.h.refused); n == 0 || c.h.refused[n-1] != why {
		c.h.tb.Fatalf("closed for %q, want %q", c.h.refused, why)
	}
}

// wantOpen checks that the server has not closed.
func (c *fakeConn) wantOpen() {
	c.h.tb.Helper()
	if c.closed {
		c.h.tb.Fatalf("the connection is closed: %q", c.h.refused)
	}
}

// Requests.

func payload(body string) []byte {
	return codec.AppendMessage(nil, &codec.Message{Body: []byte(body)})
}

func reqAlive() []byte                 { return codec.AppendPlain(nil, codec.Alive, "", "") }
func reqList() []byte                  { return codec.AppendPlain(nil, codec.List, "", "") }
func reqDelete(topic string) []byte    { return codec.AppendPlain(nil, codec.DeleteTopic, topic, "") }
func reqCreate(topic string) []byte    { return codec.AppendCreateTopic(nil, topic, "", 0) }
func reqPub(topic, body string) []byte { return codec.AppendPub(nil, topic, "trace", payload(body)) }
func reqAck(a codec.Ack) []byte        { return codec.AppendAck(nil, a) }
func reqSub(topic, who string) []byte  { return reqSubAck(topic, who, 0) }
func reqSubAck(topic, who string, ackTimeout time.Duration) []byte {
	return codec.AppendSub(nil, &codec.Subscription{Topic: topic, Who: who, Batch: 10, AckTimeoutNs: int64(ackTimeout)})
}
