package engine

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"smss/codec"
	"smss/storage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeTime is both clocks. The time of day can be set; the other one only goes
// forward.
type fakeTime struct {
	nowMs atomic.Int64
	mono  atomic.Int64 // ns
}

func newFakeTime() *fakeTime {
	f := &fakeTime{}
	f.nowMs.Store(1_700_000_000_000)
	return f
}

func (f *fakeTime) NowMs() int64   { return f.nowMs.Load() }
func (f *fakeTime) now() time.Time { return time.Unix(1, 0).Add(time.Duration(f.mono.Load())) }
func (f *fakeTime) pass(d time.Duration) {
	f.nowMs.Add(d.Milliseconds())
	f.mono.Add(int64(d))
}

// rig is an engine on a disk in memory. Its writer is stepped by hand unless
// the test starts the engine.
type rig struct {
	t     testing.TB
	time  *fakeTime
	disk  *disk
	meta  *memMeta
	cfg   Config
	opt   storage.Options
	store *storage.Store
	state *storage.State
	e     *Engine
	wakes []atomic.Int64 // of the mailboxes
	pool  CommandPool

	fatalf func(format string, args ...any) // t.Fatalf, or the simulator's

	mu     sync.Mutex
	notes  []string // what Events were told
	broken []error
	faults []error
}

const root = "/data"

// newRig returns an engine with two loops, before its start; set changes its
// configuration.
func newRig(t testing.TB, set func(*rig)) *rig {
	r := &rig{t: t, time: newFakeTime(), disk: newDisk(), meta: newMemMeta(), fatalf: t.Fatalf}
	r.cfg = Config{
		Loops: 2, RingSize: 1024, Readers: 1, MaxInflightBytes: 1 << 30, MaxPushBytes: 1 << 20, MaxTopics: 10_000,
		FirstScanAfter: time.Millisecond, Clock: r.time,
	}
	r.opt = storage.Options{
		Path: root, MaxLogSize: 1 << 20, FolderCount: 1, MaxOpenTopics: 16, FS: r.disk, OpenMeta: r.meta.open, Boot: "boot 1",
	}
	if set != nil {
		set(r)
	}
	r.cfg.Events = Events{
		Note: func(what string, err error) {
			if err != nil {
				what += ": " + err.Error()
			}
			r.note(what)
		},
		Skipped:    func(topic string, from, to storage.Pos) { r.note("skipped " + topic) },
		Damage:     func(topic string, err *storage.DamageError) { r.note("damage " + topic) },
		ReadFailed: func(topic string, err error) { r.note("read failed " + topic + ": " + err.Error()) },
		WriteFail:  func(err error) { r.mu.Lock(); r.faults = append(r.faults, err); r.mu.Unlock() },
		Broken:     func(err error) { r.mu.Lock(); r.broken = append(r.broken, err); r.mu.Unlock() },
		Published:  r.cfg.Events.Published,
	}
	r.wakes = make([]atomic.Int64, r.cfg.Loops)
	r.open()
	return r
}

func level(n int) func(*rig) { return func(r *rig) { r.cfg.FlushLevel = n } }

func (r *rig) note(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, what)
}

// open opens the store and makes an engine, as a start of the server does.
func (r *rig) open() {
	r.t.Helper()
	r.cfg.Mailboxes = nil
	for i := range r.cfg.Loops {
		r.cfg.Mailboxes = append(r.cfg.Mailboxes, NewMailbox(func() { r.wakes[i].Add(1) }))
	}
	store, state, err := storage.Open(r.opt)
	if err != nil {
		r.fatalf("open: %v", err)
	}
	last, err := store.BinlogReader().Last(store.BinlogEnd())
	if err != nil {
		r.fatalf("the end of the binlog: %v", err)
	}
	if last > 0 {
		r.cfg.LastEventID = last
	}
	r.store, r.state = store, state
	r.e = New(r.cfg, store, state)
	r.e.mono = r.time.now
	r.e.writer.lastCheck = r.time.now()
	r.e.scheduler.wait, r.e.scheduler.lull = r.turn, r.turn
}

// turn lets the writer, and what syncs for it, go on by one turn.
func (r *rig) turn() {
	r.e.writer.Step()
	r.sync()
}

// sync runs the sync that was begun, if any, and hands its result over.
func (r *rig) sync() bool {
	w := &r.e.writer
	select {
	case task := <-w.sync.tasks:
		w.sync.done <- task.Run()
		w.Step()
		return true
	default:
		return false
	}
}

// checkpoint does the same for a checkpoint.
func (r *rig) checkpoint() bool {
	w := &r.e.writer
	select {
	case task := <-w.checkpoint.tasks:
		w.checkpoint.done <- task.Run()
		w.Step()
		return true
	default:
		return false
	}
}

// drain returns what is in a loop's mailbox.
func (r *rig) drain(loop int) (subjects []any) {
	r.cfg.Mailboxes[loop].Drain(func(n *Note) {
		if l, ok := n.Subject.(*Lane); ok {
			l.posted.Store(false)
		}
		subjects = append(subjects, n.Subject)
	})
	return subjects
}

// command returns a command of loop 0.
func (r *rig) command(k Kind, topic string, payload []byte) *Command {
	c := r.pool.Get()
	c.Kind, c.Mailbox, c.ReceivedAtMs = k, r.cfg.Mailboxes[0], r.time.NowMs()
	if k == Publish || k == Delay {
		n, ok := codec.CountMessages(payload)
		if !ok {
			panic("payload holds no messages")
		}
		c.Messages = n
	}
	c.SetText([]byte(topic), []byte("trace"), payload)
	return c
}

func message(body string) []byte {
	return codec.AppendMessage(nil, &codec.Message{Body: []byte(body)})
}

func payload(bodies ...string) (b []byte) {
	for _, body := range bodies {
		b = append(b, message(body)...)
	}
	return b
}

func (r *rig) push(c *Command) *Command {
	r.t.Helper()
	if !r.e.Push(c) {
		r.t.Fatal("push was refused")
	}
	return c
}

func (r *rig) pushPublish(topic string, bodies ...string) *Command {
	r.t.Helper()
	return r.push(r.command(Publish, topic, payload(bodies...)))
}

func (r *rig) pushDelay(topic string, inMs int64, body string) *Command {
	r.t.Helper()
	c := r.command(Delay, topic, payload(body))
	c.TriggerAtMs = c.ReceivedAtMs + inMs
	return r.push(c)
}

func (r *rig) pushCreate(topic string, lifeMs int64) *Command {
	r.t.Helper()
	c := r.command(Create, topic, nil)
	if lifeMs != 0 {
		c.ExpireAtMs = c.ReceivedAtMs + lifeMs
	}
	return r.push(c)
}

func (r *rig) pushDelete(topic string) *Command {
	r.t.Helper()
	return r.push(r.command(Delete, topic, nil))
}

func (r *rig) pushAttach(topic, who string, loop int) *Command {
	r.t.Helper()
	c := r.command(Attach, topic, nil)
	c.Sub = &Subscription{Who: who, Waiter: Waiter{Loop: loop, Mailbox: r.cfg.Mailboxes[loop]}}
	return r.push(c)
}

// cutPower takes the power away, and lets the machine start again. The rig must
// be opened after it.
func (r *rig) cutPower(rnd *rand.Rand) {
	r.disk.cutPower(rnd)
	r.meta.cutPower(rnd)
	r.opt.Boot += "+"
}

// done steps the writer until every command is done, and returns the first.
func (r *rig) done(cmds ...*Command) *Command {
	r.t.Helper()
	left := map[*Command]bool{}
	for _, c := range cmds {
		left[c] = true
	}
	for turns := 0; len(left) > 0; turns++ {
		if turns > 100 {
			r.t.Fatalf("%d of %d commands were never answered", len(left), len(cmds))
		}
		r.turn()
		for _, s := range r.drain(0) {
			if c, ok := s.(*Command); ok {
				delete(left, c)
			}
		}
	}
	return cmds[0]
}

// ok does the same and wants no error.
func (r *rig) ok(cmds ...*Command) *Command {
	r.t.Helper()
	r.done(cmds...)
	for _, c := range cmds {
		if c.Err != nil {
			r.t.Fatalf("kind %d, topic %s: %v", c.Kind, c.Topic(), c.Err)
		}
	}
	return cmds[0]
}

func (r *rig) wantErr(c *Command, text string) {
	r.t.Helper()
	r.done(c)
	if c.Err == nil || c.Err.Error() != text {
		r.t.Errorf("kind %d, topic %s: answer %v, want %q", c.Kind, c.Topic(), c.Err, text)
	}
}

func (r *rig) create(topics ...string) {
	r.t.Helper()
	for _, topic := range topics {
		r.ok(r.pushCreate(topic, 0))
	}
}

// got is a message as a subscriber sees it.
type got struct {
	id   int64
	body string
}

// parsePush takes a push frame apart.
func parsePush(t testing.TB, frame []byte) (out []got) {
	t.Helper()
	rest := frame[codec.ReplyHeaderSize:]
	for len(rest) > 0 {
		id := int64(binary.LittleEndian.Uint64(rest[8:]))
		m, size, ok := codec.ParseMessage(rest[codec.PushedMessageOverhead:])
		if !ok {
			t.Fatal("a push holds no valid message")
		}
		rest = rest[codec.PushedMessageOverhead+size:]
		out = append(out, got{id, string(m.Body)})
	}
	return out
}

// readFrom returns the messages of a topic that are published, from a place on.
func (r *rig) readFrom(topic *Topic, from storage.Pos) (out []got) {
	r.t.Helper()
	for from.Before(topic.End()) {
		job := &Read{Kind: ReadPush, Topic: topic, From: from, Batch: codec.MaxBatch}
		r.e.read(job, nil)
		if job.Err != nil || !from.Before(job.Push.Next) {
			r.fatalf("reading %s at %v of %v: %v", topic.Meta.Name, from, topic.End(), job.Err)
		}
		if job.Push.Messages > 0 {
			out = append(out, parsePush(r.t, job.Push.Frame)...)
		}
		from = job.Push.Next
		job.Release()
	}
	return out
}

func (r *rig) read(name string) []got {
	r.t.Helper()
	topic := r.e.Lookup([]byte(name))
	if topic == nil {
		r.t.Fatalf("there is no topic %s", name)
	}
	return r.readFrom(topic, storage.Pos{})
}

func (r *rig) want(topic string, bodies ...string) {
	r.t.Helper()
	var have []string
	last := int64(0)
	for _, m := range r.read(topic) {
		have = append(have, m.body)
		if m.id <= last {
			r.t.Errorf("%s: id %d follows %d", topic, m.id, last)
		}
		last = m.id
	}
	if !slices.Equal(have, bodies) {
		r.t.Errorf("%s holds %q, want %q", topic, have, bodies)
	}
}

func (r *rig) noted(what string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.notes, what)
}

func (r *rig) topicDir(name string) string { return fmt.Sprintf("%s/topic/0/0/%s", root, name) }

// stop stops a started engine and closes its store.
func (r *rig) stop() {
	r.t.Helper()
	next, broken := r.e.Stop()
	if err := r.store.Close(next, broken); err != nil && !broken {
		r.t.Errorf("close: %v", err)
	}
}

// await polls for what another goroutine is about to do.
func await(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !cond(); {
		if time.Now().After(deadline) {
			t.Fatalf("timed out: %s", what)
		}
		time.Sleep(200 * time.Microsecond)
	}
}
