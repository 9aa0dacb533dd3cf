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
// touched, and then kept by Commit or undone by Rollback. Between two batches
// the open handle, if there is one, is of end.File.
type Log struct {
	fsys    FS
	dir     string
	maxSize int64

	end  Pos   // behind the last committed record
	last Pos   // the same in that record's own file, also where the file is full
	file File  // open for writing; nil while nobody appends
	id   int64 // which file that is

	staged []byte
	cuts   []int // offsets in staged at which the next file begins
	begun  int   // files that this batch has turned to, end.File being the first
	done   int   // how many of them it has written whole
	fresh  bool  // this batch has created end.File

	retired []File // files that became full, open, not yet synced
	kept    int    // how many of them were retired by committed batches
	newName bool   // a file was created and the directory not yet synced
	dirFile Dir    // the directory, open from before a file is created until it is synced
	firm    bool   // syncWritten has made this batch durable
	dirty   bool   // end.File has committed bytes that no takeSync covers
	lost    error  // a sync on the writer failed: no later one may be believed
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

// listUpTo is listFiles without those that begin behind end.
func listUpTo(fsys FS, dir string, end Pos) ([]int64, error) {
	ids, err := listFiles(fsys, dir)
	for len(ids) > 0 && ids[len(ids)-1] > end.File {
		ids = ids[:len(ids)-1]
	}
	return ids, err
}

func newLog(fsys FS, dir string, maxSize int64, end Pos) *Log {
	l := &Log{fsys: fsys, dir: dir, maxSize: maxSize, end: end, last: end}
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

// written returns the place behind the last staged record, in that record's
// own file.
func (l *Log) written() Pos {
	n := len(l.cuts)
	if n == 0 || l.cuts[n-1] < len(l.staged) {
		if len(l.staged) == 0 {
			return l.last
		}
		return l.next()
	}
	if n == 1 {
		return Pos{l.end.File, l.end.Off + int64(l.cuts[0])}
	}
	return Pos{l.end.File + int64(n) - 1, int64(l.cuts[n-1] - l.cuts[n-2])}
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

// Write writes what is staged. After an error the caller must call Rollback,
// or Write again, which goes on with the file that failed.
func (l *Log) Write() error {
	for l.done <= len(l.cuts) {
		from, to, off := 0, len(l.staged), l.end.Off
		if l.done > 0 {
			from, off = l.cuts[l.done-1], 0
		}
		if l.done < len(l.cuts) {
			to = l.cuts[l.done]
		}
		if to > from {
			if err := l.writeFile(l.done, l.staged[from:to], off); err != nil {
				return err
			}
		}
		l.done++
	}
	return nil
}

// writeFile writes b at off into the nth file of the batch, opening it where
// needed. The handle of a file that is full is retired: the syncer syncs and
// closes it.
func (l *Log) writeFile(nth int, b []byte, off int64) error {
	id := l.end.File + int64(nth)
	if id > maxFileID || off+int64(len(b)) > maxFileOff {
		return fmt.Errorf("%s: the log is full: it has no number left for another file", l.dir)
	}
	if l.file != nil && l.id != id {
		l.retire()
	}
	l.begun = nth + 1
	if l.file == nil {
		if err := l.open(id, off); err != nil {
			return err
		}
	} else if f, ok := l.file.(interface{ Gone() bool }); ok && f.Gone() {
		// Writing to it would succeed, and nobody would ever read it.
		return fmt.Errorf("%s was removed while it was in use", fileName(l.dir, id))
	}
	if n, err := l.file.WriteAt(b, off); err != nil {
		return fmt.Errorf("%w (after %d of %d bytes)", err, n, len(b))
	}
	return nil
}

func (l *Log) retire() { l.retired, l.file = append(l.retired, l.file), nil }

func (l *Log) open(id, off int64) error {
	name := fileName(l.dir, id)
	if off == 0 && l.dirFile == nil {
		// Before the file is there, because otherwise a shortage of descriptors
		// would be met when its name has to be synced.
		d, err := l.fsys.OpenDir(l.dir)
		if err != nil {
			return err
		}
		l.dirFile = d
	}
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
	l.last = l.written()
	l.end = l.next()
	if l.file != nil && l.id != l.end.File {
		l.retire() // the batch ended where its file is full
	}
	if l.firm {
		// The retired files stay open, although they are on the disk: a sync that
		// runs may hold one, which was the current file when it began.
		l.dirty = false
		l.closeDir()
	}
	l.reset(keep)
}

// closeDir lets go of the directory, whose names are durable or somebody
// else's to sync.
func (l *Log) closeDir() {
	if l.dirFile != nil {
		l.dirFile.Close()
	}
	l.dirFile, l.newName = nil, false
}

func (l *Log) reset(keep int) {
	l.staged, l.cuts, l.begun, l.done, l.fresh, l.firm = l.staged[:0], l.cuts[:0], 0, 0, false, false
	l.kept = len(l.retired)
	if cap(l.staged) > keep {
		l.staged = nil
	}
}

// Rollback undoes Write: files are cut back to what they were, new ones are
// removed, and both are made durable, so that a power cut cannot bring back
// what was refused. An error means that the log is in a state that must not be
// written to any more.
func (l *Log) Rollback(keep int) error {
	var err error
	if l.begun > 0 {
		err = l.undo()
	}
	if !l.newName {
		l.closeDir()
	}
	l.reset(keep)
	return err
}

// undo ends at its first failure, the newest file first, because otherwise a
// file that cannot be removed would stay behind a hole, and records of topics
// that could not be cut back would name events in the hole.
func (l *Log) undo() error {
	// One handle for each file that could be opened, in their order. A handle
	// that this batch did not open, the first at most, may be in the hands of
	// the syncer: it stays open.
	handles := slices.Clone(l.retired[l.kept:])
	l.retired = l.retired[:l.kept]
	if l.file != nil {
		handles, l.file = append(handles, l.file), nil
	}
	first := 0 // the oldest file to remove
	if !l.fresh {
		first = 1
		if len(handles) > 0 { // else it could not be opened, and nothing was written
			l.file, l.id = handles[0], l.end.File
		}
	}
	for _, f := range handles[min(first, len(handles)):] {
		f.Close() // what it may have to say is of no interest any more
	}
	for nth := l.begun - 1; nth >= first; nth-- {
		if err := removeIfExists(l.fsys, fileName(l.dir, l.end.File+int64(nth))); err != nil {
			return err
		}
	}
	if len(handles) > first {
		if err := l.dirFile.Sync(); err != nil {
			return err
		}
		l.newName = false
	}
	if l.file == nil {
		return nil
	}
	return l.cutBack()
}

// cutBack returns end.File, which is open, to its committed size.
func (l *Log) cutBack() error {
	size, err := l.file.Size()
	if err != nil || size <= l.end.Off {
		return err
	}
	if err := l.file.Truncate(l.end.Off); err != nil {
		return err
	}
	l.lost = errors.Join(l.lost, l.file.Sync())
	return l.lost
}

// syncWritten makes what Write has written durable before the batch is
// committed, for changes elsewhere that must not get ahead of it.
func (l *Log) syncWritten() error {
	errs := []error{l.lost}
	for _, f := range l.retired {
		errs = append(errs, f.Sync())
	}
	if l.file != nil {
		errs = append(errs, l.file.Sync())
	}
	if l.newName {
		errs = append(errs, l.dirFile.Sync())
	}
	l.lost = errors.Join(errs...)
	l.firm = l.lost == nil
	return l.lost
}

func removeIfExists(fsys FS, name string) error {
	err := fsys.Remove(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	// A read-only file system refuses before it looks for the name.
	if there, lookErr := exists(fsys, name); lookErr == nil && !there {
		return nil
	}
	return err
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
	t := SyncTask{fsys: l.fsys, retired: l.retired, dir: l.dirFile, lost: l.lost}
	switch {
	case !l.dirty:
	case l.file != nil:
		t.current = l.file
	case l.end.Off > 0:
		t.byName = fileName(l.dir, l.end.File) // the handle was closed meanwhile
	}
	l.retired, l.kept, l.newName, l.dirty, l.dirFile = nil, 0, false, false, nil
	return t
}

// SyncTask makes one log durable. It is created by the writer and run by the
// syncer; the writer may go on appending and rolling back meanwhile, but must
// not close the log before Run has returned.
type SyncTask struct {
	fsys    FS
	retired []File
	current File
	byName  string
	dir     Dir
	lost    error
}

// Run syncs. After an error nothing may be acknowledged any more, and Run must
// not be repeated.
func (t *SyncTask) Run() error {
	errs := []error{t.lost}
	for _, f := range t.retired {
		errs = append(errs, f.Sync())
		f.Close() // all is on the disk: it has nothing to say
	}
	if t.current != nil {
		errs = append(errs, t.current.Sync())
	}
	if t.byName != "" {
		errs = append(errs, syncByName(t.fsys, t.byName))
	}
	if t.dir != nil {
		errs = append(errs, t.dir.Sync())
		t.dir.Close()
	}
	return errors.Join(errs...)
}

func syncByName(fsys FS, name string) error {
	f, err := fsys.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return &FatalError{err}
	}
	return nil
}
