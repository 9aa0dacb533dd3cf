package reactor

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/panjf2000/gnet/v2"

	"smss/codec"
	"smss/engine"
	"smss/storage"
)

// noMeta is metadata that remembers nothing: enough for a server that is not
// started twice and has no delayed messages.
type noMeta struct{}

func (noMeta) Topics(func(storage.TopicMeta) error) error                 { return nil }
func (noMeta) Ends(func(string, storage.TopicEnd) error) error            { return nil }
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

func (quickFS) OpenDir(string) (storage.Dir, error) { return quickDir{}, nil }

type quickDir struct{}

func (quickDir) Sync() error  { return nil }
func (quickDir) Close() error { return nil }

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
		Heartbeat:   30 * time.Second,
		ReadOnly:    func() bool { return false },
		Replication: func() *Replication { return nil },
		Events:      Events{Refused: func(_ net.Addr, why string) { h.refused = append(h.refused, why) }},
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
		MaxPushBytes: 1 << 20, ReadAhead: 2000, MaxTopics: 1000, FirstScanAfter: time.Millisecond, Clock: h.clock,
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
