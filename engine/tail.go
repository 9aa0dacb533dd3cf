package engine

import (
	"sync/atomic"

	"smss/storage"
)

// Tail is the end of a log that grows: how far it may be read, and who waits
// for more. Every topic has one, and the binlog.
type Tail struct {
	end   atomic.Uint64 // published end, a packed storage.Pos; stored by the writer
	ended atomic.Bool   // set once by the writer: nothing more will come
	armed atomic.Uint64 // bit i: lane i has somebody parked
	lanes []Lane        // one for each event loop
}

// maxLanes is how many event loops the bits of Tail.armed can name.
const maxLanes = 64

func (t *Tail) init(end storage.Pos, lanes int) {
	t.lanes = make([]Lane, lanes)
	for i := range t.lanes {
		l := &t.lanes[i]
		l.tail, l.note.Subject = t, l
	}
	t.end.Store(end.Pack())
}

// End returns the published end of the log.
func (t *Tail) End() storage.Pos { return storage.UnpackPos(t.end.Load()) }

// Ended reports whether nothing more will come: the topic was deleted.
func (t *Tail) Ended() bool { return t.ended.Load() }

// Lane is the part of a tail that belongs to one event loop: those who are
// parked there.
type Lane struct {
	note   Note
	tail   *Tail       // immutable; nil for the ring's own lanes
	posted atomic.Bool // the note is in the loop's mailbox
	head   *Waiter     // loop: who is parked, in no order
}

// Waiter is somebody who reads a log and may wait for it to move. Its event
// loop owns it, apart from what is marked otherwise.
type Waiter struct {
	// Session, Loop and Mailbox are set before the waiter is used, immutable
	// after.
	Session any
	Loop    int // number of the event loop
	Mailbox *Mailbox

	// Pos is where reading goes on; loop.
	Pos storage.Pos

	tail       *Tail   // set before Park, immutable after
	prev, next *Waiter // lane's list; loop
	parked     bool    // loop
	// Ahead is the loop's own: where in what was read the next push begins, 0 =
	// nothing of it is left.
	Ahead int32
	read  Read // the one read at a time
}

// Park waits for the log to move: it links w into its lane, or returns false
// where there is something to read, or the end to tell, at once. Loop only.
//
// The order is: link, set the bit, look at the end again. A writer that
// publishes after the look finds the bit; one that published before it is seen
// by the look. With the look first, a message published between look and bit
// would wake nobody.
func (w *Waiter) Park() bool {
	t := w.tail
	lane := &t.lanes[w.Loop]
	w.parked, w.prev, w.next = true, nil, lane.head
	if lane.head != nil {
		lane.head.prev = w
	}
	lane.head = w
	t.armed.Or(1 << w.Loop)
	if w.Pos.Before(t.End()) || t.Ended() {
		w.Unpark()
		return false
	}
	return true
}

// Unpark takes w out of its lane; without effect if it is not parked. The bit
// may stay set: a wake-up that finds nobody does no harm. Loop only.
func (w *Waiter) Unpark() {
	if !w.parked {
		return
	}
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		w.tail.lanes[w.Loop].head = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	}
	w.parked, w.prev, w.next = false, nil, nil
}

// ReadOf returns the waiter's own read, of which at most one is under way.
// Loop only.
func (w *Waiter) ReadOf() *Read { return &w.read }

// Room reports whether the lane's note says that the ring has room again, and
// not that a log has moved or ended.
func (l *Lane) Room() bool { return l.tail == nil }

// Wake takes everybody who is parked out of the lane and calls resume for
// each. The loop calls it for a note whose subject is the lane.
func (l *Lane) Wake(resume func(*Waiter)) {
	// Cleared before the list is taken: a writer that posts again from here on
	// may be needed for one that parks again below.
	l.posted.Store(false)
	first := l.head
	l.head = nil
	for w := first; w != nil; w = w.next {
		w.parked = false // so that an Unpark from resume leaves the chain alone
	}
	for w := first; w != nil; {
		next := w.next
		w.prev, w.next = nil, nil
		resume(w)
		w = next
	}
}
