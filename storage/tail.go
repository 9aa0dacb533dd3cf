package storage

import (
	"errors"
	"io"

	"smss/codec"
)

// tail is what the end of a log file looks like.
type tail struct {
	size int64 // of the file
	good int64 // behind the last whole record
	// damaged are places before good where records cannot be read although
	// whole ones follow: that is no torn write, and nothing may be cut there.
	damaged []int64
}

// torn returns the bytes behind the last whole record.
func (t *tail) torn() int64 { return t.size - t.good }

// scanTail walks a file from from on to its size. see is called for each
// record with its offset; parse has the contract of ParseTopicRecord and
// leaves the record where see finds it. Damage is stepped over by looking for
// the next place at which a whole record begins.
func scanTail(f File, from int64, parse func([]byte) (int, error), see func(off, end int64) error) (tail, error) {
	size, err := f.Size()
	if err != nil {
		return tail{}, err
	}
	t := tail{size: size, good: min(from, size)}
	s := newScanner(f, t.good, size, nil, 1<<20)
	for {
		at := s.pos()
		_, err := s.next(parse)
		switch {
		case err == nil:
			t.good = s.pos()
			if see != nil {
				if err := see(at, t.good); err != nil {
					return t, err
				}
			}
		case errors.Is(err, io.EOF):
			return t, nil
		case errors.Is(err, codec.ErrRecordDamaged):
			next, found, err := resync(f, at+1, size, parse)
			if err != nil || !found {
				return t, err
			}
			t.damaged = append(t.damaged, at)
			s = newScanner(f, next, size, s.buf, 1<<20)
		default:
			return t, err
		}
	}
}

// resync returns the first offset from from on at which a whole record
// begins.
func resync(f File, from, size int64, parse func([]byte) (int, error)) (int64, bool, error) {
	s := newScanner(f, from, size, nil, 1<<20)
	for s.pos() < size {
		if len(s.rest) < codec.MaxRecordLine+4 && s.pos()+int64(len(s.rest)) < size {
			if err := s.fill(1 << 20); err != nil {
				return 0, false, err
			}
		}
		n, err := parse(s.rest)
		if errors.Is(err, codec.ErrRecordShort) && int64(n) <= size-s.pos() && n > len(s.rest) {
			probe := newScanner(f, s.pos(), size, nil, n)
			_, err = probe.next(parse)
		}
		if err == nil {
			return s.pos(), true, nil
		}
		s.rest = s.rest[1:]
	}
	return 0, false, nil
}

// keepAside copies the bytes of a file from off on to a file beside it before
// they are cut, so that what was there can be looked at. It returns the
// copy's name. At most keepAsideMax bytes are copied.
const keepAsideMax = 64 << 20

func keepAside(fsys FS, name string, f File, off, size int64) (string, error) {
	aside := name + ".cut"
	out, err := fsys.OpenAppend(aside)
	if err != nil {
		return "", err
	}
	defer out.Close()
	if err := out.Truncate(0); err != nil {
		return "", err
	}
	buf := make([]byte, 1<<20)
	end := min(size, off+keepAsideMax)
	for at := off; at < end; {
		n, err := f.ReadAt(buf[:min(int64(len(buf)), end-at)], at)
		if n == 0 {
			return aside, err
		}
		if _, err := out.WriteAt(buf[:n], at-off); err != nil {
			return aside, err
		}
		at += int64(n)
	}
	return aside, nil
}
