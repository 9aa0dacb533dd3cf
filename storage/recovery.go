package storage

import (
	"bytes"
	"fmt"
	"path/filepath"
	"time"

	"smss/codec"
)

// recovery brings binlog, topic logs and metadata into agreement. The binlog
// is the truth: what it holds behind the checkpoint is applied again, and what
// topics hold of events that it does not hold is cut.
//
//	checkpoint          recovery starts at it; without one, at the binlog's beginning
//	binlog's tail       torn or zeros: kept aside and cut; damage before whole
//	                    records is reported and stepped over, never cut
//	a topic's tail      likewise; records whose source is not in the binlog are
//	                    cut; where the machine went down, so is all from the
//	                    first damage behind the checkpoint on
//	event               its messages are written as far as the topic lacks them
type recovery struct {
	s      *Store
	state  *State
	topics map[string]*recovering

	checkpoint Checkpoint
	found      bool // there is one
	start      Pos  // of the first event to apply
	durable    Pos  // what lies before it was synced
	// sound is the place before which topics' sources are believed: what they
	// hold of later events can be made again.
	sound Pos
	end   Pos // of the binlog
	clean bool
	// powerLost says that the machine may have gone down since the checkpoint:
	// any part of what was not synced can be missing.
	powerLost  bool
	noBinlog   bool     // it has no file
	kept       bool     // it has lost files, which was reported
	brokenTail bool     // its end is damage and no torn write
	stale      []string // topics whose stored end is of a former life
	first      Pos      // where the binlog begins
	peek       File     // of the binlog, number peeked; nil if none is open
	peeked     int64
	// rebuilt says that the catalog was made from the logs and is not in the
	// metadata yet.
	rebuilt bool
	last    time.Time // of the last progress report
}

// recovering is a topic during recovery.
type recovering struct {
	meta   TopicMeta
	log    *TopicLog
	source Pos   // of the last record
	lastID int64 // its event id
	has    bool  // there is a last record

	stored  TopicEnd // as a checkpoint has seen its end; valid if ended
	ended   bool
	short   bool          // its file is shorter than that
	lacks   *missingError // what it had lost, nil if nothing
	lacksAt Pos           // from where on
	held    bool          // the binlog has all that it lacks
}

func (r *recovery) run() error {
	cp, found, err := r.s.meta.Checkpoint()
	if err != nil {
		return err
	}
	if r.checkpoint, r.found = cp, found; found {
		r.start, r.durable = cp.from(r.s.boot), cp.Durable
		r.state.NextEventID = cp.NextEventID
		r.powerLost = cp.Machine == "" || cp.Machine != r.s.boot
	}
	if err := r.loadTopics(); err != nil {
		return err
	}
	if err := r.rebuildIfLost(found); err != nil {
		return err
	}
	if r.rebuilt {
		r.found, r.durable = false, Pos{}
	}
	if err := r.loadEnds(); err != nil {
		return err
	}
	if err := r.findEnd(); err != nil {
		return err
	}
	if r.found && r.end.Before(r.start) {
		return fmt.Errorf("%s ends at %v, before the place %v up to which it was applied: files were removed or cut; restore them, or give up what they held: %s",
			filepath.Join(r.s.path, binlogDir), r.end, r.start, rebuildHint(filepath.Join(r.s.path, metaDir)))
	}
	r.clean = r.found && cp.Clean && r.end == r.start
	if err := r.findShort(); err != nil {
		return err
	}
	if !r.clean {
		if err := r.makeDurable(); err != nil {
			return err
		}
	}
	if err := r.openTopics(); err != nil {
		return err
	}
	r.s.binlog = newLog(r.s.fsys, filepath.Join(r.s.path, binlogDir), r.s.opt.MaxLogSize, r.end)
	if !r.clean {
		if err := r.replay(); err != nil {
			return err
		}
		r.reportLacking()
	}
	return r.settle()
}

// makeDurable syncs the binlog, which may be in the page cache only, before
// anything is made of it; and keeps the next id above those of the delayed
// messages, whose events a power cut can have taken from the binlog.
func (r *recovery) makeDurable() error {
	if err := r.syncBinlog(); err != nil {
		return &FatalError{err}
	}
	if r.found && !r.powerLost {
		return nil
	}
	return r.s.meta.DelayKeys(0, func(k DelayKey) bool { r.seen(k.EventID); return true })
}

// seen keeps the next id above id.
func (r *recovery) seen(id int64) { r.state.NextEventID = max(r.state.NextEventID, id+1) }

func (r *recovery) progress(what string, done, total int64) {
	if r.s.opt.Events.Progress == nil || time.Since(r.last) < time.Second {
		return
	}
	r.last = time.Now()
	r.s.opt.Events.Progress(what, done, total)
}

// loadTopics reads the catalog. A deletion that was marked and not finished is
// finished.
func (r *recovery) loadTopics() error {
	var halfDeleted []TopicMeta
	err := r.s.meta.Topics(func(m TopicMeta) error {
		r.seen(max(m.CreateEventID, m.StateChangeEventID))
		switch {
		case !safePathName(m.Name):
			r.s.opt.Events.note(fmt.Sprintf("topic %q left alone: its name leads out of its directory", m.Name), nil)
		case m.State == StateDeleted:
			halfDeleted = append(halfDeleted, m)
		default:
			r.topics[m.Name] = &recovering{meta: m}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, m := range halfDeleted {
		if _, err := r.s.moveToTrash(r.s.topicPath(m.Name)); err != nil {
			return err
		}
		var b MetaBatch
		b.DeleteTopic(m.Name, m.ExpireAtMs)
		if err := r.s.meta.Commit(&b); err != nil {
			return err
		}
	}
	return nil
}

// findEnd walks the binlog from start to its end, cuts a torn tail off the
// newest file, and keeps the next id above all that it sees.
func (r *recovery) findEnd() error {
	dir := filepath.Join(r.s.path, binlogDir)
	ids, err := listFiles(r.s.fsys, dir)
	if err != nil {
		return err
	}
	r.end, r.noBinlog = Pos{}, len(ids) == 0
	if len(ids) > 0 {
		r.first = Pos{ids[0], 0}
	}
	for i, id := range ids {
		if id < r.start.File {
			r.end = Pos{id + 1, 0}
			continue
		}
		from := int64(0)
		if id == r.start.File {
			from = r.start.Off
		}
		size, err := r.walkBinlog(dir, id, from, i == len(ids)-1)
		if err != nil {
			return err
		}
		r.end = Pos{id, size}
	}
	// As newLog does: the place behind a full file is the next file's begin.
	if r.end.Off >= r.s.opt.MaxLogSize {
		r.end = Pos{r.end.File + 1, 0}
	}
	if r.start.Off >= r.s.opt.MaxLogSize {
		r.start = Pos{r.start.File + 1, 0}
	}
	switch {
	case !r.found:
		r.sound = r.end
	case len(ids) > 0 && r.start.File < ids[0]:
		r.sound = Pos{ids[0], 0} // earlier events cannot be applied again
	default:
		r.sound = r.start
	}
	return nil
}

// walkBinlog returns the size of a binlog file after its tail was cut.
func (r *recovery) walkBinlog(dir string, id, from int64, newest bool) (int64, error) {
	name := fileName(dir, id)
	f, err := r.s.fsys.OpenAppend(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var rec codec.BinlogRecord
	parse := func(b []byte) (int, error) { return codec.ParseBinlogRecord(b, maxStoredPayload, &rec) }
	t, err := scanTail(f, from, binlogKind, parse, func(off, end int64) error {
		r.seen(rec.EventID + rec.IDs() - 1)
		r.progress("reading the binlog", end, 0)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	r.reportDamage(dir, id, &t)
	if t.torn() > 0 {
		if t.broken && !r.powerLost {
			// It was acknowledged, perhaps, and its topic may have a good copy:
			// cut off here, that would be one of an event that never was.
			r.brokenTail = true
			return t.size, nil
		}
		if !newest && !r.powerLost {
			r.s.opt.Events.damage(&DamageError{Dir: dir, Pos: Pos{id, t.good}, Err: errTorn})
			return t.size, nil
		}
		if err := r.cut(name, f, &t); err != nil {
			return 0, err
		}
	}
	return t.good, nil
}

func (r *recovery) reportDamage(dir string, id int64, t *tail) {
	for _, off := range t.damaged {
		r.s.opt.Events.damage(&DamageError{Dir: dir, Pos: Pos{id, off}, Err: codec.ErrRecordDamaged})
	}
	if t.broken && !r.powerLost {
		r.s.opt.Events.damage(&DamageError{Dir: dir, Pos: Pos{id, t.good}, Err: codec.ErrRecordDamaged})
	}
}

// cut removes what lies behind the last whole record. Bytes that are not all
// zeros are kept aside first.
func (r *recovery) cut(name string, f File, t *tail) error {
	what := fmt.Sprintf("%s: %d bytes behind the last whole record cut off", name, t.torn())
	zero, err := allZero(f, t.good, t.size)
	if err != nil {
		return err
	}
	if !zero {
		aside, err := keepAside(r.s.fsys, name, f, t.good, t.size)
		if err != nil {
			// The copy is a courtesy; a full disk must not keep the server down.
			r.s.opt.Events.note("what is cut off "+name+" could not be kept aside", err)
		} else {
			what += ", kept in " + aside
		}
	}
	err = f.Truncate(t.good)
	if err == nil {
		err = f.Sync() // before anything is written behind it
	}
	if err != nil {
		return err
	}
	r.s.opt.Events.note(what, nil)
	return nil
}

func allZero(f File, from, to int64) (bool, error) {
	buf := make([]byte, 64<<10)
	for from < to {
		n, err := f.ReadAt(buf[:min(int64(len(buf)), to-from)], from)
		if n == 0 {
			return false, err
		}
		if len(bytes.Trim(buf[:n], "\x00")) > 0 {
			return false, nil
		}
		from += int64(n)
	}
	return true, nil
}

// replay applies the events from start to end.
func (r *recovery) replay() error {
	dir := filepath.Join(r.s.path, binlogDir)
	ids, err := listFiles(r.s.fsys, dir)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if id < r.start.File {
			continue
		}
		from := int64(0)
		if id == r.start.File {
			from = r.start.Off
		}
		if err := r.replayFile(dir, id, from); err != nil {
			return fmt.Errorf("%s: %w", fileName(dir, id), err)
		}
	}
	return r.flush()
}

func (r *recovery) replayFile(dir string, id, from int64) error {
	f, err := r.s.fsys.Open(fileName(dir, id))
	if err != nil {
		return err
	}
	defer f.Close()
	var rec codec.BinlogRecord
	parse := func(b []byte) (int, error) { return codec.ParseBinlogRecord(b, maxStoredPayload, &rec) }
	_, err = scanTail(f, from, binlogKind, parse, func(off, end int64) error {
		r.progress("applying the binlog", end, 0)
		return r.apply(Pos{id, off}, &rec)
	})
	return err
}

// replayBatchMax is how many bytes recovery stages before it writes.
const replayBatchMax = 4 << 20

// apply does again what an event did, where it is not there yet.
func (r *recovery) apply(at Pos, rec *codec.BinlogRecord) error {
	b := r.s.Batch()
	name := string(rec.Topic)
	t := r.topics[name]
	switch rec.Command {
	case codec.CreateTopic:
		if t == nil && safePathName(name) {
			return r.create(name, rec)
		}
		if t != nil && t.meta.CreateEventID == rec.EventID {
			t.held = true // from the beginning
		}
		return nil
	case codec.DeleteTopic:
		if t != nil && t.meta.CreateEventID < rec.EventID {
			return r.delete(t)
		}
		if t == nil && safePathName(name) {
			// Its files can be there still, or be gone and come back with the
			// next power cut, if who moved them did not live to sync that.
			r.s.markDir(filepath.Dir(r.s.topicPath(name)))
			_, err := r.s.moveToTrash(r.s.topicPath(name))
			return err
		}
		return nil
	}
	if rec.Command == codec.DelayApply {
		trigger, id := rec.DelayKey()
		b.Meta().DeleteDelay(DelayKey{trigger, id, name})
	}
	if t == nil || t.meta.CreateEventID >= rec.EventID {
		return r.flushIfLarge() // of a topic that is gone, or of its former life
	}
	if rec.Command == codec.Delay {
		trigger, id := rec.DelayKey()
		if len(rec.Messages()) > MaxDelayPayload {
			// Only the existing server took so large a one, and has put it
			// into its own, larger, value log.
			r.s.opt.Events.note(fmt.Sprintf("delayed message %d of topic %q is too large to be restored", id, name), nil)
			return nil
		}
		b.Meta().PutDelay(DelayKey{trigger, id, name}, bytes.Clone(rec.Payload))
		return r.flushIfLarge()
	}
	if t.has && at.Before(t.source) {
		return r.flushIfLarge()
	}
	messages := rec.Messages()
	n, ok := codec.CountStored(messages)
	if !ok {
		r.s.opt.Events.damage(&DamageError{Dir: filepath.Join(r.s.path, binlogDir), Pos: at, Err: codec.ErrFields})
		return nil
	}
	first := TopicRecord{StoredAtMs: rec.WrittenAtMs, EventID: rec.EventID, SavedAtMs: rec.WrittenAtMs, Source: at}
	last := rec.EventID + int64(n) - 1
	if t.has && t.source == at {
		// A torn write can have left the first of its messages.
		for ; first.EventID <= min(t.lastID, last); first.EventID++ {
			size, _ := codec.MessageSize(messages)
			messages = messages[size:]
			first.Index++
		}
	}
	if len(messages) == 0 {
		return r.flushIfLarge()
	}
	if t.lacks != nil && t.lacks.restored == 0 {
		t.lacks.restored = first.EventID
	}
	b.messages(t.log, first, messages)
	t.source, t.lastID, t.has = at, last, true
	r.state.Replayed++
	return r.flushIfLarge()
}

func (r *recovery) create(name string, rec *codec.BinlogRecord) error {
	if err := r.flush(); err != nil {
		return err
	}
	t := &recovering{meta: createdTopic(name, rec)}
	t.log = r.s.Batch().Create(&t.meta)
	r.topics[name] = t
	r.state.Replayed++
	return r.flush()
}

func (r *recovery) delete(t *recovering) error {
	if err := r.flush(); err != nil {
		return err
	}
	r.s.Batch().Delete(t.log, &t.meta)
	delete(r.topics, t.meta.Name)
	r.state.Replayed++
	return r.flush()
}

func (r *recovery) flushIfLarge() error {
	if b := r.s.Batch(); b.Bytes() > replayBatchMax || b.Meta().Full() {
		return r.flush()
	}
	return nil
}

func (r *recovery) flush() error {
	if r.s.Batch().Empty() {
		return nil
	}
	return r.s.Batch().Commit()
}

// idGap is how many ids are left out after the machine went down: without
// syncs before replies, events that are lost may have been delivered, and no
// other event must get their ids. Also where the binlog's end is damage, for
// the ids in it.
const idGap = 1 << 24

// settle makes the recovered state durable and the starting point of the
// next recovery, and hands the topics over.
func (r *recovery) settle() error {
	if r.s.binlog.end.Before(r.end) {
		r.s.binlog.end = r.end
	}
	r.state.LastEventID = r.state.NextEventID - 1
	r.state.PowerLost = r.powerLost || r.brokenTail
	if r.state.PowerLost {
		r.state.NextEventID += idGap
	}
	for _, t := range r.inOrder() {
		r.state.Topics = append(r.state.Topics, TopicState{t.meta, t.log})
	}
	if r.rebuilt {
		if err := r.saveCatalog(); err != nil {
			return err
		}
	}
	task := r.s.BeginCheckpoint(r.s.binlog.end, r.state.NextEventID, true)
	r.settleEnds(task)
	if err := task.Run(); err != nil {
		return err
	}
	// A clean checkpoint of the last stop must not come back: what will be
	// written from now on is not clean.
	return r.s.syncMeta()
}

func (r *recovery) syncBinlog() error {
	dir := filepath.Join(r.s.path, binlogDir)
	ids, err := listFiles(r.s.fsys, dir)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if id >= min(r.start.File, r.durable.File) {
			if err := syncByName(r.s.fsys, fileName(dir, id)); err != nil {
				return err
			}
		}
	}
	return syncDir(r.s.fsys, dir)
}
