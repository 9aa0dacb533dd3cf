package storage

import (
	"bytes"
	"errors"
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
//	a topic's tail      likewise; records whose source is not in the binlog are cut
//	event               applied where the topic's last source lies before it
type recovery struct {
	s      *Store
	state  *State
	topics map[string]*recovering

	start Pos // of the first event to look at
	end   Pos // of the binlog
	clean bool
	last  time.Time // of the last progress report
}

// recovering is a topic during recovery.
type recovering struct {
	meta   TopicMeta
	log    *TopicLog
	source Pos  // of the last record
	has    bool // there is a last record
}

func (r *recovery) run() error {
	cp, found, err := r.s.meta.Checkpoint()
	if err != nil {
		return err
	}
	if found {
		r.start = cp.from(r.s.boot)
		r.state.NextEventID = cp.NextEventID
	}
	if err := r.loadTopics(); err != nil {
		return err
	}
	if err := r.findEnd(); err != nil {
		return err
	}
	if found && r.end.Before(r.start) {
		return fmt.Errorf("%s ends at %v, before the place %v up to which it was applied: files were removed or cut; restore them, or move %s away to rebuild from the logs",
			filepath.Join(r.s.path, binlogDir), r.end, r.start, filepath.Join(r.s.path, metaDir))
	}
	r.clean = found && cp.Clean && r.end == r.start
	if err := r.openTopics(); err != nil {
		return err
	}
	r.s.binlog = newLog(r.s.fsys, filepath.Join(r.s.path, binlogDir), r.s.opt.MaxLogSize, r.end)
	if !r.clean {
		if err := r.replay(); err != nil {
			return err
		}
	}
	return r.settle()
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
	r.end = Pos{}
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
	t, err := scanTail(f, from, parse, func(off, end int64) error {
		r.seen(rec.EventID + rec.IDs() - 1)
		r.progress("reading the binlog", end, 0)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	r.reportDamage(dir, id, &t)
	if t.torn() > 0 {
		if !newest {
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
	if err := f.Truncate(t.good); err != nil {
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

// openTopics finds the end of every topic's log.
func (r *recovery) openTopics() error {
	done := int64(0)
	for _, t := range r.topics {
		if err := r.openTopic(t); err != nil {
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
	var end Pos
	if n := len(ids); n > 0 {
		end.File = ids[n-1]
	} else if err := r.s.fsys.MkdirAll(dir); err != nil {
		// The directory is missing where a crash came between the steps of a
		// deletion: it is there again for what the binlog says about it.
		return err
	}
	// Usually one turn: a file that recovery empties, or that was never
	// written to, leaves the last record to the file before it.
	for i := len(ids) - 1; i >= 0 && !t.has; i-- {
		size, err := r.topicTail(t, dir, ids[i], i == len(ids)-1)
		if err != nil {
			return err
		}
		if i == len(ids)-1 {
			end.Off = size
		}
		if r.clean {
			break
		}
	}
	t.log = r.s.newTopicLog(t.meta.Name, end)
	return nil
}

// topicTail returns the size of a topic's file after its tail was cut, and
// leaves the last record's source in t.
func (r *recovery) topicTail(t *recovering, dir string, id int64, newest bool) (int64, error) {
	name := fileName(dir, id)
	if r.clean {
		return r.s.fsys.Size(name)
	}
	f, err := r.s.fsys.OpenAppend(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return 0, err
	}
	reader := r.s.Reader(t.meta.Name)
	from := reader.nearest(f, id, size, func(indexEntry) bool { return true })
	var rec TopicRecord
	beyond := int64(-1)
	parse := func(b []byte) (int, error) { return ParseTopicRecord(b, maxStoredPayload, &rec) }
	tl, err := scanTail(f, from, parse, func(off, end int64) error {
		r.seen(rec.EventID)
		if beyond >= 0 || r.beyond(rec.Source) {
			if beyond < 0 {
				beyond = off
			}
			return nil
		}
		t.source, t.has = rec.Source, true
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	r.reportDamage(dir, id, &tl)
	if beyond >= 0 {
		tl.good = beyond
	}
	if tl.torn() > 0 {
		if !newest && beyond < 0 {
			r.s.opt.Events.damage(&DamageError{Dir: dir, Pos: Pos{id, tl.good}, Err: errTorn})
			return tl.size, nil
		}
		return tl.good, r.cut(name, f, &tl)
	}
	return tl.good, nil
}

// beyond reports whether source, a topic record's, lies behind the binlog's
// end although its file is there: an event that was lost. A source in a file
// that the binlog does not reach at all says that the binlog itself is
// missing, and then nothing may be cut: see settle.
func (r *recovery) beyond(source Pos) bool {
	if source.File > r.end.File {
		r.end = Pos{source.File + 1, 0}
		r.s.opt.Events.note(fmt.Sprintf("the binlog does not reach file %d, which topics refer to: files are missing; the messages of topics are kept", source.File), nil)
		return false
	}
	return source.File == r.end.File && source.Off >= r.end.Off
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
	_, err = scanTail(f, from, parse, func(off, end int64) error {
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
		return nil
	case codec.DeleteTopic:
		if t != nil && t.meta.CreateEventID < rec.EventID {
			return r.delete(t)
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
		b.Meta().PutDelay(DelayKey{trigger, id, name}, bytes.Clone(rec.Payload))
		return r.flushIfLarge()
	}
	if t.has && !t.source.Before(at) {
		return r.flushIfLarge()
	}
	if _, ok := codec.CountStored(rec.Messages()); !ok {
		r.s.opt.Events.damage(&DamageError{Dir: filepath.Join(r.s.path, binlogDir), Pos: at, Err: codec.ErrFields})
		return nil
	}
	b.Messages(t.log, rec.WrittenAtMs, rec.WrittenAtMs, rec.EventID, at, rec.Messages())
	t.source, t.has = at, true
	r.state.Replayed++
	return r.flushIfLarge()
}

func (r *recovery) create(name string, rec *codec.BinlogRecord) error {
	if err := r.flush(); err != nil {
		return err
	}
	t := &recovering{meta: TopicMeta{
		Name: name, CreatedAtMs: rec.WrittenAtMs, ExpireAtMs: rec.ExpireAtMs(), CreateEventID: rec.EventID,
		StateChangedAtMs: rec.WrittenAtMs, StateChangeEventID: rec.EventID,
	}}
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

// settle makes the recovered state durable and the starting point of the
// next recovery, and hands the topics over.
func (r *recovery) settle() error {
	if r.s.binlog.end.Before(r.end) {
		r.s.binlog.end = r.end
	}
	for _, t := range r.topics {
		r.state.Topics = append(r.state.Topics, TopicState{t.meta, t.log})
	}
	// What was cut or applied is not durable yet, and the binlog itself may
	// be in the page cache only.
	if !r.clean {
		if err := r.syncBinlog(); err != nil {
			return &FatalError{err}
		}
	}
	return r.s.BeginCheckpoint(r.s.binlog.end, r.state.NextEventID, true).Run()
}

func (r *recovery) syncBinlog() error {
	dir := filepath.Join(r.s.path, binlogDir)
	ids, err := listFiles(r.s.fsys, dir)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if id >= r.start.File {
			if err := syncByName(r.s.fsys, fileName(dir, id)); err != nil {
				return err
			}
		}
	}
	return r.s.fsys.SyncDir(dir)
}

// EmptyTrash removes the files of deleted topics; see is called after each
// file. It runs on the janitor.
func (s *Store) EmptyTrash() error {
	trash := filepath.Join(s.path, topicDir, trashDir)
	names, err := s.fsys.ReadDir(trash)
	if err != nil {
		if isNotExist(err) {
			return nil
		}
		return err
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, s.fsys.RemoveAll(filepath.Join(trash, name)))
	}
	return errors.Join(errs...)
}
