package storage

import (
	"errors"
	"fmt"
	"io"

	"smss/codec"
)

// ErrNotHeld says that a topic holds no message of an event id.
var ErrNotHeld = errors.New("storage: the topic does not hold this event id")

// RemovedError says that retention has removed the message of an event id;
// Oldest is the id of the oldest message still kept.
type RemovedError struct{ Oldest int64 }

func (e *RemovedError) Error() string {
	return fmt.Sprintf("event id was removed by retention, the oldest kept is %d", e.Oldest)
}

// Locate returns where reading goes on after the message of eventID. 0 stands
// for the oldest message kept. Errors are ErrNotHeld, *RemovedError,
// *DamageError, or those of the file system.
func (r *TopicReader) Locate(eventID int64, end Pos) (Pos, error) {
	ids, err := listFiles(r.fsys, r.dir)
	if err != nil {
		return Pos{}, err
	}
	for len(ids) > 0 && ids[len(ids)-1] > end.File {
		ids = ids[:len(ids)-1]
	}
	if eventID == 0 {
		if len(ids) == 0 {
			return end, nil
		}
		return Pos{ids[0], 0}, nil
	}
	file, err := r.fileHolding(ids, eventID, end)
	if err != nil {
		return Pos{}, err
	}
	return r.locateIn(file, eventID, end)
}

// fileHolding returns the file in whose range eventID lies: the last one that
// begins with a smaller or equal id.
func (r *TopicReader) fileHolding(ids []int64, eventID int64, end Pos) (int64, error) {
	lo, hi := 0, len(ids) // files below lo begin with ids <= eventID
	oldest := int64(0)
	for lo < hi {
		mid := (lo + hi) / 2
		first, err := r.firstRecord(ids[mid], end)
		if errors.Is(err, io.EOF) {
			// An empty file is the newest one, or was left by a crash: it
			// holds nothing, the answer lies before it.
			hi = mid
			continue
		}
		if err != nil {
			return 0, err
		}
		if first.EventID <= eventID {
			lo = mid + 1
		} else {
			hi, oldest = mid, first.EventID
		}
	}
	if lo == 0 {
		if len(ids) > 0 && ids[0] > 0 && oldest > 0 {
			return 0, &RemovedError{oldest}
		}
		return 0, ErrNotHeld
	}
	return ids[lo-1], nil
}

func (r *TopicReader) firstRecord(file int64, end Pos) (TopicRecord, error) {
	f, stop, err := r.openUpTo(file, end)
	if err != nil {
		return TopicRecord{}, err
	}
	defer f.Close()
	s := newScanner(f, 0, stop, nil, 4<<10)
	var rec TopicRecord
	_, err = s.next(func(b []byte) (int, error) { return ParseTopicRecord(b, maxStoredPayload, &rec) })
	if errors.Is(err, codec.ErrRecordDamaged) {
		err = &DamageError{Dir: r.dir, Pos: Pos{file, 0}, Err: err}
	}
	rec.Message = nil
	return rec, err
}

// openUpTo opens a file and returns the offset up to which it may be read.
func (r *TopicReader) openUpTo(file int64, end Pos) (File, int64, error) {
	f, err := r.fsys.Open(fileName(r.dir, file))
	if err != nil {
		return nil, 0, err
	}
	if file == end.File {
		return f, end.Off, nil
	}
	size, err := f.Size()
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, size, nil
}

func (r *TopicReader) locateIn(file, eventID int64, end Pos) (Pos, error) {
	f, stop, err := r.openUpTo(file, end)
	if err != nil {
		return Pos{}, err
	}
	defer f.Close()
	s := newScanner(f, r.nearest(f, file, stop, func(e indexEntry) bool { return e.eventID <= eventID }), stop, nil, readChunk)
	var rec TopicRecord
	for {
		at := s.pos()
		_, err := s.next(func(b []byte) (int, error) { return ParseTopicRecord(b, maxStoredPayload, &rec) })
		switch {
		case errors.Is(err, io.EOF):
			return Pos{}, ErrNotHeld
		case errors.Is(err, codec.ErrRecordDamaged):
			return Pos{}, &DamageError{Dir: r.dir, Pos: Pos{file, at}, After: rec.EventID, Err: err}
		case err != nil:
			return Pos{}, err
		case rec.EventID == eventID:
			return Pos{file, s.pos()}, nil
		case rec.EventID > eventID:
			return Pos{}, ErrNotHeld
		}
	}
}

// nearest returns the offset of the last index entry for which ok holds, after
// checking that a record of that id is there; else 0, the file's beginning.
func (r *TopicReader) nearest(f File, file, stop int64, ok func(indexEntry) bool) int64 {
	x, err := openIndex(r.fsys, r.dir, file)
	if err != nil || x.n == 0 {
		return 0
	}
	defer x.close()
	e, found, err := x.last(ok)
	if err != nil || !found || e.off <= 0 || e.off >= stop {
		return 0
	}
	s := newScanner(f, e.off, stop, nil, 4<<10)
	var rec TopicRecord
	_, err = s.next(func(b []byte) (int, error) { return ParseTopicRecord(b, maxStoredPayload, &rec) })
	if err != nil || rec.EventID != e.eventID || rec.StoredAtMs != e.storedAtMs {
		return 0
	}
	return e.off
}
