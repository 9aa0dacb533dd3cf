package engine

import "fmt"

// simTopics are the names that the simulated clients use.
var simTopics = []string{"a", "b", "c", "d"}

// simOp is a request of a simulated client.
type simOp struct {
	kind   Kind
	topic  string
	bodies []string
	floor  int64 // the largest id that was acked when it was sent
	sub    *simSub
}

// simLoop is an event loop: what it has sent is answered in the same order.
type simLoop struct {
	s       *sim
	n       int
	sent    []*Command // not answered
	stalled []*Command // refused by a full ring
	reads   []*Read    // refused by a full readers' queue
}

func (l *simLoop) command(k Kind, topic string, payload []byte) (*Command, *simOp) {
	cmd := l.s.rig.command(k, topic, payload)
	cmd.Mailbox = l.s.cfg.Mailboxes[l.n]
	op := &simOp{kind: k, topic: topic, floor: l.s.o.maxID}
	cmd.Session = op
	return cmd, op
}

// push does as the reactor does: behind who was refused before, and once more
// after asking for a note.
func (l *simLoop) push(cmd *Command) {
	if len(l.stalled) == 0 {
		if l.s.e.Push(cmd) {
			l.sent = append(l.sent, cmd)
			return
		}
		l.s.e.AwaitRoom(l.n)
		if l.s.e.Push(cmd) {
			l.sent = append(l.sent, cmd)
			return
		}
	}
	l.stalled = append(l.stalled, cmd)
}

func (l *simLoop) retry() {
	for len(l.stalled) > 0 {
		cmd := l.stalled[0]
		if !l.s.e.Push(cmd) {
			l.s.e.AwaitRoom(l.n)
			if !l.s.e.Push(cmd) {
				break
			}
		}
		l.sent = append(l.sent, cmd)
		l.stalled = l.stalled[1:]
	}
	for len(l.reads) > 0 && l.s.e.Read(l.reads[0]) {
		l.reads = l.reads[1:]
	}
}

// drain takes what is in the mailbox.
func (l *simLoop) drain() (any bool) {
	l.s.cfg.Mailboxes[l.n].Drain(func(n *Note) {
		any = true
		switch v := n.Subject.(type) {
		case *Command:
			l.answered(v)
		case *Read:
			v.Session.(*simSub).readDone(v)
		case *Lane:
			if v.Room() {
				v.Wake(nil)
				return
			}
			v.Wake(func(w *Waiter) { w.Session.(*simSub).pump() })
		}
	})
	l.retry()
	return any
}

func (l *simLoop) answered(cmd *Command) {
	if len(l.sent) == 0 || l.sent[0] != cmd {
		l.s.failf("loop %d: %s is answered out of order, or twice", l.n, cmd.Session)
	}
	l.sent = l.sent[1:]
	op := cmd.Session.(*simOp)
	l.s.o.answered(op, cmd)
	if op.sub != nil {
		op.sub.attached(cmd)
	}
	l.s.pool.Put(cmd)
}

// subState is where a simulated subscriber is.
type subState int

const (
	subAttaching subState = iota
	subLocating
	subReading
	subParked
	subHolding // it has a push and has not acked it
	subGone
)

// simSub is a subscriber, which may be slow.
type simSub struct {
	l     *simLoop
	sub   *Subscription
	state subState
	from  int64 // event id that it resumes behind
	life  int64 // that the id is of
	batch int
	read  *reading
}

func (s *sim) subscribe(l *simLoop, topic, who string, from, life int64, batch int) {
	u := &simSub{l: l, from: from, life: life, batch: batch}
	cmd, op := l.command(Attach, topic, nil)
	op.sub = u
	u.sub = &Subscription{Who: who, Waiter: Waiter{Session: u, Loop: l.n, Mailbox: cmd.Mailbox}}
	cmd.Sub = u.sub
	s.subs = append(s.subs, u)
	l.push(cmd)
}

func (u *simSub) attached(cmd *Command) {
	if cmd.Err != nil {
		u.state = subGone
		return
	}
	topic := u.sub.Topic.Meta.Name
	if have := u.l.s.holders[topic+"\x00"+u.sub.Who]; have != nil && have.sub.Topic == u.sub.Topic {
		u.l.s.failf("two subscribers of %s are called %s", topic, u.sub.Who)
	}
	u.l.s.holders[topic+"\x00"+u.sub.Who] = u
	u.state = subLocating
	u.start(Read{Kind: Locate, EventID: u.from})
}

func (u *simSub) start(job Read) {
	r := u.sub.ReadOf()
	job.Session, job.Mailbox, job.Topic = u, u.sub.Mailbox, u.sub.Topic
	*r = job
	if len(u.l.reads) > 0 || !u.l.s.e.Read(r) {
		u.l.reads = append(u.l.reads, r)
	}
}

func (u *simSub) readDone(r *Read) {
	topic := u.sub.Topic
	if u.state == subGone {
		r.Release()
		return
	}
	if r.Kind == Locate {
		if r.Err != nil {
			if !topic.Ended() && !topic.astray.Load() && (u.from == 0 || topic.Meta.CreateEventID == u.life) {
				u.l.s.failf("%s cannot resume behind %d, which was seen: %v", topic.Meta.Name, u.from, r.Err)
			}
			u.leave()
			return
		}
		u.sub.Pos = r.Pos
		u.read = &reading{topic: topic.Meta.Name, life: topic.Meta.CreateEventID, from: u.from}
		u.l.s.o.readings = append(u.l.s.o.readings, u.read)
		u.pump()
		return
	}
	switch {
	case topic.Ended():
		r.Release()
		u.leave()
	case r.Err != nil && topic.astray.Load():
		r.Release() // writing has stopped in the middle of its deletion
		u.leave()
	case r.Err != nil:
		u.l.s.failf("reading %s at %v: %v", topic.Meta.Name, r.From, r.Err)
	case r.Push.Messages == 0:
		u.sub.Pos = r.Push.Next
		r.Release()
		u.pump()
	default:
		for _, g := range parsePush(u.l.s.t, r.Push.Frame) {
			u.l.s.o.saw(topic.Meta.Name, g)
			u.read.got = append(u.read.got, g)
		}
		u.sub.Pos = r.Push.Next
		r.Release()
		u.state = subHolding
	}
}

// pump reads what is there, or waits for it.
func (u *simSub) pump() {
	topic := u.sub.Topic
	switch {
	case topic.Ended():
		u.leave()
	case u.sub.Pos.Before(topic.End()):
		u.state = subReading
		u.start(Read{Kind: ReadPush, From: u.sub.Pos, Batch: u.batch})
	case u.sub.Park():
		u.state = subParked
	default:
		u.pump()
	}
}

func (u *simSub) leave() {
	key := u.sub.Topic.Meta.Name + "\x00" + u.sub.Who
	if u.l.s.holders[key] == u {
		delete(u.l.s.holders, key)
	}
	u.state = subGone
	u.l.s.e.Detach(u.sub)
}

// checkResting: with everything at rest nobody is asleep who has something to
// read, or an end to be told of.
func (u *simSub) checkResting() {
	switch u.state {
	case subParked:
		if end := u.sub.Topic.End(); u.sub.Topic.Ended() || u.sub.Pos != end {
			u.l.s.failf("a subscriber of %s sleeps at %v, the end is %v, ended %v", u.sub.Topic.Meta.Name, u.sub.Pos, end, u.sub.Topic.Ended())
		}
	case subHolding, subGone:
	default:
		u.l.s.failf("a subscriber of %s is left in state %d", u.sub.Who, u.state)
	}
}

// body returns a body that is unique within a run.
func (s *sim) body(what string) string {
	s.bodies++
	return fmt.Sprintf("%s%d", what, s.bodies)
}
