package engine

import (
	"sync/atomic"

	"smss/storage"
)

// Topic is one life of a topic: a topic that is deleted and created again is
// another Topic.
type Topic struct {
	Meta   storage.TopicMeta    // immutable
	Root   string               // immutable; directory below the topic root
	reader *storage.TopicReader // immutable

	log   *storage.TopicLog        // writer
	names map[string]*Subscription // writer: who subscribes, by name

	end atomic.Uint64 // published end, a packed storage.Pos; stored by the writer
	// leaving says that the deletion is being written: the topic's directory
	// may be gone, or be another life's, although ended is not set yet.
	leaving atomic.Bool   // stored by the writer
	ended   atomic.Bool   // set once by the writer: deleted or its life is over
	armed   atomic.Uint64 // bit i: lane i has somebody parked
	lanes   []Lane        // one for each event loop
}

// maxLanes is how many event loops the bits of Topic.armed can name.
const maxLanes = 64

// Lane is the part of a topic that belongs to one event loop: its parked
// subscriptions.
type Lane struct {
	note   Note
	topic  *Topic        // immutable
	posted atomic.Bool   // the note is in the loop's mailbox
	head   *Subscription // loop: parked subscriptions, in no order
}

func newTopic(meta storage.TopicMeta, root string, reader *storage.TopicReader, log *storage.TopicLog, lanes int) *Topic {
	t := &Topic{Meta: meta, Root: root, reader: reader, log: log, lanes: make([]Lane, lanes)}
	for i := range t.lanes {
		l := &t.lanes[i]
		l.topic, l.note.Subject = t, l
	}
	t.end.Store(log.End().Pack())
	return t
}

// End returns the published end of the topic's log.
func (t *Topic) End() storage.Pos { return storage.UnpackPos(t.end.Load()) }

// Ended reports whether the topic was deleted.
func (t *Topic) Ended() bool { return t.ended.Load() }

// Expired reports whether the topic's life is over at nowMs.
func (t *Topic) Expired(nowMs int64) bool {
	return t.Meta.ExpireAtMs != 0 && t.Meta.ExpireAtMs <= nowMs
}

// Subscription is one subscriber of one topic. Its event loop owns it, apart
// from what is marked otherwise.
type Subscription struct {
	// Who, Session, Lane and Mailbox are set before Attach, immutable after.
	Who     string
	Session any
	Loop    int // number of the event loop
	Mailbox *Mailbox

	Topic *Topic // set by the writer before Attach is done, immutable after

	// Pos is where reading goes on; loop.
	Pos storage.Pos

	prev, next *Subscription                // lane's list; loop
	parked     bool                         // loop
	read       Read                         // the one read at a time
	detached   atomic.Pointer[Subscription] // next in Engine.detached
}

// Park waits for the topic to move: it links s into its lane, or returns false
// where there is something to read, or the end to tell, at once. Loop only.
//
// The order is: link, set the bit, look at the end again. A writer that
// publishes after the look finds the bit; one that published before it is seen
// by the look. With the look first, a message published between look and bit
// would wake nobody.
func (s *Subscription) Park() bool {
	t := s.Topic
	lane := &t.lanes[s.Loop]
	s.parked, s.prev, s.next = true, nil, lane.head
	if lane.head != nil {
		lane.head.prev = s
	}
	lane.head = s
	t.armed.Or(1 << s.Loop)
	if s.Pos.Before(t.End()) || t.Ended() {
		s.Unpark()
		return false
	}
	return true
}

// Unpark takes s out of its lane; without effect if it is not parked. The bit
// may stay set: a wake-up that finds nobody does no harm. Loop only.
func (s *Subscription) Unpark() {
	if !s.parked {
		return
	}
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		s.Topic.lanes[s.Loop].head = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	}
	s.parked, s.prev, s.next = false, nil, nil
}

// Topic returns the topic that has moved or ended, or nil where the note says
// that the ring has room again.
func (l *Lane) Topic() *Topic { return l.topic }

// Wake takes every parked subscription of the lane out and calls resume for
// each. The loop calls it for a note whose subject is the lane.
func (l *Lane) Wake(resume func(*Subscription)) {
	// Cleared before the list is taken: a writer that posts again from here on
	// may be needed for one that parks again below.
	l.posted.Store(false)
	first := l.head
	l.head = nil
	for s := first; s != nil; s = s.next {
		s.parked = false // so that an Unpark from resume leaves the chain alone
	}
	for s := first; s != nil; {
		next := s.next
		s.prev, s.next = nil, nil
		resume(s)
		s = next
	}
}
