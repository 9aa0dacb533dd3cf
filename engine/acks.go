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
	// lapsed says that slaves were too slow: nothing waits until they confirm
	// in time again, which is when they hold goal before goalUntil. All fields
	// are the writer's.
	lapsed    bool
	goal      int64
	goalUntil time.Time
	few       bool     // too few slaves were connected when the batch was begun
	nodes     []string // scratch
	held      []int64  // scratch
}

// errTooFewSlaves refuses a command before it is written.
var errTooFewSlaves = &Refusal{"not stored: fewer slaves are connected than replication.minAcks"}

// errNotAcked answers a command that is stored and may not be on any slave.
var errNotAcked = &Refusal{"stored here, but not confirmed by replication.minAcks slaves in time: it may be lost if this server is"}

// expose lets slaves have a batch that is safe here, and publishes it as soon
// as enough of them hold it.
func (w *writer) expose(b *written) {
	// Once writing has stopped the files may end behind what is safe: what a
	// batch of refusals finds there is not for slaves.
	if !w.e.broken.Load() {
		// The id before the records: a slave that has them and comes back at
		// once must not seem to be ahead of its master.
		w.e.lastID.Store(b.lastID)
		w.e.binlog.end.Store(b.binlog.Pack())
		w.wake(&w.e.binlog)
	}
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
	held, now := w.heldByEnough(), w.e.mono()
	if a.lapsed {
		w.catchUp(held, now)
	}
	n := 0
	for ; n < len(a.waiting); n++ {
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
		w.lapse(true)
		w.aim(w.e.mono())
		w.e.events.Note("slaves did not confirm in time (replication.ackTimeoutMs): replies do not wait for them until they have caught up", nil)
	}
}

func (w *writer) lapse(is bool) {
	w.acks.lapsed = is
	w.e.counters.ackLapsed.Store(is)
}

// aim sets what slaves must hold, and by when, for replies to wait for them
// again.
func (w *writer) aim(now time.Time) {
	w.acks.goal, w.acks.goalUntil = w.e.LastEventID(), now.Add(w.e.cfg.AckTimeout)
}

// catchUp ends the lapse once slaves hold, in time, what they have been sent.
// Not once they hold everything: under load there is always something that
// they do not have yet.
func (w *writer) catchUp(held int64, now time.Time) {
	a := &w.acks
	if !now.Before(a.goalUntil) {
		w.aim(now)
	}
	if held < a.goal {
		return
	}
	w.lapse(false)
	w.e.events.Note("slaves confirm in time again: replies wait for them", nil)
}

// maySleep announces that the writer is about to sleep, or returns false where
// there is something to do: in the ring, or a reply that may go. The latter is
// looked at once more behind the announcement, because an acknowledgement that
// came after the last look and before it has woken nobody.
func (w *writer) maySleep() bool {
	if !w.e.ring.park() {
		return false
	}
	if a := &w.acks; len(a.waiting) > 0 && w.heldByEnough() >= a.waiting[0].lastID {
		w.e.ring.unpark()
		return false
	}
	return true
}

// fromClient reports whether somebody waits for the command's reply.
func (c *Command) fromClient() bool {
	return c.Kind == Publish || c.Kind == Delay || c.Kind == Create || c.Kind == Delete
}

// heldByEnough returns the last event id that MinAcks slaves hold, -1 where
// there are fewer.
func (w *writer) heldByEnough() int64 {
	held := w.reports()
	if len(held) < w.e.cfg.MinAcks {
		return -1
	}
	slices.Sort(held)
	return held[len(held)-w.e.cfg.MinAcks]
}

// reports returns what the slaves that report hold. One that has come back
// while its old connection is not gone yet counts once.
func (w *writer) reports() []int64 {
	a := &w.acks
	a.nodes, a.held = a.nodes[:0], a.held[:0]
	for i := range w.e.replicas {
		r := w.e.replicas[i].Load()
		if r == nil || !r.Extended {
			continue
		}
		if at := slices.Index(a.nodes, r.Node); at >= 0 {
			a.held[at] = max(a.held[at], r.AckedID())
			continue
		}
		a.nodes, a.held = append(a.nodes, r.Node), append(a.held, r.AckedID())
	}
	return a.held
}

// countSlaves sees whether commands of clients must be refused because their
// replies could only be errors. Once for a batch: it is asked for each command.
func (w *writer) countSlaves() {
	c := &w.e.cfg
	w.acks.few = c.MinAcks > 0 && c.RequireAcks && len(w.reports()) < c.MinAcks
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
