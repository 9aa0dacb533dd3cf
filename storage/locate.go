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
	return r.search().locate(eventID, end)
}

func (r *TopicReader) search() *search {
	return &search{fsys: r.fsys, dir: r.dir, kind: topicKind, parse: func(b []byte, h *head) (int, error) {
		var rec TopicRecord
		n, err := ParseTopicRecord(b, maxStoredPayload, &rec)
		h.first, h.last, h.storedAtMs = rec.EventID, rec.EventID, rec.StoredAtMs
		return n, err
	}}
}

// head is what a search looks at in a record: the event ids that it takes and
// when it was stored.
type head struct{ first, last, storedAtMs int64 }

// search finds records in a log, of either kind. It is immutable.
type search struct {
	fsys  FS
	dir   string
	kind  recordKind
	parse func(b []byte, h *head) (int, error) // the contract of ParseTopicRecord
}

// locate returns the place behind the record that holds eventID.
func (s *search) locate(eventID int64, end Pos) (Pos, error) {
	for tries := 0; ; tries++ {
		pos, err := s.locateOnce(eventID, end)
		// A file that is gone was removed by retention since it was listed.
		if tries < 3 && isNotExist(err) {
			continue
		}
		return pos, err
	}
}

func (s *search) locateOnce(eventID int64, end Pos) (Pos, error) {
	ids, err := listUpTo(s.fsys, s.dir, end)
	if err != nil {
		return Pos{}, err
	}
	if eventID == 0 {
		if len(ids) == 0 {
			return end, nil
		}
		return Pos{ids[0], 0}, nil
	}
	ids, err = s.filesHolding(ids, eventID, end)
	for _, file := range ids {
		var pos Pos
		if pos, err = s.locateIn(file, eventID, end); !errors.Is(err, ErrNotHeld) {
			return pos, err
		}
	}
	return Pos{}, err
}

// filesHolding returns the files in which eventID can be: the last one that
// begins with a smaller or equal id, and those behind it whose first record
// cannot be read. At least one, or an error.
func (s *search) filesHolding(ids []int64, eventID int64, end Pos) ([]int64, error) {
	lo, hi := 0, len(ids) // the answer is in or behind lo-1, and before hi
	oldest := int64(0)
	for lo < hi {
		mid := (lo + hi) / 2
		// An empty file is the newest one, or was left by a crash; a damaged
		// one says nothing. The next that can be read decides.
		at := mid
		var first head
		for ; at < hi; at++ {
			var err error
			if first, err = s.firstHead(ids[at], end); err == nil {
				break
			} else if !errors.Is(err, io.EOF) && !errors.Is(err, codec.ErrRecordDamaged) {
				return nil, err
			}
		}
		switch {
		case at == hi:
			hi = mid
		case first.first <= eventID:
			lo = at + 1
		default:
			hi, oldest = mid, first.first
		}
	}
	// What follows lo-1 up to the next file that can be read was not decided.
	to := lo
	for ; to < len(ids); to++ {
		if _, err := s.firstHead(ids[to], end); err == nil {
			break
		} else if !errors.Is(err, io.EOF) && !errors.Is(err, codec.ErrRecordDamaged) {
			return nil, err
		}
	}
	if from := max(lo-1, 0); from < to {
		return ids[from:to], nil
	}
	if len(ids) > 0 && ids[0] > 0 && oldest > 0 {
		return nil, &RemovedError{oldest}
	}
	return nil, ErrNotHeld
}

// firstHead reads a file's first record; io.EOF where it has none.
func (s *search) firstHead(file int64, end Pos) (head, error) {
	f, stop, err := s.openUpTo(file, end)
	if err != nil {
		return head{}, err
	}
	defer f.Close()
	return s.headAt(f, 0, stop)
}

// headAt reads the record at off.
func (s *search) headAt(f File, off, stop int64) (head, error) {
	scan := newScanner(f, s.kind, off, stop, nil, 4<<10)
	var h head
	_, err := scan.next(func(b []byte) (int, error) { return s.parse(b, &h) })
	return h, err
}

// openUpTo opens a file and returns the offset up to which it may be read.
func (s *search) openUpTo(file int64, end Pos) (File, int64, error) {
	f, err := s.fsys.Open(fileName(s.dir, file))
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

// locateIn looks for eventID in one file. Damage before it is stepped over: no
// message is taken from there, and reading begins behind one that is whole.
func (s *search) locateIn(file, eventID int64, end Pos) (Pos, error) {
	f, stop, err := s.openUpTo(file, end)
	if err != nil {
		return Pos{}, err
	}
	defer f.Close()
	from := s.nearest(f, file, stop, func(e indexEntry) bool { return e.eventID <= eventID })
	scan := newScanner(f, s.kind, from, stop, nil, readChunk)
	var h head
	parse := func(b []byte) (int, error) { return s.parse(b, &h) }
	missing := error(ErrNotHeld)
	for {
		at, last := scan.pos(), h.last
		_, err := scan.next(parse)
		switch {
		case errors.Is(err, io.EOF):
			return Pos{}, missing
		case errors.Is(err, codec.ErrRecordDamaged):
			missing = &DamageError{Dir: s.dir, Pos: Pos{file, at}, After: last, Err: err}
			if found, err := scan.pastDamage(parse); err != nil {
				return Pos{}, err
			} else if !found {
				return Pos{}, missing
			}
		case err != nil:
			return Pos{}, err
		case h.first <= eventID && eventID <= h.last:
			return Pos{file, scan.pos()}, nil
		case h.first > eventID:
			return Pos{}, missing
		}
	}
}

// nearestTries is how many entries that do not fit are stepped over before
// the file is read from its beginning.
const nearestTries = 16

// nearest returns the offset of the last index entry for which ok holds, and
// at which a record of that id and time is found; else 0, the file's
// beginning.
func (s *search) nearest(f File, file, stop int64, ok func(indexEntry) bool) int64 {
	x, err := openIndex(s.fsys, s.dir, file)
	if err != nil || x.n == 0 {
		x.close()
		return 0
	}
	defer x.close()
	n, err := x.count(ok)
	for tries := 0; err == nil && n > 0 && tries < nearestTries; tries++ {
		n--
		var e indexEntry
		if e, err = x.entry(n); err != nil || e.off <= 0 || e.off >= stop || !ok(e) {
			continue
		}
		h, bad := s.headAt(f, e.off, stop)
		if bad == nil && h.first == e.eventID && h.storedAtMs == e.storedAtMs {
			return e.off
		}
	}
	return 0
}

// nearest is search.nearest for a topic.
func (r *TopicReader) nearest(f File, file, stop int64, ok func(indexEntry) bool) int64 {
	return r.search().nearest(f, file, stop, ok)
}

// firstRecord reads a file's first record, without its message; io.EOF where
// it has none.
func (r *TopicReader) firstRecord(file int64, end Pos) (TopicRecord, error) {
	f, stop, err := r.search().openUpTo(file, end)
	if err != nil {
		return TopicRecord{}, err
	}
	defer f.Close()
	return recordAt(f, 0, stop)
}

// recordAt reads the record at off, without its message.
func recordAt(f File, off, stop int64) (TopicRecord, error) {
	s := newScanner(f, topicKind, off, stop, nil, 4<<10)
	var rec TopicRecord
	_, err := s.next(func(b []byte) (int, error) { return ParseTopicRecord(b, maxStoredPayload, &rec) })
	rec.Message = nil
	return rec, err
}
