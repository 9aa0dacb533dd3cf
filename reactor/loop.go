package reactor

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/panjf2000/gnet/v2"

	"smss/codec"
	"smss/engine"
)

// loop is what one event loop owns beside its sessions.
type loop struct {
	r       *Reactor                       // immutable
	id      int                            // immutable
	mailbox *engine.Mailbox                // immutable
	alarm   alarm                          // immutable once connections come
	el      atomic.Pointer[gnet.EventLoop] // set once, when the first connection opens on it
	rung    atomic.Bool                    // the alarm has rung and was not seen to
	// outstanding counts requests that were taken from a connection and go to
	// the engine or its readers, until they are answered or dropped, for Stop;
	// stored by the loop.
	outstanding atomic.Int64
	quiet       atomic.Bool // stored by the loop: it has seen Reactor.stopping

	// The rest is touched on the loop only.
	pool    engine.CommandPool
	stalled sessionQueue // refused by a full ring, in the order in which they were
	waiting sessionQueue // refused by a full reader queue
	dirty   []*session   // got something during a drain
	held    int          // commands pushed that the writer may not see yet
	running bool         // inside Run, which releases at its end
	wheel   wheel
	beats   beatQueue
	head    [codec.ReplyHeaderSize]byte // of the push being sent
	pieces  [2][]byte                   // of the push being sent
	alarmNs int64                       // when the alarm rings, monotonic; never = it is not set
	nowNs   int64                       // monotonic, as of the last callback
	nowMs   int64                       // time of day, likewise
}

// alarm rings once after a time: it is a time.Timer, or a test's.
type alarm interface {
	Reset(time.Duration) bool
	Stop() bool
}

func newLoop(r *Reactor, id int) *loop {
	l := &loop{r: r, id: id, alarmNs: never}
	l.wheel.init()
	l.mailbox = engine.NewMailbox(l.wake)
	return l
}

// start is the zero of the loops' monotonic time.
var start = time.Now()

func sinceStart() int64 { return int64(time.Since(start)) }

func (l *loop) clock() {
	l.nowNs = l.r.monotonic()
	l.nowMs = l.r.clock.NowMs()
}

// wake makes the loop drain its mailbox. It is called on any goroutine. A loop
// without connections has nothing to be woken for.
func (l *loop) wake() {
	el := l.el.Load()
	if el == nil {
		return
	}
	l.r.waking.Add(1)
	if !l.r.silent.Load() {
		// An error says that the loops are stopping.
		_ = (*el).Execute(context.Background(), l)
	}
	l.r.waking.Add(-1)
}

// ring is what the alarm does, on a goroutine of its own.
func (l *loop) ring() {
	l.rung.Store(true)
	l.wake()
}

// Run implements gnet.Runnable: it takes what has come back from the engine,
// and sees to what is due.
func (l *loop) Run(context.Context) error {
	if l.r.stopping.Load() {
		l.quiet.Store(true)
	}
	l.clock()
	l.running = true
	l.mailbox.Drain(l.take)
	if l.rung.Swap(false) {
		l.alarmNs = never
		l.tick()
	}
	l.settle()
	l.running = false
	l.release()
	l.arm()
	return nil
}

// take handles one note.
func (l *loop) take(n *engine.Note) {
	switch v := n.Subject.(type) {
	case *engine.Command:
		s := v.Session.(*session)
		s.done(v)
		l.mark(s)
	case *engine.Read:
		s := v.Session.(*session)
		s.readDone(v)
		l.mark(s)
	case *engine.Replica:
		s := v.Session.(*session)
		s.ordered(v)
		l.mark(s)
	case *engine.Lane:
		if v.Room() {
			v.Wake(nil)
			return // settle looks at the stalled sessions in any case
		}
		v.Wake(func(w *engine.Waiter) {
			s := w.Session.(*session)
			s.resume()
			l.mark(s)
		})
	}
}

// mark remembers a session for settle.
func (l *loop) mark(s *session) {
	if !s.marked {
		s.marked = true
		l.dirty = append(l.dirty, s)
	}
}

// settle lets sessions that got something go on with their input, retries
// those that found no room, and sends the replies, one write for each
// connection.
func (l *loop) settle() {
	l.retryStalled()
	l.retryReads()
	for i := 0; i < len(l.dirty); i++ {
		s := l.dirty[i]
		if s.closed {
			s.flush() // makes room for what advance may begin
		}
		s.advance()
		s.flush()
		s.finishLinger()
	}
	for i, s := range l.dirty {
		s.marked = false
		l.dirty[i] = nil
	}
	l.dirty = l.dirty[:0]
}

// retryStalled pushes commands that the ring refused, in the order in which
// they were refused.
func (l *loop) retryStalled() {
	for s := l.stalled.head; s != nil; s = l.stalled.head {
		if !l.tryPush(s.pending) {
			return
		}
		l.stalled.remove(s)
		s.pending = nil
		s.window++
		l.mark(s)
	}
}

// tryPush sends cmd through the ring. Where that is full the loop hears once
// there is room.
func (l *loop) tryPush(cmd *engine.Command) bool {
	if l.r.engine.Hold(cmd) {
		l.holding()
		return true
	}
	l.release() // what fills the ring may be held by this loop
	l.r.engine.AwaitRoom(l.id)
	// The writer may have made room before it could see the request.
	if l.r.engine.Hold(cmd) {
		l.holding()
		return true
	}
	return false
}

// A loop lets the writer see its commands together: when it has turnMax of
// them, or at the end of its turn, when everything that was readable has been
// read. Batches are larger for it, and each costs two writes and two wake-ups.
// With few connections there is nothing to wait for, and the end of the turn
// would cost a wake-up of its own.
const (
	turnMax        = 64
	fewConnections = 16
)

// holding notes that the loop holds one more command.
func (l *loop) holding() {
	l.held++
	switch {
	case l.held >= turnMax || l.r.conns.Load() < fewConnections:
		l.release()
	case l.held == 1 && !l.running:
		l.wake() // gnet runs what it is given after all events of the turn
	}
}

// release lets the writer see what the loop holds.
func (l *loop) release() {
	if l.held > 0 {
		l.held = 0
		l.r.engine.Release()
	}
}

func (l *loop) retryReads() {
	for s := l.waiting.head; s != nil; s = l.waiting.head {
		if !l.r.engine.Read(s.read) {
			return
		}
		l.waiting.remove(s)
	}
}

// tick sees to everything that depends on time.
func (l *loop) tick() {
	l.wheel.advance(l.nowNs, func(s *session) {
		s.expired()
		l.mark(s)
	})
	l.beat()
}

// arm sets the alarm for the next thing that is due. A loop that waits for
// nothing is never woken: each wake-up costs some hundred microseconds of CPU,
// which twenty times a second would be most of what idle subscribers cost.
func (l *loop) arm() {
	next := l.wheel.next()
	if s := l.beats.head; s != nil {
		next = min(next, s.beatNs)
	}
	if l.waiting.head != nil {
		// The readers do not say when they have room, and what fills their
		// queue may be other loops'.
		next = min(next, l.nowNs+slotNs)
	}
	if next < l.alarmNs {
		l.alarmNs = next
		l.alarm.Reset(time.Duration(max(next-l.nowNs, 0)))
	}
}

// sessionQueue is a first-in-first-out list linked through the sessions; a
// session is in one at most.
type sessionQueue struct{ head, tail *session }

func (q *sessionQueue) push(s *session) {
	s.queue = q
	s.queuePrev, s.queueNext = q.tail, nil
	if q.tail != nil {
		q.tail.queueNext = s
	} else {
		q.head = s
	}
	q.tail = s
}

// remove takes s out, and reports whether it was in q.
func (q *sessionQueue) remove(s *session) bool {
	if s.queue != q {
		return false
	}
	if s.queuePrev != nil {
		s.queuePrev.queueNext = s.queueNext
	} else {
		q.head = s.queueNext
	}
	if s.queueNext != nil {
		s.queueNext.queuePrev = s.queuePrev
	} else {
		q.tail = s.queuePrev
	}
	s.queue, s.queuePrev, s.queueNext = nil, nil, nil
	return true
}
