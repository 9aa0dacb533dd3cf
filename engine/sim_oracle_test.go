package engine

import (
	"fmt"
	"slices"

	"smss/storage"
)

// fate is what a client knows about one of its messages.
type fate int

const (
	pending fate = iota
	acked        // its 200 came
	refused      // an error came that says: not stored
	unknown      // no answer came, or one that does not say
)

func (f fate) String() string { return []string{"pending", "acked", "refused", "unknown"}[f] }

// entry is a message that a client has sent. Bodies are unique.
type entry struct {
	topic     string
	fate      fate
	id        int64 // once acked: of the message, or of the DELAY event
	delay     bool
	triggerMs int64
	ack       int64 // oracle.acks when it was acked
	storedID  int64 // the message's id, once somebody has seen it; 0 = nobody has
	seen      int64 // oracle.acks when it was seen
}

// nameState is what is known about a topic's name.
type nameState struct {
	live     bool
	createID int64 // of the life that lives
	lastID   int64 // of the last CREATE or DELETE that was acked
	expireMs int64
	ack      int64
	fuzzy    bool // something was tried whose outcome is unknown
	trying   int  // creates and deletes under way
	// torn says that a deletion could neither be done nor be undone, which
	// takes a disk that fails three times in a row: the directory is in the
	// trash, and the binlog's record is rolled back. See storage's Batch.undo,
	// which could leave the record to recovery. Known; the messages are lost.
	torn bool
}

// reading is what a subscriber has received, from which event id on.
type reading struct {
	topic string
	life  int64
	from  int64
	got   []got
}

// oracle knows what must, may and must not be there.
type oracle struct {
	s        *sim
	entries  map[string]*entry
	names    map[string]*nameState
	readings []*reading
	acks     int64 // counts answers
	durable  int64 // level 1: answers up to here are covered by a sync
	maxID    int64 // largest id that was acked
}

func newOracle(s *sim) *oracle {
	return &oracle{s: s, entries: map[string]*entry{}, names: map[string]*nameState{}}
}

func (o *oracle) name(topic string) *nameState {
	n := o.names[topic]
	if n == nil {
		n = &nameState{}
		o.names[topic] = n
	}
	return n
}

// gone reports whether the topic may have ended by its life's end.
func (n *nameState) gone(o *oracle) bool { return n.expireMs != 0 && o.s.maxMs >= n.expireMs }

// says turns an answer into a fate.
func says(err error) fate {
	switch err {
	case nil:
		return acked
	case errBroken:
		return unknown
	}
	return refused
}

// answered notes the outcome of a command.
func (o *oracle) answered(op *simOp, cmd *Command) {
	o.acks++
	f := says(cmd.Err)
	if f == acked && cmd.Kind != Attach {
		if cmd.EventID <= op.floor {
			o.s.failf("%s was given id %d, but %d was acked before it was sent", op, cmd.EventID, op.floor)
		}
		o.maxID = max(o.maxID, cmd.EventID+int64(max(cmd.Messages, 1))-1)
	}
	switch cmd.Kind {
	case Publish, Delay:
		for i, body := range op.bodies {
			e := o.entries[body]
			if e.storedID != 0 && f == refused {
				o.s.failf("%s was refused (%v), and somebody has seen it", body, cmd.Err)
			}
			e.fate, e.ack = f, o.acks
			if f == acked {
				e.id = cmd.EventID + int64(i)
				if !e.delay && e.storedID != 0 && e.storedID != e.id {
					o.s.failf("%s was acked as %d and seen as %d", body, e.id, e.storedID)
				}
			}
		}
	case Create, Delete:
		n := o.name(op.topic)
		n.trying--
		switch {
		case f == unknown:
			n.fuzzy = true
			if cmd.Kind == Delete {
				n.torn = true
			}
		case f == acked && cmd.EventID > n.lastID:
			n.lastID, n.ack, n.live = cmd.EventID, o.acks, cmd.Kind == Create
			if n.live {
				n.createID, n.expireMs = cmd.EventID, cmd.ExpireAtMs
				// Of two loops' answers the later one can be looked at first: a
				// deletion at which writing has stopped came behind this.
				n.fuzzy = n.fuzzy && o.s.e.broken.Load()
			}
		}
	}
}

// crashed turns what was under way into something unknown; with power set also
// what flush level 1 does not promise yet.
func (o *oracle) crashed(power bool) {
	lost := func(ack int64) bool { return power && o.s.cfg.FlushLevel == 1 && ack > o.durable }
	for _, e := range o.entries {
		if e.fate == pending || (e.fate == acked && lost(e.ack)) {
			e.fate = unknown
		}
		if e.storedID != 0 && lost(e.seen) {
			e.storedID = 0
		}
	}
	for _, n := range o.names {
		if n.trying > 0 || lost(n.ack) {
			n.fuzzy = true
		}
		if o.s.e.broken.Load() && (n.trying > 0 || n.gone(o)) {
			n.torn = true
		}
		n.trying = 0
	}
	if power && o.s.cfg.FlushLevel == 1 {
		o.readings, o.maxID = nil, 0
	}
}

// saw notes a message that a subscriber has received or that a check has found.
func (o *oracle) saw(topic string, g got) {
	e := o.entries[g.body]
	switch {
	case e == nil || e.topic != topic:
		o.s.failf("%s holds %q, which nobody sent there", topic, g.body)
	case e.fate == refused:
		o.s.failf("%s holds %q, which was refused", topic, g.body)
	case e.delay && o.s.maxMs < e.triggerMs:
		o.s.failf("%s is %d ms early", g.body, e.triggerMs-o.s.maxMs)
	case e.storedID != 0 && e.storedID != g.id:
		o.s.failf("%s is there as %d and as %d", g.body, e.storedID, g.id)
	case !e.delay && e.fate == acked && e.id != g.id:
		o.s.failf("%s was acked as %d and is there as %d", g.body, e.id, g.id)
	}
	if e.storedID == 0 {
		e.storedID, e.seen = g.id, o.acks
	}
}

// check compares the engine, which must be at rest, with what is known. After
// a start the unknown is settled: what is there stays, what is not was lost.
func (o *oracle) check(started bool) {
	for _, topic := range simTopics {
		n := o.name(topic)
		t := o.s.e.Lookup([]byte(topic))
		if t == nil {
			if n.live && !n.fuzzy && n.trying == 0 && !n.gone(o) {
				o.s.failf("topic %s (of %d) is gone", topic, n.createID)
			}
			if started {
				n.live, n.fuzzy = false, false
			}
			continue
		}
		if n.live && !n.fuzzy && n.trying == 0 && t.Meta.CreateEventID != n.createID && !n.gone(o) {
			o.s.failf("topic %s is of %d, not of %d", topic, t.Meta.CreateEventID, n.createID)
		}
		if !n.live && !n.fuzzy && n.trying == 0 && !n.gone(o) {
			o.s.failf("topic %s (of %d) is there, and was deleted by %d", topic, t.Meta.CreateEventID, n.lastID)
		}
		if started {
			n.live, n.fuzzy, n.createID, n.expireMs = true, false, t.Meta.CreateEventID, t.Meta.ExpireAtMs
			n.lastID = max(n.lastID, n.createID)
		}
		o.checkTopic(topic, t.Meta.CreateEventID, o.s.readFrom(t, storage.Pos{}), n)
	}
	if started {
		for _, e := range o.entries {
			if e.fate == unknown && !e.delay && e.storedID == 0 {
				e.fate = refused // it is not there now, and must not turn up
			}
		}
		o.durable = o.acks
	}
}

func (o *oracle) checkTopic(topic string, life int64, all []got, n *nameState) {
	there := map[string]bool{}
	last := life
	for _, g := range all {
		if g.id <= last {
			o.s.failf("%s: id %d follows %d", topic, g.id, last)
		}
		last = g.id
		if there[g.body] {
			o.s.failf("%s holds %q twice", topic, g.body)
		}
		there[g.body] = true
		o.saw(topic, g)
		if e := o.entries[g.body]; e.delay && e.fate == acked && e.id < life {
			o.s.failf("%s of %d holds %q, delayed by %d in its former life", topic, life, g.body, e.id)
		}
	}
	if n.torn {
		n.torn = false
		for body, e := range o.entries {
			if e.topic == topic && !there[body] {
				e.fate, e.storedID = unknown, 0
			}
		}
		o.readings = slices.DeleteFunc(o.readings, func(r *reading) bool { return r.topic == topic })
	}
	if n.fuzzy || n.trying > 0 {
		return
	}
	for body, e := range o.entries {
		if e.topic != topic || there[body] {
			continue
		}
		if e.storedID > life {
			o.s.failf("%s has lost %q, which was seen as %d", topic, body, e.storedID)
		}
		if !e.delay && e.fate == acked && e.id > life {
			o.s.failf("%s has lost %q, acked as %d", topic, body, e.id)
		}
	}
	for _, r := range o.readings {
		if r.topic == topic && r.life == life {
			o.checkReading(r, all)
		}
	}
}

// checkReading: a subscriber has received everything behind its position, in
// order, as far as it came.
func (o *oracle) checkReading(r *reading, all []got) {
	first := 0
	for first < len(all) && all[first].id <= r.from {
		first++
	}
	rest := all[first:]
	if len(r.got) > len(rest) || !slices.Equal(r.got, rest[:len(r.got)]) {
		o.s.failf("a subscriber of %s from %d on received %v, there is %v", r.topic, r.from, r.got, rest)
	}
}

// checkFired: every delayed message whose topic lives was fired. Nothing is
// pending any more.
func (o *oracle) checkFired() {
	for body, e := range o.entries {
		if !e.delay || e.fate != acked || e.storedID != 0 {
			continue
		}
		n := o.name(e.topic)
		if n.live && !n.fuzzy && e.id > n.createID && !n.gone(o) {
			o.s.failf("delayed %q of %s was never fired (DELAY %d, due %d, now %d)", body, e.topic, e.id, e.triggerMs, o.s.time.NowMs())
		}
	}
	if n := o.s.meta.pending(); n != 0 {
		o.s.failf("%d delayed messages are still stored", n)
	}
}

func (op *simOp) String() string { return fmt.Sprintf("%d %s %v", op.kind, op.topic, op.bodies) }
