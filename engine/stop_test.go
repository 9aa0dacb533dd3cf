package engine

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// TestStopAnswersEverything: what is in the ring when the engine stops is
// written, synced where the level promises it, and answered; the goroutines
// end (see TestMain); and the directory opens with everything in it.
func TestStopAnswersEverything(t *testing.T) {
	for lvl := range 3 {
		t.Run(fmt.Sprintf("level%d", lvl), func(t *testing.T) {
			r := newRig(t, level(lvl))
			r.create("t")
			r.e.mono = time.Now
			r.e.scheduler.wait = func() { <-r.e.scheduler.wake }
			r.e.Start()
			var cmds []*Command
			var bodies []string
			for i := range 500 {
				bodies = append(bodies, fmt.Sprint(i))
				cmds = append(cmds, r.pushPublish("t", bodies[i]))
			}
			r.stop()
			left := len(cmds)
			for _, s := range r.drain(0) {
				if c, ok := s.(*Command); ok && slices.Contains(cmds, c) && c.Err == nil {
					left--
				}
			}
			if left != 0 {
				t.Errorf("%d of %d were not answered", left, len(cmds))
			}
			r.want("t", bodies...)
			r.open()
			if r.state.Replayed != 0 {
				t.Errorf("%d events replayed after a clean stop", r.state.Replayed)
			}
			r.want("t", bodies...)
			if last := cmds[len(cmds)-1]; r.state.NextEventID <= last.EventID {
				t.Errorf("next id %d after %d", r.state.NextEventID, last.EventID)
			}
		})
	}
}

// TestStopWithASyncUnderWay: batches that were written while a sync ran are
// synced and answered, too.
func TestStopWithASyncUnderWay(t *testing.T) {
	r := newRig(t, level(2))
	r.create("t")
	r.e.scheduler.wait = func() { <-r.e.scheduler.wake }
	var held atomic.Bool
	release := make(chan struct{})
	r.disk.fail = func(op, _ string) error {
		if op == "sync" && held.CompareAndSwap(false, true) {
			<-release
		}
		return nil
	}
	r.e.Start()
	first := r.pushPublish("t", "1")
	await(t, "the sync begins", held.Load)
	second := r.pushPublish("t", "2")
	await(t, "the second batch is taken", func() bool { return r.e.Stats().Batches >= 3 })
	stopped := make(chan struct{})
	go func() { r.stop(); close(stopped) }()
	select {
	case <-stopped:
		t.Fatal("stopped before what it owes was synced")
	case <-time.After(20 * time.Millisecond):
	}
	close(release)
	<-stopped
	if got := r.drain(0); !slices.Equal(got, []any{first, second}) || first.Err != nil || second.Err != nil {
		t.Errorf("answered %v (%v, %v)", got, first.Err, second.Err)
	}
}

// TestStopInTheMiddleOfFiring: Stop does not leave before the scheduler has
// settled what it has under way, and what was not fired is there for the next
// start.
func TestStopInTheMiddleOfFiring(t *testing.T) {
	r := newRig(t, nil)
	r.create("t")
	var cmds []*Command
	for i := range 2000 {
		cmds = append(cmds, r.pushDelay("t", 1000+int64(i%5), fmt.Sprint(i)))
		if len(cmds) == 500 {
			r.ok(cmds...)
			cmds = nil
		}
	}
	r.e.scheduler.wait = func() { <-r.e.scheduler.wake }
	r.e.scheduler.window = 50
	r.e.Start()
	r.time.pass(2 * time.Second)
	await(t, "some are fired", func() bool { return r.e.Stats().Fired >= 100 })
	r.stop()
	fired := int(r.e.Stats().Fired)
	if out := r.e.scheduler.out; out != 0 {
		t.Errorf("%d commands were still under way", out)
	}
	if n := len(r.read("t")); n != fired || n+r.meta.pending() != 2000 {
		t.Errorf("%d in the topic, %d counted, %d pending", n, fired, r.meta.pending())
	}
	r.open()
	r.e.scheduler.step()
	for r.e.scheduler.step() {
	}
	seen := map[string]int{}
	for _, g := range r.read("t") {
		seen[g.body]++
	}
	for i := range 2000 {
		if n := seen[fmt.Sprint(i)]; n != 1 {
			t.Fatalf("message %d was fired %d times", i, n)
		}
	}
}
