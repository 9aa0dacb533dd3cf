package engine

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"smss/storage"
)

// waitFor sets a rig up whose replies wait for n slaves.
func waitFor(n int, more ...func(*rig)) func(*rig) {
	return func(r *rig) {
		r.cfg.MinAcks, r.cfg.AckTimeout = n, time.Second
		for _, set := range more {
			set(r)
		}
	}
}

func refusing(r *rig) { r.cfg.RequireAcks = true }

// slave connects one of this project that holds everything.
func (r *rig) slave(node string) *Replica {
	r.t.Helper()
	s := &Replica{Waiter: Waiter{Mailbox: r.cfg.Mailboxes[0]}, Extended: true, Node: node}
	s.Pos = r.e.binlog.End()
	if !r.e.AddReplica(s, r.e.LastEventID(), ReplicasMax) {
		r.t.Fatal("there is no room for a slave")
	}
	return s
}

// holds lets slaves report that they hold everything up to id, which was sent.
func (r *rig) holds(id int64, slaves ...*Replica) {
	r.reads(id, r.e.binlog.End(), slaves...)
}

// reads does the same with the place up to which it has read.
func (r *rig) reads(id int64, end storage.Pos, slaves ...*Replica) {
	for _, s := range slaves {
		s.Moved(&storage.Push{Next: end, LastID: max(id, s.Sent())})
		r.e.Acked(s, id)
	}
}

// waits lets the writer write cmd, and wants nothing to be told of it.
func (r *rig) waits(cmd *Command) *Command {
	r.t.Helper()
	for range 3 {
		r.turn()
	}
	if got := r.drain(0); len(got) != 0 {
		r.t.Fatalf("answered before any slave holds it: %v", got)
	}
	return cmd
}

// answers wants exactly these commands to be answered now, in this order.
func (r *rig) answers(cmds ...*Command) {
	r.t.Helper()
	r.turn()
	var got, want []any
	for _, s := range r.drain(0) {
		if c, ok := s.(*Command); ok {
			got = append(got, c)
		}
	}
	for _, c := range cmds {
		want = append(want, c)
	}
	if !slices.Equal(got, want) {
		r.t.Fatalf("answered %v, want %v", got, want)
	}
}

// confirmed lets cmd be written, held by slaves and answered.
func (r *rig) confirmed(cmd *Command, slaves ...*Replica) *Command {
	r.t.Helper()
	r.holds(r.waits(cmd).EventID, slaves...)
	r.answers(cmd)
	return cmd
}

// lapse lets a publish wait in vain.
func (r *rig) lapse(topic string) {
	r.t.Helper()
	c := r.waits(r.pushPublish(topic, "lapse"))
	r.time.pass(r.cfg.AckTimeout)
	r.answers(c)
	if c.Err != nil {
		r.t.Fatal(c.Err)
	}
}

const (
	notedLapse  = "slaves did not confirm in time (replication.ackTimeoutMs): replies do not wait for them until they have caught up"
	notedReturn = "slaves confirm in time again: replies wait for them"
)

// TestAcks: slaves get an event at once; its reply, and subscribers, only when
// a slave holds it. Replies keep their order, those that wait for nothing
// included.
func TestAcks(t *testing.T) {
	for lvl := range 3 {
		t.Run(fmt.Sprintf("level%d", lvl), func(t *testing.T) {
			r := newRig(t, waitFor(1, level(lvl)))
			s := r.slave("s")
			c := r.waits(r.pushCreate("t", 0))
			if r.e.Lookup([]byte("t")) != nil {
				t.Fatal("the topic is there before a slave holds it")
			}
			r.holds(c.EventID, s)
			r.answers(c)

			topic := r.e.Lookup([]byte("t"))
			sub := newSub(topic, 1)
			if !sub.Park() {
				t.Fatal("there is something to read")
			}
			end := r.e.binlog.End()
			one := r.waits(r.pushPublish("t", "1"))
			two := r.waits(r.pushPublish("t", "2", "3"))
			none := r.waits(r.pushPublish("none", "4"))
			attach := r.waits(r.pushAttach("t", "w", 0))
			if !end.Before(r.e.binlog.End()) || r.e.LastEventID() != two.EventID+1 {
				t.Error("slaves cannot have it, so that nothing will ever confirm it")
			}
			if topic.End() != (storage.Pos{}) || len(r.drain(1)) != 0 {
				t.Error("subscribers see what no slave holds")
			}
			r.holds(one.EventID-1, s)
			r.answers()
			r.holds(one.EventID, s)
			r.answers(one)
			r.want("t", "1")
			if got := r.drain(1); !slices.Equal(got, []any{&topic.lanes[1]}) {
				t.Errorf("the subscriber got %v", got)
			}
			r.holds(two.EventID, s)
			r.answers() // a half of it
			r.holds(two.EventID+1, s)
			r.answers(two, none, attach)
			r.want("t", "1", "2", "3")
			if none.Err != ErrTopicNotExist || attach.Err != nil {
				t.Errorf("answers %v and %v", none.Err, attach.Err)
			}
			// With nothing before it a refusal waits for nobody.
			r.answers(r.pushPublish("none", "5"))
			if st := r.e.Stats(); st.AckWaits < 3 || st.AckTimeouts != 0 || st.InflightBytes != 0 {
				t.Errorf("counted: %+v", st)
			}
			if w := &r.e.writer; w.ackPause() < time.Minute || len(w.acks.waiting) != 0 {
				t.Errorf("with nothing waiting the writer wakes after %v", w.ackPause())
			}
		})
	}
}

// TestAcksLevelTwo: the sync comes first; a slave that is faster than it does
// not make anything true.
func TestAcksLevelTwo(t *testing.T) {
	r := newRig(t, waitFor(1, level(2)))
	s := r.slave("s")
	c := r.pushCreate("t", 0)
	r.e.writer.Step()
	end := r.e.binlog.End()
	r.e.Acked(s, c.EventID) // of what was not sent
	r.e.writer.Step()
	if len(r.drain(0)) != 0 || r.e.binlog.End() != end || s.AckedID() != 0 {
		t.Fatal("something is true before the sync")
	}
	r.sync()
	r.answers()
	r.holds(c.EventID, s)
	r.answers(c)
}

// TestAcksOfMany: as many slaves as were asked for. One that has two
// connections counts once, existing slaves do not count, and one that leaves is
// missed.
func TestAcksOfMany(t *testing.T) {
	r := newRig(t, waitFor(2))
	a, b := r.slave("a"), r.slave("b")
	twin := r.slave("a")
	old := r.slave("")
	r.e.RemoveReplica(old)
	old.Extended = false
	if !r.e.AddReplica(old, 0, ReplicasMax) {
		t.Fatal("no room")
	}
	c := r.waits(r.pushCreate("t", 0))
	r.holds(c.EventID, a, twin, old)
	r.answers()
	r.holds(c.EventID, b)
	r.answers(c)

	d := r.waits(r.pushPublish("t", "1"))
	r.holds(d.EventID, a, b)
	r.e.RemoveReplica(b)
	r.answers()
	// It comes back, and has it: AddReplica alone lets the reply go.
	b = r.slave("b")
	r.answers(d)
	r.e.RemoveReplica(a)
	r.e.RemoveReplica(twin)
	e := r.waits(r.pushPublish("t", "2"))
	r.holds(e.EventID, b)
	r.answers()
	r.time.pass(time.Second)
	r.answers(e)
	if e.Err != nil {
		t.Error(e.Err)
	}
}

// TestAckTimeout: after the timeout the reply leaves all the same, and later
// ones do not wait, until slaves confirm in time again: with nothing more to
// do, or under load that never lets them have everything.
func TestAckTimeout(t *testing.T) {
	for lvl := range 3 {
		t.Run(fmt.Sprintf("level%d", lvl), func(t *testing.T) {
			r := newRig(t, waitFor(1, level(lvl)))
			s := r.slave("s")
			r.confirmed(r.pushCreate("t", 0), s)
			one := r.waits(r.pushPublish("t", "1"))
			r.time.pass(600 * time.Millisecond)
			two := r.waits(r.pushPublish("t", "2"))
			r.time.pass(399 * time.Millisecond)
			r.answers()
			if p := r.e.writer.pause(); p > 2*time.Millisecond {
				t.Errorf("the writer sleeps for %v with a reply that is late in a millisecond", p)
			}
			r.time.pass(time.Millisecond)
			r.answers(one, two) // the second one is not late, but who would it wait for
			r.want("t", "1", "2")
			if st := r.e.Stats(); st.AckTimeouts != 1 || !r.noted(notedLapse) {
				t.Errorf("%d timeouts counted, noted %q", st.AckTimeouts, r.notes)
			}
			three := r.pushPublish("t", "3")
			if r.done(three); three.Err != nil {
				t.Fatal(three.Err)
			}
			if n := r.e.Stats().AckTimeouts; n != 1 {
				t.Errorf("%d timeouts", n)
			}
			r.time.pass(2 * time.Second)
			r.holds(two.EventID, s)
			r.answers()
			if r.noted(notedReturn) {
				t.Fatal("it does not hold what it was sent two seconds ago")
			}
			r.time.pass(time.Hour) // it has caught up, though late
			r.holds(three.EventID, s)
			r.answers()
			if !r.noted(notedReturn) {
				t.Fatal("not noted that slaves confirm again")
			}
			r.confirmed(r.pushPublish("t", "4"), s)

			// Under load: there is always one more under way.
			r.lapse("t")
			r.notes = nil
			last := r.ok(r.pushPublish("t", "load"))
			for i := 0; !r.noted(notedReturn); i++ {
				if i == 30 {
					t.Fatal("under load replies never wait again")
				}
				next := r.pushPublish("t", "load")
				r.turn()
				r.holds(last.EventID, s)
				r.time.pass(100 * time.Millisecond)
				r.turn()
				last = next
			}
			// One that stays behind by more than the timeout does not count.
			r.drain(0)
			r.holds(r.e.LastEventID(), s)
			r.turn()
			r.drain(0)
			r.lapse("t")
			r.notes = nil
			lag := []int64{r.e.LastEventID()}
			for range 40 {
				lag = append(lag, r.ok(r.pushPublish("t", "load")).EventID)
				r.time.pass(100 * time.Millisecond)
				if len(lag) > 15 {
					r.holds(lag[len(lag)-15], s)
				}
				r.turn()
			}
			if r.noted(notedReturn) {
				t.Error("replies wait for a slave that is too slow")
			}
		})
	}
}

// TestAckRefuse: with onAckTimeout refuse nothing is taken while there are too
// few slaves, and what no slave has confirmed in time is an error that says
// that it is stored. It is: a delayed message fires.
func TestAckRefuse(t *testing.T) {
	r := newRig(t, waitFor(1, refusing))
	r.wantErr(r.pushCreate("t", 0), errTooFewSlaves.Text)
	if n := r.e.writer.nextID; r.e.LastEventID() != 0 || r.e.binlog.End() != (storage.Pos{}) {
		t.Fatalf("something was written, the next id is %d", n)
	}
	s := r.slave("s")
	r.confirmed(r.pushCreate("t", 0), s)
	r.fireAll()

	p, d := r.pushPublish("t", "kept"), r.pushDelay("t", 5000, "delayed")
	none := r.pushPublish("none", "x")
	r.waits(p)
	n := r.waits(r.pushCreate("n", 30_000))
	r.time.pass(time.Second)
	r.answers(p, d, none, n)
	for _, cmd := range []*Command{p, d, n} {
		if cmd.Err != errNotAcked {
			t.Errorf("kind %d: %v", cmd.Kind, cmd.Err)
		}
	}
	if none.Err != ErrTopicNotExist {
		t.Errorf("a refused one: %v", none.Err)
	}
	if st := r.e.Stats(); st.AckTimeouts != 2 || r.noted(notedLapse) {
		t.Errorf("%d timeouts counted, noted %q", st.AckTimeouts, r.notes)
	}
	r.want("t", "kept")
	// The next one waits again.
	q := r.confirmed(r.pushPublish("t", "next"), s)
	if q.Err != nil {
		t.Error(q.Err)
	}
	r.e.RemoveReplica(s)
	r.wantErr(r.pushPublish("t", "x"), errTooFewSlaves.Text)
	r.wantErr(r.pushDelay("t", 1000, "x"), errTooFewSlaves.Text)
	r.wantErr(r.pushDelete("t"), errTooFewSlaves.Text)
	if err := r.done(r.pushAttach("t", "w", 0)).Err; err != nil {
		t.Errorf("a subscriber is refused: %v", err)
	}
	// What the clock brings is nobody's request.
	r.cfg.Mailboxes[0].Drain(func(*Note) {})
	r.time.pass(5 * time.Second)
	r.e.scheduler.wait = func() { r.time.pass(time.Second); r.turn() }
	r.fireAll()
	r.want("t", "kept", "next", "delayed")
	r.time.pass(time.Minute)
	r.fireAll()
	if r.e.Lookup([]byte("n")) != nil {
		t.Error("a topic whose CREATE was not confirmed lives for ever")
	}
}

// TestStopWithWaitingReplies: they are published and answered, whatever the
// level, and the directory opens with everything in it.
func TestStopWithWaitingReplies(t *testing.T) {
	for lvl := range 3 {
		t.Run(fmt.Sprintf("level%d", lvl), func(t *testing.T) {
			r := newRig(t, waitFor(1, level(lvl), func(r *rig) { r.cfg.AckTimeout = time.Hour }))
			s := r.slave("s")
			c := r.confirmed(r.pushCreate("t", 0), s)
			r.e.mono = time.Now
			r.e.scheduler.wait = func() { <-r.e.scheduler.wake }
			r.e.Start()
			a := r.pushPublish("t", "1")
			await(t, "the first is written", func() bool { return r.e.LastEventID() == c.EventID+1 })
			b := r.pushPublish("t", "2")
			r.stop()
			if got := r.drain(0); !slices.Equal(got, []any{a, b}) || a.Err != nil || b.Err != nil {
				t.Errorf("answered %v (%v, %v)", got, a.Err, b.Err)
			}
			if n := r.e.Stats().InflightBytes; n != 0 {
				t.Errorf("%d bytes are charged and not given back", n)
			}
			r.open()
			r.want("t", "1", "2")
		})
	}
}

// TestAckBeforeSleep: an acknowledgement that comes after the writer's last look
// and before it announces that it sleeps wakes nobody, and is seen all the same.
func TestAckBeforeSleep(t *testing.T) {
	r := newRig(t, waitFor(1))
	s, w := r.slave("s"), &r.e.writer
	if !w.maySleep() {
		t.Fatal("there is nothing to do")
	}
	w.e.ring.unpark()
	c := r.waits(r.pushCreate("t", 0))
	if !w.maySleep() {
		t.Fatal("nobody has confirmed")
	}
	w.e.ring.unpark()
	r.holds(c.EventID, s)
	if w.maySleep() {
		t.Fatal("the writer sleeps on a reply that may go")
	}
	r.answers(c)
	if !w.maySleep() {
		t.Fatal("nothing is left to do")
	}
	// One that sleeps already is woken.
	d := r.pushPublish("t", "1")
	<-w.e.ring.wake
	r.waits(d)
	if !w.maySleep() {
		t.Fatal("nobody has confirmed")
	}
	r.holds(d.EventID, s)
	select {
	case <-w.e.ring.wake:
	default:
		t.Fatal("the acknowledgement has not woken the writer")
	}
	r.answers(d)
}

// TestAckWakesTheWriter is the same with goroutines: with a timeout of an hour
// a wake-up that is lost hangs.
func TestAckWakesTheWriter(t *testing.T) {
	for _, lvl := range []int{0, 2} {
		t.Run(fmt.Sprintf("level%d", lvl), func(t *testing.T) {
			r := newRig(t, waitFor(1, level(lvl), func(r *rig) { r.cfg.AckTimeout = time.Hour }))
			r.e.mono = time.Now
			r.e.scheduler.wait = func() { <-r.e.scheduler.wake }
			moved := make(chan struct{}, 1)
			r.cfg.Mailboxes[1] = NewMailbox(func() { moved <- struct{}{} })
			s := r.slave("s")
			s.Loop, s.Session = 1, s
			var stopped sync.WaitGroup
			stopped.Go(func() { // the slave, and the loop that owns it
				pump := func(*Waiter) {
					for parked := false; !parked; parked = s.Park() {
						end := r.e.binlog.End() // before the id, which may be further on then
						r.reads(r.e.LastEventID(), end, s)
					}
				}
				pump(nil)
				for range moved {
					r.cfg.Mailboxes[1].Drain(func(n *Note) { n.Subject.(*Lane).Wake(pump) })
				}
			})
			r.e.Start()
			answer := make(chan struct{}, 1)
			replies := NewMailbox(func() { answer <- struct{}{} })
			confirm := func(c *Command) {
				c.Mailbox = replies
				r.push(c)
				select {
				case <-answer:
					replies.Drain(func(*Note) {})
				case <-time.After(10 * time.Second):
					t.Fatal("no reply although the slave holds it")
				}
			}
			confirm(r.command(Create, "t", nil))
			for i := range 1000 {
				confirm(r.command(Publish, "t", message(fmt.Sprint(i))))
			}
			r.stop()
			close(moved)
			stopped.Wait()
			if st := r.e.Stats(); st.AckTimeouts != 0 || st.Published != 1000 {
				t.Errorf("counted: %+v", st)
			}
		})
	}
}
