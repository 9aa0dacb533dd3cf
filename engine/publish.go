package engine

import (
	"math/bits"
	"time"

	"smss/storage"
)

// written is a batch that is on the files and not yet published.
type written struct {
	cmds    []*Command
	ends    []topicEnd
	created *Topic
	ended   *Topic

	binlog storage.Pos // where the binlog ends behind it
	lastID int64       // the last event id up to there
	atMs   int64       // the latest time in its records of another server
	until  time.Time   // how long it waits for slaves
}

type topicEnd struct {
	topic *Topic
	end   uint64
}

// written moves the batch on towards publication: at once, or at flush level
// 2 behind a sync.
func (w *writer) written() {
	b := w.cur
	w.cur = nil
	b.cmds, w.cmds = w.cmds, b.cmds // an empty one: see recycle
	w.keptID = w.lastID
	b.binlog, b.lastID = w.e.store.BinlogEnd(), w.lastID
	staged := false
	for _, cmd := range b.cmds {
		staged = staged || cmd.staged
		if cmd.staged && cmd.appends() {
			b.note(cmd.target)
		}
		if cmd.staged && cmd.Kind == Replicate {
			b.atMs = max(b.atMs, cmd.record.WrittenAtMs)
		}
	}
	if staged {
		w.moved = true
	}
	if w.e.cfg.FlushLevel == 2 && (staged || len(w.unsynced)+len(w.syncing) > 0) {
		// Also a batch without records waits for those before it: replies of a
		// connection leave in the order of its requests.
		w.unsynced = append(w.unsynced, b)
		return
	}
	if staged && w.e.cfg.FlushLevel == 1 && w.dirtySince.IsZero() {
		w.dirtySince = w.e.mono()
	}
	w.expose(b)
	w.post()
}

// appends reports whether a staged command has written messages to a topic.
func (c *Command) appends() bool {
	switch c.Kind {
	case Publish:
		return true
	case fire:
		return !c.dropped
	case Replicate:
		return c.Messages > 0
	}
	return false
}

// note keeps the end of a topic that the batch has written to.
func (b *written) note(t *Topic) {
	end := t.log.End().Pack()
	for i := len(b.ends) - 1; i >= 0 && i >= len(b.ends)-4; i-- {
		if b.ends[i].topic == t {
			return
		}
	}
	b.ends = append(b.ends, topicEnd{t, end})
}

// publish makes a batch true: first the catalog and the ends, so that who is
// told finds it, then the completions, then the wake-ups.
func (w *writer) publish(b *written) {
	if t := b.created; t != nil {
		w.e.catalog.Store(t.Meta.Name, t)
		w.e.due.expiry(t.Meta.ExpireAtMs)
	}
	for _, te := range b.ends {
		te.topic.end.Store(te.end)
	}
	if b.atMs > w.e.masterMs.Load() {
		w.e.masterMs.Store(b.atMs)
	}
	if t := b.ended; t != nil {
		w.e.catalog.CompareAndDelete(t.Meta.Name, t)
		t.ended.Store(true)
		w.e.orphans.Store(true)
	}
	for _, cmd := range b.cmds {
		w.count(cmd)
		w.answer(cmd)
	}
	w.e.counters.published.Store(w.published)
	for _, te := range b.ends {
		w.wake(&te.topic.Tail)
	}
	if t := b.ended; t != nil {
		w.wake(&t.Tail)
	}
	w.recycle(b)
}

func (w *writer) count(cmd *Command) {
	c := &w.e.counters
	switch {
	case cmd.Err != nil:
		c.refused.Add(1)
		if cmd.staged && cmd.Kind == Delay {
			w.e.due.delay(cmd.TriggerAtMs) // stored all the same, see tooLate
		}
	case cmd.Kind == Publish:
		w.published++
		if every := int64(w.e.cfg.SampleEvery); every > 0 && w.published%every == 0 {
			w.e.events.Published(cmd)
		}
	case cmd.Kind == Delay:
		c.delayed.Add(1)
		w.e.due.delay(cmd.TriggerAtMs)
	case cmd.Kind == fire && !cmd.dropped:
		c.fired.Add(1)
	case cmd.Kind == Replicate:
		c.replicated.Add(1)
	}
}

// answer puts the note that cmd is done into its chain. What it was charged
// for is given back by post, after which its owner may use it again.
func (w *writer) answer(cmd *Command) {
	w.answered += cmd.Size()
	w.add(cmd.Mailbox, &cmd.note)
}

func (w *writer) add(m *Mailbox, n *Note) {
	if m.add(n) {
		w.touched = append(w.touched, m)
	}
}

// wake posts a note to every loop that has somebody parked on t.
func (w *writer) wake(t *Tail) {
	if t.armed.Load() == 0 {
		return
	}
	w.postLanes(t.armed.Swap(0), t.lanes)
}

// postLanes posts the notes of the lanes whose bits are set.
func (w *writer) postLanes(set uint64, lanes []Lane) {
	for ; set != 0; set &= set - 1 {
		i := bits.TrailingZeros64(set)
		if lanes[i].posted.Swap(true) {
			continue // it is in the mailbox already, and its loop will look again
		}
		w.add(w.e.cfg.Mailboxes[i], &lanes[i].note)
	}
}

// post sends the chains of the batch on their way, one wake-up each. Bytes are
// given back before the bits of those who wait for them are read: a loop sets
// its bit, then tries once more, so that one of the two sees the other.
func (w *writer) post() {
	if w.answered > 0 {
		w.e.inflight.Add(-w.answered)
		w.answered = 0
	}
	if w.e.crowded.Load() != 0 {
		w.postLanes(w.e.crowded.Swap(0), w.e.room)
	}
	for i, m := range w.touched {
		m.flush()
		w.touched[i] = nil
	}
	w.touched = w.touched[:0]
}

func (w *writer) recycle(b *written) {
	clear(b.cmds)
	clear(b.ends)
	*b = written{cmds: b.cmds[:0], ends: b.ends[:0]}
	if len(w.free) < freeMax {
		w.free = append(w.free, b)
	}
}

// freeMax is how many empty batches are kept. A sync that hangs can leave very
// many behind.
const freeMax = 64
