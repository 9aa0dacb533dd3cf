package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smss/storage"
)

// fireAll steps the scheduler until it has nothing more to do at once. Stepping
// it steps the writer, too: see rig.turn.
func (r *rig) fireAll() {
	r.t.Helper()
	for n := 0; r.e.scheduler.step(); n++ {
		if n > 10_000 {
			r.t.Fatal("the scheduler does not come to rest")
		}
	}
}

// delays stores delayed messages that are due inMs from now, named after their
// order of publication.
func (r *rig) delays(topic string, inMs ...int64) {
	r.t.Helper()
	var cmds []*Command
	for i, ms := range inMs {
		cmds = append(cmds, r.pushDelay(topic, ms, fmt.Sprintf("%d+%d", ms, i)))
		if len(cmds) == 500 || i == len(inMs)-1 {
			r.ok(cmds...)
			for _, c := range cmds {
				r.pool.Put(c)
			}
			cmds = cmds[:0]
		}
	}
}

// TestFireOrder: by time, then by id, whatever the window and wherever it ends;
// nothing a millisecond early.
func TestFireOrder(t *testing.T) {
	for _, window := range []int{1, 2, 3, 7, fireWindow} {
		for _, lvl := range []int{0, 2} {
			r := newRig(t, level(lvl))
			r.e.scheduler.window = window
			r.create("t")
			// Keys are not stored in the order of their ids, which shows from
			// 256 on.
			r.e.writer.nextID = 200
			r.fireAll()
			rnd := rand.New(rand.NewPCG(1, uint64(window)))
			var in []int64
			for range 200 {
				// Few different milliseconds: more than a window in each.
				in = append(in, 1000+rnd.Int64N(8))
			}
			r.delays("t", in...)
			var want []string
			for ms := int64(1000); ms < 1008; ms++ {
				for i, at := range in {
					if at == ms {
						want = append(want, fmt.Sprintf("%d+%d", ms, i))
					}
				}
			}
			r.time.nowMs.Add(999)
			r.fireAll()
			if got := r.read("t"); len(got) != 0 {
				t.Fatalf("window %d: %v is early", window, got[0].body)
			}
			for at := int64(1000); at <= 1008; at++ {
				r.time.nowMs.Add(1)
				r.fireAll()
				n, _ := slices.BinarySearchFunc(want, at, func(body string, at int64) int {
					var ms int64
					fmt.Sscanf(body, "%d+", &ms)
					if ms <= at {
						return -1
					}
					return 1
				})
				if got := len(r.read("t")); got != n {
					t.Fatalf("window %d, %d ms: %d fired, want %d", window, at, got, n)
				}
			}
			r.want("t", want...)
			if n := r.meta.pending(); n != 0 {
				t.Errorf("window %d: %d are left stored", window, n)
			}
		}
	}
}

// TestFireAfterDowntime: what fell due while the server was down is fired at
// the start, in the same order.
func TestFireAfterDowntime(t *testing.T) {
	r := newRig(t, nil)
	r.create("t")
	r.delays("t", 3000, 1000, 2000, 1000, 60_000)
	r.time.nowMs.Add(5000)
	r.open()
	r.fireAll()
	r.want("t", "1000+1", "1000+3", "2000+2", "3000+0")
	r.time.nowMs.Add(55_000)
	r.fireAll()
	r.want("t", "1000+1", "1000+3", "2000+2", "3000+0", "60000+4")
}

// TestClockSteps: a step forward is noticed by the next tick; a step back
// neither fires early nor holds up what is published after it.
func TestClockSteps(t *testing.T) {
	r := newRig(t, nil)
	r.create("t")
	r.delays("t", 10_000, 3_600_000)
	r.fireAll()
	r.time.nowMs.Add(7_200_000)
	r.fireAll() // one tick
	r.want("t", "10000+0", "3600000+1")
	r.time.nowMs.Add(-7_200_000)
	r.fireAll()
	r.delays("t", 1000)
	r.fireAll()
	r.time.nowMs.Add(999)
	r.fireAll()
	if got := r.read("t"); len(got) != 2 {
		t.Fatalf("fired early: %v", got)
	}
	r.time.nowMs.Add(1)
	r.fireAll()
	r.want("t", "10000+0", "3600000+1", "1000+0")
	// To 1970 and back.
	now := r.time.NowMs()
	r.delays("t", 5000)
	r.time.nowMs.Store(0)
	r.fireAll()
	r.time.nowMs.Store(now + 5000)
	r.fireAll()
	r.want("t", "10000+0", "3600000+1", "1000+0", "5000+0")
}

// TestClockStepsBackWhileFailing: a pause after a failure is no time of day. It
// lasts as long as it lasts, also where the clock steps back meanwhile.
func TestClockStepsBackWhileFailing(t *testing.T) {
	r := newRig(t, nil)
	r.create("t")
	r.delays("t", 1000, 1500, 10_000)
	r.time.nowMs.Add(60_000)
	r.meta.fail = func(op string) error {
		if op == "scan" {
			return errors.New("cannot be read now")
		}
		return nil
	}
	r.fireAll() // finds that they cannot be read
	r.meta.fail = nil
	r.time.nowMs.Add(-58_500)
	r.time.mono.Add(int64(retryFirst))
	r.fireAll()
	r.want("t", "1000+0", "1500+1")
}

// TestFailingTopicPauses: a topic whose messages cannot be written is tried
// again with growing pauses; the others go on meanwhile and nothing fires
// twice.
func TestFailingTopicPauses(t *testing.T) {
	r := newRig(t, nil)
	r.create("bad", "good")
	r.delays("bad", 1000, 1001)
	r.delays("good", 1000, 2000)
	tries := 0
	broken := failing(r.topicDir("bad"), "write create", unix.EACCES)
	r.disk.fail = func(op, name string) error {
		err := broken(op, name)
		if err != nil && op == "create" {
			tries++
		}
		return err
	}
	r.time.pass(1000 * time.Millisecond)
	r.fireAll()
	r.want("good", "1000+0")
	var pauses []time.Duration
	last, seen := r.time.mono.Load(), tries
	for range 60_000 / 25 {
		r.time.pass(tickEvery)
		r.fireAll()
		if tries > seen {
			seen = tries
			pauses = append(pauses, time.Duration(r.time.mono.Load()-last))
			last = r.time.mono.Load()
		}
		if len(pauses) == 1 && r.time.NowMs()-1_700_000_000_000 > 2100 {
			r.want("good", "1000+0", "2000+1") // on its time although the other one pauses
		}
	}
	want := []time.Duration{1, 2, 4, 8, 10, 10, 10, 10}
	if len(pauses) < 7 {
		t.Fatalf("tried again after %v", pauses)
	}
	for i, p := range pauses {
		if most := want[i]*time.Second + lookAgain + tickEvery; p < want[i]*time.Second || p > most {
			t.Errorf("pause %d is %v, want %v", i, p, want[i]*time.Second)
		}
	}
	r.disk.fail = nil
	for range 12_000 / 25 {
		r.time.pass(tickEvery)
		r.fireAll()
	}
	r.want("bad", "1000+0", "1001+1")
	r.want("good", "1000+0", "2000+1")
	if len(r.e.scheduler.paused) != 0 {
		t.Error("a topic that works is paused")
	}
}

// TestLowDiskHoldsFiring: delayed messages wait for space as publishes do, and
// go on by themselves.
func TestLowDiskHoldsFiring(t *testing.T) {
	r := newRig(t, nil)
	r.create("t")
	r.delays("t", 1000)
	r.e.lowDisk.Store(true)
	r.time.pass(time.Second)
	r.fireAll()
	if got := r.read("t"); len(got) != 0 {
		t.Fatal("fired onto a full disk")
	}
	r.e.lowDisk.Store(false)
	for range 50 {
		r.time.pass(tickEvery)
		r.fireAll()
	}
	r.want("t", "1000+0")
}

// TestDelayDamagedInTheMetadata: a payload that is no delayed message is taken
// from the binlog instead.
func TestDelayDamagedInTheMetadata(t *testing.T) {
	r := newRig(t, nil)
	r.create("t")
	r.delays("t", 1000, 1000)
	keys := r.meta.pendingKeys()
	if len(keys) != 2 {
		t.Fatalf("%d delayed messages are pending", len(keys))
	}
	for _, k := range keys {
		r.meta.set(delayKey(k), "short")
	}
	r.time.pass(time.Second)
	r.fireAll()
	r.want("t", "1000+0", "1000+1")
}

// TestDamagedDelay: a payload that is no delayed message, and that the binlog
// does not hold either, stays where it is and is reported once; its neighbours
// fire.
func TestDamagedDelay(t *testing.T) {
	r := newRig(t, nil)
	r.create("t")
	r.delays("t", 1000, 1000)
	keys := r.meta.pendingKeys()
	good, _ := r.meta.get(delayKey(keys[0]))
	unknown := storage.DelayKey{TriggerAtMs: keys[0].TriggerAtMs, EventID: 999, Topic: "t"}
	for i, damaged := range []string{"", "short", good[:len(good)-1], good[:delayRoom] + "\xff" + good[delayRoom+1:]} {
		if i > 0 {
			r.open() // which also forgets what was parked
		}
		r.meta.put(delayKey(unknown), damaged)
		r.time.pass(time.Second)
		r.notes = nil
		for range 4 {
			r.fireAll()
			r.time.pass(time.Second)
		}
		r.want("t", "1000+0", "1000+1")
		n := 0
		for _, note := range r.notes {
			if strings.Contains(note, "damaged") {
				n++
			}
		}
		if n != 1 || r.meta.pending() != 1 {
			t.Errorf("%q: reported %d times, %d stored", damaged, n, r.meta.pending())
		}
	}
}

// TestManyDamagedDelays: more of them than are remembered do not make the
// scheduler spin, and what is good within its window fires. A window full of
// them stops the queue.
func TestManyDamagedDelays(t *testing.T) {
	for window, want := range map[int][]string{fireWindow: {"1000+0"}, 5: nil} {
		r := newRig(t, nil)
		r.e.scheduler.window = window
		r.create("t")
		r.delays("t", 1000)
		for i := range int64(parkedMax + 10) {
			r.meta.put(delayKey(storage.DelayKey{TriggerAtMs: r.time.NowMs() + 500, EventID: i, Topic: "t"}), "damaged")
		}
		r.time.pass(time.Second)
		for range 5 {
			r.fireAll()
			r.time.pass(lookAgain)
		}
		r.want("t", want...)
		if n := len(r.e.scheduler.parked); n != parkedMax {
			t.Errorf("window %d: %d are remembered", window, n)
		}
	}
}

// TestRecreatedTopicGetsNothing of its former life: neither what is due before
// the janitor comes, nor what it finds.
func TestRecreatedTopicGetsNothing(t *testing.T) {
	for _, restart := range []bool{false, true} {
		r := newRig(t, nil)
		r.create("t", "u")
		r.delays("t", 1000, 50_000)
		r.delays("u", 2000)
		r.ok(r.pushDelete("t"))
		r.create("t")
		r.delays("t", 3000)
		r.ok(r.pushDelete("u"))
		if restart {
			r.open()
		}
		r.time.pass(3 * time.Second)
		r.fireAll()
		r.want("t", "3000+0")
		if n := r.meta.pending(); n != 1 {
			t.Errorf("%d are left stored, want the one that is not due", n)
		}
		if st := r.e.Stats(); st.Fired != 1 {
			t.Errorf("%d count as fired", st.Fired)
		}
		r.create("u")
		r.time.pass(time.Minute)
		r.fireAll()
		r.want("t", "3000+0")
		r.want("u")
		if n := r.meta.pending(); n != 0 {
			t.Errorf("%d are left stored", n)
		}
	}
}

// TestFireWindowBounds: with very many pending delayed messages the scheduler
// reads a window of keys, not all of them, and holds no more than that.
func TestFireWindowBounds(t *testing.T) {
	r := newRig(t, nil)
	r.create("t")
	r.e.scheduler.window = 100
	var in []int64
	for i := range int64(5000) {
		in = append(in, 1000+i%2000)
	}
	r.delays("t", in...)
	r.fireAll()
	if r.meta.scanned > 2 {
		t.Errorf("%d keys were looked at with none due", r.meta.scanned)
	}
	s := &r.e.scheduler
	r.time.nowMs.Add(5000) // all are due
	s.step()               // the writer has told of them
	for range 5 {
		before := r.meta.scanned
		keys, left, err := s.due(r.time.NowMs())
		if err != nil || len(keys) != 100 || cap(keys) > 300 || left > r.time.NowMs() {
			t.Fatalf("a look found %d keys (room for %d), left %d, %v", len(keys), cap(keys), left, err)
		}
		if n := r.meta.scanned - before; n > 100+2*3 {
			t.Errorf("%d keys were looked at for a window of 100", n)
		}
		s.step()
	}
	r.fireAll()
	if n := len(r.read("t")); n != 5000 {
		t.Errorf("%d of 5000 fired", n)
	}
	if n := len(s.pool.free); n > 200 {
		t.Errorf("the scheduler keeps %d commands", n)
	}
}

// TestFireBytesBound: large messages go through the ring a few at a time.
func TestFireBytesBound(t *testing.T) {
	r := newRig(t, func(r *rig) { r.opt.MaxLogSize = 1 << 30 })
	r.create("t")
	big := strings.Repeat("x", 1<<20)
	for range 6 {
		r.ok(r.pushDelay("t", 1000, big))
	}
	r.time.pass(time.Second)
	most := int64(0)
	r.e.scheduler.wait = func() {
		most = max(most, r.e.inflight.Load())
		r.turn()
	}
	r.fireAll()
	if n := len(r.read("t")); n != 6 {
		t.Errorf("%d of 6 fired", n)
	}
	if most > fireBytes || most < fireBytes/2 {
		t.Errorf("%d bytes were under way at once", most)
	}
}

// TestUnreadablePayload: one message that cannot be read now is tried again.
func TestUnreadablePayload(t *testing.T) {
	r := newRig(t, nil)
	r.create("t")
	r.delays("t", 1000)
	r.time.pass(time.Second)
	r.meta.fail = func(op string) error {
		if op == "payload" {
			return unix.EIO
		}
		return nil
	}
	r.fireAll()
	r.meta.fail = nil
	r.time.pass(lookAgain)
	r.fireAll()
	r.want("t", "1000+0")
}
