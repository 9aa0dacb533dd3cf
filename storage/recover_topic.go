package storage

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"smss/codec"
)

// inOrder returns the topics in the order of their names, so that one recovery
// is like another.
func (r *recovery) inOrder() []*recovering {
	return slices.SortedFunc(maps.Values(r.topics), func(a, b *recovering) int { return strings.Compare(a.meta.Name, b.meta.Name) })
}

// openTopics finds the end of every topic's log.
func (r *recovery) openTopics() error {
	defer r.closePeek()
	done := int64(0)
	for _, t := range r.inOrder() {
		err := r.openTopic(t)
		if err == nil {
			t.log.ended, t.log.lastID = t.ended, t.lastID
			if !t.has {
				t.log.lastID = t.stored.LastEventID // nobody has read it now
			}
			if t.short {
				err = r.restore(t)
			}
		}
		if err != nil {
			return fmt.Errorf("topic %q: %w", t.meta.Name, err)
		}
		done++
		r.progress("reading topics", done, int64(len(r.topics)))
	}
	return nil
}

func (r *recovery) openTopic(t *recovering) error {
	dir := r.s.topicPath(t.meta.Name)
	ids, err := listFiles(r.s.fsys, dir)
	if err != nil {
		return err
	}
	if r.powerLost && len(ids) > 0 {
		// The metadata can have kept a creation of which the rest was lost,
		// also that a former life's directory had gone.
		first, err := r.s.Reader(t.meta.Name).firstRecord(ids[0], Pos{File: maxFileID + 1})
		if err == nil && first.EventID < t.meta.CreateEventID {
			if _, err := r.s.moveToTrash(dir); err != nil {
				return err
			}
			ids = nil
		}
	}
	if len(ids) == 0 {
		// The directory itself is missing where a crash came between the steps
		// of a creation or a deletion: it is there again for what the binlog
		// says about it.
		t.log = r.s.newTopicLog(&t.meta, Pos{})
		if r.clean {
			return nil
		}
		r.s.markDirs(dir) // whoever made it may not have synced it
		return r.s.fsys.MkdirAll(dir)
	}
	newest := ids[len(ids)-1]
	if r.clean {
		size, err := r.s.fsys.Size(fileName(dir, newest))
		t.log = r.s.newTopicLog(&t.meta, Pos{newest, size})
		return err
	}
	first, err := r.lastBeginningBefore(t.meta.Name, ids, r.sound)
	if err != nil {
		return err
	}
	end, cut, err := r.topicTail(t, dir, ids[first:])
	if err != nil {
		return err
	}
	t.log = r.s.newTopicLog(&t.meta, end)
	if cut || !r.found || !t.has || !t.source.Before(r.durable) {
		// The process that wrote it may not have synced it.
		for ids[len(ids)-1] > end.File {
			ids = ids[:len(ids)-1]
		}
		if first, err = r.lastBeginningBefore(t.meta.Name, ids, r.durable); err != nil {
			return err
		}
		r.s.markDirty(t.log, ids[first])
		r.s.markDirs(dir)
	}
	return nil
}

// lastBeginningBefore returns the index of the last file whose first record's
// source lies before bound, 0 if there is none.
func (r *recovery) lastBeginningBefore(topic string, ids []int64, bound Pos) (int, error) {
	reader := r.s.Reader(topic)
	for i := len(ids) - 1; i > 0; i-- {
		rec, err := reader.firstRecord(ids[i], Pos{File: maxFileID + 1})
		switch {
		case err == nil && rec.Source.Before(bound) && r.hasEvent(&rec, topic):
			return i, nil
		case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, codec.ErrRecordDamaged):
			return 0, err
		}
	}
	return 0, nil
}

// topicTail cuts what does not stay of a topic's newest files, ids, and
// returns the end. The last record that stays is left in t.
func (r *recovery) topicTail(t *recovering, dir string, ids []int64) (end Pos, cut bool, err error) {
	for i, id := range ids {
		newest := i == len(ids)-1
		if end, cut, err = r.topicFile(t, dir, id, newest); err != nil {
			return end, cut, err
		}
		// All records of the files that follow are of events that are applied
		// again, or lost.
		if rest := ids[i+1:]; len(rest) > 0 && (cut || r.powerLost) {
			return end, true, errors.Join(r.lowerEnd(t, end), r.dropFiles(t, dir, rest))
		}
	}
	return end, cut, nil
}

// topicFile walks the part of a topic's file that is not sure, and cuts what
// does not stay.
func (r *recovery) topicFile(t *recovering, dir string, id int64, newest bool) (end Pos, cut bool, err error) {
	name := fileName(dir, id)
	f, err := r.s.fsys.OpenAppend(name)
	if err != nil {
		return end, false, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return end, false, err
	}
	from := r.s.Reader(t.meta.Name).nearest(f, id, size, func(e indexEntry) bool {
		rec, err := recordAt(f, e.off, size)
		return err == nil && rec.Source.Before(r.sound) && r.hasEvent(&rec, t.meta.Name)
	})
	var rec TopicRecord
	parse := func(b []byte) (int, error) { return ParseTopicRecord(b, maxStoredPayload, &rec) }
	stop, lost := int64(-1), false // where what does not stay begins; it is of lost events
	behind := from                 // the last record seen
	ghosts := int64(-1)            // where records begin of which no event is known
	again := false                 // all of it is of events that are applied again
	tl, err := scanTail(f, from, topicKind, parse, func(off, end int64) error {
		r.seen(rec.EventID)
		switch {
		case stop >= 0:
		case r.powerLost && off == 0 && id > 0 && !rec.Source.Before(r.sound):
			// The file before it can be lost, name and all: what this one holds
			// is written again, in its order.
			stop, again = 0, true
		case r.powerLost && off > behind && !rec.Source.Before(r.sound):
			stop = behind
		case r.beyond(rec.Source):
			stop, lost = off, true
		case !r.hasEvent(&rec, t.meta.Name):
			switch {
			case !rec.Source.Before(r.sound):
				// The binlog can have lost the end of a file and kept the next
				// one: what follows is written again, without this.
				stop, again = off, true
			case ghosts < 0:
				ghosts = off
			}
		default:
			t.source, t.lastID, t.has = rec.Source, rec.EventID, true
			ghosts = -1
		}
		behind = end
		return nil
	})
	if err != nil {
		return end, false, fmt.Errorf("%s: %w", name, err)
	}
	if ghosts >= 0 {
		stop, lost = ghosts, true
	}
	if stop >= 0 {
		tl.good, tl.broken = stop, false
		tl.damaged = slices.DeleteFunc(tl.damaged, func(off int64) bool { return off >= stop })
	}
	r.reportDamage(dir, id, &tl)
	end = Pos{id, tl.good}
	switch {
	case tl.torn() == 0:
		return end, false, nil
	case stop < 0 && !newest && !r.powerLost:
		r.s.opt.Events.damage(&DamageError{Dir: dir, Pos: end, Err: errTorn})
		return Pos{id, tl.size}, false, nil
	case !lost && !again:
		if err := r.rewind(t, f, &tl); err != nil {
			return end, false, err
		}
	}
	if err := r.lowerEnd(t, end); err != nil {
		return end, false, err
	}
	if err := r.cut(name, f, &tl); err != nil {
		return end, false, err
	}
	if err := trimIndex(r.s.fsys, dir, id, tl.good); err != nil {
		r.s.opt.Events.note("the index of "+name+" could not be cut, reading it may take longer", err)
	}
	return end, true, nil
}

// dropFiles removes files, the last one first. What is whole in them is written
// again from the binlog; only where that is not all, they are kept aside.
func (r *recovery) dropFiles(t *recovering, dir string, ids []int64) error {
	for _, id := range slices.Backward(ids) {
		name := fileName(dir, id)
		f, err := r.s.fsys.OpenAppend(name)
		if err != nil {
			return err
		}
		var all tail
		if all.size, err = f.Size(); err == nil && all.size > 0 {
			var whole bool
			if whole, err = r.dropFile(t, f, all.size); err == nil && !whole {
				err = r.cut(name, f, &all)
			}
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
		r.s.opt.Events.note(name+": removed, what the binlog has of it is written again", nil)
		if err := errors.Join(removeIfExists(r.s.fsys, name), removeIfExists(r.s.fsys, indexName(dir, id))); err != nil {
			return err
		}
	}
	return syncDir(r.s.fsys, dir)
}

// dropFile looks once more at a file that will go: its ids may have been seen,
// and where its beginning is damaged, so may older events be in it.
func (r *recovery) dropFile(t *recovering, f File, size int64) (whole bool, err error) {
	if _, bad := recordAt(f, 0, size); bad != nil {
		if err := r.rewindTo(t); err != nil {
			return false, err
		}
	}
	var rec TopicRecord
	parse := func(b []byte) (int, error) { return ParseTopicRecord(b, maxStoredPayload, &rec) }
	whole = true
	tl, err := scanTail(f, 0, topicKind, parse, func(_, _ int64) error {
		r.seen(rec.EventID)
		whole = whole && !r.beyond(rec.Source)
		return nil
	})
	return whole && tl.torn() == 0 && len(tl.damaged) == 0, err
}

// rewind makes recovery start early enough for the topic's cut records to be
// written again: what was cut may be older than the checkpoint, if it was
// damage and not a torn write. Zeros can be either. A record that was torn says
// itself where it comes from.
func (r *recovery) rewind(t *recovering, f File, tl *tail) error {
	source, torn, err := tornSource(f, tl.good, tl.size)
	if err != nil || (torn && !source.Before(r.start)) {
		return err
	}
	return r.rewindTo(t)
}

// rewindTo makes recovery start at the topic's last event, at the latest. The
// checkpoint goes back first, because otherwise a recovery that is interrupted
// after the cut would be followed by one that does not know of it, and one that
// is interrupted in the replay by one that skips the rest of it.
func (r *recovery) rewindTo(t *recovering) error {
	var from Pos
	if t.has {
		from = t.source
	}
	if from.Before(r.first) {
		from = r.first // what lies before it was removed by retention
	}
	if !from.Before(r.start) {
		return nil
	}
	r.start = from
	if !r.found {
		return nil // there is none to move
	}
	// It stays that of the process that stopped: what it says of the machine
	// is what the next recovery has to know.
	cp := r.checkpoint
	cp.Applied, cp.Clean, cp.NextEventID = from, false, r.state.NextEventID
	if from.Before(cp.Durable) {
		cp.Durable = from
	}
	var b MetaBatch
	b.PutCheckpoint(cp)
	if err := r.s.meta.Commit(&b); err != nil {
		return err
	}
	return r.s.syncMeta()
}

// tornSource returns the source of the record at at, if its line can be read
// and says that the record would end behind the file.
func tornSource(f File, at, size int64) (source Pos, torn bool, err error) {
	s := newScanner(f, topicKind, at, size, nil, codec.MaxRecordLine+4)
	if err := s.fill(0); err != nil && !errors.Is(err, io.EOF) {
		return source, false, err
	}
	var l codec.Line
	n, err := codec.ParseLine(s.rest, topicFields, &l)
	if err != nil {
		return source, false, nil
	}
	payload, ok1 := l.Decimal(3)
	file, ok2 := l.Decimal(5)
	off, ok3 := l.Decimal(6)
	torn = ok1 && ok2 && ok3 && at+int64(n)+payload > size
	return Pos{file, off}, torn, nil
}

// hasEvent reports whether the binlog has the event of a topic's record. That
// is asked only where the machine went down: the records of a batch that was
// undone, or that an earlier recovery cut, can be there again if the process
// that did so was killed before it was durable, and the place that they name
// is another event's by now. What cannot be looked up is believed.
func (r *recovery) hasEvent(rec *TopicRecord, topic string) bool {
	return !r.powerLost || r.standsAt(rec, topic)
}

// standsAt reports whether the binlog has the event of a topic's record at the
// place that the record names. A file that is not there is believed.
func (r *recovery) standsAt(rec *TopicRecord, topic string) bool {
	if r.peek == nil || r.peeked != rec.Source.File {
		r.closePeek()
		f, err := r.s.fsys.Open(fileName(filepath.Join(r.s.path, binlogDir), rec.Source.File))
		if err != nil {
			return true
		}
		r.peek, r.peeked = f, rec.Source.File
	}
	size, err := r.peek.Size()
	if err != nil {
		return true
	}
	s := newScanner(r.peek, binlogKind, rec.Source.Off, size, nil, codec.MaxRecordLine+4)
	if err := s.fill(0); err != nil && !errors.Is(err, io.EOF) {
		return true
	}
	var l codec.Line
	if _, err := codec.ParseLine(s.rest, binlogKind.fields, &l); err != nil {
		return false
	}
	first, ok := l.Decimal(2)
	return ok && first <= rec.EventID && string(l.Field(4)) == topic
}

func (r *recovery) closePeek() {
	if r.peek != nil {
		r.peek.Close()
		r.peek = nil
	}
}

// beyond reports whether source, a topic record's, lies behind the binlog's
// end: an event that was lost. Without a checkpoint, a source in a file that
// the binlog does not reach at all says that the binlog itself is missing, and
// then nothing may be cut: see settle.
func (r *recovery) beyond(source Pos) bool {
	if !r.found && (source.File > r.end.File || r.noBinlog) {
		r.end = Pos{max(r.end.File, source.File+1), 0}
		if !r.kept {
			r.kept = true
			r.s.opt.Events.note(fmt.Sprintf("the binlog does not reach file %d, which topics refer to: files are missing; the messages of topics are kept", source.File), nil)
		}
		return false
	}
	return !source.Before(r.end)
}
