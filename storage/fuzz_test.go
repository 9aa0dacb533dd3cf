package storage

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"smss/codec"
)

func fuzzSeeds() [][]byte {
	var log []byte
	for i := range 4 {
		log = AppendTopicRecord(log, &TopicRecord{
			StoredAtMs: 1_700_000_000_000, EventID: int64(i + 1), SavedAtMs: 1_700_000_000_000, Index: int64(i),
			Source: Pos{1, int64(100 * i)}, Message: message("body"),
		})
	}
	one := len(log) / 4
	old := []byte("\x29\x00\x00\x001796073091860\t3\t1796073091860\t14\t0\t0\t229\n")
	old = append(append(old, message("hello")...), '\n')
	return [][]byte{
		nil, log, log[:one], log[:one-1], old, append(bytes.Clone(log[:one+7]), log...),
		append(bytes.Clone(log), make([]byte, 300)...), append(make([]byte, 300), log...), {12, 0, 0, 0},
	}
}

// What is accepted comes back the same; what is short asks for more than
// there is; no prefix of a record is one.
func FuzzParseTopicRecord(f *testing.F) {
	for _, b := range fuzzSeeds() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var r TopicRecord
		n, err := ParseTopicRecord(b, 1<<20, &r)
		switch {
		case errors.Is(err, codec.ErrRecordShort):
			if n <= len(b) || n > 1<<20+codec.MaxRecordLine+8 {
				t.Fatalf("short of %d bytes, has %d", n, len(b))
			}
		case err != nil:
			if n != 0 || !errors.Is(err, codec.ErrRecordDamaged) {
				t.Fatalf("size %d, %v", n, err)
			}
		default:
			if n <= 0 || n > len(b) {
				t.Fatalf("size %d of %d", n, len(b))
			}
			var again TopicRecord
			out := AppendTopicRecord(nil, &r)
			if m, err := ParseTopicRecord(out, 1<<20, &again); err != nil || m != len(out) {
				t.Fatalf("written again: %d of %d, %v", m, len(out), err)
			}
			again.Checksummed = r.Checksummed
			if !bytes.Equal(again.Message, r.Message) {
				t.Fatal("the message changed")
			}
			again.Message, r.Message = nil, nil
			if again.EventID != r.EventID || again.Source != r.Source || again.StoredAtMs != r.StoredAtMs || again.Index != r.Index {
				t.Fatalf("%+v became %+v", r, again)
			}
			for _, cut := range []int{0, 3, n / 2, n - 1} {
				if _, err := ParseTopicRecord(b[:cut], 1<<20, &again); !errors.Is(err, codec.ErrRecordShort) {
					t.Fatalf("its first %d bytes: %v", cut, err)
				}
			}
		}
	})
}

// bytesFile is a File over bytes, to be read only.
type bytesFile struct{ b []byte }

func (f bytesFile) ReadAt(b []byte, off int64) (int, error) {
	return bytes.NewReader(f.b).ReadAt(b, off)
}
func (f bytesFile) WriteAt([]byte, int64) (int, error) { return 0, io.ErrShortWrite }
func (f bytesFile) Truncate(int64) error               { return io.ErrShortWrite }
func (f bytesFile) Sync() error                        { return nil }
func (f bytesFile) Size() (int64, error)               { return int64(len(f.b)), nil }
func (f bytesFile) Close() error                       { return nil }

// A scan ends, stays within the file, sees whole records that do not overlap,
// and reports every gap between them.
func FuzzScanTail(f *testing.F) {
	for _, b := range fuzzSeeds() {
		f.Add(b, uint16(0))
		f.Add(b, uint16(10))
	}
	f.Fuzz(func(t *testing.T, b []byte, from uint16) {
		var r TopicRecord
		at := min(int64(from), int64(len(b)))
		gaps := 0
		tl, err := scanTail(bytesFile{b}, int64(from), topicKind, func(b []byte) (int, error) {
			return ParseTopicRecord(b, maxStoredPayload, &r)
		}, func(off, end int64) error {
			if off < at || end <= off || end > int64(len(b)) {
				t.Fatalf("a record at %d to %d, the last one ended at %d", off, end, at)
			}
			var whole TopicRecord
			if n, err := ParseTopicRecord(b[off:], maxStoredPayload, &whole); err != nil || int64(n) != end-off {
				t.Fatalf("no record at %d: %v", off, err)
			}
			if off > at {
				gaps++
			}
			at = end
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if tl.size != int64(len(b)) || tl.good != at || len(tl.damaged) != gaps {
			t.Fatalf("%+v, the last record ended at %d, %d gaps", tl, at, gaps)
		}
	})
}
