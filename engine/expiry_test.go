package engine

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func (r *rig) topicNames() (names []string) {
	for _, t := range r.e.topics(func(*Topic) bool { return true }) {
		names = append(names, t.Meta.Name)
	}
	return names
}

// TestExpiry: topics are deleted from the millisecond of their end on, also
// those whose end came while the server was down; subscribers are woken.
func TestExpiry(t *testing.T) {
	r := newRig(t, nil)
	r.create("forever")
	r.ok(r.pushCreate("a", 20_000))
	r.ok(r.pushCreate("b", 30_000))
	r.ok(r.pushCreate("c", 15_000)) // earlier than what the scheduler knows
	r.fireAll()
	topic := r.e.Lookup([]byte("c"))
	s := newSub(topic, 1)
	s.Park()
	r.time.pass(14_999 * time.Millisecond)
	r.fireAll()
	if got := r.topicNames(); len(got) != 4 {
		t.Fatalf("a millisecond early: %v are left", got)
	}
	r.time.pass(time.Millisecond)
	r.fireAll()
	if got := r.topicNames(); !slices.Equal(got, []string{"a", "b", "forever"}) {
		t.Fatalf("left: %v", got)
	}
	if got := r.drain(1); !slices.Equal(got, []any{&topic.lanes[1]}) || !topic.Ended() {
		t.Errorf("the subscriber got %v", got)
	}
	r.time.pass(time.Hour)
	r.open()
	r.fireAll()
	if got := r.topicNames(); !slices.Equal(got, []string{"forever"}) {
		t.Errorf("after a restart: %v are left", got)
	}
	if r.e.scheduler.nextEnd != math.MaxInt64 {
		t.Errorf("the next end is %d", r.e.scheduler.nextEnd)
	}
}

// TestExpiryOfMany at once: all go, in one look, and what they cost others is
// a bounded number of commands in the ring.
func TestExpiryOfMany(t *testing.T) {
	for _, lvl := range []int{0, 2} {
		r := newRig(t, func(r *rig) {
			r.cfg.FlushLevel = lvl
			r.cfg.RingSize = 16 // fewer than there are topics
		})
		for i := range 300 {
			r.ok(r.pushCreate(fmt.Sprint("t", i), 10_000))
		}
		r.fireAll()
		r.time.pass(10 * time.Second)
		r.fireAll()
		if got := r.topicNames(); len(got) != 0 {
			t.Errorf("level %d: %d are left", lvl, len(got))
		}
	}
}

// TestExpiryThatFails is tried again with a pause, and the others go.
func TestExpiryThatFails(t *testing.T) {
	r := newRig(t, nil)
	r.ok(r.pushCreate("bad", 10_000))
	r.ok(r.pushCreate("good", 10_000))
	r.fireAll()
	tries := 0
	r.disk.fail = func(op, name string) error {
		if op == "rename" && strings.HasPrefix(name, r.topicDir("bad")) {
			tries++
			return unix.EACCES
		}
		return nil
	}
	r.time.pass(10 * time.Second)
	for range 100 { // 2.5 s
		r.fireAll()
		r.time.pass(tickEvery)
	}
	if got := r.topicNames(); !slices.Equal(got, []string{"bad"}) {
		t.Errorf("left: %v", got)
	}
	if tries != 3 {
		t.Errorf("tried %d times in 2.5 s", tries)
	}
	r.disk.fail = nil
	r.time.pass(time.Second)
	r.fireAll()
	if got := r.topicNames(); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

// TestExpiryClockStepsBack between the scheduler's look and the writer's: the
// topic lives, and ends when its time comes by the clock as it is then.
func TestExpiryClockStepsBack(t *testing.T) {
	r := newRig(t, nil)
	r.ok(r.pushCreate("t", 3_600_000))
	r.fireAll()
	s := &r.e.scheduler
	r.time.nowMs.Add(7_200_000)
	s.wait = func() {
		r.time.nowMs.Add(-7_200_000) // before the writer takes the command
		s.wait = r.turn
		r.turn()
	}
	r.fireAll()
	if got := r.topicNames(); len(got) != 1 {
		t.Fatal("deleted although its life is not over")
	}
	refused := r.e.Stats().Refused
	for range 200 {
		r.time.pass(tickEvery)
		r.fireAll()
	}
	if n := r.e.Stats().Refused; n != refused {
		t.Errorf("%d vain tries within 5 s", n-refused)
	}
	r.time.pass(3_600_000*time.Millisecond - 200*tickEvery - time.Millisecond)
	r.fireAll()
	if got := r.topicNames(); len(got) != 1 {
		t.Fatal("deleted too early")
	}
	r.time.pass(time.Millisecond)
	r.fireAll()
	if got := r.topicNames(); len(got) != 0 {
		t.Error("not deleted at the end of its life")
	}
}
