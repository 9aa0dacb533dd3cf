package engine

import (
	"slices"
)

// simSlave follows the simulated server on a disk of its own that does not
// fail. What it got is never taken back, so that the levels that lose something
// at a power cut, or at a stop of the writing, have none.
type simSlave struct {
	*rig
	stream uint64
}

func (s *sim) newSlave() {
	if s.cfg.FlushLevel != 2 {
		return
	}
	s.copy = &simSlave{rig: newRig(s.t, func(r *rig) {
		slaves(r)
		r.opt.MaxLogSize = s.opt.MaxLogSize
		r.cfg.MinFreeBytes = 0
	})}
	s.copy.fatalf = s.failf
	s.copy.time = s.time
}

// follow lets the slave take a few records, some of them under way at once.
func (s *sim) follow(limit int) (taken int) {
	if s.copy == nil {
		return 0
	}
	at := s.copy.e.LastEventID()
	if at > s.e.LastEventID() {
		s.failf("the slave has event %d, the last one of its master is %d", at, s.e.LastEventID())
	}
	recs := s.recordsBehind(at)
	recs = recs[:min(limit, len(recs))]
	s.copy.stream++
	var cmds []*Command
	for _, raw := range recs {
		cmds = append(cmds, s.copy.replicate(raw, s.copy.stream))
	}
	if len(cmds) > 0 {
		s.copy.ok(cmds...)
	}
	return len(recs)
}

// compareSlave wants the slave to have the master's records, topics and pending
// messages once it has followed to the end.
func (s *sim) compareSlave() {
	if s.copy == nil {
		return
	}
	for s.follow(100) > 0 {
	}
	if have, want := s.copy.recordsBehind(0), s.recordsBehind(0); !slices.EqualFunc(have, want, slices.Equal) {
		s.failf("the slave has %d records, its master %d, or others", len(have), len(want))
	}
	names := s.topicNames()
	if have := s.copy.topicNames(); !slices.Equal(have, names) {
		s.failf("topics of the slave %q, of its master %q", have, names)
	}
	for _, name := range names {
		if have, want := s.copy.read(name), s.read(name); !slices.Equal(have, want) {
			s.failf("topic %s of the slave has %v, of its master %v", name, have, want)
		}
	}
	if s.copy.dropOrphans(); s.copy.meta.pending() != s.meta.pending() {
		s.failf("%d delayed messages are pending on the slave, %d on its master", s.copy.meta.pending(), s.meta.pending())
	}
}
