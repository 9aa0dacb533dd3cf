package storage

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"smss/codec"
)

// unpack extracts testdata/name.tar.gz and returns the directory in it. The
// existing server's Badger files are sparse, 2 GiB of them: blocks of zeros
// are stepped over, so that they stay holes.
func unpack(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name+".tar.gz"))
	must(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	must(t, err)
	dir := t.TempDir()
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return filepath.Join(dir, name)
		}
		must(t, err)
		if !filepath.IsLocal(h.Name) {
			t.Fatalf("the fixture holds %q", h.Name)
		}
		target := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			must(t, os.MkdirAll(target, 0o755))
			continue
		}
		must(t, writeSparse(target, r, h.Size))
	}
}

func writeSparse(target string, r io.Reader, size int64) error {
	f, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	block, zeros := make([]byte, 64<<10), make([]byte, 64<<10)
	for at := int64(0); err == nil; {
		var n int
		n, err = io.ReadFull(r, block)
		if n > 0 && !bytes.Equal(block[:n], zeros[:n]) {
			if _, err := f.WriteAt(block[:n], at); err != nil {
				return errors.Join(err, f.Close())
			}
		}
		at += int64(n)
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.Join(err, f.Close())
	}
	return errors.Join(f.Truncate(size), f.Close()) // a hole at the end counts
}

// expectation is expected.json of a fixture.
type expectation struct {
	AbsentTopics  []string `json:"absentTopics"`
	DueWhileDown  string   `json:"dueWhileDown"`
	LastEventID   int64    `json:"lastEventId"`
	PendingDelays int      `json:"pendingDelays"`
	Topics        map[string][]struct {
		ID     int64  `json:"id"`
		SHA256 string `json:"sha256"`
	} `json:"topics"`
}

// fixture unpacks a directory of the existing server.
func fixture(t *testing.T, name string) (*world, expectation) {
	t.Helper()
	dir := unpack(t, name)
	text, err := os.ReadFile(filepath.Join(dir, "expected.json"))
	must(t, err)
	var want expectation
	must(t, json.Unmarshal(text, &want))
	w := &world{t: t, nowMs: 1_700_000_000_000}
	w.opt = Options{Path: filepath.Join(dir, "data"), MaxLogSize: 20_000, FolderCount: 10, MaxOpenTopics: 10}
	t.Cleanup(func() { w.kill() })
	return w, want
}

// messages returns the ids and messages of a topic, as pushed.
func (w *world) messages(topic string) (ids []int64, sums []string) {
	w.t.Helper()
	r, end := w.s.Reader(topic), w.topics[topic].End()
	from, err := r.Locate(0, end)
	must(w.t, err)
	for from.Before(end) {
		p, _, err := r.ReadPush(from, end, wide, nil, nil)
		must(w.t, err)
		rest := p.Frame[codec.ReplyHeaderSize:]
		for range p.Messages {
			ids = append(ids, int64(uint64(rest[8])|uint64(rest[9])<<8|uint64(rest[10])<<16|uint64(rest[11])<<24|uint64(rest[12])<<32))
			rest = rest[codec.PushedMessageOverhead:]
			n, ok := codec.MessageSize(rest)
			if !ok {
				w.t.Fatalf("%s: no message behind %d", topic, ids[len(ids)-1])
			}
			sum := sha256.Sum256(rest[:n])
			sums, rest = append(sums, hex.EncodeToString(sum[:])), rest[n:]
		}
		from = p.Next
	}
	return ids, sums
}

func (w *world) wantFixture(want expectation, extra map[string]int) {
	w.t.Helper()
	if len(w.topics) != len(want.Topics) {
		w.t.Errorf("topics are %v, want %v", sortedKeys(w.topics), sortedKeys(want.Topics))
	}
	for _, name := range want.AbsentTopics {
		if w.topics[name] != nil {
			w.t.Errorf("topic %s is there", name)
		}
	}
	for name, messages := range want.Topics {
		if w.topics[name] == nil {
			w.t.Fatalf("topic %s is not there", name)
		}
		ids, sums := w.messages(name)
		if len(ids) != len(messages)+extra[name] {
			w.t.Fatalf("%s holds %d messages, want %d and %d", name, len(ids), len(messages), extra[name])
		}
		for i, m := range messages {
			if ids[i] != m.ID || sums[i] != m.SHA256 {
				w.t.Fatalf("%s: message %d is %d %s, want %d %s", name, i, ids[i], sums[i], m.ID, m.SHA256)
			}
			if pos, err := w.s.Reader(name).Locate(m.ID, w.topics[name].End()); err != nil {
				w.t.Fatalf("%s: id %d: %v, %v", name, m.ID, pos, err)
			}
		}
	}
}

// pending returns the keys of delayed messages that are due at or behind a
// time.
func (w *world) pending(from int64) (keys []DelayKey) {
	w.t.Helper()
	must(w.t, w.s.Meta().DelayKeys(from, func(k DelayKey) bool { keys = append(keys, k); return true }))
	return keys
}

func TestAdoptTheExistingServersDirectory(t *testing.T) {
	for _, name := range []string{"smss-data", "smss-data-many-delays"}[:sample(2, 2, 1)] {
		t.Run(name, func(t *testing.T) {
			w, want := fixture(t, name)
			w.open()
			// Only the life of topics that are gone is gone through again.
			again, last := int64(0), int64(0)
			for _, e := range w.binlogEvents() {
				f := strings.Fields(e)
				if slices.Contains(want.AbsentTopics, f[2]) {
					again++
				}
				id, err := strconv.ParseInt(f[0], 10, 64)
				must(t, err)
				last = max(last, id)
			}
			if !w.state.Adopted || w.state.Replayed != again || len(w.damages) > 0 {
				t.Errorf("adopted %v, %d replayed, want %d; damages %v, notes %v", w.state.Adopted, w.state.Replayed, again, w.damages, w.notes)
			}
			if w.nextID < last+1 || w.nextID > last+10 || w.nextID <= want.LastEventID {
				t.Errorf("next id is %d, the last event was %d", w.nextID, last)
			}
			w.wantFixture(want, nil)
			all := w.pending(0)
			due := 0
			if want.DueWhileDown != "" {
				due = 1
			}
			if len(all) != want.PendingDelays+due {
				t.Errorf("%d are pending, want %d and %d", len(all), want.PendingDelays, due)
			}
			for i, k := range all {
				if i%100 > 0 {
					continue
				}
				p, ok, err := w.s.Meta().DelayPayload(k)
				trigger, id := codec.ParseDelayPrefix(append(p, make([]byte, 16)...))
				if err != nil || !ok || trigger != k.TriggerAtMs || id != k.EventID {
					t.Fatalf("pending %v: %v, %v, for %d %d", k, ok, err, trigger, id)
				}
			}
			extra := map[string]int{}
			if due == 1 {
				// The one that fell due while the server was down.
				p, _, err := w.s.Meta().DelayPayload(all[0])
				must(t, err)
				if !bytes.Contains(p, []byte(want.DueWhileDown)) || all[0].Topic != "order" {
					t.Errorf("the first one due is %v %q", all[0], p)
				}
				_, err = w.tryFire(all[0])
				must(t, err)
				extra["order"]++
			}
			for i := range 3 {
				for name := range want.Topics {
					w.pub(name, fmt.Sprint("new ", i), "of a batch")
					extra[name] += 2
				}
				switch i {
				case 0:
					w.reopen()
				case 1:
					w.kill()
					w.open()
				}
				if w.state.Adopted || len(w.damages) > 0 {
					t.Errorf("turn %d: adopted %v, %v", i, w.state.Adopted, w.damages)
				}
				w.wantFixture(want, extra)
				if n := len(w.pending(0)); n != want.PendingDelays {
					t.Errorf("turn %d: %d are pending, want %d", i, n, want.PendingDelays)
				}
			}
			// Tables that the existing server compressed survive a compaction
			// of the metadata, and so do deletions.
			for _, k := range w.pending(0) {
				w.s.Batch().Meta().DeleteDelay(k)
				if w.s.Batch().Closed() {
					must(t, w.s.Batch().Commit())
				}
			}
			must(t, w.s.Batch().Commit())
			must(t, w.s.Meta().(*badgerMeta).db.Flatten(1))
			w.reopen()
			if n := len(w.pending(0)); n != 0 {
				t.Errorf("%d came back", n)
			}
			w.wantFixture(want, extra)
		})
	}
}

// An adoption that is interrupted begins again.
func TestAdoptionIsInterrupted(t *testing.T) {
	w, want := fixture(t, "smss-data")
	w.open()
	w.close()
	must(t, os.Remove(filepath.Join(w.opt.Path, formatFile)))
	w.open()
	w.wantFixture(want, nil)
	w.close()
}

func TestBadgerMeta(t *testing.T) {
	dir := t.TempDir()
	m, err := OpenBadger(dir, false, nil)
	must(t, err)
	mem := newMemMeta()
	var b MetaBatch
	commit := func() {
		t.Helper()
		must(t, m.Commit(&b))
		must(t, mem.Commit(&b))
		b.Reset()
	}
	for i := range 50 {
		b.PutTopic(&TopicMeta{fmt.Sprint("t", i), 1, int64(i % 3), int64(i), 4, 5, byte(i % 2)})
		b.PutDelay(DelayKey{int64(i * 7 % 40), int64(i), "t1"}, bytes.Repeat([]byte{byte(i)}, 16+i*100))
	}
	commit()
	for i := range 20 {
		b.DeleteTopic(fmt.Sprint("t", i), int64(i%3))
		b.DeleteDelay(DelayKey{int64(i * 7 % 40), int64(i), "t1"})
	}
	b.PutCheckpoint(Checkpoint{Applied: Pos{3, 4}, NextEventID: 9, Boot: "b", Durable: Pos{1, 2}})
	b.PutRole(1)
	for i := range 5 {
		b.PutEnd(fmt.Sprint("t", i), &TopicEnd{int64(i), Pos{2, int64(i)}, 7})
	}
	b.DeleteEnd("t3")
	commit()
	compare := func() {
		t.Helper()
		dump := func(m Meta) (out []string) {
			must(t, m.Topics(func(tm TopicMeta) error { out = append(out, fmt.Sprint(tm)); return nil }))
			for _, from := range []int64{0, 13, 100} {
				must(t, m.DelayKeys(from, func(k DelayKey) bool {
					p, ok, err := m.DelayPayload(k)
					must(t, err)
					out = append(out, fmt.Sprint(from, k, ok, len(p)))
					return true
				}))
			}
			must(t, m.Ends(func(name string, e TopicEnd) error { out = append(out, fmt.Sprint(name, e)); return nil }))
			c, found, err := m.Checkpoint()
			must(t, err)
			_, ok, err := m.DelayPayload(DelayKey{1, 1, "none"})
			must(t, err)
			return append(out, fmt.Sprint(c, found, ok))
		}
		a, b := dump(m), dump(mem)
		if fmt.Sprint(a) != fmt.Sprint(b) {
			t.Errorf("Badger holds %v\nwant %v", a, b)
		}
	}
	compare()
	must(t, m.Sync())
	must(t, m.CollectGarbage())
	must(t, m.Close())
	m, err = OpenBadger(dir, false, nil)
	must(t, err)
	compare()
	// As many changes as a batch may hold, and the largest payload.
	for i := 0; !b.Full(); i++ {
		b.PutDelay(DelayKey{int64(i), int64(i), "many"}, make([]byte, valueThreshold+1))
	}
	commit()
	for i := 0; !b.Full(); i++ {
		b.PutDelay(DelayKey{int64(i), int64(i), "small"}, make([]byte, valueThreshold-1))
	}
	b.PutDelay(DelayKey{9, 9, "largest"}, make([]byte, MaxDelayPayload))
	commit()
	compare()
	must(t, m.Close())
}
