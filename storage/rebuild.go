package storage

import (
	"errors"
	"fmt"
	"path/filepath"

	"smss/codec"
)

// The metadata can be lost: its directory was removed, or it was moved away
// because it was damaged. What it held is in the logs, but for two things:
// topics whose CREATE_TOPIC record retention has removed get no end of life,
// and delayed messages whose DELAY record retention has removed are gone. Both
// are reported.

// rebuildIfLost makes the catalog from the logs where the metadata has lost
// it: there is no checkpoint in a directory that has data, or the binlog
// begins behind the checkpoint, which retention never lets happen.
func (r *recovery) rebuildIfLost(found bool) error {
	dir := filepath.Join(r.s.path, binlogDir)
	ids, err := listFiles(r.s.fsys, dir)
	if err != nil {
		return err
	}
	gap := found && len(ids) > 0 && r.start.File < ids[0]
	if r.state.Adopted {
		return nil
	}
	names, err := r.topicDirs()
	if err != nil || (len(ids) == 0 && len(names) == 0) {
		return err
	}
	if found && !gap && !r.checkpoint.Rebuild {
		lost, err := r.forgotten(names, dir, ids)
		if err != nil || !lost {
			return err
		}
	}
	r.s.opt.Events.note("the metadata is lost: making it again from the logs", nil)
	if found {
		// Before anything is made again, because otherwise a start that is
		// interrupted would be followed by one that takes the half of it for the
		// state at the checkpoint.
		cp := r.checkpoint
		cp.Rebuild, cp.Clean = true, false
		var b MetaBatch
		b.PutCheckpoint(cp)
		if err := r.s.meta.Commit(&b); err != nil {
			return err
		}
		if err := r.s.syncMeta(); err != nil {
			return err
		}
	}
	r.rebuilt, r.start = true, Pos{}
	final, err := r.finalStates(dir, ids, Pos{})
	if err != nil {
		return err
	}
	for name, m := range final {
		if m != nil && safePathName(name) {
			r.topics[name] = &recovering{meta: *m}
		} else {
			delete(r.topics, name)
		}
	}
	return r.adoptDirs(names, final)
}

// forgotten reports whether there is a directory of a topic that the metadata
// should know and does not: with messages of this project's, whose events lie
// before the checkpoint, and with no word of the topic in the binlog behind
// it. A deletion moves the directory away before the metadata forgets the
// topic, so that no crash leaves one.
func (r *recovery) forgotten(names []string, dir string, ids []int64) (bool, error) {
	defer r.closePeek()
	var told map[string]*TopicMeta
	for _, name := range names {
		if r.topics[name] != nil {
			continue
		}
		rec, found, err := r.anyStored(name)
		if err != nil {
			return false, err
		}
		if !found || !rec.Checksummed || !rec.Source.Before(r.start) || !r.standsAt(&rec, name) {
			continue // also one whose creation a power cut took back
		}
		if told == nil {
			if told, err = r.finalStates(dir, ids, r.start); err != nil {
				return false, err
			}
		}
		if _, ok := told[name]; !ok {
			return true, nil
		}
	}
	return false, nil
}

// anyStored returns a record of a topic's directory, the first that can be
// read.
func (r *recovery) anyStored(name string) (rec TopicRecord, found bool, err error) {
	log := LogName{name, r.s.topicPath(name)}
	o := Offline{fsys: r.s.fsys, path: r.s.path}
	err = o.Walk(log, WalkStart{}, WalkSeen{Entry: func(e *Entry) error {
		rec, found = *e.Message, true
		rec.Message = nil
		return errStop
	}})
	return rec, found, err
}

// finalStates returns the last life of every topic that was created or deleted
// within the binlog from from on, nil where it was deleted.
func (r *recovery) finalStates(dir string, ids []int64, from Pos) (map[string]*TopicMeta, error) {
	final := map[string]*TopicMeta{}
	for _, id := range ids {
		if id < from.File {
			continue
		}
		off := int64(0)
		if id == from.File {
			off = from.Off
		}
		f, err := r.s.fsys.Open(fileName(dir, id))
		if err != nil {
			return nil, err
		}
		var rec codec.BinlogRecord
		parse := func(b []byte) (int, error) { return codec.ParseBinlogRecord(b, maxStoredPayload, &rec) }
		_, err = scanTail(f, off, binlogKind, parse, func(_, end int64) error {
			r.progress("reading the binlog for topics", end, 0)
			switch rec.Command {
			case codec.CreateTopic:
				m := createdTopic(string(rec.Topic), &rec)
				final[m.Name] = &m
			case codec.DeleteTopic:
				final[string(rec.Topic)] = nil
			}
			return nil
		})
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
	return final, nil
}

// createdTopic returns the topic that a CREATE_TOPIC record makes.
func createdTopic(name string, rec *codec.BinlogRecord) TopicMeta {
	return TopicMeta{
		Name: name, CreatedAtMs: rec.WrittenAtMs, ExpireAtMs: rec.ExpireAtMs(), CreateEventID: rec.EventID,
		StateChangedAtMs: rec.WrittenAtMs, StateChangeEventID: rec.EventID,
	}
}

// topicDirs returns the topics that have a directory.
func (r *recovery) topicDirs() ([]string, error) {
	o := Offline{fsys: r.s.fsys, path: r.s.path}
	return o.topicNames()
}

// adoptDirs makes topics of the directories that the binlog says nothing
// about: their creation was removed by retention. A directory of a deleted
// topic goes to the trash.
func (r *recovery) adoptDirs(names []string, final map[string]*TopicMeta) error {
	for _, name := range names {
		m, told := final[name]
		switch {
		case told && m == nil:
			if _, err := r.s.moveToTrash(r.s.topicPath(name)); err != nil {
				return err
			}
		case !told && r.topics[name] == nil:
			first, _, err := r.anyStored(name)
			if err != nil {
				return fmt.Errorf("topic %q: %w", name, err)
			}
			at := first.StoredAtMs
			// Id 0: whatever is stored for the topic is of this life.
			r.topics[name] = &recovering{meta: TopicMeta{Name: name, CreatedAtMs: at, StateChangedAtMs: at}}
			r.s.opt.Events.note(fmt.Sprintf("topic %q: its creation is no longer in the binlog, so that the end of its life is unknown; it now lives for ever", name), nil)
		}
	}
	if len(names) > 0 {
		r.s.opt.Events.note("delayed messages older than the binlog could not be restored, if there were any", nil)
	}
	return nil
}

// saveCatalog writes the rebuilt catalog to the metadata.
func (r *recovery) saveCatalog() error {
	var b MetaBatch
	for _, t := range r.inOrder() {
		b.PutTopic(&t.meta)
		if err := commitFull(r.s.meta, &b); err != nil {
			return err
		}
	}
	if b.Empty() {
		return nil
	}
	return r.s.meta.Commit(&b)
}
