package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"testing"

	"smss/codec"
)

// frames takes replication frames apart and returns the records.
func frames(t *testing.T, b []byte) (raw [][]byte, ids []int64) {
	t.Helper()
	for len(b) > 0 {
		if h := codec.ParseReplyHeader(b); h.Code != codec.CodeOK || !bytes.Equal(b[2:10], make([]byte, 8)) {
			t.Fatalf("frame begins with % x", b[:10])
		}
		n := int(binary.LittleEndian.Uint32(b[codec.ReplyHeaderSize:]))
		rec := b[RecordFrameOverhead : RecordFrameOverhead+n]
		var r codec.BinlogRecord
		if size, err := codec.ParseBinlogRecord(rec, maxStoredPayload, &r); err != nil || size != n {
			t.Fatalf("record %q: %d, %v", rec, size, err)
		}
		raw, ids = append(raw, rec), append(ids, r.EventID)
		b = b[RecordFrameOverhead+n:]
	}
	return raw, ids
}

// follow reads everything from an event on.
func (w *world) follow(t *testing.T, after int64, limit int) (all []byte, ids []int64) {
	t.Helper()
	r, end := w.s.BinlogReader(), w.s.BinlogEnd()
	pos, err := r.Locate(after, end)
	must(t, err)
	var scratch []byte
	for pos.Before(end) {
		var out Records
		out, scratch, err = r.ReadRecords(pos, end, limit, nil, scratch)
		must(t, err)
		raw, got := frames(t, out.Frame)
		if len(got) != out.Count {
			t.Fatalf("%d records in the frame, %d announced", len(got), out.Count)
		}
		if out.Count > 1 && len(out.Frame)-len(raw[len(raw)-1])-RecordFrameOverhead >= limit {
			t.Fatalf("%d bytes although the limit is %d", len(out.Frame), limit)
		}
		for _, b := range raw {
			all = append(all, b...)
		}
		ids, pos = append(ids, got...), out.Next
	}
	return all, ids
}

func (w *world) wholeBinlog() (all []byte) {
	for _, id := range w.numbers(w.binlogDir()) {
		all = append(all, w.slurp(fileName(w.binlogDir(), id))...)
	}
	return all
}

func TestFollowEveryEvent(t *testing.T) {
	for _, size := range []int64{1, 300, 1 << 20} {
		w := opened(t, size)
		w.create("t")                              // 1
		w.pub("t", "a")                            // 2
		w.pub("t", numbered("b", 3, 40)...)        // 3 to 5
		_, err := w.tryDelay("t", 1000, "delayed") // 6
		must(t, err)
		w.pub("t", numbered("c", 2, 400)...) // 7, 8
		whole := w.wholeBinlog()
		all, ids := w.follow(t, 0, 1000)
		if !bytes.Equal(all, whole) || !slices.Equal(ids, []int64{1, 2, 3, 6, 7}) {
			t.Errorf("size %d: %v, %d bytes; the binlog has %d", size, ids, len(all), len(whole))
		}
		for after, want := range map[int64][]int64{1: {2, 3, 6, 7}, 2: {3, 6, 7}, 3: {6, 7}, 4: {6, 7}, 5: {6, 7}, 6: {7}, 7: nil, 8: nil} {
			if _, ids := w.follow(t, after, 1); !slices.Equal(ids, want) {
				t.Errorf("size %d, after %d: %v, want %v", size, after, ids, want)
			}
		}
		for _, unknown := range []int64{9, 1 << 60} {
			if _, err := w.s.BinlogReader().Locate(unknown, w.s.BinlogEnd()); !errors.Is(err, ErrNotHeld) {
				t.Errorf("after %d: %v", unknown, err)
			}
		}
		last, err := w.s.BinlogReader().Last(w.s.BinlogEnd())
		if err != nil || last != 8 {
			t.Errorf("size %d: last event %d, %v", size, last, err)
		}
	}
}

// What lies behind the end is on the files and not published, in the same file
// or another.
func TestFollowUpToTheEnd(t *testing.T) {
	for _, size := range []int64{1, 1 << 20} {
		w := opened(t, size)
		w.create("t")        // 1
		w.pub("t", "a", "b") // 2, 3
		end := w.s.BinlogEnd()
		w.pub("t", "c") // 4
		w.pub("t", "d") // 5
		r := w.s.BinlogReader()
		if first, last, err := r.LastRecord(end); first != 2 || last != 3 || err != nil {
			t.Errorf("size %d: the last record is %d to %d, %v", size, first, last, err)
		}
		for _, id := range []int64{4, 5} {
			if _, err := r.Locate(id, end); !errors.Is(err, ErrNotHeld) {
				t.Errorf("size %d: event %d: %v", size, id, err)
			}
		}
	}
}

func TestFollowBehindRetention(t *testing.T) {
	w := opened(t, 1)
	w.create("t")
	w.pub("t", "a", "b") // 2, 3
	w.pub("t", "c")      // 4
	w.pub("t", "d")      // 5
	r := w.s.BinlogReader()
	if first, complete, err := r.Oldest(w.s.BinlogEnd()); first != 1 || !complete || err != nil {
		t.Errorf("oldest %d, %v, %v", first, complete, err)
	}
	must(t, os.Remove(fileName(w.binlogDir(), 0)))
	must(t, os.Remove(fileName(w.binlogDir(), 1)))
	if first, complete, err := r.Oldest(w.s.BinlogEnd()); first != 4 || complete || err != nil {
		t.Errorf("oldest %d, %v, %v", first, complete, err)
	}
	if _, ids := w.follow(t, 3, 1); !slices.Equal(ids, []int64{4, 5}) {
		t.Errorf("nothing is missing behind 3, but it gets %v", ids)
	}
	var removed *RemovedError
	if _, err := r.Locate(2, w.s.BinlogEnd()); !errors.As(err, &removed) || removed.Oldest != 4 {
		t.Errorf("event 2 gives %v", err)
	}
	if _, _, err := r.ReadRecords(Pos{1, 0}, w.s.BinlogEnd(), 1, nil, nil); err == nil {
		t.Error("a file that is gone was stepped over")
	}
}

func TestFollowDamage(t *testing.T) {
	w := opened(t, 1<<20)
	w.create("t")
	w.pub("t", "good")
	at := w.s.BinlogEnd()
	w.pub("t", "bad one")
	w.pub("t", "behind")
	w.poke(fileName(w.binlogDir(), 0), at.Off+30, []byte{0xff})
	r, end := w.s.BinlogReader(), w.s.BinlogEnd()
	out, _, err := r.ReadRecords(Pos{}, end, 1<<20, nil, nil)
	if err != nil || out.Count != 2 || out.Next != at || out.LastID != 2 {
		t.Fatalf("before the damage: %d records, next %v, %v", out.Count, out.Next, err)
	}
	var damage *DamageError
	if out, _, err = r.ReadRecords(out.Next, end, 1<<20, nil, nil); !errors.As(err, &damage) || out.Count != 0 || damage.Pos != at {
		t.Errorf("at the damage: %d records, %v", out.Count, err)
	}
}

// A record that comes from another server stands as it came, and is found.
func TestForeignRecord(t *testing.T) {
	w := opened(t, 1<<20)
	raw := codec.AppendBinlogRecord(nil, &codec.BinlogRecord{
		WrittenAtMs: 7, Command: codec.Pub, EventID: 41, ReceivedAtMs: 6, Topic: []byte("gone"), Payload: payload("a", "b"),
	}, nil)
	var rec codec.BinlogRecord
	_, err := codec.ParseBinlogRecord(raw, maxStoredPayload, &rec)
	must(t, err)
	if at := w.s.Batch().BinlogRecord(raw, &rec); at != (Pos{}) {
		t.Errorf("it stands at %v", at)
	}
	must(t, w.s.Batch().Commit())
	if whole := w.wholeBinlog(); !bytes.Equal(whole, raw) {
		t.Errorf("the binlog holds %q", whole)
	}
	if last, err := w.s.BinlogReader().Last(w.s.BinlogEnd()); last != 42 || err != nil {
		t.Errorf("last event %d, %v", last, err)
	}
}

// The index of the binlog leads to the record, and its loss costs time only.
func TestBinlogIndex(t *testing.T) {
	w := opened(t, 8<<20)
	w.create("t")
	body := numbered("m", 1, 100_000)[0]
	for range 60 {
		w.pub("t", body)
	}
	if n := w.size(indexName(w.binlogDir(), 0)) / indexEntrySize; n < 4 || n > 6 {
		t.Errorf("%d entries for 6 MB", n)
	}
	for _, damage := range []bool{false, true} {
		if damage {
			must(t, os.WriteFile(indexName(w.binlogDir(), 0), bytes.Repeat([]byte{9}, 500), 0o644))
		}
		for _, after := range []int64{1, 30, 60} {
			if _, ids := w.follow(t, after, 1<<20); len(ids) != int(61-after) {
				t.Errorf("after %d come %d events", after, len(ids))
			}
		}
	}
}
