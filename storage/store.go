package storage

import (
	"container/list"
	"errors"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/dgraph-io/badger/v4"
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
	// Boot names this run of the machine, "" = ask the kernel. Data that was
	// written in another one and not synced may be missing.
	Boot string
	// OpenMeta opens the metadata; nil = Badger below Path.
	OpenMeta func(dir string, adopt bool) (Meta, error)
}

func (o *Options) openMeta(dir string, adopt bool) (Meta, error) {
	if o.OpenMeta != nil {
		return o.OpenMeta(dir, adopt)
	}
	return OpenBadger(dir, adopt, o.BadgerLog)
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
	opt  Options
	fsys FS
	path string
	fmt  format
	lock *os.File
	// reserved says that the reserve file is there; writer and janitor.
	reserved atomic.Bool
	meta     Meta
	binlog   *Log        // writer
	index    indexWriter // writer; of the binlog
	batch    Batch       // writer

	open  *list.List // writer: *TopicLog with an open handle, least recently used first
	dirty []*TopicLog
	// dirtyDirs are directories whose names a checkpoint has to sync; writer.
	dirtyDirs map[string]struct{}
	// forgotten are topics that were deleted and whose ends the metadata may
	// hold, for the next checkpoint to remove; writer.
	forgotten []string
	trashSeq  int // writer
	// unsettled is the name in the trash of a directory whose deletion may yet
	// be undone; nil if there is none. Stored by the writer, read by the janitor.
	unsettled atomic.Pointer[string]
	spare     [][]byte // writer: empty staging buffers
	spareSize int      // writer: their capacity together
	// last is the checkpoint begun last with a sync. Writer, but for the fields
	// that its Run owns.
	last    *CheckpointTask
	durable Pos // writer: of the last checkpoint that was synced
	boot    string
	history History // immutable: as Open found it
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

	createEventID int64 // immutable
	lastID        int64 // event id of the last committed record, 0 where unknown
	stagedID      int64 // of the last staged one
	ended         bool  // the metadata may hold its end
	gone          bool  // it was deleted
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

// HasFiles reports whether a topic's directory is in its place, as far as that
// can be told; writer only.
func (s *Store) HasFiles(t *TopicLog) bool {
	there, err := exists(s.fsys, t.log.dir)
	return err != nil || there
}

// MaxLogSize returns the size, in bytes, from which a file takes no more
// records.
func (s *Store) MaxLogSize() int64 { return s.opt.MaxLogSize }

// BinlogEnd returns the place behind the last committed record; writer only.
func (s *Store) BinlogEnd() Pos { return s.binlog.end }

// Meta returns the metadata store, for its reading functions.
func (s *Store) Meta() Meta { return s.meta }

// FreeBytes returns the least that may still be written on any of the file
// systems that the data directory lies on, and where that is: binlog, topics
// and metadata can each be a mount of its own. What cannot be asked does not
// count and is in the error.
func (s *Store) FreeBytes() (free int64, dir string, err error) {
	free = math.MaxInt64
	var errs []error
	for _, name := range []string{"", binlogDir, topicDir, metaDir} {
		at := filepath.Join(s.path, name)
		n, err := s.fsys.FreeBytes(at)
		if err == nil && n < free {
			free, dir = n, at
		}
		errs = append(errs, err)
	}
	return free, dir, errors.Join(errs...)
}

func (s *Store) newTopicLog(m *TopicMeta, end Pos) *TopicLog {
	return &TopicLog{
		name: m.Name, createEventID: m.CreateEventID, log: newLog(s.fsys, s.topicPath(m.Name), s.opt.MaxLogSize, end),
		index: indexWriter{every: indexEvery},
	}
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

func (s *Store) markDirty(t *TopicLog, first int64) {
	if !t.dirty {
		t.dirty, t.from = true, first
		s.dirty = append(s.dirty, t)
	}
	if t.log.newName {
		s.markDir(t.log.dir)
		t.log.closeDir() // the checkpoint syncs by name
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

func (s *Store) closeNoting(t *TopicLog) {
	if err := s.closeTopic(t); err != nil {
		s.opt.Events.note("closing a file of topic "+t.name, err)
	}
}

func (s *Store) closeTopic(t *TopicLog) error {
	s.forgetHandle(t)
	return t.log.Close()
}

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
	return errors.Join(append(errs, s.closeAll())...)
}

// closeAll lets go of whatever is open.
func (s *Store) closeAll() error {
	var errs []error
	if s.binlog != nil {
		errs = append(errs, s.binlog.Close())
		for _, f := range s.binlog.retired {
			errs = append(errs, f.Close())
		}
		s.binlog.retired = nil
		s.binlog.closeDir()
	}
	for s.open.Len() > 0 {
		errs = append(errs, s.closeTopic(s.open.Front().Value.(*TopicLog)))
	}
	if s.meta != nil {
		errs = append(errs, s.meta.Close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// EmptyTrash removes the files of deleted topics. It runs on the janitor.
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
		if u := s.unsettled.Load(); u != nil && *u == name {
			continue
		}
		errs = append(errs, s.fsys.RemoveAll(filepath.Join(trash, name)))
	}
	return errors.Join(errs...)
}
