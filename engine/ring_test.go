package engine

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// stamped returns a command that carries a producer's number and a count.
func stamped(producer, n int) *Command { return &Command{Messages: n, EventID: int64(producer)} }

func TestRingFullAndEmpty(t *testing.T) {
	r := newRing(4)
	if !r.empty() || r.pop() != nil {
		t.Fatal("a new ring is not empty")
	}
	// Several times round, so that every slot is used at every turn.
	for turn := range 10 {
		for i := range 4 {
			if !r.push(stamped(0, turn*10+i)) {
				t.Fatalf("turn %d: refused at %d of 4", turn, i)
			}
		}
		if r.push(stamped(0, -1)) {
			t.Fatal("a full ring took another")
		}
		for i := range 4 {
			if c := r.pop(); c == nil || c.Messages != turn*10+i {
				t.Fatalf("turn %d: popped %v at %d", turn, c, i)
			}
		}
		if !r.empty() || r.pop() != nil {
			t.Fatal("not empty after everything was popped")
		}
	}
}

func TestRingSizes(t *testing.T) {
	for want, size := range map[int]int{2: 0, 4: 3, 8: 8, 16: 9, 1024: 1000} {
		if got := len(newRing(size).slots); got != want {
			t.Errorf("size %d gives %d slots, want %d", size, got, want)
		}
	}
}

// TestRingHalfFull: pushes and pops take turns at every offset.
func TestRingHalfFull(t *testing.T) {
	r := newRing(8)
	next := 0
	for i := range 1000 {
		if !r.push(stamped(0, i)) {
			t.Fatal("refused")
		}
		if i%8 >= 3 { // three are always inside
			if c := r.pop(); c.Messages != next {
				t.Fatalf("popped %d, want %d", c.Messages, next)
			}
			next++
		}
		for i%8 == 7 && !r.empty() {
			if c := r.pop(); c.Messages != next {
				t.Fatalf("popped %d, want %d", c.Messages, next)
			}
			next++
		}
	}
}

// TestRingClaimedSlotHidesLaterOnes: a producer that has claimed a slot and not
// filled it yet holds up those behind it, it does not let them pass.
func TestRingClaimedSlotHidesLaterOnes(t *testing.T) {
	r := newRing(4)
	pos := r.tail.Load() // what push does, stopped in the middle
	r.tail.Store(pos + 1)
	r.push(stamped(0, 2))
	if !r.empty() || r.pop() != nil {
		t.Fatal("a command passed one that is being pushed")
	}
	r.slots[pos].cmd = stamped(0, 1)
	r.slots[pos].seq.Store(pos + 1)
	if a, b := r.pop(), r.pop(); a.Messages != 1 || b.Messages != 2 {
		t.Fatalf("popped %d and %d", a.Messages, b.Messages)
	}
}

func TestRingPark(t *testing.T) {
	r := newRing(4)
	if !r.park() {
		t.Fatal("park of an empty ring is refused")
	}
	r.push(stamped(0, 1))
	r.push(stamped(0, 2))
	select {
	case <-r.wake:
	default:
		t.Fatal("a push woke nobody")
	}
	select {
	case <-r.wake:
		t.Fatal("two pushes woke twice")
	default:
	}
	if r.park() {
		t.Fatal("park although there is something to take")
	}
	if r.parked.Load() {
		t.Fatal("a refused park has left its announcement")
	}
	r.pop()
	r.pop()
	r.park()
	r.unpark()
	r.push(stamped(0, 3))
	if len(r.wake) != 0 {
		t.Fatal("a push woke a consumer that is awake")
	}
}

// TestRingPingPong: the producer pushes the next one the moment that the last
// one was taken, which is when the consumer is on its way to sleep.
func TestRingPingPong(t *testing.T) {
	const rounds = 50_000
	r := newRing(4)
	var taken atomic.Int64
	go func() {
		for i := range rounds {
			for spins := 0; taken.Load() < int64(i); spins++ {
				if spins%256 == 255 {
					runtime.Gosched()
				}
			}
			r.push(stamped(0, i))
		}
	}()
	timeout := time.NewTimer(30 * time.Second)
	defer timeout.Stop()
	for taken.Load() < rounds {
		if r.pop() != nil {
			// Somewhere in this time the next one comes.
			for range taken.Add(1) % 250 {
				taken.Load()
			}
			continue
		}
		if !r.park() {
			continue
		}
		select {
		case <-r.wake:
		case <-timeout.C:
			t.Fatalf("asleep with %d of %d taken", taken.Load(), rounds)
		}
		r.unpark()
	}
}

// TestRingManyProducers: nothing is lost or taken twice, every producer's order
// is kept, and a consumer that parks is woken. A lost wake-up ends in the
// timeout.
func TestRingManyProducers(t *testing.T) {
	const producers, each = 8, 4000
	r := newRing(16)
	var wg sync.WaitGroup
	for p := range producers {
		wg.Go(func() {
			for i := range each {
				for !r.push(stamped(p, i)) {
					runtime.Gosched()
				}
				if i%64 == p {
					runtime.Gosched() // so that the consumer finds the ring empty and parks
				}
			}
		})
	}
	var next [producers]int
	parks := 0
	timeout := time.NewTimer(20 * time.Second)
	defer timeout.Stop()
	for n := 0; n < producers*each; {
		c := r.pop()
		if c == nil {
			if !r.park() {
				continue
			}
			parks++
			select {
			case <-r.wake:
			case <-timeout.C:
				t.Fatalf("asleep with %d of %d taken", n, producers*each)
			}
			r.unpark()
			continue
		}
		if want := next[c.EventID]; c.Messages != want {
			t.Fatalf("producer %d: got %d, want %d", c.EventID, c.Messages, want)
		}
		next[c.EventID]++
		n++
	}
	wg.Wait()
	if r.pop() != nil {
		t.Fatal("more came out than went in")
	}
	t.Logf("parked %d times", parks)
}
