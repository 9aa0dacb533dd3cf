package reactor

import (
	"math"
	"time"
)

// wheel is a hashed timing wheel over sessions. A session has one due time;
// moving it later costs nothing, because the slot that it stands in is looked
// at first and the session is put on. Due times beyond the horizon stand in a
// far slot.
type wheel struct {
	slots [wheelSlots]*session
	at    int64 // the slot number that was advanced to last
	first int64 // no slot before it holds a session; neverSlot = none does
}

// slotEvery is the grain of all timeouts.
const slotEvery = 50 * time.Millisecond

const (
	wheelSlots = 1024
	slotNs     = int64(slotEvery)
	// farSlots is the grain of the slots that stand for a time beyond the
	// horizon, so that idle connections are looked at together and not in each
	// slot.
	farSlots = 64
	// never is a time that does not come.
	never     = int64(math.MaxInt64)
	neverSlot = never / slotNs
)

func (w *wheel) init() { w.first = neverSlot }

// next returns when the wheel should be advanced next.
func (w *wheel) next() int64 {
	if w.first == neverSlot {
		return never
	}
	return w.first * slotNs
}

// set makes s due at dueNs, loop time. 0 means never.
func (w *wheel) set(s *session, dueNs int64) {
	s.dueNs = dueNs
	if dueNs == 0 {
		return // its slot finds nothing to do
	}
	slot := max(dueNs/slotNs+1, w.at+1)
	if far := w.at + wheelSlots - 1; slot > far {
		slot = far &^ (farSlots - 1)
	}
	if s.slot != 0 && s.slot <= slot {
		return // it is looked at early enough
	}
	w.unlink(s)
	w.link(s, slot)
}

func (w *wheel) link(s *session, slot int64) {
	head := &w.slots[slot%wheelSlots]
	s.slot, s.wheelPrev, s.wheelNext = slot, nil, *head
	if *head != nil {
		(*head).wheelPrev = s
	}
	*head = s
	w.first = min(w.first, slot)
}

// unlink takes s out of the wheel; without effect if it is not in it.
func (w *wheel) unlink(s *session) {
	if s.slot == 0 {
		return
	}
	if s.wheelPrev != nil {
		s.wheelPrev.wheelNext = s.wheelNext
	} else {
		w.slots[s.slot%wheelSlots] = s.wheelNext
	}
	if s.wheelNext != nil {
		s.wheelNext.wheelPrev = s.wheelPrev
	}
	s.slot, s.wheelPrev, s.wheelNext = 0, nil, nil
}

// advance calls fire for every session that is due at nowNs.
func (w *wheel) advance(nowNs int64, fire func(*session)) {
	target := nowNs / slotNs
	// After a long stall every slot is looked at once.
	for w.at = max(w.at, target-wheelSlots); w.at < target; {
		w.at++
		head := &w.slots[w.at%wheelSlots]
		for s := *head; s != nil; s = *head {
			w.unlink(s)
			switch {
			case s.dueNs == 0:
			case s.dueNs > nowNs:
				w.set(s, s.dueNs)
			default:
				s.dueNs = 0
				fire(s)
			}
		}
	}
	w.first = neverSlot
	for slot := w.at + 1; slot < w.at+wheelSlots; slot++ {
		if w.slots[slot%wheelSlots] != nil {
			w.first = slot
			return
		}
	}
}

// earliest returns the earlier of two due times, of which 0 means never.
func earliest(a, b int64) int64 {
	if a == 0 || (b != 0 && b < a) {
		return b
	}
	return a
}

// beatQueue holds the parked subscribers in the order in which their next
// heartbeat is due. All share one interval, so the one that was parked or
// served last goes to the end and nothing is ever sorted.
type beatQueue struct{ head, tail *session }

func (q *beatQueue) push(s *session, atNs int64) {
	s.beatNs, s.beatPrev, s.beatNext = atNs, q.tail, nil
	if q.tail != nil {
		q.tail.beatNext = s
	} else {
		q.head = s
	}
	q.tail = s
}

func (q *beatQueue) remove(s *session) {
	if s.beatNs == 0 {
		return
	}
	if s.beatPrev != nil {
		s.beatPrev.beatNext = s.beatNext
	} else {
		q.head = s.beatNext
	}
	if s.beatNext != nil {
		s.beatNext.beatPrev = s.beatPrev
	} else {
		q.tail = s.beatPrev
	}
	s.beatNs, s.beatPrev, s.beatNext = 0, nil, nil
}

// beatsTogether says what part of the interval a heartbeat may come early, to
// leave together with others: however many subscribers there are, a loop wakes
// for their heartbeats that many times in an interval at most.
const beatsTogether = 32

// beat sends the heartbeats that are due, and those that are nearly.
func (l *loop) beat() {
	every := int64(l.r.cfg.Heartbeat)
	if s := l.beats.head; s == nil || s.beatNs > l.nowNs {
		return
	}
	until := l.nowNs + every/beatsTogether
	for s := l.beats.head; s != nil && s.beatNs <= until; s = l.beats.head {
		l.beats.remove(s)
		l.beats.push(s, l.nowNs+every)
		s.out = s.heartbeat(s.out)
		s.flush()
	}
}
