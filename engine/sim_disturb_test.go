package engine

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"smss/storage"
)

// disturb does what is rare.
func (s *sim) disturb() {
	switch s.rnd.IntN(10) {
	case 0, 1, 2, 3:
		s.failAfter, s.failFor = s.rnd.IntN(20), 1+s.rnd.IntN(3)
		s.failWith = []error{unix.EIO, unix.ENOSPC, unix.EACCES}[s.rnd.IntN(3)]
		s.did("%d operations fail, %d from now: %v", s.failFor, s.failAfter, s.failWith)
	case 4:
		s.disk.setFree([]int64{0, 1050, 1 << 30}[s.rnd.IntN(3)])
		s.e.checkDisk()
		s.did("%d bytes are free", s.disk.free)
	case 5:
		s.did("empty the trash: %v", s.e.emptyTrash())
	case 6:
		// The janitor is another goroutine. With the writer at rest, and no
		// checkpoint under way, it does not matter how often they are stepped
		// meanwhile.
		for s.e.writer.Step() || s.runSync() || s.checkpoint() {
		}
		s.did("drop orphans")
		s.dropOrphans()
	case 7:
		s.clean()
	case 8:
		s.crash(false)
	default:
		s.crash(true)
	}
}

// crash kills the process, or cuts the power where the level promises anything
// for that, and starts again. Starts may fail, too.
func (s *sim) crash(power bool) {
	power = power && s.cfg.FlushLevel > 0
	if power {
		s.counts.PowerCuts++
		s.cutPower(s.rnd)
	} else {
		s.counts.Kills++
	}
	s.did("crash, power %v", power)
	s.o.crashed(power)
	s.failFor = 0
	if s.rnd.IntN(4) == 0 {
		// The start fails, and what it has done so far must be as good as not
		// done; which operations came first is not for the seed to say.
		op := s.pick([]string{"write", "create", "truncate", "sync", "rename", "mkdir", "commit"})
		s.disk.fail = func(o, _ string) error {
			if o == op {
				return unix.EIO
			}
			return nil
		}
		_, _, err := storage.Open(s.opt)
		s.watch()
		s.did("a start with failing %s fails: %v", op, err != nil)
		if power && s.rnd.IntN(2) == 0 {
			s.cutPower(s.rnd)
		}
	}
	s.open()
	s.started()
}

// clean stops the engine in order and starts again. Whatever was sent is
// answered.
func (s *sim) clean() {
	s.counts.Stops++
	s.did("stop")
	s.failFor = 0
	// Syncer and checkpointer are goroutines here, and no fault is theirs.
	s.disk.fail, s.meta.fail = nil, nil
	w := &s.e.writer
	w.start()
	w.finish()
	for _, l := range s.loops {
		l.stalled = nil // the reactor has stopped: these were never sent
		l.drain()
		if len(l.sent) != 0 {
			s.failf("%d commands of loop %d were not answered by the stop", len(l.sent), l.n)
		}
	}
	if err := s.store.Close(w.nextID, s.e.broken.Load()); err != nil {
		s.failf("close: %v", err)
	}
	s.watch()
	s.o.crashed(false)
	if !s.e.broken.Load() {
		s.o.durable = s.o.acks
	}
	s.open()
	s.started()
}

// rest lets everything go on until nothing moves.
func (s *sim) rest() {
	for idle, n := 0, 0; idle < 3; n++ {
		if n > 100_000 {
			s.failf("it does not come to rest")
		}
		moved := s.e.writer.Step()
		moved = s.runSync() || moved
		moved = s.checkpoint() || moved
		moved = s.readOne() || moved
		for _, l := range s.loops {
			moved = l.drain() || moved
		}
		if idle++; moved {
			idle = 0
		}
	}
	for _, l := range s.loops {
		if len(l.sent)+len(l.stalled)+len(l.reads) > 0 {
			s.failf("loop %d waits for %d answers, %d turns in the ring, %d reads", l.n, len(l.sent), len(l.stalled), len(l.reads))
		}
	}
	if n := s.e.inflight.Load(); n != 0 {
		s.failf("%d bytes are left charged", n)
	}
	for _, u := range s.subs {
		u.checkResting()
	}
}

// finish mends everything, lets all delays fall due and all readers read, and
// compares; then once more after a restart.
func (s *sim) finish() {
	s.failFor = 0
	s.disk.setFree(1 << 40)
	s.did("finish")
	s.rest()
	if s.e.broken.Load() {
		s.crash(true)
	}
	s.e.checkDisk()
	for range 40 {
		for _, u := range s.subs {
			if u.state == subHolding {
				u.pump()
			}
		}
		s.rest()
		s.time.pass(time.Second)
		s.maxMs = max(s.maxMs, s.time.NowMs())
		for s.e.scheduler.step() {
		}
	}
	for holding := true; holding; {
		s.rest()
		holding = false
		for _, u := range s.subs {
			if u.state == subHolding {
				holding = true
				u.pump()
			}
		}
	}
	s.o.check(false)
	s.o.checkFired()
	s.compareSlave()
	for _, u := range s.subs {
		if u.state == subParked && len(u.read.got) != len(s.behind(u)) {
			s.failf("a subscriber of %s from %d has %d messages of %d", u.read.topic, u.from, len(u.read.got), len(s.behind(u)))
		}
	}
	s.clean()
	s.crash(true)
}

// behind returns what a subscriber must have received when nothing is left.
func (s *sim) behind(u *simSub) []got {
	all := s.readFrom(u.sub.Topic, storage.Pos{})
	return slices.DeleteFunc(all, func(g got) bool { return g.id <= u.from })
}
