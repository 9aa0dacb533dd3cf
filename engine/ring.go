package engine

import (
	"math/bits"
	"sync/atomic"
)

// ring is the bounded queue in front of the writer: many producers, one
// consumer, first in first out for each producer. A push never blocks; a full
// ring refuses it.
//
// Each slot carries a sequence number that says whose turn it is: equal to the
// position, a producer may fill it; one more, the consumer may take it. A
// producer claims a position by moving tail, fills the slot, and hands it over
// by its number, so that the consumer never sees a half-filled slot.
type ring struct {
	slots []slot
	mask  uint64

	tail  atomic.Uint64 // producers
	limit atomic.Uint64 // producers: the consumer goes no further
	_     [48]byte      // keeps the consumer's line apart from the producers'
	head  uint64        // consumer

	parked atomic.Bool   // the consumer is about to sleep, or sleeps
	wake   chan struct{} // one slot: a wake-up is never lost and never blocks
}

type slot struct {
	seq atomic.Uint64
	cmd *Command
}

// newRing returns a ring of at least size slots.
func newRing(size int) *ring {
	n := 1 << bits.Len(uint(max(size, 2)-1))
	r := &ring{slots: make([]slot, n), mask: uint64(n - 1), wake: make(chan struct{}, 1)}
	for i := range r.slots {
		r.slots[i].seq.Store(uint64(i))
	}
	return r
}

// push hands cmd to the consumer, or returns false where the ring is full.
func (r *ring) push(cmd *Command) bool {
	if !r.hold(cmd) {
		return false
	}
	r.release()
	return true
}

// hold puts cmd into the ring, or returns false where that is full. The
// consumer does not see it before the next release: a producer that has
// several commands to come lets it find them together.
func (r *ring) hold(cmd *Command) bool {
	pos := r.tail.Load()
	for {
		s := &r.slots[pos&r.mask]
		switch turn := s.seq.Load(); {
		case turn == pos:
			if r.tail.CompareAndSwap(pos, pos+1) {
				s.cmd = cmd
				s.seq.Store(pos + 1)
				return true
			}
			pos = r.tail.Load()
		case turn < pos:
			return false // the consumer has not freed it yet: full
		default:
			pos = r.tail.Load() // another producer was faster
		}
	}
}

// release lets the consumer see everything that was put in before, and wakes
// it. What another producer holds becomes visible with it, which does no harm.
func (r *ring) release() {
	tail := r.tail.Load()
	for {
		limit := r.limit.Load()
		if limit >= tail || r.limit.CompareAndSwap(limit, tail) {
			break
		}
	}
	r.signal()
}

// signal wakes the consumer if it sleeps. The slot was handed over before
// parked is read, and the consumer sets parked before it looks at the slots a
// last time: one of the two sees the other.
func (r *ring) signal() {
	if r.parked.Load() && r.parked.CompareAndSwap(true, false) {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// pop takes the next command, or returns nil where there is none.
func (r *ring) pop() *Command {
	if r.empty() {
		return nil
	}
	s := &r.slots[r.head&r.mask]
	cmd := s.cmd
	s.cmd = nil
	s.seq.Store(r.head + uint64(len(r.slots)))
	r.head++
	return cmd
}

// empty reports whether pop would return nil.
func (r *ring) empty() bool {
	return r.head >= r.limit.Load() || r.slots[r.head&r.mask].seq.Load() != r.head+1
}

// park announces that the consumer is about to sleep on wake. It returns false
// if there is something to take after all.
func (r *ring) park() bool {
	r.parked.Store(true)
	if r.empty() {
		return true
	}
	r.parked.Store(false)
	return false
}

// unpark takes the announcement back.
func (r *ring) unpark() { r.parked.Store(false) }
