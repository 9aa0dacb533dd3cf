package storage

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"smss/codec"
)

// Batch gathers changes that reach the files together. There is one, owned by
// the writer.
type Batch struct {
	s       *Store
	touched []*TopicLog
	meta    MetaBatch
	bytes   int

	binlogLine, topicLine codec.LineWriter

	// At most one of created and deleted is set, and then the batch takes
	// nothing more: the order of a topic's files and its directory's name is
	// then plain.
	created *TopicLog
	deleted *TopicLog
	trashed string // where the directory went that was in the way or deleted
	madeDir bool
	dirs    []Dir // for undoing that: where it was, and the trash
}

// Batch returns the store's batch; writer only.
func (s *Store) Batch() *Batch { return &s.batch }

// Bytes returns how many bytes of records are staged.
func (b *Batch) Bytes() int { return b.bytes }

// Closed reports whether the batch must be committed before more is added.
func (b *Batch) Closed() bool { return b.created != nil || b.deleted != nil || b.meta.Full() }

// Empty reports whether there is nothing to commit.
func (b *Batch) Empty() bool { return b.bytes == 0 && b.meta.Empty() && !b.Closed() }

// Meta returns the batch's changes to the metadata.
func (b *Batch) Meta() *MetaBatch { return &b.meta }

// Binlog stages an event and returns where it will stand.
func (b *Batch) Binlog(rec *codec.BinlogRecord) Pos {
	buf, at := b.s.binlog.Begin()
	before := len(buf)
	buf = b.binlogLine.AppendBinlogRecord(buf, rec, nil)
	b.bytes += len(buf) - before
	b.s.binlog.Finish(buf)
	b.s.index.note(b.s.fsys, b.s.binlog.dir, at, rec.EventID, rec.WrittenAtMs)
	return at
}

// BinlogRecord stages an event as another server has written it, rec being
// what raw holds, and returns where it will stand.
func (b *Batch) BinlogRecord(raw []byte, rec *codec.BinlogRecord) Pos {
	buf, at := b.s.binlog.Begin()
	b.bytes += len(raw)
	b.s.binlog.Finish(append(buf, raw...))
	b.s.index.note(b.s.fsys, b.s.binlog.dir, at, rec.EventID, rec.WrittenAtMs)
	return at
}

// Messages stages the messages of an event, one record each. firstID is the
// id of the first; storedAtMs is the time that subscribers see.
func (b *Batch) Messages(t *TopicLog, storedAtMs, savedAtMs, firstID int64, source Pos, messages []byte) {
	b.messages(t, TopicRecord{StoredAtMs: storedAtMs, EventID: firstID, SavedAtMs: savedAtMs, Source: source}, messages)
}

// messages stages one record for each message, of which rec is the first but
// for the message.
func (b *Batch) messages(t *TopicLog, rec TopicRecord, messages []byte) {
	if !t.staged {
		t.staged = true
		t.log.staged = b.s.takeSpare()
		b.touched = append(b.touched, t)
	}
	for len(messages) > 0 {
		n, ok := codec.MessageSize(messages)
		if !ok {
			panic("storage: Messages takes a payload that codec.CountMessages accepts")
		}
		rec.Message, messages = messages[:n], messages[n:]
		buf, at := t.log.Begin()
		before := len(buf)
		buf = appendTopicRecord(buf, &b.topicLine, &rec)
		b.bytes += len(buf) - before
		t.log.Finish(buf)
		t.index.note(b.s.fsys, t.log.dir, at, rec.EventID, rec.StoredAtMs)
		t.stagedID = rec.EventID
		rec.EventID++
		rec.Index++
	}
}

// Create stages a new topic and returns its log. It closes the batch.
func (b *Batch) Create(m *TopicMeta) *TopicLog {
	b.meta.PutTopic(m)
	b.created = b.s.newTopicLog(m, Pos{})
	return b.created
}

// Delete stages the removal of a topic. It closes the batch.
func (b *Batch) Delete(t *TopicLog, m *TopicMeta) {
	b.meta.DeleteTopic(m.Name, m.ExpireAtMs)
	b.deleted = t
}

// Commit writes the batch. The error is a *BatchError, after which nothing of
// it is on the files, or a *FatalError.
func (b *Batch) Commit() error {
	topic, err := b.write()
	if err == nil {
		b.keep()
		return nil
	}
	var fatal *FatalError
	if errors.As(err, &fatal) {
		return errors.Join(fatal, b.undo())
	}
	if undo := b.undo(); undo != nil {
		return &FatalError{fmt.Errorf("%w; and undoing it failed: %w", err, undo)}
	}
	return &BatchError{topic, err}
}

// write brings the batch to the files. The order matters to a crash between
// two steps: the binlog first, because recovery redoes the others from it;
// the metadata last, because a transaction cannot be undone.
func (b *Batch) write() (topic string, err error) {
	s := b.s
	if err := s.writeLog(s.binlog); err != nil {
		return "", err
	}
	for _, t := range b.touched {
		if err := s.writeLog(t.log); err != nil {
			return t.name, err
		}
	}
	if (b.created != nil || b.deleted != nil || b.meta.takes) && s.binlog.begun > 0 {
		// What a deletion or a fired delay takes away cannot be put back from
		// the binlog if the power goes and the binlog is what has lost it. And a
		// topic that the metadata keeps although the binlog has lost its
		// creation would be one that no slave ever gets.
		if err := s.binlog.syncWritten(); err != nil {
			return "", &FatalError{err}
		}
	}
	if err := b.writeDirs(); err != nil {
		if b.created != nil {
			return b.created.name, err
		}
		return b.deleted.name, err
	}
	if !b.meta.Empty() {
		return "", s.meta.Commit(&b.meta)
	}
	return "", nil
}

func (s *Store) writeLog(l *Log) error {
	err := l.Write()
	if isDescriptorShortage(err) && s.closeIdle() {
		err = l.Write()
	}
	return err
}

// closeIdle closes the handles that are open only for speed, and reports
// whether there were any. Those of the batch stay: a roll-back needs them, and
// could not open them again.
func (s *Store) closeIdle() (any bool) {
	for e := s.open.Front(); e != nil; {
		t := e.Value.(*TopicLog)
		e = e.Next()
		if !t.staged {
			s.closeNoting(t)
			any = true
		}
	}
	return any
}

func isDescriptorShortage(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)
}

func (b *Batch) writeDirs() (err error) {
	if t := b.created; t != nil {
		// A directory of that name is left from a deletion that a crash or an
		// older server did not finish. Its messages are not this topic's.
		if err := b.takeAway(t.log.dir); err != nil {
			return err
		}
		err := b.s.fsys.MkdirAll(t.log.dir)
		b.madeDir = err == nil
		return err
	}
	if t := b.deleted; t != nil {
		return b.takeAway(t.log.dir)
	}
	return nil
}

// takeAway moves a topic's directory to the trash, if it is there. The handles
// that bringing it back would need are opened first, because otherwise a
// shortage of descriptors could make that fail, and stop writing.
func (b *Batch) takeAway(dir string) error {
	s := b.s
	trash, err := s.trashFor(dir)
	if err != nil || trash == "" {
		return err
	}
	for _, name := range []string{filepath.Dir(dir), trash} {
		d, err := s.fsys.OpenDir(name)
		if isDescriptorShortage(err) && s.closeIdle() {
			d, err = s.fsys.OpenDir(name)
		}
		if err != nil {
			return err
		}
		b.dirs = append(b.dirs, d)
	}
	b.trashed, err = s.moveInto(trash, dir)
	return err
}

// moveToTrash takes a topic's directory out of the way and returns where it
// went, "" if there was none.
func (s *Store) moveToTrash(dir string) (string, error) {
	trash, err := s.trashFor(dir)
	if err != nil || trash == "" {
		return "", err
	}
	return s.moveInto(trash, dir)
}

// trashFor makes the trash if a topic's directory is there to be moved into it;
// "" if not.
func (s *Store) trashFor(dir string) (trash string, err error) {
	there, err := exists(s.fsys, dir)
	if err != nil || !there {
		return "", err
	}
	trash = filepath.Join(s.path, topicDir, trashDir)
	return trash, s.fsys.MkdirAll(trash)
}

func (s *Store) moveInto(trash, dir string) (string, error) {
	s.trashSeq++
	name := strconv.FormatInt(time.Now().UnixNano(), 10) + "-" + strconv.Itoa(s.trashSeq)
	to := filepath.Join(trash, name)
	s.unsettled.Store(&name)
	if err := s.fsys.Rename(dir, to); err != nil {
		return "", err
	}
	s.markDir(filepath.Dir(dir))
	return to, nil
}

// keep makes the batch's state the current one.
func (b *Batch) keep() {
	s := b.s
	s.binlog.Commit(binlogBufferKeep)
	if err := s.index.flush(s.fsys, s.binlog.dir); err != nil {
		s.opt.Events.note("index of the binlog not written, slaves will find their place more slowly", err)
	}
	for _, t := range b.touched {
		first := t.log.end.File
		t.log.Commit(keepAll)
		t.lastID = t.stagedID
		s.giveSpare(t)
		t.staged = false
		for _, f := range t.log.retired {
			f.Close() // the checkpoint syncs by name
		}
		t.log.retired, t.log.kept = nil, 0
		if t == b.deleted {
			continue // its files are in the trash
		}
		s.markDirty(t, first)
		if err := t.index.flush(s.fsys, t.log.dir); err != nil {
			s.opt.Events.note("index of topic "+t.name+" not written, reading it will take longer", err)
		}
		s.touchHandle(t)
	}
	if b.created != nil {
		s.markDirs(b.created.log.dir)
	}
	if b.deleted != nil {
		s.closeNoting(b.deleted)
		s.forget(b.deleted)
	}
	for s.open.Len() > s.opt.MaxOpenTopics {
		s.closeNoting(s.open.Front().Value.(*TopicLog))
	}
	s.unsettled.Store(nil)
	b.reset()
}

// markDirs notes that a topic's directory is new, and perhaps those above it.
func (s *Store) markDirs(dir string) {
	for range 4 { // the topic's own, P2, P1, and what holds P1
		s.markDir(dir)
		dir = filepath.Dir(dir)
	}
}

func (b *Batch) reset() {
	clear(b.touched)
	b.touched, b.bytes = b.touched[:0], 0
	b.meta.Reset()
	b.created, b.deleted, b.trashed, b.madeDir = nil, nil, "", false
	for _, d := range b.dirs {
		d.Close()
	}
	clear(b.dirs)
	b.dirs = b.dirs[:0]
}

// undo takes back whatever write has done, in the opposite order. After an
// error nothing may be written any more.
//
// Where a directory cannot be brought back the rest stays as it is: recovery
// finishes what the binlog says. Without its DELETE event a topic whose
// directory is in the trash would be an empty one, its messages lost.
func (b *Batch) undo() error {
	s := b.s
	if err := b.undoDirs(); err != nil {
		b.abandon()
		return err
	}
	s.unsettled.Store(nil)
	var errs []error
	for _, t := range b.touched {
		errs = append(errs, t.log.Rollback(keepAll))
		s.giveSpare(t)
		t.staged = false
		t.index.drop()
		s.touchHandle(t)
	}
	errs = append(errs, s.binlog.Rollback(binlogBufferKeep))
	s.index.drop()
	b.reset()
	return errors.Join(errs...)
}

// abandon forgets what was staged and leaves the files as they are. The name in
// the trash stays unsettled, so that the janitor leaves it alone.
func (b *Batch) abandon() {
	for _, t := range b.touched {
		for _, f := range t.log.retired {
			f.Close()
		}
		t.log.retired = nil
		t.log.closeDir()
		t.log.reset(0)
		t.staged = false
		t.index.drop()
		b.s.touchHandle(t)
	}
	b.s.binlog.reset(0)
	b.reset()
}

func (b *Batch) undoDirs() error {
	s := b.s
	var errs []error
	if b.madeDir {
		errs = append(errs, removeIfExists(s.fsys, b.created.log.dir))
	}
	if b.trashed != "" {
		t := b.deleted
		if t == nil {
			t = b.created
		}
		// Durable at once: a power cut that took only this back would leave a
		// topic without its files.
		errs = append(errs, s.fsys.Rename(b.trashed, t.log.dir))
		for _, d := range b.dirs {
			errs = append(errs, d.Sync())
		}
	}
	return errors.Join(errs...)
}

// keepAll makes Commit and Rollback keep the buffer, for giveSpare.
const keepAll = math.MaxInt

func (s *Store) takeSpare() []byte {
	n := len(s.spare)
	if n == 0 {
		return nil
	}
	buf := s.spare[n-1]
	s.spare = s.spare[:n-1]
	s.spareSize -= cap(buf)
	return buf
}

// giveSpare takes the topic's empty staging buffer back.
func (s *Store) giveSpare(t *TopicLog) {
	buf := t.log.staged
	t.log.staged = nil
	if cap(buf) == 0 || s.spareSize+cap(buf) > spareMax {
		return
	}
	s.spare = append(s.spare, buf)
	s.spareSize += cap(buf)
}

// Discard drops what is staged.
func (b *Batch) Discard() error { return b.undo() }
