package reactor

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestWheel compares the wheel with a list: nothing fires early, nothing fires
// more than a slot late, and everything fires once, through moves in both
// directions, far times and long stalls.
func TestWheel(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 7))
		var w wheel
		w.init()
		now := int64(random.IntN(1e9))
		sessions := make([]*session, 100)
		due := map[*session]int64{}
		for i := range sessions {
			sessions[i] = &session{}
		}
		distance := func() int64 {
			switch random.IntN(4) {
			case 0:
				return random.Int64N(slotNs) - slotNs/2 // now, or past
			case 1:
				return random.Int64N(20 * slotNs)
			case 2:
				return random.Int64N(wheelSlots * slotNs)
			}
			return random.Int64N(5 * wheelSlots * slotNs)
		}
		for range 5000 {
			switch s := sessions[random.IntN(len(sessions))]; random.IntN(8) {
			case 0:
				w.unlink(s)
				delete(due, s)
			case 1:
				w.set(s, 0)
				delete(due, s)
			default:
				at := max(now+distance(), 1)
				w.set(s, at)
				due[s] = at
			}
			before := now
			switch random.IntN(40) {
			case 0:
				now += distance()
			case 1:
				now += random.Int64N(3 * wheelSlots * slotNs)
			default:
				now += random.Int64N(slotNs)
			}
			now = max(now, before)
			if w.next() > now {
				continue // the loop sleeps
			}
			w.advance(now, func(s *session) {
				at, ok := due[s]
				if !ok || at > now {
					t.Fatalf("seed %d: fired at %d, due %d (%v)", seed, now, at, ok)
				}
				delete(due, s)
				if random.IntN(4) == 0 { // set again while firing
					at := now + max(distance(), 0)
					w.set(s, at)
					due[s] = at
				}
			})
			for _, at := range due {
				if at <= now-slotNs {
					t.Fatalf("seed %d: due at %d, not fired at %d", seed, at, now)
				}
			}
		}
		// The wheel says itself when to look.
		for len(due) > 0 {
			if w.next() == never {
				t.Fatalf("seed %d: %d sessions are due never", seed, len(due))
			}
			now = max(now, w.next())
			w.advance(now, func(s *session) {
				if at := due[s]; at > now || (at <= now-2*slotNs && at > slotNs) {
					t.Fatalf("seed %d: fired at %d, due %d", seed, now, at)
				}
				delete(due, s)
			})
		}
	}
}

// TestWheelPrompt: between the looks that next asks for, nothing is
// later than a slot.
func TestWheelPrompt(t *testing.T) {
	var w wheel
	w.init()
	now := int64(time.Hour)
	for _, in := range []time.Duration{0, 1, slotEvery - 1, slotEvery, 10 * slotEvery, time.Minute, time.Hour, 24 * time.Hour} {
		s := &session{}
		at := now + int64(in)
		w.set(s, at)
		fired := false
		for !fired {
			now = max(now, w.next())
			w.advance(now, func(*session) { fired = true })
		}
		if late := now - at; late < 0 || late > slotNs {
			t.Errorf("in %v: late by %v", in, time.Duration(late))
		}
	}
}

func TestBeatQueue(t *testing.T) {
	var q beatQueue
	var list []*session
	random := rand.New(rand.NewPCG(8, 9))
	sessions := make([]*session, 30)
	for i := range sessions {
		sessions[i] = &session{}
	}
	drop := func(s *session) {
		q.remove(s)
		for i, x := range list {
			if x == s {
				list = append(list[:i:i], list[i+1:]...)
				break
			}
		}
	}
	for i := range 5000 {
		s := sessions[random.IntN(len(sessions))]
		drop(s)
		if random.IntN(3) > 0 {
			q.push(s, int64(i+1))
			list = append(list, s)
		}
		var prev *session
		x := q.head
		for _, want := range list {
			if x != want || x.beatPrev != prev || x.beatNs == 0 {
				t.Fatalf("step %d: the queue is not the list", i)
			}
			prev, x = x, x.beatNext
		}
		if x != nil || q.tail != prev {
			t.Fatalf("step %d: the queue goes on behind the list", i)
		}
	}
}

func TestSessionQueue(t *testing.T) {
	var q, other sessionQueue
	a, b, c := &session{}, &session{}, &session{}
	q.push(a)
	q.push(b)
	q.push(c)
	if other.remove(b) {
		t.Error("removed from a queue that it is not in")
	}
	if !q.remove(b) || q.remove(b) || q.head != a || q.tail != c || a.queueNext != c || c.queuePrev != a {
		t.Error("removing the middle")
	}
	if !q.remove(a) || q.head != c || !q.remove(c) || q.head != nil || q.tail != nil {
		t.Error("removing the ends")
	}
}
