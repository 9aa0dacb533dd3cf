package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"smss/codec"
)

// promoted gives a slave everything that its master has, and makes it the
// master at the master's time.
func promoted(t *testing.T, m *rig, lvl int) *rig {
	s := slaveOf(m, level(lvl))
	s.t, s.fatalf = t, t.Fatalf
	s.follow(m, 1, 10)
	s.time.nowMs.Store(m.time.NowMs())
	if c := s.ok(s.pushTurn(Master)); c.EventID != m.e.LastEventID() {
		t.Fatalf("promoted behind event %d, the master's last is %d", c.EventID, m.e.LastEventID())
	}
	return s
}

// TestTurn: what was pushed before is done in the old role, what comes after in
// the new one, also where they meet in one batch; and a turn to the role that
// it has changes nothing.
func TestTurn(t *testing.T) {
	r := newRig(t, nil)
	r.create("t")
	before, turn := r.pushPublish("t", "1"), r.pushTurn(Slave)
	p, d := r.pushPublish("t", "2"), r.pushDelay("t", 1000, "3")
	c, x := r.pushCreate("u", 0), r.pushDelete("t")
	sub := r.pushAttach("t", "w", 0)
	r.done(before, turn, p, d, c, x, sub)
	if before.Err != nil || turn.Err != nil || turn.EventID != before.EventID || sub.Err != nil {
		t.Errorf("answers %v, %v (behind %d of %d), %v", before.Err, turn.Err, turn.EventID, before.EventID, sub.Err)
	}
	for cmd, want := range map[*Command]string{
		p: codec.TextMasterPublishes, d: codec.TextMasterPublishes, c: codec.TextMasterManages, x: codec.TextMasterManages,
	} {
		if cmd.Err == nil || cmd.Err.Error() != want {
			t.Errorf("kind %d on a slave: %v", cmd.Kind, cmd.Err)
		}
	}
	if r.e.Role() != Slave || r.e.Role().String() != "slave" {
		t.Errorf("the role is %v", r.e.Role())
	}
	if again := r.ok(r.pushTurn(Slave)); again.EventID != before.EventID {
		t.Errorf("turned again behind %d", again.EventID)
	}
	// A stream that has failed is no reason to refuse one of a later reign.
	m := master(t, nil)
	r.done(r.replicate(m.recordsBehind(0)[0], 1))
	back := r.pushTurn(Master)
	late := r.replicate(m.recordsBehind(before.EventID)[0], 2)
	after := r.pushPublish("t", "4")
	r.done(back, late, after)
	if back.Err != nil || late.Err != errNotSlave || after.Err != nil || after.EventID != before.EventID+1 {
		t.Errorf("answers %v, %v, %v with id %d behind %d", back.Err, late.Err, after.Err, after.EventID, before.EventID)
	}
	r.want("t", "1", "4")
	if r.e.writer.failedStream != 0 {
		t.Error("the failed stream is remembered beyond the reign")
	}
}

// TestTurnLevelTwo: a turn is done when everything before it is safe.
func TestTurnLevelTwo(t *testing.T) {
	r := newRig(t, level(2))
	r.create("t")
	a := r.pushPublish("t", "1")
	r.e.writer.Step()
	turn := r.pushTurn(Slave)
	r.e.writer.Step()
	if got := r.drain(0); len(got) != 0 {
		t.Fatalf("answered before the sync: %v", got)
	}
	r.sync()
	if got := r.drain(0); len(got) < 1 || got[0] != any(a) {
		t.Fatalf("answered %v", got)
	}
	r.sync()
	r.turn()
	if turn.EventID != a.EventID || r.e.LastEventID() != a.EventID {
		t.Errorf("turned behind %d, the binlog ends with %d", turn.EventID, r.e.LastEventID())
	}
}

// TestSlaveRests: on a slave nothing is due. Pending messages stay, lives do
// not end, and a topic whose life is over by the slave's clock is served and
// applied to until its master's event comes.
func TestSlaveRests(t *testing.T) {
	m := newRig(t, nil)
	m.ok(m.pushCreate("short", 20_000))
	m.ok(m.pushDelay("short", 1000, "delayed"))
	m.ok(m.pushPublish("short", "1"))
	s := slaveOf(m, nil)
	s.follow(m, 1, 10)
	s.time.pass(time.Hour)
	s.fireAll()
	if n := s.meta.pending(); n != 1 || s.e.Stats().Refused != 0 {
		t.Errorf("%d delayed messages are pending, the writer was asked %d times", n, s.e.Stats().Refused)
	}
	s.want("short", "1")
	if err := s.done(s.pushAttach("short", "w", 0)).Err; err != nil {
		t.Errorf("a subscriber is refused: %v", err)
	}
	list := &Read{Kind: ListValid}
	if s.e.read(list, nil); len(list.List) != 1 {
		t.Errorf("the list has %d topics", len(list.List))
	}
	m.ok(m.pushPublish("short", "2"))
	s.follow(m, 2, 10)
	s.want("short", "1", "2")
	m.time.pass(2 * time.Second)
	m.fireAll()
	s.follow(m, 3, 10)
	s.want("short", "1", "2", "delayed")
	m.time.pass(20 * time.Second)
	m.fireAll()
	s.follow(m, 4, 10)
	if got := s.topicNames(); len(got) != 0 {
		t.Errorf("topics %q after the master's event", got)
	}
	s.same(m)
}

// TestSlaveAges: stored data of a slave ages by the master's time.
func TestSlaveAges(t *testing.T) {
	m := newRig(t, rolling)
	m.create("t")
	for i := range 5 {
		m.ok(m.pushPublish("t", fmt.Sprint(i)))
		m.time.pass(day)
	}
	s := newRig(t, func(r *rig) { rolling(r); slaves(r) })
	keep := s.store.NewRetention()
	s.time.pass(1000 * day)
	s.e.retain(keep) // it has heard of no time yet
	s.follow(m, 1, 10)
	s.e.retain(keep)
	if n := s.files(s.topicDir("t")); n != 5 {
		t.Errorf("%d files of the topic are left by the slave's own clock", n)
	}
	m.time.pass(3*day + time.Hour) // the first two are older than seven days now
	m.ok(m.pushPublish("t", "5"))
	s.follow(m, 2, 10)
	s.e.retain(keep)
	if n := s.files(s.topicDir("t")); n != 4 {
		t.Errorf("%d files of the topic are left by the master's time", n)
	}
	if s.e.MasterMs() != m.time.NowMs() {
		t.Errorf("the master's time is %d, not %d", s.e.MasterMs(), m.time.NowMs())
	}
	s.ok(s.pushTurn(Master))
	s.e.retain(keep)
	if n := s.files(s.topicDir("t")); n != 1 {
		t.Errorf("%d files are left by the clock of a master", n)
	}
}

// TestPromotion: everything that a slave had received fires once, what had
// fired does not again, and lives end once: after a turn, after a restart as
// master, and after both.
func TestPromotion(t *testing.T) {
	for lvl := range 3 {
		for _, how := range []string{"turn", "restart", "turn restart"} {
			t.Run(fmt.Sprintf("level%d/%s", lvl, how), func(t *testing.T) {
				m := newRig(t, nil)
				m.create("t")
				m.ok(m.pushCreate("short", 30_000))
				m.ok(m.pushDelay("t", 1000, "fired before"))
				for i := range 20 {
					m.ok(m.pushDelay("t", 10_000+int64(i%3), fmt.Sprint("due ", i)))
				}
				m.ok(m.pushDelay("short", 100_000, "too late"))
				m.time.pass(2 * time.Second)
				m.fireAll()
				s := slaveOf(m, level(lvl))
				s.t, s.fatalf = t, t.Fatalf
				s.follow(m, 1, 10)
				s.fireAll()
				s.time.nowMs.Store(m.time.NowMs())
				last := s.e.LastEventID()
				if strings.Contains(how, "turn") {
					s.ok(s.pushTurn(Master))
					s.fireAll()
				}
				if strings.Contains(how, "restart") {
					s.cfg.Role = Master
					s.open()
					s.fireAll()
				}
				s.want("t", "fired before")
				s.time.pass(10 * time.Second)
				s.fireAll()
				s.fireAll()
				got := s.read("t")
				seen := map[string]int{}
				for _, g := range got {
					seen[g.body]++
				}
				if len(got) != 21 || len(seen) != 21 || got[1].id <= last {
					t.Fatalf("fired: %v, the master's last event was %d", got, last)
				}
				s.time.pass(20 * time.Second)
				s.fireAll()
				s.fireAll()
				if got := s.topicNames(); !slices.Equal(got, []string{"t"}) {
					t.Errorf("topics %q", got)
				}
				deletes := 0
				for _, raw := range s.recordsBehind(last) {
					var rec codec.BinlogRecord
					if _, err := codec.ParseBinlogRecord(raw, len(raw), &rec); err != nil {
						t.Fatal(err)
					}
					if rec.Command == codec.DeleteTopic {
						deletes++
					}
				}
				if deletes != 1 {
					t.Errorf("%d deletions are recorded", deletes)
				}
				s.dropOrphans()
				if n := s.meta.pending(); n != 0 {
					t.Errorf("%d delayed messages are pending", n)
				}
			})
		}
	}
}

// TestDemotion: what a master has armed rests once it is a slave, also what is
// on its way through the ring.
func TestDemotion(t *testing.T) {
	r := newRig(t, nil)
	r.create("t")
	r.ok(r.pushCreate("short", 10_000))
	r.ok(r.pushDelay("t", 1000, "x"))
	r.fireAll()
	r.time.pass(time.Minute)
	// The scheduler has pushed its commands when the role changes before them.
	turn := r.pushTurn(Slave)
	r.fireAll()
	if r.done(turn); r.e.Role() != Slave {
		t.Fatal("no slave")
	}
	r.want("t")
	if got := r.topicNames(); len(got) != 2 || r.meta.pending() != 1 {
		t.Errorf("topics %q, %d pending", got, r.meta.pending())
	}
	r.time.pass(time.Minute)
	r.fireAll()
	r.want("t")
	r.ok(r.pushTurn(Master))
	r.time.pass(retryMax)
	r.fireAll()
	r.want("t", "x")
	if got := r.topicNames(); !slices.Equal(got, []string{"t"}) {
		t.Errorf("topics %q", got)
	}
}

// TestReignsInTurn: two servers that are each other's master by turns end with
// the same bytes.
func TestReignsInTurn(t *testing.T) {
	a := master(t, nil)
	b := promoted(t, a, 0)
	for i := range 4 {
		b.fireAll()
		b.ok(b.pushPublish("a", fmt.Sprint("reign ", i)), b.pushDelay("a", 1000, fmt.Sprint("delayed in reign ", i)))
		if i%2 == 0 {
			b.time.pass(time.Second)
			b.fireAll()
		}
		a.ok(a.pushTurn(Slave))
		a.follow(b, uint64(10+i), 3)
		a.same(b)
		a.time.nowMs.Store(b.time.NowMs())
		b.ok(b.pushTurn(Slave))
		a.ok(a.pushTurn(Master))
		a, b = b, a
	}
	b.time.pass(time.Second)
	b.fireAll()
	a.follow(b, 20, 3)
	a.same(b)
	for i := range 4 {
		n := 0
		for _, g := range b.read("a") {
			if g.body == fmt.Sprint("delayed in reign ", i) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("the delayed message of reign %d is there %d times", i, n)
		}
	}
}
