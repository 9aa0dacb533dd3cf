package engine

import (
	"errors"
	"fmt"
	"time"

	"smss/storage"
)

// The janitor's rhythms.
const (
	diskEvery    = time.Second     // look at the free space
	trashEvery   = time.Second     // remove the files of deleted topics
	collectEvery = 5 * time.Minute // clean up in the metadata's own files
)

// runJanitor is the goroutine that removes files: of topics that were deleted,
// and those that retention lets go. It also watches the free space.
func (e *Engine) runJanitor() {
	defer e.timers.Done()
	retention := e.store.NewRetention()
	tick := time.NewTicker(diskEvery)
	defer tick.Stop()
	start := time.Now()
	lastRetention, lastCollect := start, start
	trashFailing := false
	e.checkDisk()
	e.keepReserve()
	for {
		if err := e.emptyTrash(); (err != nil) != trashFailing {
			if trashFailing = err != nil; trashFailing {
				e.events.Note("files of deleted topics cannot be removed, will be tried again", err)
			}
		}
		select {
		case <-tick.C:
		case <-e.quit:
			return
		}
		e.checkDisk()
		e.keepReserve()
		e.markTime()
		e.forgetSlabs()
		if e.orphans.Swap(false) {
			e.dropOrphans()
		}
		now := time.Now()
		if e.cfg.RetentionMs > 0 && now.Sub(lastRetention) >= e.cfg.RetentionEvery {
			lastRetention = now
			e.settle(tick.C)
			e.retain(retention)
		}
		if now.Sub(lastCollect) >= collectEvery {
			lastCollect = now
			if err := e.store.Meta().CollectGarbage(); err != nil {
				e.events.Note("cleaning up the metadata", err)
			}
		}
	}
}

// emptyTrash removes the files of deleted topics. Once writing has stopped the
// deletion that put them there may not be durable: they stay.
func (e *Engine) emptyTrash() error {
	if e.broken.Load() {
		return nil
	}
	return e.store.EmptyTrash()
}

// orphansMax is how many keys one drop carries.
const orphansMax = 1024

// dropOrphans looks through the pending delayed messages for those of topics
// that are gone, and has the writer forget them. One that fires before that is
// dropped by the writer just the same.
func (e *Engine) dropOrphans() {
	wake := make(chan struct{}, 1)
	mailbox := NewMailbox(func() { wake <- struct{}{} })
	for from := int64(0); ; {
		var keys []storage.DelayKey
		err := e.store.Meta().DelayKeys(from, func(k storage.DelayKey) bool {
			if t := e.Lookup([]byte(k.Topic)); t == nil || t.Meta.CreateEventID > k.EventID {
				keys = append(keys, k)
			}
			return len(keys) < orphansMax
		})
		if err != nil {
			e.events.Note("pending delayed messages cannot be read", err)
			e.orphans.Store(true)
			return
		}
		if len(keys) == 0 {
			return
		}
		dropped, err := e.drop(keys, mailbox, wake)
		if err != nil {
			e.orphans.Store(true) // tried again at the next tick
			return
		}
		if len(keys) < orphansMax {
			return
		}
		from = keys[len(keys)-1].TriggerAtMs
		if dropped == 0 {
			from++ // none was an orphan after all: the walk must not stand still
		}
	}
}

// drop sends one command and waits for it.
func (e *Engine) drop(keys []storage.DelayKey, mailbox *Mailbox, wake <-chan struct{}) (dropped int, err error) {
	cmd := &Command{Kind: drop, Mailbox: mailbox, orphans: keys}
	cmd.note.Subject = cmd
	for !e.Push(cmd) {
		time.Sleep(time.Millisecond) // the ring is full of others' commands, which the writer works off
	}
	<-wake
	mailbox.Drain(func(*Note) {})
	return cmd.Messages, cmd.Err
}

// settleWait bounds how long retention waits for its checkpoint.
const settleWait = time.Minute

// settle waits for a checkpoint with a sync, which flush level 0 takes at no
// other time: retention removes nothing of the binlog behind the last one,
// because otherwise a power cut would leave a binlog that begins behind the
// place from which recovery has to start. Where it fails, retention keeps what
// lies behind the one before. The free space is watched meanwhile.
func (e *Engine) settle(tick <-chan time.Time) {
	wake := make(chan struct{}, 1)
	cmd := &Command{Kind: Settle, Mailbox: NewMailbox(func() { wake <- struct{}{} })}
	cmd.note.Subject = cmd
	for !e.Push(cmd) {
		time.Sleep(time.Millisecond) // the ring is full of others' commands, which the writer works off
	}
	patience := time.NewTimer(settleWait)
	defer patience.Stop()
	for {
		select {
		case <-tick:
			e.checkDisk()
			continue
		case <-wake:
			if cmd.Err != nil && !errors.Is(cmd.Err, errBroken) {
				e.events.Note("no checkpoint before retention", cmd.Err)
			}
		case <-patience.C:
			// The answer will come to a mailbox that nobody looks into.
			e.events.Note(fmt.Sprintf("no checkpoint before retention within %v", settleWait), nil)
		case <-e.quit:
		}
		return
	}
}

// keepReserve makes the reserve of disk space, or makes it again. On a full
// disk it fails silently: that the disk is full is told elsewhere.
func (e *Engine) keepReserve() {
	if !e.broken.Load() {
		_ = e.store.KeepReserve()
	}
}

// checkDisk compares the free space with the floor. Leaving the refusing state
// takes a tenth more than entering it, so that it does not flap.
func (e *Engine) checkDisk() {
	if e.cfg.MinFreeBytes <= 0 {
		return
	}
	free, dir, err := e.store.FreeBytes()
	if err != nil {
		e.events.Note("free space cannot be read", err)
	}
	floor := e.cfg.MinFreeBytes
	was := e.lowDisk.Load()
	if was {
		floor += floor / 10
	}
	low := free < floor
	if err != nil && !low {
		return // where nobody could look it may be full
	}
	if low != was {
		e.lowDisk.Store(low)
		if low {
			e.events.Note(fmt.Sprintf("free space of %s, %d bytes, is below store.minFreeBytes %d: nothing is stored until there is more", dir, free, e.cfg.MinFreeBytes), nil)
		} else {
			e.events.Note(fmt.Sprintf("free space of %s, the least, is %d bytes: storing again", dir, free), nil)
		}
	}
}

// retain removes whole files whose last record is older than the retention.
func (e *Engine) retain(r *storage.Retention) {
	now := e.nowMs()
	if now == 0 {
		return // a slave that has not heard of its master's time
	}
	cutoff := now - e.cfg.RetentionMs
	note := func(what string, names []string, err error) {
		for _, name := range names {
			e.events.Note("retention removed "+name, nil)
		}
		if err != nil {
			e.events.Note("retention of "+what, err)
		}
	}
	names, err := r.Binlog(e.oldestFed(e.durable.Load()), cutoff)
	note("the binlog", names, err)
	for _, t := range e.topics(func(*Topic) bool { return true }) {
		select {
		case <-e.quit:
			return
		default:
		}
		if t.leaving.Load() {
			continue // the files of that name are not its own any more
		}
		names, err := r.Topic(t.Meta.Name, t.End().File, cutoff)
		note("topic "+t.Meta.Name, names, err)
	}
	r.Forget()
}
