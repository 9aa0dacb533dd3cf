package replication

import (
	"slices"
	"testing"
	"time"

	"smss/storage"
)

// both runs a test against a master of this project and an existing one.
func both(t *testing.T, run func(t *testing.T, legacy bool)) {
	t.Run("extended", func(t *testing.T) { t.Parallel(); run(t, false) })
	t.Run("existing", func(t *testing.T) { t.Parallel(); run(t, true) })
}

// TestFollow: a slave copies what there is and what comes, says how far it is,
// and goes on behind it after a restart.
func TestFollow(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, legacy bool) {
		u, s := newUpstream(t, legacy)
		u.m.fill()
		s.open("master:1")
		s.same(u.m)
		s.link(LinkStreaming, "")
		if !legacy {
			eventually(t, "it has reported everything", func() bool { return u.reported.Load() == u.m.e.LastEventID() })
		}
		if h := s.saved(); !h.Slave || h.IncompleteFrom != 0 || !legacy && !slices.Equal(h.Epochs, u.m.saved().Epochs) {
			t.Errorf("the slave's history is %+v", h)
		}
		s.stop()
		u.m.pub("t", "meanwhile")
		s.open("master:1")
		s.same(u.m)
	})
}

// TestPlaceBehindAnything: a slave asks for what comes behind its last record
// by that record's first event id, which existing masters know alone, and tells
// one of this project how far it is.
func TestPlaceBehindAnything(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, legacy bool) {
		u, s := newUpstream(t, legacy)
		s.open("master:1")
		for _, step := range []struct {
			what  string
			do    func()
			first int64 // of the step's record, counted from the one before it
		}{
			{"a creation", func() { u.m.publish("t") }, 1},
			{"a message", func() { u.m.pub("t", "m") }, 1},
			{"a batch", func() { u.m.pub("t", "m", "n", "o") }, 1},
			{"a delay", func() { u.m.delay("t", "m", "n") }, 1},
			{"a deletion", func() { u.m.delete("t") }, 1},
		} {
			before := u.m.e.LastEventID()
			step.do()
			s.reaches(u.m)
			s.stop()
			s.open("master:1")
			eventually(t, "it asks again", func() bool {
				u.mu.Lock()
				defer u.mu.Unlock()
				n := len(u.asked)
				return n > 0 && u.asked[n-1] == before+step.first && u.hello[n-1].LastEventID == u.m.e.LastEventID()
			})
			s.link(LinkStreaming, "")
		}
		s.same(u.m)
	})
}

// TestCutStream: a stream that is cut at any of its bytes is gone on with: no
// event is left out, none is applied twice, and nothing begins anew.
func TestCutStream(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, legacy bool) {
		u, s := newUpstream(t, legacy)
		u.m.fill()
		cuts := map[int64]int{}
		u.serve = func(n int, c *downstream) {
			all, _ := u.answer(c.eventID, c.hello)
			greeting := 0
			if !legacy {
				greeting = frameSize(all)
			}
			if len(all) == greeting {
				c.send(all)
				c.hold()
				return
			}
			whole := greeting + frameSize(all[greeting:])
			cut, begun := cuts[c.eventID]
			if !begun && c.eventID != 0 {
				cut = greeting // once in the greeting is enough
			}
			if cuts[c.eventID] = cut + 1; cut > whole {
				t.Errorf("behind event %d: the record was sent before", c.eventID)
			}
			c.send(all[:cut])
		}
		set := s.set
		s.set = func(c *Config) { set(c); c.RetryFirst, c.RetryMax = time.Nanosecond, time.Nanosecond }
		s.open("master:1")
		eventually(t, "it holds everything", func() bool { return s.e.LastEventID() == u.m.e.LastEventID() })
		s.same(u.m)
		u.mu.Lock()
		defer u.mu.Unlock()
		if !slices.IsSorted(u.asked) {
			t.Error("it has asked for events that it had")
		}
		if sent, _ := u.frames(storage.Pos{}); len(u.asked) < len(sent) {
			t.Errorf("%d connections for %d bytes", len(u.asked), len(sent))
		}
	})
}
