package storage

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"

	"smss/codec"
)

// tail is what the end of a log file looks like.
type tail struct {
	size int64 // of the file
	good int64 // behind the last whole record
	// damaged are places before good where records cannot be read although
	// whole ones follow: that is no torn write, and nothing may be cut there.
	damaged []int64
	// broken says that what lies behind good is neither zeros nor the beginning
	// of a record. A process that is killed leaves a beginning of what it wrote,
	// so that this is damage; a power cut can leave it of a write, too.
	broken bool
}

// torn returns the bytes behind the last whole record.
func (t *tail) torn() int64 { return t.size - t.good }

// recordKind says how many fields a record's line has before the checksum,
// where it has its payload's length, and which field is text and no number.
type recordKind struct{ fields, length, text int }

var (
	binlogKind = recordKind{6, 5, 4}
	topicKind  = recordKind{topicFields, 3, noText}
)

const noText = -1

// scanTail walks a file from from on to its size. see is called for each
// record with its offset; parse has the contract of ParseTopicRecord and
// leaves the record where see finds it. Damage is stepped over by looking for
// the next place at which a whole record begins.
func scanTail(f File, from int64, kind recordKind, parse func([]byte) (int, error), see func(off, end int64) error) (tail, error) {
	size, err := f.Size()
	if err != nil {
		return tail{}, err
	}
	t := tail{size: size, good: min(from, size)}
	s := newScanner(f, kind, t.good, size, nil, 1<<20)
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
			found, err := s.pastDamage(parse)
			if err != nil {
				return t, err
			}
			if !found {
				t.broken, err = brokenAt(f, kind, at, size)
				return t, err
			}
			t.damaged = append(t.damaged, at)
		default:
			return t, err
		}
	}
}

// brokenAt reports whether the file's end, from at on, where no record can be
// read, is damage and not a torn write.
func brokenAt(f File, kind recordKind, at, size int64) (bool, error) {
	s := newScanner(f, kind, at, size, nil, codec.MaxRecordLine+4)
	if err := s.fill(0); err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	var l codec.Line
	n, err := codec.ParseLine(s.rest, kind.fields, &l)
	switch {
	case errors.Is(err, codec.ErrRecordShort):
		return false, nil // it ends inside the line
	case err != nil:
		zero, err := allZero(f, at, size)
		return !zero, err
	}
	payload, ok := l.Decimal(kind.length)
	return !ok || payload < 0 || payload > maxStoredPayload || at+int64(n)+payload <= size, nil
}

// resync returns the first offset behind at, where a damaged record begins,
// at which a whole one does.
//
// A message can hold anything, also what looks like a record. Where the
// damaged record's line can be read it is therefore believed first: the next
// record is looked for where this one ends. One that would end behind the
// file is a torn write, or its length is what is damaged: what is found inside
// it is a record only if the checksum is right for a length that ends there.
func resync(f File, kind recordKind, at, size int64, parse func([]byte) (int, error)) (int64, bool, error) {
	c, err := claimAt(f, kind, at, size)
	if err != nil {
		return 0, false, err
	}
	if c.known && c.end < size {
		if whole, err := wholeAt(f, kind, c.end, size, parse); whole || err != nil {
			return c.end, whole, err
		}
	}
	s := newScanner(f, kind, at+1, size, nil, 1<<20)
	for tries := 0; s.pos() < size && tries < claimTries; {
		if len(s.rest) < codec.MaxRecordLine+4 && s.pos()+int64(len(s.rest)) < size {
			if err := s.fill(1 << 20); err != nil {
				return 0, false, err
			}
		}
		if skip := leadingZeros(s.rest) - 1; skip > 0 {
			s.rest = s.rest[skip:] // the last of them can be the first byte of a length
		}
		n, err := parse(s.rest)
		if errors.Is(err, codec.ErrRecordShort) && int64(n) <= size-s.pos() && n > len(s.rest) {
			whole, err2 := wholeAt(f, kind, s.pos(), size, parse)
			if err2 != nil {
				return 0, false, err2
			}
			if whole {
				err = nil
			}
		}
		if err == nil {
			begins := true
			if c.known && c.end > size {
				tries++
				if begins, err = c.endsAt(f, s.pos()); err != nil {
					return 0, false, err
				}
			}
			if begins {
				return s.pos(), true, nil
			}
		}
		s.rest = s.rest[1:]
	}
	return 0, false, nil
}

// claimTries is how often a claim's checksum is calculated for another length.
const claimTries = 64

// claim is what the line of a damaged record says.
type claim struct {
	known   bool // the line can be read
	end     int64
	at      int64 // where the line ends
	covered []byte
	length  [2]int // where the payload's length stands in covered
	sum     []byte // nil without a checksum
}

func claimAt(f File, kind recordKind, at, size int64) (claim, error) {
	s := newScanner(f, kind, at, size, nil, codec.MaxRecordLine+4)
	if err := s.fill(0); err != nil && !errors.Is(err, io.EOF) {
		return claim{}, err
	}
	var l codec.Line
	n, err := codec.ParseLine(s.rest, kind.fields, &l)
	if err != nil {
		return claim{}, nil
	}
	// A separator that is damaged moves the fields behind it by one, and a
	// checksum whose digits are decimal ones can then stand where the length
	// does: a line is believed as a whole or not at all.
	for i := range kind.fields {
		if _, number := l.Decimal(i); !number && i != kind.text {
			return claim{}, nil
		}
	}
	payload, _ := l.Decimal(kind.length)
	if payload < 0 || payload > maxStoredPayload {
		return claim{}, nil
	}
	c := claim{known: true, at: at + int64(n), end: at + int64(n) + payload}
	if !l.Checksummed() && len(l.Field(kind.length)) == codec.ChecksumDigits && c.end > size {
		return claim{}, nil // likewise, where what is damaged stands beside the text
	}
	if l.Checksummed() {
		line, from := s.rest[4:n], 0
		for i := range kind.fields {
			if i == kind.length {
				c.length = [2]int{from, from + len(l.Field(i))}
			}
			from += len(l.Field(i)) + 1
		}
		c.covered, c.sum = line[:from], line[from:min(from+8, len(line))]
	}
	return c, nil
}

// proved reports whether a record's checksum is right for what its line says,
// or, where it has none, whether it ends as a record does. It takes no memory
// for the record.
func (c *claim) proved(f File) (bool, error) {
	var last [1]byte
	if n, err := f.ReadAt(last[:], c.end-1); n == 0 {
		return false, err
	}
	if last[0] != '\n' || c.sum == nil {
		return last[0] == '\n', nil
	}
	return c.endsAt(f, c.end)
}

// endsAt reports whether the checksum is right for a record that ends at end;
// of one without a checksum that cannot be said.
func (c *claim) endsAt(f File, end int64) (bool, error) {
	if c.sum == nil || end < c.at {
		return false, nil
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Update(0, table, c.covered[:c.length[0]])
	sum = crc32.Update(sum, table, strconv.AppendInt(nil, end-c.at, 10))
	sum = crc32.Update(sum, table, c.covered[c.length[1]:])
	buf := make([]byte, 64<<10)
	for at := c.at; at < end-1; {
		n, err := f.ReadAt(buf[:min(int64(len(buf)), end-1-at)], at)
		if n == 0 {
			return false, err
		}
		sum = crc32.Update(sum, table, buf[:n])
		at += int64(n)
	}
	return fmt.Sprintf("%08x", sum) == string(c.sum), nil
}

func wholeAt(f File, kind recordKind, at, size int64, parse func([]byte) (int, error)) (bool, error) {
	s := newScanner(f, kind, at, size, nil, 4<<10)
	_, err := s.next(parse)
	if err == nil {
		return true, nil
	}
	if errors.Is(err, codec.ErrRecordDamaged) || errors.Is(err, io.EOF) {
		err = nil
	}
	return false, err
}

func leadingZeros(b []byte) int {
	for i, c := range b {
		if c != 0 {
			return i
		}
	}
	return len(b)
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
	buf := make([]byte, min(1<<20, max(0, size-off)))
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
