package engine

import (
	"slices"
	"time"
)

// Semi-synchronous mode: a batch is in the files and, by the flush level, on
// the disk; its records go to the slaves at once, but its replies leave, and
// its messages are seen by subscribers, only when enough slaves hold it. What
// a promoted slave could lack is then nothing that anybody was told.
type acks struct {
	waiting []*written // in order; not published yet
	// lapsed says that slaves were too slow: nothing waits until they hold
	// everything again. All fields are the writer's.
	lapsed bool
	held   []int64 // scratch
}

// errTooFewSlaves refuses a command before it is written.
var errTooFewSlaves = &Refusal{"not stored: fewer slaves are connected than replication.minAcks"}

// errNotAcked answers a command that is stored and may not be on any slave.
var errNotAcked = &Refusal{"stored here, but not confirmed by replication.minAcks slaves in time: it may be lost if this server is"}

// expose lets slaves have a batch that is safe here, and publishes it as soon
// as enough of them hold it.
func (w *writer) expose(b *written) {
	w.e.binlog.end.Store(b.binlog.Pack())
	w.wake(&w.e.binlog)
	if w.e.cfg.MinAcks == 0 || (len(w.acks.waiting) == 0 && (w.acks.lapsed || !b.waits())) {
		w.publish(b)
		return
	}
	// Also a batch without records waits for those before it: replies of a
	// connection leave in the order of its requests.
	b.until = w.e.mono().Add(w.e.cfg.AckTimeout)
	w.acks.waiting = append(w.acks.waiting, b)
	w.e.counters.ackWaits.Add(1)
}

// waits reports whether the batch holds events of this server's own.
func (b *written) waits() bool {
	return slices.ContainsFunc(b.cmds, func(cmd *Command) bool {
		return cmd.staged && cmd.Kind != Replicate && cmd.Kind != Adopt
	})
}

// acknowledged publishes what enough slaves hold, or what has waited too long.
func (w *writer) acknowledged() {
	a := &w.acks
	if w.e.cfg.MinAcks == 0 || (len(a.waiting) == 0 && !a.lapsed) {
		return
	}
	held := w.heldByEnough()
	if a.lapsed && held >= w.lastID {
		a.lapsed = false
		w.e.events.Note("slaves hold everything again: replies wait for them", nil)
	}
	n := 0
	for now := w.e.mono(); n < len(a.waiting); n++ {
		b := a.waiting[n]
		late := !now.Before(b.until)
		if b.lastID > held && !late && !a.lapsed {
			break
		}
		if b.lastID > held && late {
			w.tooLate(b)
		}
		w.publish(b)
		a.waiting[n] = nil
	}
	if n > 0 {
		a.waiting = slices.Delete(a.waiting, 0, n)
		w.post()
	}
}

// tooLate sees to a batch that slaves have not acknowledged in time.
func (w *writer) tooLate(b *written) {
	w.e.counters.ackTimeouts.Add(1)
	if w.e.cfg.RequireAcks {
		for _, cmd := range b.cmds {
			if cmd.staged && cmd.Err == nil && cmd.fromClient() {
				cmd.Err = errNotAcked
			}
		}
		return
	}
	if !w.acks.lapsed {
		w.acks.lapsed = true
		w.e.events.Note("slaves did not confirm in time (replication.ackTimeoutMs): replies do not wait for them until they have caught up", nil)
	}
}

// fromClient reports whether somebody waits for the command's reply.
func (c *Command) fromClient() bool {
	return c.Kind == Publish || c.Kind == Delay || c.Kind == Create || c.Kind == Delete
}

// heldByEnough returns the last event id that MinAcks slaves hold.
func (w *writer) heldByEnough() int64 {
	held := w.acks.held[:0]
	for _, r := range w.e.Replicas() {
		if r.Extended {
			held = append(held, r.AckedID())
		}
	}
	w.acks.held = held
	if len(held) < w.e.cfg.MinAcks {
		return -1
	}
	slices.Sort(held)
	return held[len(held)-w.e.cfg.MinAcks]
}

// tooFewSlaves reports whether a command of a client must be refused because
// its reply could only be an error.
func (w *writer) tooFewSlaves(cmd *Command) bool {
	c := &w.e.cfg
	if c.MinAcks == 0 || !c.RequireAcks || !cmd.fromClient() {
		return false
	}
	n := 0
	for _, r := range w.e.Replicas() {
		if r.Extended {
			n++
		}
	}
	return n < c.MinAcks
}

// ackPause returns how long the writer may sleep for what waits for slaves.
func (w *writer) ackPause() time.Duration {
	if len(w.acks.waiting) == 0 {
		return time.Hour
	}
	return max(w.acks.waiting[0].until.Sub(w.e.mono()), time.Millisecond)
}

// settleAcks publishes what still waits, at the end: who waited is gone.
func (w *writer) settleAcks() {
	for _, b := range w.acks.waiting {
		b.until = time.Time{}
	}
	w.acknowledged()
}
