package storage

import (
	"errors"
	"fmt"
	"io"

	"smss/codec"
)

// What a full copy reads of the logs. A copy is made as of an event: of each
// topic the records up to it, of the binlog the file in which it lies. Nothing
// of that changes any more, so that the parts need not be read at one time.

// CopiedFile is a file of a log, as far as it belongs to a copy.
type CopiedFile struct{ File, Size int64 }

// FilesAsOf returns the topic's files from number from on, as far as they hold
// messages of events up to eventID, oldest first and at most limit of them;
// more says that others follow. The last one can be empty: it is where the
// topic goes on.
func (r *TopicReader) FilesAsOf(eventID int64, end Pos, from int64, limit int) (files []CopiedFile, more bool, err error) {
	s := r.search()
	for tries := 0; ; tries++ {
		files, more, err = s.filesAsOf(eventID, end, from, limit)
		if tries < 3 && isNotExist(err) {
			continue // removed by retention since it was listed
		}
		return files, more, err
	}
}

func (s *search) filesAsOf(eventID int64, end Pos, from int64, limit int) (files []CopiedFile, more bool, err error) {
	ids, err := listUpTo(s.fsys, s.dir, end)
	if err != nil || len(ids) == 0 {
		return nil, false, err
	}
	stop, err := s.endAsOf(ids, eventID, end)
	if err != nil {
		return nil, false, err
	}
	for _, id := range ids {
		if id < from || id > stop.File {
			continue
		}
		if len(files) == limit {
			return files, true, nil
		}
		f := CopiedFile{id, stop.Off}
		if id < stop.File {
			if f.Size, err = s.fsys.Size(fileName(s.dir, id)); err != nil {
				return nil, false, err
			}
		}
		files = append(files, f)
	}
	return files, false, nil
}

// endAsOf returns the place behind the last record of an event up to eventID.
func (s *search) endAsOf(ids []int64, eventID int64, end Pos) (Pos, error) {
	for i := len(ids) - 1; i > 0; i-- {
		first, err := s.firstHead(ids[i], end)
		switch {
		case err == nil && first.first > eventID, errors.Is(err, io.EOF):
			// An empty file behind is as good as none: whoever goes on behind
			// the one before it makes it.
		case err == nil, errors.Is(err, codec.ErrRecordDamaged):
			return s.endIn(ids[i], eventID, end)
		default:
			return Pos{}, err
		}
	}
	return s.endIn(ids[0], eventID, end)
}

// endIn returns the place in one file. Damage is stepped over: it is copied as
// it is.
func (s *search) endIn(file, eventID int64, end Pos) (Pos, error) {
	f, stop, err := s.openUpTo(file, end)
	if err != nil {
		return Pos{}, err
	}
	defer f.Close()
	from := s.nearest(f, file, stop, func(e indexEntry) bool { return e.eventID <= eventID })
	scan := newScanner(f, s.kind, from, stop, nil, readChunk)
	var h head
	parse := func(b []byte) (int, error) { return s.parse(b, &h) }
	for {
		at := scan.pos()
		_, err := scan.next(parse)
		switch {
		case errors.Is(err, io.EOF):
			return Pos{file, stop}, nil
		case errors.Is(err, codec.ErrRecordDamaged):
			if found, err := scan.pastDamage(parse); err != nil {
				return Pos{}, err
			} else if !found {
				return Pos{file, stop}, nil
			}
		case err != nil:
			return Pos{}, err
		case h.first > eventID:
			return Pos{file, at}, nil
		}
	}
}

// FileGoneError says that retention has removed a file and those before it; Oldest
// is the first one left.
type FileGoneError struct{ File, Oldest int64 }

func (e *FileGoneError) Error() string {
	return fmt.Sprintf("file %d was removed by retention, the oldest is %d", e.File, e.Oldest)
}

// Piece reads a piece of one of the topic's files into buf, up to end, and
// returns how much there is. A file that retention has removed is a
// *FileGoneError.
func (r *TopicReader) Piece(file, off int64, end Pos, buf []byte) (int, error) {
	return r.search().piece(file, off, end, buf)
}

// Piece does the same for the binlog.
func (r *BinlogReader) Piece(file, off int64, end Pos, buf []byte) (int, error) {
	return r.search().piece(file, off, end, buf)
}

func (s *search) piece(file, off int64, end Pos, buf []byte) (int, error) {
	if file > end.File {
		return 0, fmt.Errorf("%s lies behind the log's end %v", fileName(s.dir, file), end)
	}
	f, stop, err := s.openUpTo(file, end)
	if isNotExist(err) {
		ids, listErr := listFiles(s.fsys, s.dir)
		if listErr == nil && len(ids) > 0 && ids[0] > file {
			return 0, &FileGoneError{file, ids[0]}
		}
		return 0, errors.Join(err, listErr)
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	n, err := f.ReadAt(buf[:max(0, min(int64(len(buf)), stop-off))], off)
	if errors.Is(err, io.EOF) {
		err = nil // the file is shorter than its end: whoever asked sees that
	}
	return n, err
}

// OldestFile returns the number of the first file that the binlog has; false where
// it has none.
func (r *BinlogReader) OldestFile() (int64, bool, error) {
	ids, err := listFiles(r.fsys, r.dir)
	if err != nil || len(ids) == 0 {
		return 0, false, err
	}
	return ids[0], true, nil
}
