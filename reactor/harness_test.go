package reactor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/panjf2000/gnet/v2"
	"golang.org/x/sys/unix"

	"smss/codec"
	"smss/engine"
	"smss/storage"
)

// noMeta is metadata that remembers nothing: enough for a server that is not
// started twice and has no delayed messages.
type noMeta struct{}

func (noMeta) Topics(func(storage.TopicMeta) error) error                 { return nil }
func (noMeta) Checkpoint() (c storage.Checkpoint, ok bool, err error)     { return c, false, nil }
func (noMeta) Commit(*storage.MetaBatch) error                            { return nil }
func (noMeta) DelayKeys(int64, func(storage.DelayKey) bool) error         { return nil }
func (noMeta) DelayPayload(storage.DelayKey) (b []byte, ok bool, e error) { return nil, false, nil }
func (noMeta) Sync() error                                                { return nil }
func (noMeta) CollectGarbage() error                                      { return nil }
func (noMeta) Close() error                                               { return nil }

// quickFS does not sync: no test here cuts the power.
type quickFS struct{ storage.OS }

type quickFile struct{ storage.File }

func (quickFile) Sync() error { return nil }

func (fs quickFS) OpenAppend(name string) (storage.File, error) {
	f, err := fs.OS.OpenAppend(name)
	if err != nil {
		return nil, err
	}
	return quickFile{f}, nil
}

func (quickFS) SyncDir(string) error { return nil }

// fakeClock is a time of day that the test moves. Any goroutine.
type fakeClock struct {
	mu sync.Mutex
	ms int64
}

func (c *fakeClock) NowMs() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ms
}

func (c *fakeClock) add(d time.Duration) {
	c.mu.Lock()
	c.ms += d.Milliseconds()
	c.mu.Unlock()
}

// harness is a reactor with one loop that runs on the test's goroutine, over
// a real engine. Time moves by advance only.
type harness struct {
	tb      testing.TB
	r       *Reactor
	l       *loop
	el      *fakeLoop
	e       *engine.Engine
	store   *storage.Store
	clock   *fakeClock
	now     int64 // monotonic
	conns   []*fakeConn
	refused []string // reasons that Events.Refused was told
	running bool     // the engine's goroutines are
	delays  bool     // the metadata keeps delayed messages
}

// setup is what a test changes of a harness's defaults.
type setup struct {
	cfg    func(*Config)
	engine func(*engine.Config)
	badger bool // real metadata, for delays
	hold   bool // the engine's goroutines are not started yet
}

func newHarness(tb testing.TB, o setup) *harness {
	tb.Helper()
	h := &harness{tb: tb, delays: o.badger, now: int64(time.Hour), clock: &fakeClock{ms: 1_700_000_000_000}}
	cfg := Config{
		Loops: 1, MaxConnections: 1000,
		Codec:      codec.Limits{MaxMessageSize: 1 << 20, MaxBatchMessages: 1000, MaxWhoLength: 1024},
		MaxDelayMs: 1 << 40, MaxDelayPayload: 1 << 20, Window: 64, MaxUnread: 1 << 20, MaxInput: 64 << 20, MaxOutbound: 1 << 20,
		FrameTimeout: 30 * time.Second, IdleTimeout: 30 * time.Minute, WriteTimeout: 5 * time.Second,
		Heartbeat: 30 * time.Second,
		ReadOnly:  func() bool { return false },
		Events:    Events{Refused: func(_ net.Addr, why string) { h.refused = append(h.refused, why) }},
	}
	if o.cfg != nil {
		o.cfg(&cfg)
	}
	opt := storage.Options{Path: tb.TempDir(), MaxLogSize: 1 << 30, FolderCount: 10, MaxOpenTopics: 64, FS: quickFS{}}
	if !o.badger {
		opt.OpenMeta = func(string, bool) (storage.Meta, error) { return noMeta{}, nil }
	}
	store, state, err := storage.Open(opt)
	if err != nil {
		tb.Fatal(err)
	}
	h.store, h.r = store, New(cfg)
	h.l = h.r.loops[0]
	ecfg := engine.Config{
		Loops: cfg.Loops, Mailboxes: h.r.Mailboxes(), RingSize: 1024, Readers: 2, MaxInflightBytes: 64 << 20,
		MaxPushBytes: 1 << 20, MaxTopics: 1000, FirstScanAfter: time.Millisecond, Clock: h.clock,
	}
	if o.engine != nil {
		o.engine(&ecfg)
	}
	h.e = engine.New(ecfg, store, state)
	h.el = &fakeLoop{h: h, notify: make(chan struct{}, 1)}
	h.r.engine, h.r.clock, h.r.monotonic = h.e, h.clock, func() int64 { return h.now }
	h.l.alarm = &fakeAlarm{h: h}
	if !o.hold {
		h.release()
	}
	tb.Cleanup(h.stop)
	return h
}

// release starts the engine's goroutines.
func (h *harness) release() {
	h.running = true
	h.e.Start()
}

// stop closes what is open and looks whether anything was left behind.
func (h *harness) stop() {
	if !h.running {
		h.release()
	}
	for _, c := range h.conns {
		c.hangUp()
	}
	if !h.tb.Failed() {
		h.until(h.idle)
		h.checkEmpty()
	}
	next, broken := h.e.Stop()
	if err := h.store.Close(next, broken); err != nil {
		h.tb.Error(err)
	}
	for _, c := range h.conns {
		c.release()
	}
}

// checkEmpty fails if a loop without connections still holds anything.
func (h *harness) checkEmpty() {
	h.tb.Helper()
	l := h.l
	if n := h.r.input.Load(); n != 0 {
		h.tb.Errorf("%d bytes of input are charged with no connection open", n)
	}
	if n := h.r.conns.Load(); n != 0 {
		h.tb.Errorf("%d connections are counted with none open", n)
	}
	if n := l.outstanding.Load(); n != 0 {
		h.tb.Errorf("%d requests are outstanding with nothing under way", n)
	}
	if l.stalled.head != nil || l.waiting.head != nil || l.beats.head != nil || len(l.dirty) != 0 {
		h.tb.Error("a queue of the loop holds a session that is gone")
	}
	for i := range l.wheel.slots {
		if l.wheel.slots[i] != nil {
			h.tb.Errorf("slot %d of the wheel holds a session that is gone", i)
		}
	}
}

// idle reports whether nothing is at the engine, so that nothing comes of
// itself but delayed messages.
func (h *harness) idle() bool {
	if h.l.outstanding.Load() != 0 || h.l.stalled.head != nil || h.l.waiting.head != nil {
		return false
	}
	for _, c := range h.conns {
		s := c.session
		if s.window != 0 || s.pending != nil || s.read != nil {
			return false
		}
	}
	return true
}

// until runs the loop until ok holds.
func (h *harness) until(ok func() bool) {
	h.tb.Helper()
	if !h.within(20*time.Second, ok) {
		h.tb.Fatalf("nothing happens any more; refused: %q", h.refused)
	}
}

// within runs the loop until ok holds, or for the time d.
func (h *harness) within(d time.Duration, ok func() bool) bool {
	timeout := time.NewTimer(d)
	defer timeout.Stop()
	for {
		h.el.runAll()
		if ok() {
			return true
		}
		select {
		case <-h.el.notify:
		case <-timeout.C:
			return false
		}
	}
}

func (h *harness) settle() {
	h.tb.Helper()
	h.until(h.idle)
}

// advance moves the loop's time, ringing its alarm when it is due.
func (h *harness) advance(d time.Duration) {
	h.clock.add(d)
	target := h.now + int64(d)
	for h.l.alarmNs <= target {
		h.now = max(h.now, h.l.alarmNs)
		before := h.l.alarmNs
		h.l.ring()
		h.el.runAll()
		if h.l.alarmNs <= before {
			h.tb.Fatalf("the alarm does not move on from %d at %d", before, h.now)
		}
	}
	h.now = target
}

// fakeAlarm needs to know nothing: advance reads loop.alarmNs.
type fakeAlarm struct{ h *harness }

func (a *fakeAlarm) Reset(d time.Duration) bool {
	if at := a.h.now + int64(d); at != a.h.l.alarmNs && d != 0 {
		a.h.tb.Errorf("the alarm is set for %d instead of %d", at, a.h.l.alarmNs)
	}
	return true
}

func (a *fakeAlarm) Stop() bool { return true }

// fakeLoop runs tasks on the test's goroutine.
type fakeLoop struct {
	gnet.EventLoop // nil: what is not overridden is not called
	h              *harness
	notify         chan struct{}
	mu             sync.Mutex
	tasks          []gnet.Runnable
	runs           int // tasks that were run
}

func (f *fakeLoop) Execute(_ context.Context, r gnet.Runnable) error {
	f.mu.Lock()
	f.tasks = append(f.tasks, r)
	f.mu.Unlock()
	select {
	case f.notify <- struct{}{}:
	default:
	}
	return nil
}

func (f *fakeLoop) runAll() {
	for {
		f.mu.Lock()
		tasks := f.tasks
		f.tasks = nil
		f.mu.Unlock()
		if len(tasks) == 0 {
			return
		}
		for _, t := range tasks {
			f.runs++
			if err := t.Run(context.Background()); err != nil {
				f.h.tb.Error(err)
			}
		}
	}
}

func (f *fakeLoop) Close(c gnet.Conn) error {
	c.(*fakeConn).closeWith(nil)
	return nil
}

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

// client opens a connection and creates topics on it.
func (h *harness) client(topics ...string) *fakeConn {
	h.tb.Helper()
	c := h.open()
	for _, t := range topics {
		c.put(reqCreate(t))
		c.ok()
	}
	return c
}

// subscriber opens a connection that is parked at the end of an empty topic.
func (h *harness) subscriber(topic, who string) *fakeConn {
	h.tb.Helper()
	c := h.open()
	c.put(reqSub(topic, who))
	h.until(func() bool { return c.session.state == parked })
	return c
}

var errTest = errors.New("test")
