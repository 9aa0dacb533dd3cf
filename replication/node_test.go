package replication

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"smss/codec"
	"smss/engine"
	"smss/storage"
)

// rig is a node over an engine on a directory of its own. Its master is never
// there.
type rig struct {
	t     *testing.T
	dir   string
	store *storage.Store
	e     *engine.Engine
	n     *Node
	saves atomic.Int64
	fail  atomic.Bool // saving the history fails
	dials atomic.Int64
	set   func(*Config) // changes what open uses
	event int64         // after which an empty slave goes on
	end   atomic.Uint64 // of the binlog, behind the last do
}

type shakyStore struct{ r *rig }

func (s shakyStore) History() storage.History { return s.r.store.History() }
func (s shakyStore) SaveHistory(h storage.History) error {
	if s.r.fail.Load() {
		return errors.New("no room")
	}
	s.r.saves.Add(1)
	return s.r.store.SaveHistory(h)
}

func newRig(t *testing.T, master string) *rig {
	r := &rig{t: t, dir: t.TempDir()}
	t.Cleanup(func() { r.stop() })
	r.open(master)
	return r
}

// open starts everything as a server does, with a role by flags.
func (r *rig) open(master string) {
	r.t.Helper()
	store, state, err := storage.Open(storage.Options{
		Path: r.dir, MaxLogSize: 1 << 20, FolderCount: 1, MaxOpenTopics: 4, FS: storage.OS{},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	last, err := store.BinlogReader().Last(store.BinlogEnd())
	if err != nil {
		r.t.Fatal(err)
	}
	role := engine.Master
	if master != "" {
		role = engine.Slave
	}
	last = Base(store.History(), last, r.event, role == engine.Slave)
	r.store = store
	r.e = engine.New(engine.Config{
		Loops: 1, RingSize: 64, Readers: 1, MaxInflightBytes: 1 << 20, MaxPushBytes: 1 << 20, MaxTopics: 10,
		FirstScanAfter: time.Hour, RetentionEvery: time.Hour, Role: role, LastEventID: last,
		Mailboxes: []*engine.Mailbox{engine.NewMailbox(func() {})}, Clock: engine.WallClock{},
	}, store, state)
	cfg := Config{
		Engine: r.e, Store: shakyStore{r}, Clock: engine.WallClock{}, Master: master, Port: 1, Heartbeat: time.Second,
		Silence: 2 * time.Second, RetryFirst: time.Millisecond, RetryMax: 5 * time.Millisecond,
		Dial: func(context.Context, string) (net.Conn, error) {
			r.dials.Add(1)
			return nil, errors.New("nobody is there")
		},
	}
	if r.set != nil {
		r.set(&cfg)
	}
	r.n = New(cfg)
	r.e.Start()
	if err := r.n.Start(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) stop() {
	if r.e == nil {
		return
	}
	r.n.Stop()
	next, broken := r.e.Stop()
	if err := r.store.Close(next, broken); err != nil {
		r.t.Error(err)
	}
	r.e = nil
}

// publish gives a master an event of its own.
func (r *rig) publish(topic string) {
	r.t.Helper()
	r.do(func(c *engine.Command) { c.Kind = engine.Create; c.SetText([]byte(topic), nil, nil) })
}

// do lets the engine do a command.
func (r *rig) do(set func(*engine.Command)) {
	r.t.Helper()
	done := make(chan struct{}, 1)
	cmd := new(engine.CommandPool).Get()
	set(cmd)
	cmd.Mailbox, cmd.ReceivedAtMs = engine.NewMailbox(func() { done <- struct{}{} }), time.Now().UnixMilli()
	if !r.e.Push(cmd) {
		r.t.Fatal("the ring is full")
	}
	if <-done; cmd.Err != nil {
		r.t.Fatal(cmd.Err)
	}
	r.end.Store(r.store.BinlogEnd().Pack())
}

// saved returns the history as the node knows it, which is what it has saved.
func (r *rig) saved() storage.History { return r.n.History() }

func (r *rig) epochs() (ids []string) {
	for _, e := range r.saved().Epochs {
		ids = append(ids, e.ID)
	}
	return ids
}

func (r *rig) following() bool {
	before := r.dials.Load()
	for deadline := time.Now().Add(500 * time.Millisecond); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if r.dials.Load() > before+1 {
			return true
		}
	}
	return false
}

// TestEpochs: an epoch begins with a first start, a promotion, and a start as
// master of what a slave has written; not with any other start.
func TestEpochs(t *testing.T) {
	r := newRig(t, "")
	first := r.epochs()
	if len(first) != 1 || r.saved().Slave || r.saved().Epochs[0].First != 1 {
		t.Fatalf("a first start makes %+v", r.saved())
	}
	r.publish("a")
	r.stop()
	r.open("")
	if !slices.Equal(r.epochs(), first) {
		t.Errorf("another start makes %+v", r.saved())
	}
	r.stop()
	r.open("master:1")
	if h := r.saved(); !h.Slave || !slices.Equal(r.epochs(), first) {
		t.Errorf("a start as slave makes %+v", h)
	}
	last, err := r.n.Promote()
	if err != nil || last != 1 || r.n.Role() != engine.Master {
		t.Fatalf("promoted behind %d: %v", last, err)
	}
	if h := r.saved(); h.Slave || len(h.Epochs) != 2 || h.Epochs[1].First != 2 {
		t.Errorf("a promotion makes %+v", h)
	}
	if last, err := r.n.Promote(); err != nil || last != 1 || len(r.epochs()) != 2 {
		t.Errorf("another promotion makes %+v behind %d: %v", r.saved(), last, err)
	}
	if r.following() {
		t.Error("a master follows")
	}
	r.publish("b")
	if err := r.n.Follow("master:1"); err != nil || r.n.Role() != engine.Slave || !r.saved().Slave || !r.following() {
		t.Errorf("demoted to %v: %v, %+v", r.n.Role(), err, r.saved())
	}
	r.stop()
	r.open("")
	if h := r.saved(); h.Slave || len(h.Epochs) != 3 || h.Epochs[2].First != 3 {
		t.Errorf("a start as master of what a slave has written makes %+v", h)
	}
}

// TestCrashBetweenSaveAndTurn: what a change of the role has saved before a crash
// is as good as not saved for one who starts in the old role, and as good as
// done for one who starts in the new one.
func TestCrashBetweenSaveAndTurn(t *testing.T) {
	r := newRig(t, "")
	r.publish("a")
	first := r.epochs()
	r.stop()

	r.open("master:1")
	h := reign(r.n.History(), r.n.position()) // a promotion has come so far
	if err := r.store.SaveHistory(h); err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.open("master:1")
	if h := r.saved(); !h.Slave || !slices.Equal(r.epochs(), first) {
		t.Errorf("a slave keeps an epoch that never was: %+v", h)
	}
	if err := r.store.SaveHistory(h); err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.open("")
	if got := r.saved(); got.Slave || !slices.Equal(got.Epochs, h.Epochs) {
		t.Errorf("a master begins %+v instead of the epoch that was saved, %+v", got, h)
	}

	h = r.saved() // a demotion, or a switchover, has come so far
	h.Slave = true
	if err := r.store.SaveHistory(h); err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.open("")
	got := r.saved()
	if got.Slave || got.Epochs[len(got.Epochs)-1] == h.Epochs[len(h.Epochs)-1] {
		t.Errorf("a master goes on in an epoch that may have ended: %+v", got)
	}
	// It has no event of the one before, which is forgotten: who followed this
	// server meanwhile has none either.
	if err := compare(got.Epochs, h.Epochs, 1, 1); err != nil {
		t.Errorf("who followed before is refused: %v", err)
	}
}

// TestFailedSave: a role whose history cannot be saved stays as it was, and goes
// on as it did.
func TestFailedSave(t *testing.T) {
	r := newRig(t, "master:1")
	if !r.following() {
		t.Fatal("the slave does not follow")
	}
	before := r.saved()
	r.fail.Store(true)
	if _, err := r.n.Promote(); err == nil || !strings.Contains(err.Error(), "saving the history: no room") {
		t.Errorf("promoted: %v", err)
	}
	if r.n.Role() != engine.Slave || !r.following() || !slices.Equal(r.saved().Epochs, before.Epochs) {
		t.Errorf("it is a %v and follows no more, with %+v", r.n.Role(), r.saved())
	}
	r.fail.Store(false)
	if _, err := r.n.Promote(); err != nil {
		t.Fatal(err)
	}
	r.fail.Store(true)
	if err := r.n.Follow("master:1"); err == nil || r.n.Role() != engine.Master || r.following() {
		t.Errorf("demoted to %v: %v", r.n.Role(), err)
	}
	r.publish("a")
}

// TestChangesExclude: changes of the role refuse each other, a stop ends them,
// and what was asked for wrongly is told from what cannot be.
func TestChangesExclude(t *testing.T) {
	r := newRig(t, "")
	changes := map[string]func() error{
		"promote":    func() error { _, err := r.n.Promote(); return err },
		"follow":     func() error { return r.n.Follow("master:1") },
		"switchover": func() error { _, _, err := r.n.Switchover(""); return err },
	}
	r.n.mu.Lock()
	for name, change := range changes {
		if err := change(); err != ErrBusy {
			t.Errorf("%s beside another change: %v", name, err)
		}
	}
	r.n.mu.Unlock()
	var invalid interface{ Invalid() }
	for _, address := range []string{"", "here", ":1", "a:0", "a:65536", "a:b"} {
		if err := r.n.Follow(address); !errors.As(err, &invalid) {
			t.Errorf("follow %q: %v", address, err)
		}
	}
	if _, _, err := r.n.Switchover(""); err == nil || errors.As(err, &invalid) || r.n.Role() != engine.Master {
		t.Errorf("switchover without a slave: %v", err)
	}
	r.n.Stop()
	for name, change := range changes {
		if err := change(); err != ErrStopped {
			t.Errorf("%s after a stop: %v", name, err)
		}
	}
}

// TestCopyExcludesChanges: once a copy is ordered the role stays, because the
// start that makes the copy would take away what the new role has brought. An
// order that fails changes nothing.
func TestCopyExcludesChanges(t *testing.T) {
	r := newRig(t, "master:1")
	r.n.copying.Store(true)
	if _, err := r.n.Promote(); err != ErrCopying {
		t.Errorf("promoted: %v", err)
	}
	if err := r.n.Follow("other:1"); err != ErrCopying {
		t.Errorf("follows another: %v", err)
	}
	if r.n.Role() != engine.Slave {
		t.Error("the role has changed")
	}
	r.n.copying.Store(false)
	r.n.cfg.OrderCopy = func(storage.CopyOrder) error { return nil }
	if err := r.n.Reseed(false); err == nil || r.n.copying.Load() {
		t.Errorf("a master that is not there is copied: %v", err)
	}
	if _, err := r.n.Promote(); err != nil {
		t.Error(err)
	}
	if err := r.n.Reseed(true); err != errMasterReseed {
		t.Errorf("a master is copied anew: %v", err)
	}
}

// TestNewReign: what a slave was judged by does not outlive the history.
func TestNewReign(t *testing.T) {
	r := newRig(t, "master:1")
	read := &engine.Read{Kind: engine.LocateRecord, Link: &engine.Link{Extended: true, Hello: []byte(`{"node":"x"}`)}}
	if r.n.Greet(read); read.Err != nil || !r.n.Current(read.Link) {
		t.Fatalf("greeted with %v", read.Err)
	}
	if _, err := r.n.Promote(); err != nil {
		t.Fatal(err)
	}
	if r.n.Current(read.Link) {
		t.Error("a slave that was judged before the promotion is fed after it")
	}
	if r.n.Greet(read); !r.n.Current(read.Link) {
		t.Error("one that has come again is refused")
	}
	g, err := codec.ParseGreeting(read.Link.Answer[codec.ReplyHeaderSize:])
	if err != nil || len(g.Epochs) != 1 || g.Epochs[0] != r.saved().Epochs[0] {
		t.Errorf("the greeting is %+v, %v", g, err)
	}
}
