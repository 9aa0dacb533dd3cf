package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// TopicEnd is where a topic's log ended when a checkpoint with a sync was
// begun: the file was at least that long on the disk, and stays so. A file
// that is cut between two records looks whole; that it is shorter than it was
// is what tells.
type TopicEnd struct {
	CreateEventID int64 // tells one life of a name from another
	End           Pos   // behind the last record, in the record's own file
	LastEventID   int64 // of the last record; 0 where nobody has read it
}

const (
	endPrefix    = "smss@end@"
	endValueSize = 32
)

func endKey(name string) []byte { return append([]byte(endPrefix), name...) }

func (e *TopicEnd) value() []byte {
	v := make([]byte, 0, endValueSize)
	for _, n := range [...]int64{e.CreateEventID, e.End.File, e.End.Off, e.LastEventID} {
		v = binary.LittleEndian.AppendUint64(v, uint64(n))
	}
	return v
}

// parseTopicEnd returns false for a value of another size, from a later version
// perhaps: it says nothing.
func parseTopicEnd(v []byte) (e TopicEnd, ok bool) {
	if len(v) != endValueSize {
		return e, false
	}
	n := func(i int) int64 { return int64(binary.LittleEndian.Uint64(v[8*i:])) }
	return TopicEnd{n(0), Pos{n(1), n(2)}, n(3)}, true
}

// PutEnd writes a topic's end.
func (b *MetaBatch) PutEnd(name string, e *TopicEnd) { b.put(endKey(name), e.value()) }

// DeleteEnd removes it.
func (b *MetaBatch) DeleteEnd(name string) { b.delete(endKey(name)) }

// endOf returns the topic's end as it is committed.
func (t *TopicLog) endOf() TopicEnd { return TopicEnd{t.createEventID, t.log.last, t.lastID} }

// forget lets the next checkpoint remove a deleted topic's end. Not the batch
// that deletes: a checkpoint under way could store it after that.
func (s *Store) forget(t *TopicLog) {
	t.gone = true
	if t.ended {
		s.forgotten = append(s.forgotten, t.name)
	}
}

// commitEnds writes ends to the metadata, each nil one removes a key, in as
// few transactions as they fit into. The last one is left in b for the caller
// to add to.
func (s *Store) commitEnds(b *MetaBatch, ends map[string]*TopicEnd) error {
	for _, name := range slices.Sorted(maps.Keys(ends)) {
		if err := commitFull(s.meta, b); err != nil {
			return err
		}
		if e := ends[name]; e == nil {
			b.DeleteEnd(name)
		} else {
			b.PutEnd(name, e)
		}
	}
	return nil
}

// loadEnds gives the topics their stored ends. Keys of topics that are gone,
// or of former lives, are removed by the checkpoint at recovery's end.
func (r *recovery) loadEnds() error {
	r.stale = nil
	return r.s.meta.Ends(func(name string, e TopicEnd) error {
		t := r.topics[name]
		if t == nil || t.meta.CreateEventID != e.CreateEventID {
			r.stale = append(r.stale, name)
			return nil
		}
		t.stored, t.ended = e, true
		return nil
	})
}

// findShort marks the topics whose file is shorter than a checkpoint has seen
// it. Their tails are read, and what is missing is written again, also after a
// clean stop.
func (r *recovery) findShort() error {
	for _, t := range r.inOrder() {
		if !t.ended || t.stored.End.Off == 0 {
			continue
		}
		dir := r.s.topicPath(t.meta.Name)
		size, err := r.s.fsys.Size(fileName(dir, t.stored.End.File))
		switch {
		case err == nil:
			t.short = size < t.stored.End.Off
		case isNotExist(err):
			// Retention removes the oldest files, never the newest one.
			ids, err := listFiles(r.s.fsys, dir)
			if err != nil {
				return err
			}
			t.short = len(ids) == 0 || ids[0] < t.stored.End.File
		default:
			return err
		}
		if t.short {
			r.clean = false
		}
	}
	return nil
}

// lowerEnd lets a topic's stored end follow a cut that recovery is about to
// make, because otherwise a start that is interrupted behind the cut would be
// followed by one that takes it for damage.
func (r *recovery) lowerEnd(t *recovering, end Pos) error {
	if !t.ended || t.short || !end.Before(t.stored.End) {
		return nil
	}
	t.stored.End, t.stored.LastEventID = end, t.lastID
	var b MetaBatch
	b.PutEnd(t.meta.Name, &t.stored)
	if err := r.s.meta.Commit(&b); err != nil {
		return err
	}
	return r.s.syncMeta()
}

// settleEnds adds to recovery's checkpoint the ends that it would not store by
// itself: of topics that had none, or another one.
func (r *recovery) settleEnds(task *CheckpointTask) {
	for _, t := range r.topics {
		end := t.log.endOf()
		if t.ended && end == t.stored || !t.ended && end.End == (Pos{}) {
			continue
		}
		task.ends[t.meta.Name], t.log.ended = &end, true
	}
	for _, name := range r.stale {
		if _, there := task.ends[name]; !there {
			task.ends[name] = nil
		}
	}
}

// restore makes recovery start early enough for what a short topic lacks to be
// written again, and keeps for the report what that is.
func (r *recovery) restore(t *recovering) error {
	t.lacks = &missingError{after: t.lastID, last: t.stored.LastEventID}
	t.lacksAt = t.log.log.last
	// All that follows the last record is in the binlog, if that is.
	t.held = t.has && !t.source.Before(r.first) || r.first == Pos{}
	return r.rewindTo(t)
}

// reportLacking says which topics have lost messages and got them back, or
// have not.
func (r *recovery) reportLacking() {
	for _, t := range r.inOrder() {
		if t.lacks == nil {
			continue
		}
		if t.held {
			r.s.opt.Events.note(fmt.Sprintf("%s: messages behind event id %d were missing and were written again from the binlog",
				fileName(t.log.log.dir, t.lacksAt.File), t.lacks.after), errShortened)
			continue
		}
		r.s.opt.Events.damage(&DamageError{Dir: t.log.log.dir, Pos: t.lacksAt, After: t.lacks.after, Err: t.lacks})
	}
}

var errShortened = errors.New("something else has cut the file")

// missingError says that a topic's file ends before messages that it held.
type missingError struct {
	after, last int64 // the messages missing have ids behind after, up to last
	restored    int64 // id of the first one that the binlog had; 0 = none
}

func (e *missingError) Error() string {
	last := e.last
	if e.restored > 0 {
		last = e.restored - 1
	}
	to := ""
	if last > 0 {
		to = fmt.Sprintf(" up to %d", last)
	}
	return fmt.Sprintf("the file was cut: messages of event ids behind %d%s are missing, and the binlog does not hold them any more", e.after, to)
}
