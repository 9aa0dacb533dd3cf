package engine

import (
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
	for {
		if err := e.store.EmptyTrash(); (err != nil) != trashFailing {
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
		now := time.Now()
		if e.cfg.RetentionMs > 0 && now.Sub(lastRetention) >= e.cfg.RetentionEvery {
			lastRetention = now
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

// checkDisk compares the free space with the floor. Leaving the refusing state
// takes a tenth more than entering it, so that it does not flap.
func (e *Engine) checkDisk() {
	if e.cfg.MinFreeBytes <= 0 {
		return
	}
	free, err := e.store.FreeBytes()
	if err != nil {
		e.events.Note("free space cannot be read", err)
		return
	}
	floor := e.cfg.MinFreeBytes
	was := e.lowDisk.Load()
	if was {
		floor += floor / 10
	}
	if low := free < floor; low != was {
		e.lowDisk.Store(low)
		if low {
			e.events.Note(fmt.Sprintf("free space %d bytes is below store.minFreeBytes %d: nothing is stored until there is more", free, e.cfg.MinFreeBytes), nil)
		} else {
			e.events.Note(fmt.Sprintf("free space %d bytes: storing again", free), nil)
		}
	}
}

// retain removes whole files whose last record is older than the retention.
func (e *Engine) retain(r *storage.Retention) {
	cutoff := e.clock.NowMs() - e.cfg.RetentionMs
	note := func(what string, names []string, err error) {
		for _, name := range names {
			e.events.Note("retention removed "+name, nil)
		}
		if err != nil {
			e.events.Note("retention of "+what, err)
		}
	}
	names, err := r.Binlog(e.durable.Load(), cutoff)
	note("the binlog", names, err)
	for _, t := range e.topics(func(t *Topic) bool { return !t.Ended() }) {
		select {
		case <-e.quit:
			return
		default:
		}
		names, err := r.Topic(t.Meta.Name, t.End().File, cutoff)
		note("topic "+t.Meta.Name, names, err)
	}
	r.Forget()
}
