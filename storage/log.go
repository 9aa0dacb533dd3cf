package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Log is the append side of a segmented log: numbered files in a directory,
// each taking records until its size reaches maxSize. The binlog is one, and
// every topic has one. All fields belong to the writer.
//
// Records are staged in memory, written by Write in one call for each file
// touched, and then kept by Commit or undone by Rollback.
type Log struct {
	fsys    FS
	dir     string
	maxSize int64

	end  Pos   // behind the last committed record
	file File  // open for writing; nil while nobody appends
	id   int64 // which file that is

	staged []byte
	cuts   []int // offsets in staged at which the next file begins
	wrote  int   // files that this batch has begun behind end.File
	fresh  bool  // this batch has created end.File

	retired []File // files that became full, open, not yet synced
	kept    int    // how many of them were retired by committed batches
	newName bool   // a file was created and the directory not yet synced
	dirty   bool   // end.File has committed bytes that no takeSync covers
}

// fileName returns the name of file id in dir.
func fileName(dir string, id int64) string {
	return filepath.Join(dir, strconv.FormatInt(id, 10)+".log")
}

// listFiles returns the numbers of the log files in dir, ascending. Other
// names are left alone. A directory that does not exist has none.
func listFiles(fsys FS, dir string) ([]int64, error) {
	names, err := fsys.ReadDir(dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	var ids []int64
	for _, name := range names {
		digits, ok := strings.CutSuffix(name, ".log")
		if !ok {
			continue
		}
		id, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || id < 0 || id > maxFileID || strconv.FormatInt(id, 10) != digits {
			continue
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, nil
}

func newLog(fsys FS, dir string, maxSize int64, end Pos) *Log {
	l := &Log{fsys: fsys, dir: dir, maxSize: maxSize, end: end}
	if end.Off >= maxSize {
		l.end = Pos{end.File + 1, 0}
	}
	return l
}

// End returns the place behind the last committed record.
func (l *Log) End() Pos { return l.end }

// next returns where the next staged record will begin.
func (l *Log) next() Pos {
	if n := len(l.cuts); n > 0 {
		return Pos{l.end.File + int64(n), int64(len(l.staged) - l.cuts[n-1])}
	}
	return Pos{l.end.File, l.end.Off + int64(len(l.staged))}
}

// Begin returns the staging buffer, to which the caller appends one record,
// and where that record will stand. Finish takes the buffer back.
func (l *Log) Begin() (buf []byte, at Pos) { return l.staged, l.next() }

// Finish takes the buffer of Begin with a record appended, and returns the
// place behind it. A full file ends here, the next record begins another.
func (l *Log) Finish(buf []byte) Pos {
	l.staged = buf
	if l.next().Off >= l.maxSize {
		l.cuts = append(l.cuts, len(buf))
	}
	return l.next()
}

// Write writes what is staged. After an error the caller must call Rollback.
func (l *Log) Write() error {
	from := 0
	for i := 0; i <= len(l.cuts); i++ {
		to := len(l.staged)
		if i < len(l.cuts) {
			to = l.cuts[i]
		}
		if to > from {
			off := int64(0)
			if i == 0 {
				off = l.end.Off
			}
			if err := l.writeFile(l.end.File+int64(i), l.staged[from:to], off); err != nil {
				return err
			}
		}
		from = to
	}
	return nil
}

// writeFile writes b into file id at off, opening it where needed. The handle
// of a file that is full is retired: the syncer syncs and closes it.
func (l *Log) writeFile(id int64, b []byte, off int64) error {
	if id > maxFileID || off+int64(len(b)) > maxFileOff {
		return fmt.Errorf("%s: the log is full: it has no number left for another file", l.dir)
	}
	if l.file != nil && l.id != id {
		l.retired = append(l.retired, l.file)
		l.file = nil
	}
	l.wrote = int(id - l.end.File)
	if l.file == nil {
		if err := l.open(id, off); err != nil {
			return err
		}
	}
	if n, err := l.file.WriteAt(b, off); err != nil {
		return fmt.Errorf("%w (after %d of %d bytes)", err, n, len(b))
	}
	return nil
}

func (l *Log) open(id, off int64) error {
	name := fileName(l.dir, id)
	f, err := l.fsys.OpenAppend(name)
	if err != nil {
		return err
	}
	size, err := f.Size()
	if err == nil && size < off {
		err = fmt.Errorf("%s: is %d bytes long, shorter than the %d that were written: something else has cut it", name, size, off)
	}
	if err == nil && size > off {
		// Only a write that failed and could not be undone leaves more.
		err = f.Truncate(off)
	}
	if err != nil {
		f.Close()
		return err
	}
	if off == 0 {
		l.newName = true
		if id == l.end.File {
			l.fresh = true
		}
	}
	l.file, l.id = f, id
	return nil
}

// Commit keeps what was written. The buffer stays for the next batch unless
// it has grown beyond keep bytes.
func (l *Log) Commit(keep int) {
	l.dirty = l.dirty || len(l.staged) > 0
	l.end = l.next()
	l.reset(keep)
}

func (l *Log) reset(keep int) {
	l.staged, l.cuts, l.wrote, l.fresh = l.staged[:0], l.cuts[:0], 0, false
	l.kept = len(l.retired)
	if cap(l.staged) > keep {
		l.staged = nil
	}
}

// Rollback undoes Write: files are cut back to what they were, new ones are
// removed. An error means that the log is in a state that must not be written
// to any more.
func (l *Log) Rollback(keep int) error {
	touched := l.file != nil || l.wrote > 0
	errs := []error{l.Close()}
	// A handle that the batch retired is dropped without a sync: what earlier
	// batches wrote through it is synced through the next handle, because a
	// sync covers the file and not the handle.
	for _, f := range l.retired[l.kept:] {
		errs = append(errs, f.Close())
	}
	l.retired = l.retired[:l.kept]
	for id := l.end.File + int64(l.wrote); id > l.end.File; id-- {
		errs = append(errs, removeIfExists(l.fsys, fileName(l.dir, id)))
	}
	if touched {
		errs = append(errs, l.cutBack())
	}
	l.reset(keep)
	return errors.Join(errs...)
}

// cutBack returns end.File to its committed size.
func (l *Log) cutBack() error {
	name := fileName(l.dir, l.end.File)
	if l.fresh {
		return removeIfExists(l.fsys, name)
	}
	f, err := l.fsys.OpenAppend(name)
	if err != nil {
		return err
	}
	size, err := f.Size()
	if err == nil && size > l.end.Off {
		err = f.Truncate(l.end.Off)
	}
	return errors.Join(err, f.Close())
}

func removeIfExists(fsys FS, name string) error {
	if err := fsys.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Close closes the handle of the current file, if it is open. The next Write
// opens it again.
func (l *Log) Close() error {
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	return err
}

// takeSync hands out what has to be synced for everything committed to be
// durable: the files that became full, to be closed after that, the current
// file, and the directory if it has a new name.
func (l *Log) takeSync() SyncTask {
	t := SyncTask{fsys: l.fsys, retired: l.retired, current: l.file}
	if l.newName {
		t.dir = l.dir
	}
	if l.dirty && l.file == nil && l.end.Off > 0 {
		t.byName = fileName(l.dir, l.end.File) // a rollback closed the handle
	}
	l.retired, l.kept, l.newName, l.dirty = nil, 0, false, false
	return t
}

// SyncTask makes one log durable. It is created by the writer and run by the
// syncer; the writer may go on appending meanwhile, but must not close the
// current file before Run has returned.
type SyncTask struct {
	fsys    FS
	retired []File
	current File
	byName  string
	dir     string
}

// Run syncs. After an error nothing may be acknowledged any more, and Run must
// not be repeated.
func (t *SyncTask) Run() error {
	var errs []error
	for _, f := range t.retired {
		errs = append(errs, f.Sync(), f.Close())
	}
	if t.current != nil {
		errs = append(errs, t.current.Sync())
	}
	if t.byName != "" {
		errs = append(errs, syncByName(t.fsys, t.byName))
	}
	if t.dir != "" {
		errs = append(errs, t.fsys.SyncDir(t.dir))
	}
	return errors.Join(errs...)
}

func syncByName(fsys FS, name string) error {
	f, err := fsys.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
