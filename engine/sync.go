package engine

import (
	"errors"
	"slices"
	"time"

	"smss/storage"
)

// syncer makes the binlog durable, one task at a time, beside the writer.
type syncer struct {
	tasks chan storage.SyncTask
	done  chan error
	busy  bool        // writer: a task is under way
	upTo  storage.Pos // writer: binlog end that the task covers
}

func (s *syncer) init() {
	s.tasks, s.done = make(chan storage.SyncTask, 1), make(chan error, 1)
}

func (s *syncer) run() {
	for t := range s.tasks {
		s.done <- t.Run()
	}
}

// checkpointer makes everything else durable and moves the checkpoint, beside
// writer and syncer: at flush level 2 a sync of many topics must not stand in
// the way of the binlog's.
type checkpointer struct {
	tasks chan *storage.CheckpointTask
	done  chan error
	busy  bool        // writer
	upTo  storage.Pos // writer: where the checkpoint under way will stand
	firm  bool        // writer: it is one with a sync
}

func (c *checkpointer) init() {
	c.tasks, c.done = make(chan *storage.CheckpointTask, 1), make(chan error, 1)
}

func (c *checkpointer) run() {
	for t := range c.tasks {
		c.done <- t.Run()
	}
}

// Both intervals are the promise of flush level 1: at most a second is lost
// when the power goes.
const (
	syncEvery       = time.Second
	checkpointEvery = time.Second
)

// settling is how far a checkpoint with a sync has come that was asked for. It
// covers what was committed when it was asked for.
type settling uint8

const (
	settleNone    settling = iota
	settleAsked            // the next sync of the binlog that begins is for it
	settleSyncing          // that sync is under way
	settleSynced           // the next checkpoint that begins is for it
	settleRunning          // that checkpoint is under way
)

// schedule starts syncs and checkpoints that are due.
func (w *writer) schedule() {
	if w.e.broken.Load() {
		return
	}
	if w.settling == settleNone && len(w.settlers) > 0 {
		w.settlers, w.settled, w.settling = nil, w.settlers, settleAsked
	}
	if !w.sync.busy {
		switch {
		case len(w.unsynced) > 0:
			w.syncing, w.unsynced = w.unsynced, w.syncing[:0]
			w.startSync()
		case !w.dirtySince.IsZero() && w.e.mono().Sub(w.dirtySince) >= syncEvery, w.settling == settleAsked:
			w.startSync()
		}
	}
	if w.settling == settleSynced && !w.checkpoint.busy {
		w.settling = settleRunning
		w.startCheckpoint(true)
	}
	if w.checkpointDue() && w.e.mono().Sub(w.lastCheck) >= checkpointEvery {
		w.startCheckpoint(w.e.cfg.FlushLevel > 0)
	}
}

func (w *writer) startSync() {
	w.dirtySince = time.Time{}
	if w.settling == settleAsked {
		w.settling = settleSyncing
	}
	w.sync.busy, w.sync.upTo = true, w.e.store.BinlogEnd()
	w.sync.tasks <- w.e.store.SyncBinlog()
}

// checkpointDue reports whether there is something that a checkpoint would
// cover: at flush level 0 all that was written, else what was synced.
func (w *writer) checkpointDue() bool {
	if w.checkpoint.busy || w.e.broken.Load() {
		return false
	}
	if w.e.cfg.FlushLevel == 0 {
		return w.moved
	}
	return w.checkpoint.upTo.Before(w.synced)
}

// startCheckpoint starts one that is firm, where the last sync began to cover,
// or one without a sync, where writing has ended.
func (w *writer) startCheckpoint(firm bool) {
	at := w.synced
	if !firm {
		at = w.e.store.BinlogEnd()
	}
	w.moved, w.lastCheck = at.Before(w.e.store.BinlogEnd()), w.e.mono()
	w.checkpoint.busy, w.checkpoint.upTo, w.checkpoint.firm = true, at, firm
	w.checkpoint.tasks <- w.e.store.BeginCheckpoint(at, w.nextID, firm)
}

// synchronised takes the result of a sync: what it covered is published, or,
// after a failure, never will be.
func (w *writer) synchronised(err error) {
	w.sync.busy = false
	if err != nil {
		w.fail(err)
		return
	}
	w.synced = w.sync.upTo
	if w.settling == settleSyncing {
		w.settling = settleSynced
	}
	for i, b := range w.syncing {
		w.expose(b)
		w.syncing[i] = nil
	}
	w.syncing = w.syncing[:0]
	w.post()
}

// fail stops writing and syncing for good, and answers what waits for a sync.
// Of a failed sync it is unknown what the kernel has dropped, and another one
// would report success, also one that runs at the same time on the same file:
// nothing that waits may be acknowledged any more.
func (w *writer) fail(err error) {
	if w.e.broken.CompareAndSwap(false, true) {
		w.e.events.Broken(err)
	}
	waiting := append(w.syncing, w.unsynced...)
	for _, b := range slices.Backward(waiting) {
		w.unstage(b) // the last one first: a name can have had several lives
	}
	for _, b := range waiting {
		w.abandon(b)
	}
	w.syncing, w.unsynced = nil, nil
	w.settle(errBroken)
	w.settled, w.settlers = w.settlers, nil
	w.settle(errBroken)
	w.post()
}

// settle answers those for whom the checkpoint was. A failed one is told to
// them and not tried again for them.
func (w *writer) settle(err error) {
	w.settling = settleNone
	for _, cmd := range w.settled {
		cmd.Err = err
		w.answer(cmd)
	}
	w.settled = nil
}

// abandon answers the commands of a batch that is not published.
func (w *writer) abandon(b *written) {
	for _, cmd := range b.cmds {
		// A name at a topic that is published is not a matter of the disk.
		if cmd.Err == nil && (cmd.Kind != Attach || w.astray(cmd)) {
			cmd.Err = errBroken
		}
		w.answer(cmd)
	}
	w.recycle(b)
}

// astray reports whether cmd has attached to a topic that was taken back since.
func (w *writer) astray(cmd *Command) bool {
	return cmd.Kind == Attach && cmd.Err == nil && w.topics[string(cmd.Topic())] != cmd.Sub.Topic
}

func (w *writer) checkpointed(err error) {
	w.checkpoint.busy = false
	if err == nil && w.checkpoint.firm {
		w.e.durable.Store(w.checkpoint.upTo.File) // before the janitor is told
	}
	if w.settling == settleRunning {
		w.settle(err)
		w.post()
	}
	if err == nil {
		return
	}
	var fatal *storage.FatalError
	if errors.As(err, &fatal) {
		w.fail(err)
		return
	}
	w.e.events.Note("checkpoint not written, will be tried again", err)
	w.checkpoint.upTo, w.moved = storage.Pos{}, true
}

// pause returns how long the writer may sleep when the ring stays empty.
func (w *writer) pause() time.Duration {
	d := w.ackPause()
	if w.e.broken.Load() {
		return d
	}
	now := w.e.mono()
	if !w.dirtySince.IsZero() && !w.sync.busy {
		d = min(d, w.dirtySince.Add(syncEvery).Sub(now))
	}
	if w.checkpointDue() {
		d = min(d, w.lastCheck.Add(checkpointEvery).Sub(now))
	}
	return max(d, time.Millisecond)
}

// finish writes what is left in the ring and waits for what is under way.
func (w *writer) finish() {
	for w.Step() {
	}
	for w.sync.busy {
		w.synchronised(<-w.sync.done)
		w.schedule()
	}
	w.settleAcks()
	if w.checkpoint.busy {
		w.checkpointed(<-w.checkpoint.done)
	}
	close(w.sync.tasks)
	close(w.checkpoint.tasks)
}
