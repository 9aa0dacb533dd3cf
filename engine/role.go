package engine

import (
	"smss/codec"
	"smss/storage"
)

// Role says who decides what happens next: a master's own clients and clock,
// or the master that a slave copies.
type Role int32

// The roles.
const (
	Master Role = iota
	Slave
)

// String returns the role as the command line spells it.
func (r Role) String() string {
	if r == Slave {
		return "slave"
	}
	return "master"
}

// The refusals that a role brings.
var (
	errMasterPublishes = &Refusal{codec.TextMasterPublishes}
	errMasterManages   = &Refusal{codec.TextMasterManages}
	errNotSlave        = &Refusal{"this server is a master, it applies no records of another"}
	errSlave           = &Refusal{"this server is a slave, its master decides what is due"}
)

// Role returns the role as of the last batch. Any goroutine.
func (e *Engine) Role() Role { return Role(e.role.Load()) }

// LastEventID returns the last event id that is safe in the binlog by the flush
// level, or after which a slave that holds nothing goes on. Slaves may have it
// already, and its reply may still wait for them. Any goroutine.
func (e *Engine) LastEventID() int64 { return e.lastID.Load() }

// wrongRole returns why a command is not for this role, or nil.
func (w *writer) wrongRole(k Kind) error {
	if w.e.Role() == Master {
		if k == Replicate || k == Adopt {
			return errNotSlave
		}
		return nil
	}
	switch k {
	case Publish, Delay:
		return errMasterPublishes
	case Create, Delete:
		return errMasterManages
	case fire, expire:
		return errSlave
	}
	return nil
}

// turn gives the server its new role. What was pushed before has been done in
// the old one. The command's EventID becomes the last one that the old role
// has seen.
func (w *writer) turn(cmd *Command) {
	cmd.EventID = w.lastID
	if cmd.Role == w.e.Role() {
		return
	}
	w.nextID = max(w.nextID, w.lastID+1)
	w.failedStream = 0
	w.lapse(false) // of slaves of another reign
	w.e.role.Store(int32(cmd.Role))
	if cmd.Role == Master {
		for _, t := range w.topics {
			// Adopted topics can be of events that have not come.
			w.nextID = max(w.nextID, t.Meta.CreateEventID+1)
		}
		// What is due is not known: the scheduler slept.
		w.e.due.delay(0)
		w.e.due.expiry(1)
	}
}

// expired reports whether a topic's life is over. On a slave it is when its
// master says so.
func (w *writer) expired(t *Topic, now int64) bool {
	return w.e.Role() == Master && t.Expired(now)
}

// nowMs is the time by which stored data ages: the clock's, or on a slave that
// of its master's last event, 0 before there was one.
func (e *Engine) nowMs() int64 {
	if e.Role() == Slave {
		return e.masterMs.Load()
	}
	return e.clock.NowMs()
}

// adopt makes a topic known that the master had before its binlog begins. It
// leaves no record.
func (w *writer) adopt(cmd *Command) error {
	m := cmd.Meta
	switch {
	case w.topics[m.Name] != nil:
		return ErrTopicExist
	case len(w.topics) >= w.e.cfg.MaxTopics:
		return errTooManyTopics
	case w.e.lowDisk.Load():
		return errDiskLow
	}
	cmd.staged = true
	w.create(cmd, *m)
	return nil
}

// create stages a new topic.
func (w *writer) create(cmd *Command, meta storage.TopicMeta) {
	store := w.e.store
	t := newTopic(meta, store.TopicRoot(meta.Name), store.Reader(meta.Name), store.Batch().Create(&meta), w.e.cfg.Loops)
	cmd.target = t
	w.topics[meta.Name], w.cur.created = t, t
}

// remove stages the end of a topic.
func (w *writer) remove(cmd *Command, t *Topic) {
	cmd.target = t
	w.e.store.Batch().Delete(t.log, &t.Meta)
	delete(w.topics, t.Meta.Name)
	w.cur.ended = t
	t.leaving.Store(true) // before the directory goes: see Engine.unsettled
}
