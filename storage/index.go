package storage

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"path/filepath"
	"strconv"
)

// A sparse index stands beside a log file: N.idx holds an entry for a record
// about every indexEvery bytes of N.log, in the binlog every binlogIndexEvery.
// It is a hint that is checked where it is used, so that a damaged, short or
// missing one costs time and nothing else, and it needs no sync.
const (
	indexEvery     = 64 << 10
	indexEntrySize = 24
	// binlogIndexEvery is coarser, because a search in the binlog is rare (a
	// slave comes) and the writer pays for each entry.
	binlogIndexEvery = 1 << 20
)

// indexEntry says that the record of an event begins at off.
type indexEntry struct {
	eventID    int64
	storedAtMs int64
	off        int64
}

func indexName(dir string, id int64) string {
	return filepath.Join(dir, strconv.FormatInt(id, 10)+".idx")
}

func (e *indexEntry) append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(e.eventID))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(e.storedAtMs))
	return binary.LittleEndian.AppendUint64(dst, uint64(e.off))
}

func parseIndexEntry(b []byte) indexEntry {
	return indexEntry{
		int64(binary.LittleEndian.Uint64(b)),
		int64(binary.LittleEndian.Uint64(b[8:])),
		int64(binary.LittleEndian.Uint64(b[16:])),
	}
}

// index reads one sidecar.
type index struct {
	file File // nil where there is none
	n    int  // entries
}

func openIndex(fsys FS, dir string, id int64) (index, error) {
	f, err := fsys.Open(indexName(dir, id))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return index{}, nil
		}
		return index{}, err
	}
	size, err := f.Size()
	if err != nil {
		f.Close()
		return index{}, err
	}
	return index{f, int(size / indexEntrySize)}, nil
}

func (x *index) close() {
	if x.file != nil {
		x.file.Close()
	}
}

func (x *index) entry(i int) (indexEntry, error) {
	var b [indexEntrySize]byte
	if _, err := x.file.ReadAt(b[:], int64(i)*indexEntrySize); err != nil {
		return indexEntry{}, err
	}
	return parseIndexEntry(b[:]), nil
}

// count returns for how many entries ok holds, given that they are the first
// ones.
func (x *index) count(ok func(indexEntry) bool) (int, error) {
	lo, hi := 0, x.n // ok holds below lo, does not from hi on
	for lo < hi {
		mid := (lo + hi) / 2
		e, err := x.entry(mid)
		if err != nil {
			return 0, err
		}
		if ok(e) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, nil
}

// indexWriter adds entries to the sidecars of one log. It belongs to the
// writer goroutine.
type indexWriter struct {
	every   int64 // immutable: bytes between two entries
	file    int64 // number of the log file that the last note was in
	lastOff int64 // offset of the last entry in it
	known   bool  // both are set
	pending []pendingEntry
}

type pendingEntry struct {
	file int64
	indexEntry
}

// note offers a record that was staged; it becomes an entry if it is far
// enough behind the last one. The first record of a file needs none.
func (w *indexWriter) note(fsys FS, dir string, at Pos, eventID, storedAtMs int64) {
	if at.File != w.file || !w.known {
		w.file, w.known = at.File, true
		w.lastOff = 0
		if at.Off >= w.every {
			w.lastOff = lastIndexed(fsys, dir, at)
		}
	}
	if at.Off-w.lastOff < w.every {
		return
	}
	w.pending = append(w.pending, pendingEntry{at.File, indexEntry{eventID, storedAtMs, at.Off}})
	w.lastOff = at.Off
}

// lastIndexed returns the offset of the last entry before at. A sidecar that
// cannot be read counts as empty.
func lastIndexed(fsys FS, dir string, at Pos) int64 {
	x, err := openIndex(fsys, dir, at.File)
	if err != nil {
		return 0
	}
	defer x.close()
	n, err := x.count(func(e indexEntry) bool { return e.off < at.Off })
	if err != nil || n == 0 {
		return 0
	}
	e, err := x.entry(n - 1)
	if err != nil || e.off < 0 || e.off >= at.Off {
		return 0
	}
	return e.off
}

// flush writes the pending entries. Its error is for the record only: the
// index is a hint.
func (w *indexWriter) flush(fsys FS, dir string) error {
	var err error
	for i := 0; i < len(w.pending) && err == nil; {
		first := i
		var buf []byte
		for ; i < len(w.pending) && w.pending[i].file == w.pending[first].file; i++ {
			buf = w.pending[i].append(buf)
		}
		err = appendIndex(fsys, indexName(dir, w.pending[first].file), buf, w.pending[first].off)
	}
	w.pending = w.pending[:0]
	return err
}

// appendIndex writes b, entries from offset from on, behind those that lie
// before. What lies at or behind it was left by a write that failed or a tail
// that was cut.
func appendIndex(fsys FS, name string, b []byte, from int64) error {
	f, err := fsys.OpenAppend(name)
	if err != nil {
		return err
	}
	size, err := cutIndex(f, from)
	if err == nil {
		_, err = f.WriteAt(b, size)
	}
	return errors.Join(err, f.Close())
}

// cutIndex cuts the entries of records at or behind from off a sidecar, and
// returns its size.
func cutIndex(f File, from int64) (int64, error) {
	size, err := f.Size()
	if err != nil {
		return 0, err
	}
	x := index{f, int(size / indexEntrySize)}
	for x.n > 0 {
		e, err := x.entry(x.n - 1)
		if err != nil {
			return 0, err
		}
		if e.off < from {
			break
		}
		x.n--
	}
	keep := int64(x.n) * indexEntrySize
	if keep < size {
		return keep, f.Truncate(keep)
	}
	return keep, nil
}

// trimIndex does so by name, where there is one.
func trimIndex(fsys FS, dir string, id, from int64) error {
	name := indexName(dir, id)
	there, err := exists(fsys, name)
	if err != nil || !there {
		return err
	}
	f, err := fsys.OpenAppend(name)
	if err != nil {
		return err
	}
	_, err = cutIndex(f, from)
	return errors.Join(err, f.Close())
}

// drop forgets what a rolled-back batch has noted.
func (w *indexWriter) drop() { w.pending, w.known = w.pending[:0], false }
