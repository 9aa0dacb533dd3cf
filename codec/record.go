package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"strconv"
)

// A record is what both kinds of log are made of:
//
//	[uint32 LE: length of the line, its \n included] [line]\n [payload]\n
//
// The line's fields are decimal and separated by tabs. The payload's length,
// a field of the line, counts the payload's \n and is 0 where there is
// neither. Behind the fields that the existing server knows this project
// appends a checksum: 8 lower-case hex digits of the CRC-32C over the line up
// to and including the tab before the checksum, and the payload without its
// \n. Records without one were written by the existing server and are taken
// as they are; a field in its place that is no checksum is damage.

const (
	recordPrefix = 4
	// ChecksumDigits is how many hexadecimal digits a checksum has.
	ChecksumDigits = 8
	// MaxRecordLine is the longest line that existing readers hold.
	MaxRecordLine = 508
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrRecordShort says that the input ends inside a record.
var ErrRecordShort = errors.New("codec: record is not complete")

// ErrRecordDamaged is what every damaged record's error wraps.
var ErrRecordDamaged = errors.New("damaged record")

func damaged(what string) error { return &recordError{what} }

type recordError struct{ what string }

func (e *recordError) Error() string { return "damaged record: " + e.what }
func (e *recordError) Unwrap() error { return ErrRecordDamaged }

// ErrFields says that a line is well formed but its fields are not; the
// grammars that name the fields return it.
var ErrFields = damaged("line has too few or malformed fields")

var (
	errLineLength     = damaged("line length out of range")
	errLineEnd        = damaged("line does not end where its length says")
	errPayloadEnd     = damaged("payload does not end where its length says")
	errPayloadCommand = damaged("payload does not fit its command")
	errChecksum       = damaged("checksum does not match")
	errChecksumTxt    = damaged("checksum is not 8 hex digits")
)

// Line holds the raw fields of a record's line. It is what both grammars
// share; BinlogRecord and the topic record of package storage give the fields
// their names.
type Line struct {
	fields  [maxLineFields][]byte // alias the input
	count   int
	covered []byte // what the checksum covers of the line; nil without one
	sum     uint32
}

const maxLineFields = 7

// BeginRecord appends the length prefix of a record's line; the caller appends
// the fields, each followed by a tab, and calls FinishRecord.
func BeginRecord(dst []byte) []byte { return append(dst, 0, 0, 0, 0) }

// AppendField appends a decimal field and its tab.
func AppendField(dst []byte, v int64) []byte {
	return append(strconv.AppendInt(dst, v, 10), '\t')
}

// FinishRecord completes the record that BeginRecord began at dst[at:]: it
// appends the checksum, ends the line, and appends the payload, which may be
// given in two parts that follow each other.
func FinishRecord(dst []byte, at int, payload, payload2 []byte) []byte {
	sum := crc32.Update(0, castagnoli, dst[at+recordPrefix:])
	sum = checksum(sum, payload)
	sum = checksum(sum, payload2)
	dst = appendHex32(dst, sum)
	dst = append(dst, '\n')
	binary.LittleEndian.PutUint32(dst[at:], uint32(len(dst)-at-recordPrefix))
	if len(payload)+len(payload2) > 0 {
		dst = append(dst, payload...)
		dst = append(dst, payload2...)
		dst = append(dst, '\n')
	}
	return dst
}

const hexDigits = "0123456789abcdef"

func appendHex32(dst []byte, v uint32) []byte {
	var text [ChecksumDigits]byte
	for i := range text {
		text[i] = hexDigits[v>>(28-4*i)&15]
	}
	return append(dst, text[:]...)
}

// parseHex32 accepts exactly what appendHex32 writes, so that no flipped bit
// turns one spelling of a checksum into another.
func parseHex32(b []byte) (v uint32, ok bool) {
	if len(b) != ChecksumDigits {
		return 0, false
	}
	for _, c := range b {
		d := bytes.IndexByte([]byte(hexDigits), c)
		if d < 0 {
			return 0, false
		}
		v = v<<4 | uint32(d)
	}
	return v, true
}

// ParseLine reads the line of the record at the start of b. known is the
// number of fields that the grammar has before the checksum. size is what
// prefix and line take, also with ErrRecordShort, where it is the least the
// record takes as far as known. Any other error wraps ErrRecordDamaged, and
// size is 0.
func ParseLine(b []byte, known int, l *Line) (size int, err error) {
	if len(b) < recordPrefix {
		return recordPrefix, ErrRecordShort
	}
	n := binary.LittleEndian.Uint32(b)
	if n < uint32(2*known) || n > MaxRecordLine {
		return 0, errLineLength
	}
	size = recordPrefix + int(n)
	if len(b) < size {
		return size, ErrRecordShort
	}
	line := b[recordPrefix:size]
	if bytes.IndexByte(line, '\n') != len(line)-1 {
		return 0, errLineEnd
	}
	if err := l.split(line, known); err != nil {
		return 0, err
	}
	return size, nil
}

// split cuts line, its \n included, into its known fields and the checksum.
func (l *Line) split(line []byte, known int) error {
	l.count, l.covered = 0, nil
	at := 0
	for l.count < known {
		i := bytes.IndexByte(line[at:], '\t')
		if i < 0 {
			if l.count != known-1 {
				return ErrFields
			}
			i = len(line) - 1 - at // the last field of a line without checksum
		}
		l.fields[l.count] = line[at : at+i]
		l.count++
		at += i + 1
	}
	if at >= len(line) {
		return nil
	}
	return l.splitChecksum(line, at)
}

func (l *Line) splitChecksum(line []byte, at int) error {
	field := line[at : len(line)-1]
	if i := bytes.IndexByte(field, '\t'); i >= 0 {
		field = field[:i] // further fields, from a later version
	}
	sum, ok := parseHex32(field)
	if !ok {
		return errChecksumTxt
	}
	l.covered, l.sum = line[:at], sum
	return nil
}

// Field returns field i as it stands; it aliases the input.
func (l *Line) Field(i int) []byte { return l.fields[i] }

// Checksummed reports whether the line carries a checksum.
func (l *Line) Checksummed() bool { return l.covered != nil }

// Decimal reads field i as a number. Only the spelling that AppendField
// writes is accepted.
func (l *Line) Decimal(i int) (int64, bool) {
	b := l.fields[i]
	if len(b) == 0 || len(b) > 20 {
		return 0, false
	}
	neg := b[0] == '-'
	if neg {
		b = b[1:]
	}
	if len(b) == 0 || (len(b) > 1 && b[0] == '0') {
		return 0, false
	}
	most := uint64(1<<63 - 1)
	if neg {
		most++
	}
	var v uint64
	for _, c := range b {
		d := uint64(c - '0')
		if d > 9 || v > (most-d)/10 {
			return 0, false
		}
		v = v*10 + d
	}
	if neg {
		return -int64(v), v > 0
	}
	return int64(v), true
}

// Finish returns the payload of a record whose line took lineSize bytes of b,
// checks its end and the checksum, and returns the size of all.
func (l *Line) Finish(b []byte, lineSize int, payloadLen int64) (payload []byte, size int, err error) {
	size = lineSize + int(payloadLen)
	if len(b) < size {
		return nil, size, ErrRecordShort
	}
	if payloadLen > 0 {
		if b[size-1] != '\n' {
			return nil, 0, errPayloadEnd
		}
		payload = b[lineSize : size-1]
	}
	if l.covered != nil {
		sum := crc32.Update(0, castagnoli, l.covered)
		if crc32.Update(sum, castagnoli, payload) != l.sum {
			return nil, 0, errChecksum
		}
	}
	return payload, size, nil
}
