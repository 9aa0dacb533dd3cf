package storage

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"smss/codec"
)

// taken returns how much memory do takes.
func taken(do func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// A damaged length that claims most of a file takes no memory for it, wherever
// the record is met; also where the claimed record seems to end well. A record
// that really is that long is read as ever.
func TestClaimedLengthTakesNoMemory(t *testing.T) {
	const size = 16 << 20
	for _, lastByte := range []byte{0, '\n'} {
		for _, checksum := range []bool{true, false} {
			if !checksum && lastByte == '\n' {
				continue // there it is for the payload's own lengths to tell
			}
			what := fmt.Sprintf("last byte %q, checksum %v", lastByte, checksum)
			w := opened(t, 1<<30)
			w.create("t")
			w.pub("t", "a")
			name := fileName(w.s.topicPath("t"), 0)
			at := fileSize(t, name)
			body := message(strings.Repeat("b", 100))
			rec := AppendTopicRecord(nil, &TopicRecord{StoredAtMs: 1, EventID: 3, SavedAtMs: 1, Message: body})
			claimed := bytes.Replace(rec, fmt.Appendf(nil, "\t%d\t", len(body)+1), []byte("\t9999999\t"), 1)
			claimed[0] += byte(len(claimed) - len(rec))
			if !checksum {
				line := bytes.IndexByte(claimed[4:], '\n') + 4
				claimed = append(claimed[:line-9:line-9], claimed[line:]...)
				claimed[0] -= 9
			}
			var got TopicRecord
			n, err := ParseTopicRecord(claimed, maxStoredPayload, &got)
			if !errors.Is(err, codec.ErrRecordShort) || n < 9999999 {
				t.Fatalf("%s: the test's record: %v, %d", what, err, n)
			}
			appendFile(t, name, claimed)
			cutFile(t, name, size)
			f, err := OS{}.OpenAppend(name)
			must(t, err)
			_, err = f.WriteAt([]byte{lastByte}, at+int64(n)-1)
			must(t, err)
			whole := AppendTopicRecord(nil, &TopicRecord{StoredAtMs: 1, EventID: 5, SavedAtMs: 1, Message: message("c")})
			_, err = f.WriteAt(whole, size)
			must(t, err)
			end := Pos{0, size + int64(len(whole))}
			reader := w.s.Reader("t")
			for where, do := range map[string]func(){
				"reading": func() {
					_, _, err := reader.ReadPush(Pos{0, at}, end, wide, nil, nil)
					if d := new(DamageError); !errors.As(err, &d) || d.Pos.Off != at {
						t.Errorf("%s: reading: %v", what, err)
					}
				},
				"looking for an id": func() {
					if pos, err := reader.Locate(5, end); err != nil || pos != end {
						t.Errorf("%s: behind it: %v, %v", what, pos, err)
					}
				},
				"recovery": func() {
					var r TopicRecord
					tl, err := scanTail(f, 0, topicKind, func(b []byte) (int, error) { return ParseTopicRecord(b, maxStoredPayload, &r) }, nil)
					if err != nil || len(tl.damaged) != 1 || tl.good != end.Off {
						t.Errorf("%s: %+v, %v", what, tl, err)
					}
				},
				"the first record": func() {
					if _, err := recordAt(f, at, size); !errors.Is(err, codec.ErrRecordDamaged) {
						t.Errorf("%s: %v", what, err)
					}
				},
			} {
				if n := taken(do); n > 4<<20 {
					t.Errorf("%s: %s takes %d bytes", what, where, n)
				}
			}
			must(t, f.Close())
		}
	}
	w := opened(t, 1<<30)
	w.create("t")
	long := strings.Repeat("x", 5<<20)
	w.pub("t", "a", long, "b")
	w.want("t", "a", long, "b")
	c := w.copied().open()
	c.want("t", "a", long, "b")
}
