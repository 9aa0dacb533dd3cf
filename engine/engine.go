package engine

import (
	"sync"
	"sync/atomic"
	"time"

	"smss/storage"
)

// Config says how an engine works. All limits are positive.
type Config struct {
	Loops            int   // event loops, 1 to 64
	RingSize         int   // commands waiting for the writer
	Readers          int   // goroutines that read files
	MaxInflightBytes int64 // commands that are pushed and not answered
	MaxPushBytes     int
	ReadAhead        int // bytes that are read for the pushes of a subscription at once; 0 = one push
	MaxTopics        int
	FlushLevel       int // 0 never, 1 each second, 2 before each reply
	MinFreeBytes     int64
	RetentionMs      int64 // 0 = keep for ever
	RetentionEvery   time.Duration
	FirstScanAfter   time.Duration // of delays and lifetimes
	SampleEvery      int           // every how many publishes Events.Published is called; 0 = never
	Role             Role          // at the start
	// MinAcks is how many slaves must hold an event before its reply leaves; 0
	// = none. AckTimeout is how long a reply waits for them. Then it leaves all
	// the same, and others do not wait until the slaves have caught up; or, with
	// RequireAcks, it is an error, and what comes while there are too few slaves
	// is refused.
	MinAcks     int
	AckTimeout  time.Duration
	RequireAcks bool
	LastEventID int64      // that the binlog holds, or after which an empty slave goes on
	Mailboxes   []*Mailbox // of the event loops, in the order of their numbers
	Clock       Clock
	Events      Events
}

// Events receives notable moments. They are called on the goroutine that meets
// the moment and must not block. Nil functions are not called.
type Events struct {
	Published  func(cmd *Command)
	Skipped    func(topic string, from, to storage.Pos)
	Damage     func(topic string, err *storage.DamageError)
	ReadFailed func(topic string, err error)
	WriteFail  func(err error)
	Broken     func(err error)
	Note       func(what string, err error)
}

func (e Events) filled() Events {
	if e.Published == nil {
		e.Published = func(*Command) {}
	}
	if e.Skipped == nil {
		e.Skipped = func(string, storage.Pos, storage.Pos) {}
	}
	if e.Damage == nil {
		e.Damage = func(string, *storage.DamageError) {}
	}
	if e.ReadFailed == nil {
		e.ReadFailed = func(string, error) {}
	}
	if e.WriteFail == nil {
		e.WriteFail = func(error) {}
	}
	if e.Broken == nil {
		e.Broken = func(error) {}
	}
	if e.Note == nil {
		e.Note = func(string, error) {}
	}
	return e
}

// Engine is the running server without its sockets.
type Engine struct {
	cfg    Config         // immutable
	store  *storage.Store // see package storage for who may call what
	clock  Clock          // immutable
	events Events         // immutable
	// mono is the clock for pauses and intervals, which no step of the time of
	// day may stretch; immutable, time.Now but in tests.
	mono func() time.Time

	ring     *ring
	detached atomic.Pointer[Subscription] // stack of subscriptions that have left
	crowded  atomic.Uint64                // bit i: loop i waits for room in the ring
	room     []Lane                       // the notes for that, one for each loop
	inflight atomic.Int64                 // bytes of commands that are not answered
	catalog  sync.Map                     // name → *Topic: what is published; stored by the writer
	reads    chan *Read
	recent   [recentSlabs]atomic.Pointer[slab] // what was read lately; readers, janitor
	ahead    atomic.Int64                      // bytes of what was read and not let go
	binlog   Tail                              // up to where the binlog may be sent to slaves
	records  *storage.BinlogReader             // immutable
	replicas [ReplicasMax]atomic.Pointer[Replica]

	lowDisk  atomic.Bool            // free space is below the floor; janitor
	broken   atomic.Bool            // writing has stopped for good; writer
	role     atomic.Int32           // a Role; writer
	lastID   atomic.Int64           // what slaves may have up to, see expose; writer
	marks    atomic.Pointer[[]mark] // janitor
	masterMs atomic.Int64           // slave: the latest time that the master has put into a record; writer
	orphans  atomic.Bool            // a topic has ended: delayed messages of it may be stored still
	due      dueTimes               // what the writer tells the scheduler
	durable  atomic.Int64           // binlog file of the last checkpoint that was synced; for retention
	counters counters

	writer    writer
	scheduler scheduler
	quit      chan struct{}  // closed by Stop: scheduler, janitor
	timers    sync.WaitGroup // scheduler, janitor
	readers   sync.WaitGroup
	done      chan struct{} // closed when the writer has ended
}

// counters are for statistics.
type counters struct {
	published, delayed, fired, replicated, refused atomic.Int64
	batches, failedBatches                         atomic.Int64
	ackWaits, ackTimeouts                          atomic.Int64
	ackLapsed                                      atomic.Bool
}

// Stats is a snapshot of the engine's counters.
type Stats struct {
	Published, Delayed, Fired, Replicated, Refused int64 // commands
	Batches, FailedBatches                         int64
	AckWaits, AckTimeouts                          int64 // batches that waited for slaves, and in vain
	InflightBytes                                  int64
	AckLapsed                                      bool // replies do not wait for slaves now, although they should
	LowDisk, Broken                                bool
}

// Stats returns the counters. Any goroutine.
func (e *Engine) Stats() Stats {
	c := &e.counters
	return Stats{
		c.published.Load(), c.delayed.Load(), c.fired.Load(), c.replicated.Load(), c.refused.Load(),
		c.batches.Load(), c.failedBatches.Load(), c.ackWaits.Load(), c.ackTimeouts.Load(), e.inflight.Load(),
		c.ackLapsed.Load(), e.lowDisk.Load(), e.broken.Load(),
	}
}

// New returns an engine over an open store. state is what storage.Open found.
func New(cfg Config, store *storage.Store, state *storage.State) *Engine {
	if cfg.Loops < 1 || cfg.Loops > maxLanes || len(cfg.Mailboxes) != cfg.Loops {
		panic("engine: Config.Loops is out of range or not the number of mailboxes")
	}
	e := &Engine{
		cfg: cfg, store: store, clock: cfg.Clock, events: cfg.Events.filled(), mono: time.Now,
		ring: newRing(cfg.RingSize), reads: make(chan *Read, readQueue), records: store.BinlogReader(),
		quit: make(chan struct{}), done: make(chan struct{}),
	}
	e.room = make([]Lane, cfg.Loops)
	for i := range e.room {
		e.room[i].note.Subject = &e.room[i]
	}
	e.role.Store(int32(cfg.Role))
	e.binlog.init(store.BinlogEnd(), cfg.Loops)
	e.due.reset()
	e.orphans.Store(true) // what a stop or a crash has left
	e.writer.init(e, state)
	e.scheduler.init(e)
	for _, t := range state.Topics {
		topic := newTopic(t.Meta, store.TopicRoot(t.Meta.Name), store.Reader(t.Meta.Name), t.Log, cfg.Loops)
		e.writer.topics[t.Meta.Name] = topic
		e.catalog.Store(t.Meta.Name, topic)
		e.due.expiry(t.Meta.ExpireAtMs)
	}
	return e
}

// Start starts the engine's goroutines.
func (e *Engine) Start() {
	e.writer.start()
	go e.writer.run()
	e.readers.Add(e.cfg.Readers)
	for range e.cfg.Readers {
		go e.runReader()
	}
	e.timers.Add(2)
	go e.scheduler.run()
	go e.runJanitor()
}

// Stop ends the engine: what is in the ring is written and, where the flush
// level promises it, synced. The event loops must not call the engine any
// more. It returns the next event id and whether writing had stopped before,
// as Store.Close wants them.
func (e *Engine) Stop() (nextEventID int64, broken bool) {
	close(e.quit)
	e.timers.Wait()
	e.writer.stop()
	<-e.done
	close(e.reads)
	e.readers.Wait()
	return e.writer.nextID, e.broken.Load()
}

// AwaitRoom asks for a note, whose subject is a *Lane without a topic, to the
// mailbox of a loop once the writer has taken something from the ring or has
// answered something. The loop calls it after Push has refused, and tries once
// more after it. Loop only.
func (e *Engine) AwaitRoom(loop int) { e.crowded.Or(1 << loop) }

// Push hands cmd to the writer, or returns false where the ring is full or too
// many bytes are under way: try again when something has come back. Any
// goroutine; it never blocks.
func (e *Engine) Push(cmd *Command) bool {
	if !e.Hold(cmd) {
		return false
	}
	e.Release()
	return true
}

// Hold is Push for a caller that has several commands to push: the writer may
// not see them before the caller calls Release, which it must before it waits
// for anything.
func (e *Engine) Hold(cmd *Command) bool {
	size := cmd.Size()
	if !e.reserve(size) {
		return false
	}
	if !e.ring.hold(cmd) {
		e.inflight.Add(-size)
		return false
	}
	return true
}

// Release lets the writer see what was held.
func (e *Engine) Release() { e.ring.release() }

// reserve takes size bytes out of the budget, or returns false. A command that
// is larger than the whole budget passes while it is the only one.
//
// Adding first and taking back what is too much would be shorter, and wrong:
// two loops that find the last bytes taken by each other's attempt would both
// be refused, with nothing left at the writer whose answer could wake them.
func (e *Engine) reserve(size int64) bool {
	for {
		have := e.inflight.Load()
		if have > 0 && have+size > e.cfg.MaxInflightBytes {
			return false
		}
		if e.inflight.CompareAndSwap(have, have+size) {
			return true
		}
	}
}

// Detach ends a subscription: its name is free for commands pushed from now
// on. It is called once for each subscription whose Attach succeeded. Loop
// only.
func (e *Engine) Detach(s *Subscription) {
	s.Unpark()
	for {
		head := e.detached.Load()
		s.detached.Store(head)
		if e.detached.CompareAndSwap(head, s) {
			return
		}
	}
}

// Healthy returns nil, or why the server does not take writes. Any goroutine.
func (e *Engine) Healthy() error {
	switch {
	case e.broken.Load():
		return errBroken
	case e.lowDisk.Load():
		return errDiskLow
	}
	return nil
}
