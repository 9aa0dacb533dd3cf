package reactor

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/panjf2000/gnet/v2"

	"smss/engine"
)

// loop is what one event loop owns beside its sessions.
type loop struct {
	r       *Reactor
	id      int
	mailbox *engine.Mailbox
	el      atomic.Pointer[gnet.EventLoop] // set once, when the first connection opens on it
	ticked  atomic.Bool                    // the tick has come and was not seen to
	// outstanding counts commands between push and done, for Stop; stored by
	// the loop.
	outstanding atomic.Int64

	// The rest is touched on the loop only.
	pool     engine.CommandPool
	stalled  sessionQueue // refused by a full ring, in the order in which they were
	waiting  sessionQueue // refused by a full reader queue
	dirty    []*session   // got something during a drain
	wheel    wheel
	beats    beatQueue
	nowNs    int64 // monotonic, as of the last callback
	nowMs    int64 // time of day, likewise
	scratch  []byte
	draining bool
}

func newLoop(r *Reactor, id int) *loop {
	l := &loop{r: r, id: id}
	l.mailbox = engine.NewMailbox(l.wake)
	return l
}

// start is the zero of the loops' monotonic time.
var start = time.Now()

func (l *loop) clock() int64 {
	l.nowNs = int64(time.Since(start))
	l.nowMs = l.r.clock.NowMs()
	return l.nowNs
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

// Run implements gnet.Runnable: it takes what has come back from the engine.
func (l *loop) Run(context.Context) error {
	l.clock()
	l.mailbox.Drain(l.take)
	if l.ticked.Swap(false) {
		l.tick()
	}
	l.settle()
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
	case *engine.Lane:
		if v.Topic() == nil {
			v.Wake(nil)
			return // settle looks at the stalled sessions in any case
		}
		v.Wake(func(sub *engine.Subscription) {
			s := sub.Session.(*session)
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
		if !l.r.engine.Push(s.pending) {
			l.r.engine.AwaitRoom(l.id)
			// The writer may have made room before it could see the request.
			if !l.r.engine.Push(s.pending) {
				return
			}
		}
		l.stalled.remove(s)
		s.pending = nil
		s.sent()
		l.mark(s)
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

// tick sees to everything that depends on time; about every tickEvery.
func (l *loop) tick() {
	l.wheel.advance(l.nowNs, func(s *session) {
		s.expired()
		l.mark(s)
	})
	l.beat()
}

// tickEvery is the grain of all timeouts.
const tickEvery = 50 * time.Millisecond

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

func (q *sessionQueue) remove(s *session) {
	if s.queue != q {
		return
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
}
