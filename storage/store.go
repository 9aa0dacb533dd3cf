package storage

import (
	"container/list"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/dgraph-io/badger/v4"
	"golang.org/x/sys/unix"

	"smss/codec"
)

// Options says how to open a Store.
type Options struct {
	Path          string
	MaxLogSize    int64 // bytes at which a log file is full
	FolderCount   int   // 0 = what the directory has, or DefaultFolderCount
	MaxOpenTopics int   // topic files kept open for appending
	FS            FS    // nil = OS{}
	Events        Events
	BadgerLog     badger.Logger
	// OpenMeta opens the metadata; nil = Badger below Path.
	OpenMeta func(dir string, adopt bool) (Meta, error)
}

// Events receives notable moments. Each function may be nil; they are called
// on whatever goroutine meets the moment.
type Events struct {
	// Note is something an operator may want to know.
	Note func(what string, err error)
	// Damage is stored data that is not what was written.
	Damage func(e *DamageError)
	// Progress is called while recovery reads, about once a second.
	Progress func(what string, done, total int64)
}

func (e *Events) note(what string, err error) {
	if e.Note != nil {
		e.Note(what, err)
	}
}

func (e *Events) damage(d *DamageError) {
	if e.Damage != nil {
		e.Damage(d)
	}
}

// bufferKeep is how much of a staging buffer is kept between batches.
const (
	binlogBufferKeep = 4 << 20
	// spareMax is how many bytes of topic buffers wait for the next batch. They
	// are shared: a topic holds one only while a batch stages into it.
	spareMax = 4 << 20
)

// Store is an open data directory.
type Store struct {
	opt    Options
	fsys   FS
	path   string
	fmt    format
	lock   *os.File
	meta   Meta
	binlog *Log  // writer
	batch  Batch // writer

	open  *list.List // writer: *TopicLog with an open handle, least recently used first
	dirty []*TopicLog
	// dirtyDirs are directories whose names a checkpoint has to sync; writer.
	dirtyDirs map[string]struct{}
	trashSeq  int      // writer
	spare     [][]byte // writer: empty staging buffers
	spareSize int      // writer: their capacity together
	durable   Pos      // writer: of the last synced checkpoint begun
	boot      string
}

// TopicLog is a topic's log. All but Reader belongs to the writer.
type TopicLog struct {
	name   string
	log    *Log
	index  indexWriter
	elem   *list.Element // in Store.open; nil while the handle is closed
	staged bool          // touched by the current batch
	dirty  bool          // in Store.dirty
	from   int64         // first file that a checkpoint has to sync
}

// Name returns the topic's name.
func (t *TopicLog) Name() string { return t.name }

// End returns the place behind the last committed record.
func (t *TopicLog) End() Pos { return t.log.end }

// Reader returns the topic's reading side, for any goroutine.
func (s *Store) Reader(topic string) *TopicReader {
	return &TopicReader{fsys: s.fsys, dir: s.topicPath(topic)}
}

func (s *Store) topicPath(topic string) string {
	p1, p2 := folders(topic, s.fmt.FolderCount)
	return filepath.Join(s.path, topicDir, p1, p2, topic)
}

// TopicRoot returns a topic's directory below the topic root, as replies show
// it: with a leading slash.
func (s *Store) TopicRoot(topic string) string {
	p1, p2 := folders(topic, s.fmt.FolderCount)
	return "/" + p1 + "/" + p2 + "/" + topic
}

// BinlogEnd returns the place behind the last committed record; writer only.
func (s *Store) BinlogEnd() Pos { return s.binlog.end }

// Meta returns the metadata store, for its reading functions.
func (s *Store) Meta() Meta { return s.meta }

// FreeBytes returns what may still be written below the data directory.
func (s *Store) FreeBytes() (int64, error) { return s.fsys.FreeBytes(s.path) }

func (s *Store) newTopicLog(name string, end Pos) *TopicLog {
	return &TopicLog{name: name, log: newLog(s.fsys, s.topicPath(name), s.opt.MaxLogSize, end)}
}

// BatchError is a failed batch: nothing of it is on the files. Topic names the
// topic whose files failed, and is empty where the batch as a whole did.
type BatchError struct {
	Topic string
	Err   error
}

func (e *BatchError) Error() string { return e.Err.Error() }
func (e *BatchError) Unwrap() error { return e.Err }

// FatalError says that the files are in a state that must not be written to:
// a roll-back or a sync has failed.
type FatalError struct{ Err error }

func (e *FatalError) Error() string { return e.Err.Error() }
func (e *FatalError) Unwrap() error { return e.Err }

// Batch gathers changes that reach the files together. There is one, owned by
// the writer.
type Batch struct {
	s       *Store
	touched []*TopicLog
	meta    MetaBatch
	bytes   int

	// At most one of created and deleted is set, and then the batch takes
	// nothing more: the order of a topic's files and its directory's name is
	// then plain.
	created *TopicLog
	deleted *TopicLog
	trashed string // where the directory went that was in the way or deleted
	madeDir bool
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

// Binlog stages an event and returns where it will stand. tail follows
// rec.Payload.
func (b *Batch) Binlog(rec *codec.BinlogRecord, tail []byte) Pos {
	buf, at := b.s.binlog.Begin()
	before := len(buf)
	buf = codec.AppendBinlogRecord(buf, rec, tail)
	b.bytes += len(buf) - before
	b.s.binlog.Finish(buf)
	return at
}

// Messages stages the messages of an event, one record each. firstID is the
// id of the first; storedAtMs is the time that subscribers see.
func (b *Batch) Messages(t *TopicLog, storedAtMs, savedAtMs, firstID int64, source Pos, messages []byte) {
	if !t.staged {
		t.staged = true
		t.log.staged = b.s.takeSpare()
		b.touched = append(b.touched, t)
	}
	rec := TopicRecord{StoredAtMs: storedAtMs, EventID: firstID, SavedAtMs: savedAtMs, Source: source}
	for len(messages) > 0 {
		n, ok := codec.MessageSize(messages)
		if !ok {
			panic("storage: Messages takes a payload that codec.CountMessages accepts")
		}
		rec.Message, messages = messages[:n], messages[n:]
		buf, at := t.log.Begin()
		before := len(buf)
		buf = AppendTopicRecord(buf, &rec)
		b.bytes += len(buf) - before
		t.log.Finish(buf)
		t.index.note(b.s.fsys, t.log.dir, at, rec.EventID, rec.StoredAtMs)
		rec.EventID++
		rec.Index++
	}
}

// Create stages a new topic and returns its log. It closes the batch.
func (b *Batch) Create(m *TopicMeta) *TopicLog {
	b.meta.PutTopic(m)
	b.created = b.s.newTopicLog(m.Name, Pos{})
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
	if err := s.binlog.Write(); err != nil {
		return "", err
	}
	for _, t := range b.touched {
		if err := s.writeTopic(t); err != nil {
			return t.name, err
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

func (s *Store) writeTopic(t *TopicLog) error {
	err := t.log.Write()
	if isDescriptorShortage(err) && s.open.Len() > 0 {
		// Handles that are open only for speed make way.
		for s.open.Len() > 0 {
			s.closeOldest()
		}
		err = t.log.Write()
	}
	return err
}

func isDescriptorShortage(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)
}

func (b *Batch) writeDirs() (err error) {
	if t := b.created; t != nil {
		// A directory of that name is left from a deletion that a crash or an
		// older server did not finish. Its messages are not this topic's.
		if b.trashed, err = b.s.moveToTrash(t.log.dir); err != nil {
			return err
		}
		b.madeDir = true
		return b.s.fsys.MkdirAll(t.log.dir)
	}
	if t := b.deleted; t != nil {
		if err := b.s.closeTopic(t); err != nil {
			return err
		}
		b.trashed, err = b.s.moveToTrash(t.log.dir)
		return err
	}
	return nil
}

// moveToTrash takes a topic's directory out of the way and returns where it
// went, "" if there was none.
func (s *Store) moveToTrash(dir string) (string, error) {
	there, err := exists(s.fsys, dir)
	if err != nil || !there {
		return "", err
	}
	trash := filepath.Join(s.path, topicDir, trashDir)
	if err := s.fsys.MkdirAll(trash); err != nil {
		return "", err
	}
	s.trashSeq++
	to := filepath.Join(trash, strconv.FormatInt(time.Now().UnixNano(), 10)+"-"+strconv.Itoa(s.trashSeq))
	if err := s.fsys.Rename(dir, to); err != nil {
		return "", err
	}
	return to, nil
}

// keep makes the batch's state the current one.
func (b *Batch) keep() {
	s := b.s
	s.binlog.Commit(binlogBufferKeep)
	for _, t := range b.touched {
		first := t.log.end.File
		t.log.Commit(keepAll)
		s.giveSpare(t)
		t.staged = false
		for _, f := range t.log.retired {
			f.Close() // the checkpoint syncs by name
		}
		t.log.retired, t.log.kept = nil, 0
		s.markDirty(t, first)
		if err := t.index.flush(s.fsys, t.log.dir); err != nil {
			s.opt.Events.note("index of topic "+t.name+" not written, reading it will take longer", err)
		}
		s.touchHandle(t)
	}
	if b.created != nil {
		s.markDir(b.created.log.dir)
		s.markDir(filepath.Dir(b.created.log.dir))
		s.markDir(filepath.Dir(filepath.Dir(b.created.log.dir)))
	}
	if b.deleted != nil {
		s.markDir(filepath.Dir(b.deleted.log.dir))
	}
	for s.open.Len() > s.opt.MaxOpenTopics {
		s.closeOldest()
	}
	b.reset()
}

func (b *Batch) reset() {
	clear(b.touched)
	b.touched, b.bytes = b.touched[:0], 0
	b.meta.Reset()
	b.created, b.deleted, b.trashed, b.madeDir = nil, nil, "", false
}

// undo takes back whatever write has done.
func (b *Batch) undo() error {
	s := b.s
	errs := []error{s.binlog.Rollback(binlogBufferKeep)}
	for _, t := range b.touched {
		errs = append(errs, t.log.Rollback(keepAll))
		s.giveSpare(t)
		t.staged = false
		t.index.drop()
		s.forgetHandle(t)
	}
	if b.madeDir {
		errs = append(errs, removeIfExists(s.fsys, b.created.log.dir))
	}
	if b.trashed != "" {
		dir := ""
		if b.created != nil {
			dir = b.created.log.dir
		} else {
			dir = b.deleted.log.dir
		}
		errs = append(errs, s.fsys.Rename(b.trashed, dir))
	}
	b.reset()
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

func (s *Store) markDirty(t *TopicLog, first int64) {
	if !t.dirty {
		t.dirty, t.from = true, first
		s.dirty = append(s.dirty, t)
	}
	if t.log.newName {
		s.markDir(t.log.dir)
		t.log.newName = false
	}
}

func (s *Store) markDir(dir string) { s.dirtyDirs[dir] = struct{}{} }

// touchHandle notes that a topic's handle was used just now.
func (s *Store) touchHandle(t *TopicLog) {
	switch {
	case t.log.file == nil:
		s.forgetHandle(t)
	case t.elem == nil:
		t.elem = s.open.PushBack(t)
	default:
		s.open.MoveToBack(t.elem)
	}
}

func (s *Store) forgetHandle(t *TopicLog) {
	if t.elem != nil {
		s.open.Remove(t.elem)
		t.elem = nil
	}
}

func (s *Store) closeOldest() {
	t := s.open.Front().Value.(*TopicLog)
	if err := s.closeTopic(t); err != nil {
		s.opt.Events.note("closing a file of topic "+t.name, err)
	}
}

func (s *Store) closeTopic(t *TopicLog) error {
	s.forgetHandle(t)
	return t.log.Close()
}

// Discard drops what is staged.
func (b *Batch) Discard() error { return b.undo() }

// SyncBinlog returns the task that makes all committed events durable.
func (s *Store) SyncBinlog() SyncTask { return s.binlog.takeSync() }

// Close writes a clean checkpoint at the binlog's end and closes everything.
// The writer must have ended, and broken says that it ended by a FatalError:
// then nothing is written any more.
func (s *Store) Close(nextEventID int64, broken bool) error {
	var errs []error
	if !broken {
		sync := s.SyncBinlog()
		task := s.BeginCheckpoint(s.binlog.end, nextEventID, true)
		task.c.Clean = true
		if err := sync.Run(); err != nil {
			errs = append(errs, err)
		} else {
			errs = append(errs, task.Run())
		}
	}
	errs = append(errs, s.binlog.Close())
	for s.open.Len() > 0 {
		errs = append(errs, s.closeTopic(s.open.Front().Value.(*TopicLog)))
	}
	errs = append(errs, s.meta.Close())
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// CheckpointTask moves the checkpoint. It is made by the writer between two
// batches and run by one goroutine at a time, beside the writer.
type CheckpointTask struct {
	s     *Store
	c     Checkpoint
	sync  bool
	files []string
	dirs  []string
}

// BeginCheckpoint prepares a checkpoint at applied, a place up to which the
// binlog has been synced if sync is true, and all of which is in topic logs
// and metadata. With sync false nothing is synced, and the checkpoint counts
// for this run of the machine only.
func (s *Store) BeginCheckpoint(applied Pos, nextEventID int64, sync bool) *CheckpointTask {
	t := &CheckpointTask{s: s, sync: sync, c: Checkpoint{Applied: applied, NextEventID: nextEventID}}
	if !sync {
		t.c.Boot, t.c.Durable = s.boot, s.durable
		return t
	}
	t.c.Durable = applied
	for _, topic := range s.dirty {
		last := topic.log.end
		for id := topic.from; id < last.File; id++ {
			t.files = append(t.files, fileName(topic.log.dir, id))
		}
		if last.Off > 0 {
			t.files = append(t.files, fileName(topic.log.dir, last.File))
		}
		topic.dirty = false
	}
	clear(s.dirty)
	s.dirty = s.dirty[:0]
	for dir := range s.dirtyDirs {
		t.dirs = append(t.dirs, dir)
	}
	clear(s.dirtyDirs)
	s.durable = applied
	return t
}

// Run syncs what the checkpoint promises and then writes it. After an error of
// a sync it must not be repeated, and the store must not be written to.
func (t *CheckpointTask) Run() error {
	s := t.s
	if t.sync {
		for _, name := range t.files {
			// A file that is gone belonged to a topic that was deleted since.
			if err := syncByName(s.fsys, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return &FatalError{err}
			}
		}
		for _, dir := range t.dirs {
			if err := s.fsys.SyncDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return &FatalError{err}
			}
		}
		if err := s.meta.Sync(); err != nil {
			return &FatalError{err}
		}
	}
	var b MetaBatch
	b.PutCheckpoint(t.c)
	if err := s.meta.Commit(&b); err != nil {
		return err
	}
	if t.c.Clean {
		return s.meta.Sync()
	}
	return nil
}
