package storage

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
)

// CheckpointTask moves the checkpoint. It is made by the writer between two
// batches and run by one goroutine at a time, beside the writer.
type CheckpointTask struct {
	s    *Store
	c    Checkpoint
	sync bool
	// What is still to be synced. Run owns them while it runs, and the next
	// BeginCheckpoint, which comes after it, takes over what it has left.
	files []string
	dirs  []string
	ends  map[string]*TopicEnd // to be stored with it, nil to be removed
	done  bool                 // all is synced
}

// BeginCheckpoint prepares a checkpoint at applied, a place up to which the
// binlog has been synced if sync is true, and all of which is in topic logs
// and metadata. With sync false nothing is synced, and the checkpoint counts
// for this run of the machine only.
func (s *Store) BeginCheckpoint(applied Pos, nextEventID int64, sync bool) *CheckpointTask {
	t := &CheckpointTask{s: s, sync: sync, c: Checkpoint{Applied: applied, Machine: s.boot, NextEventID: nextEventID}}
	if s.last != nil && s.last.done {
		s.durable = s.last.c.Applied
	}
	if !sync {
		t.c.Boot, t.c.Durable = s.boot, s.durable
		if s.boot == "" {
			// Nobody could tell later whether the machine went down.
			t.c.Applied = s.durable
		}
		return t
	}
	t.c.Durable = applied
	t.ends = map[string]*TopicEnd{}
	if s.last != nil {
		// Of each name once: a checkpoint that keeps failing must not pile up
		// what it leaves.
		slices.Sort(s.last.files)
		t.files, t.dirs = slices.Compact(s.last.files), s.last.dirs
		maps.Copy(t.ends, s.last.ends)
	}
	for _, name := range s.forgotten {
		t.ends[name] = nil
	}
	s.forgotten = nil
	for _, topic := range s.dirty {
		last := topic.log.end
		for id := topic.from; id < last.File; id++ {
			t.files = append(t.files, fileName(topic.log.dir, id))
		}
		if last.Off > 0 {
			t.files = append(t.files, fileName(topic.log.dir, last.File))
		}
		topic.dirty = false
		if !topic.gone {
			end := topic.endOf()
			t.ends[topic.name], topic.ended = &end, true
		}
	}
	clear(s.dirty)
	s.dirty = s.dirty[:0]
	t.dirs = slices.AppendSeq(t.dirs, maps.Keys(s.dirtyDirs))
	slices.Sort(t.dirs)
	t.dirs = slices.Compact(t.dirs)
	clear(s.dirtyDirs)
	s.last = t
	return t
}

// Run syncs what the checkpoint promises and then writes it. After a
// *FatalError, a failed sync, the store must not be written to; any other
// error leaves the rest of the work to the next checkpoint.
func (t *CheckpointTask) Run() error {
	s := t.s
	if t.sync {
		if err := t.syncAll(); err != nil {
			return err
		}
	}
	// The ends after the files' syncs, because otherwise a power cut in between
	// would make whole files look short.
	var b MetaBatch
	if err := s.commitEnds(&b, t.ends); err != nil {
		return err
	}
	b.PutCheckpoint(t.c)
	if err := s.meta.Commit(&b); err != nil {
		return err
	}
	t.ends = nil
	if t.c.Clean {
		return s.syncMeta()
	}
	return nil
}

func (t *CheckpointTask) syncAll() error {
	s := t.s
	for ; len(t.files) > 0; t.files = t.files[1:] {
		// A file that is gone belonged to a topic that was deleted since. If it
		// cannot be opened, no sync was tried.
		if err := syncByName(s.fsys, t.files[0]); err != nil && !isNotExist(err) {
			return err
		}
	}
	for ; len(t.dirs) > 0; t.dirs = t.dirs[1:] {
		if err := syncDir(s.fsys, t.dirs[0]); err != nil && !isNotExist(err) {
			return err
		}
	}
	if err := s.syncMeta(); err != nil {
		return err
	}
	t.done = true
	return nil
}

// syncMeta makes the metadata durable.
func (s *Store) syncMeta() error {
	if err := s.meta.Sync(); err != nil {
		return &FatalError{fmt.Errorf("sync of the metadata in %s: %w", filepath.Join(s.path, metaDir), err)}
	}
	return nil
}
