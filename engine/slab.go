package engine

import (
	"sync/atomic"

	"smss/storage"
)

// Reading ahead: a subscriber that is behind is sent one push at a time, but
// files are read for several. What was read stays with its subscription until
// it is sent, and for a moment in a table, where others that stand at the same
// place find it: a hundred subscribers of one topic read it once.

const (
	// readAheadMax bounds the memory of what was read and is not sent. Beyond
	// it files are read for one push at a time.
	readAheadMax = 32 << 20
	// recentSlabs is how many slabs the table holds.
	recentSlabs = 32
)

// slab is messages in wire form, as pushes carry them. It is immutable once
// others can see it, and given back by the last who lets it go.
type slab struct {
	e     *Engine
	topic *Topic
	from  storage.Pos
	push  storage.Push // Frame is in *buf
	buf   *[]byte
	refs  atomic.Int32
}

// newSlab makes what was read into r.Push a slab that r holds.
func (e *Engine) newSlab(r *Read, buf *[]byte) *slab {
	s := &slab{e: e, topic: r.Topic, from: r.From, push: r.Push, buf: buf}
	s.refs.Store(1)
	e.ahead.Add(int64(cap(r.Push.Frame)))
	return s
}

// hold takes part in a slab, or returns false where it was given back.
func (s *slab) hold() bool {
	for {
		n := s.refs.Load()
		if n == 0 {
			return false
		}
		if s.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (s *slab) letGo() {
	if s.refs.Add(-1) > 0 {
		return
	}
	b := s.push.Frame
	s.e.ahead.Add(-int64(cap(b)))
	if cap(b) <= frameKeep {
		*s.buf = b[:0]
		frames.Put(s.buf)
	}
}

// place is where the table keeps a slab of a topic that begins at from.
func (e *Engine) place(t *Topic, from storage.Pos) *atomic.Pointer[slab] {
	h := uint64(t.Meta.CreateEventID)*0x9e3779b97f4a7c15 ^ from.Pack()*0xff51afd7ed558ccd
	return &e.recent[h>>32%recentSlabs]
}

// shared returns a slab that begins where r wants to read, held for it: one
// that holds whole pushes of r's size, or all that there is, because a push is
// as large as it can be.
func (e *Engine) shared(r *Read) *slab {
	s := e.place(r.Topic, r.From).Load()
	if s == nil || s.topic != r.Topic || s.from != r.From {
		return nil
	}
	if s.push.Messages%r.Batch != 0 && s.push.Next.Before(r.Topic.End()) {
		return nil
	}
	if !s.hold() {
		return nil
	}
	return s
}

// share puts a slab into the table.
func (e *Engine) share(s *slab) {
	if cap(s.push.Frame) > frameKeep || !s.hold() {
		return
	}
	if old := e.place(s.topic, s.from).Swap(s); old != nil {
		old.letGo()
	}
}

// forgetSlabs empties the table, so that a topic that nobody reads any more
// leaves no memory behind; janitor.
func (e *Engine) forgetSlabs() {
	for i := range e.recent {
		if s := e.recent[i].Swap(nil); s != nil {
			s.letGo()
		}
	}
}
