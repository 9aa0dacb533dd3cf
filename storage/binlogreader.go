package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"smss/codec"
)

// BinlogReader reads the binlog for those who follow this server. It is
// immutable and may be used by any goroutine; what it reads is bounded by the
// published end that is passed in.
type BinlogReader struct {
	fsys FS
	dir  string
}

// BinlogReader returns the binlog's reading side.
func (s *Store) BinlogReader() *BinlogReader {
	return &BinlogReader{fsys: s.fsys, dir: filepath.Join(s.path, binlogDir)}
}

func (r *BinlogReader) search() *search {
	return &search{fsys: r.fsys, dir: r.dir, kind: binlogKind, parse: func(b []byte, h *head) (int, error) {
		var rec codec.BinlogRecord
		n, err := codec.ParseBinlogRecord(b, maxStoredPayload, &rec)
		if err == nil {
			h.first, h.last, h.storedAtMs = rec.EventID, rec.EventID+rec.IDs()-1, rec.WrittenAtMs
		}
		return n, err
	}}
}

// Locate returns the place behind the record that holds eventID, which may be
// any of the ids that the record takes. 0 stands for the oldest record kept.
// An event that retention has removed is as good as held where the oldest
// record kept is the next one. Errors are ErrNotHeld, *RemovedError,
// *DamageError, or those of the file system.
func (r *BinlogReader) Locate(eventID int64, end Pos) (Pos, error) {
	pos, err := r.search().locate(eventID, end)
	var removed *RemovedError
	if errors.As(err, &removed) && removed.Oldest == eventID+1 {
		return r.search().locate(0, end)
	}
	return pos, err
}

// Oldest returns the first event id that the binlog holds and whether nothing
// was ever removed before it; 0 for an empty binlog.
func (r *BinlogReader) Oldest(end Pos) (eventID int64, complete bool, err error) {
	ids, err := listUpTo(r.fsys, r.dir, end)
	if err != nil {
		return 0, false, err
	}
	for _, id := range ids {
		h, err := r.search().firstHead(id, end)
		if errors.Is(err, io.EOF) {
			continue
		}
		return h.first, ids[0] == 0, err
	}
	return 0, len(ids) == 0 || ids[0] == 0, nil
}

// Last returns the last event id that the binlog holds, 0 for none; see
// LastRecord.
func (r *BinlogReader) Last(end Pos) (int64, error) {
	_, last, err := r.LastRecord(end)
	return last, err
}

// LastRecord returns the first and the last event id of the binlog's last
// record, 0 for none. It reads from the newest index entry on, at most a file
// where there is none.
func (r *BinlogReader) LastRecord(end Pos) (first, last int64, err error) {
	ids, err := listUpTo(r.fsys, r.dir, end)
	if err != nil {
		return 0, 0, err
	}
	for _, id := range slices.Backward(ids) {
		first, last, err = r.lastIn(id, end)
		if last != 0 || err != nil {
			return first, last, err
		}
	}
	return 0, 0, nil
}

func (r *BinlogReader) lastIn(file int64, end Pos) (first, last int64, err error) {
	s := r.search()
	f, stop, err := s.openUpTo(file, end)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	var h head
	parse := func(b []byte) (int, error) { return s.parse(b, &h) }
	from := s.nearest(f, file, stop, func(indexEntry) bool { return true })
	_, err = scanTail(f, from, binlogKind, parse, func(_, to int64) error {
		if to <= stop {
			first, last = h.first, h.last
		}
		return nil
	})
	return first, last, err
}

// Records is what ReadRecords has read.
type Records struct {
	Frame  []byte // one replication frame for each record
	Count  int
	Next   Pos
	LastID int64 // the last event id of the last record; 0 if there is none
}

// RecordFrameOverhead is what a record takes in a replication frame beside
// itself: the reply header and its size.
const RecordFrameOverhead = codec.ReplyHeaderSize + 4

// ReadRecords appends the records from from on, up to end, to frame, each in a
// replication frame, byte for byte as they stand in the file and each checked
// against its checksum. It reads at least one record, and further ones while
// the frame stays below limit bytes. A damaged record ends the read before it;
// if nothing precedes it, the error is a *DamageError. Files between two that
// retention has removed are an error, too: a follower must not step over what
// it misses.
func (r *BinlogReader) ReadRecords(from, end Pos, limit int, frame, scratch []byte) (Records, []byte, error) {
	out := Records{Frame: frame[:0], Next: from}
	for out.Count == 0 && out.Next.Before(end) {
		var err error
		if scratch, err = r.readFile(&out, end, limit, scratch); err != nil {
			return out, scratch, err
		}
	}
	return out, scratch, nil
}

func (r *BinlogReader) readFile(out *Records, end Pos, limit int, scratch []byte) ([]byte, error) {
	file := out.Next.File
	f, stop, err := r.search().openUpTo(file, end)
	if isNotExist(err) {
		return scratch, fmt.Errorf("%s was removed by retention before it was sent: %w", fileName(r.dir, file), err)
	}
	if err != nil {
		return scratch, err
	}
	defer f.Close()
	s := newScanner(f, binlogKind, out.Next.Off, stop, scratch, max(readChunk, limit))
	var rec codec.BinlogRecord
	parse := func(b []byte) (int, error) { return codec.ParseBinlogRecord(b, maxStoredPayload, &rec) }
	for out.Count == 0 || len(out.Frame) < limit {
		at := s.pos()
		raw, err := s.next(parse)
		switch {
		case errors.Is(err, io.EOF):
			if file < end.File {
				out.Next = Pos{file + 1, 0}
			}
			return s.buf, nil
		case errors.Is(err, codec.ErrRecordDamaged):
			if out.Count > 0 {
				return s.buf, nil // send what is good; the next read meets the damage
			}
			return s.buf, &DamageError{Dir: r.dir, Pos: Pos{file, at}, After: out.LastID, Err: err}
		case err != nil:
			return s.buf, err
		}
		out.Frame = codec.AppendCode(out.Frame, codec.CodeOK)
		out.Frame = binary.LittleEndian.AppendUint32(out.Frame, uint32(len(raw)))
		out.Frame = append(out.Frame, raw...)
		out.Count++
		out.LastID = rec.EventID + rec.IDs() - 1
		out.Next = Pos{file, s.pos()}
	}
	return s.buf, nil
}
