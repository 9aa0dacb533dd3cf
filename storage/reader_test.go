package storage

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"testing"

	"smss/codec"
)

func TestReadAcrossFiles(t *testing.T) {
	for _, size := range []int64{1, 100, 160, 1000, 1 << 20} {
		w := opened(t, size)
		w.create("t")
		bodies := numbered("m", 40, 20)
		for i := range 10 {
			w.pub("t", bodies[4*i:4*i+4]...)
		}
		w.want("t", bodies...)
		// From every position that a push has given out.
		all := w.read("t")
		for i, g := range all {
			rest, err := w.readFrom("t", g.next)
			must(t, err)
			if len(rest) != len(all)-i-1 || (len(rest) > 0 && rest[0] != all[i+1]) {
				t.Errorf("size %d: behind %v come %v", size, g, rest)
			}
		}
		w.reopen().want("t", bodies...)
	}
}

// The place behind the last message of a full file is the next file's
// beginning: that is what the existing server sends.
func TestNextPositionAtTheBorder(t *testing.T) {
	w := opened(t, 100)
	w.create("t")
	w.pub("t", numbered("m", 6, 20)...)
	for _, g := range w.read("t") {
		size := fileSize(t, fileName(w.s.topicPath("t"), g.next.File-min(1, g.next.File)))
		if g.next.Off >= 100 || (g.next.Off == 0 && size < 100) {
			t.Errorf("behind %v is %v", g, g.next)
		}
	}
}

func TestPushLimits(t *testing.T) {
	w := opened(t, 1<<20)
	w.create("t")
	bodies := numbered("m", 300, 100)
	bodies[100] = numbered("big", 1, 50_000)[0]
	w.pub("t", bodies...)
	one := int64(codec.PushedMessageOverhead + codec.MessageOverhead + 100)
	r, end := w.s.Reader("t"), w.topics["t"].End()
	read := func(from Pos, messages int, bytes int64) (Push, []got) {
		t.Helper()
		p, _, err := r.ReadPush(from, end, PushLimits{Messages: messages, Bytes: int(bytes)}, nil, nil)
		must(t, err)
		return p, parsePush(t, p.Frame)
	}
	if _, all := read(Pos{}, codec.MaxBatch, 1<<20); len(all) != codec.MaxBatch {
		t.Errorf("a wide push holds %d messages", len(all))
	}
	if p, all := read(Pos{}, 7, 1<<20); len(all) != 7 || p.LastID != all[6].id || p.Next != all[6].next {
		t.Errorf("a push of 7 holds %d, last %d, next %v", len(all), p.LastID, p.Next)
	}
	header := int64(codec.ReplyHeaderSize)
	for _, c := range []struct {
		bytes int64
		want  int
	}{{0, 1}, {1, 1}, {header + one, 1}, {header + 2*one - 1, 1}, {header + 2*one, 2}, {header + 5*one, 5}} {
		p, all := read(Pos{}, 255, c.bytes)
		if len(all) != c.want || (c.want > 1 && int64(len(p.Frame)) > c.bytes) {
			t.Errorf("limit of %d bytes: %d messages in %d bytes, want %d", c.bytes, len(all), len(p.Frame), c.want)
		}
	}
	// The large one comes alone, and the one before it does not wait for it.
	p, all := read(Pos{}, 255, header+100*one+10)
	if len(all) != 100 {
		t.Fatalf("%d messages before the large one", len(all))
	}
	if p, all = read(p.Next, 255, 1000); len(all) != 1 || all[0].body != bodies[100] {
		t.Errorf("the large one comes as %v", all)
	}
	if _, all = read(p.Next, 255, 1000); len(all) == 0 || all[0].body != bodies[101] {
		t.Errorf("behind the large one comes %v", all)
	}
}

func TestReadPushUsesItsBuffers(t *testing.T) {
	w := opened(t, 1<<20)
	w.create("t")
	w.pub("t", numbered("m", 50, 50)...)
	frame, scratch := make([]byte, 0, 64<<10), make([]byte, 0, 128<<10)
	p, scratch2, err := w.s.Reader("t").ReadPush(Pos{}, w.topics["t"].End(), wide, frame, scratch)
	must(t, err)
	if &p.Frame[0] != &frame[:1][0] || &scratch2[:1][0] != &scratch[:1][0] {
		t.Error("a buffer that was large enough was not used")
	}
}

// Files in the middle, at the beginning and the one that is read go away.
func TestReadSkipsRemovedFiles(t *testing.T) {
	w := opened(t, 100)
	w.create("t")
	bodies := numbered("m", 12, 20)
	for _, b := range bodies {
		w.pub("t", b)
	}
	all := w.read("t")
	byFile := map[int64][]string{}
	file := int64(0)
	for i, g := range all {
		byFile[file] = append(byFile[file], bodies[i])
		file = g.next.File
	}
	dir, end := w.s.topicPath("t"), w.topics["t"].End()
	ids := w.logs("t")
	if len(ids) < 5 {
		t.Fatalf("only %v files", ids)
	}
	for _, gone := range [][]int64{{0}, {0, 1}, {2}, ids[:len(ids)-1], ids} {
		c := w.copied().open()
		for _, id := range gone {
			must(t, os.Remove(fileName(c.s.topicPath("t"), id)))
		}
		var want []string
		for _, id := range ids {
			if !slices.Contains(gone, id) {
				want = append(want, byFile[id]...)
			}
		}
		p, _, err := c.s.Reader("t").ReadPush(Pos{0, 0}, c.topics["t"].End(), wide, nil, nil)
		must(t, err)
		if p.Skipped != slices.Contains(gone, 0) {
			t.Errorf("without %v: skipped is %v", gone, p.Skipped)
		}
		have, err := c.readFrom("t", Pos{})
		must(t, err)
		var texts []string
		for _, g := range have {
			texts = append(texts, g.body)
		}
		if !slices.Equal(texts, want) {
			t.Errorf("without %v: read %s, want %s", gone, brief(texts), brief(want))
		}
		if p, _, err = c.s.Reader("t").ReadPush(end, end, wide, nil, nil); err != nil || p.Messages != 0 || p.Skipped {
			t.Errorf("without %v: at the end: %+v, %v", gone, p, err)
		}
	}
	if _, err := os.Stat(fileName(dir, 0)); err != nil {
		t.Error("the original was touched")
	}
}

// A file that becomes shorter under a reader is an error to it, and no more.
func TestReadOfAFileThatWasCut(t *testing.T) {
	w := opened(t, 1<<20)
	w.create("t")
	w.pub("t", numbered("m", 20, 100)...)
	name := fileName(w.s.topicPath("t"), 0)
	size := fileSize(t, name)
	for _, keep := range []int64{0, 10, size / 2, size - 1} {
		c := w.copied().open()
		cutFile(t, fileName(c.s.topicPath("t"), 0), keep)
		all, err := c.readFrom("t", Pos{})
		var damage *DamageError
		if !errors.As(err, &damage) || int64(len(all)) != keep*20/size {
			t.Errorf("cut to %d: %d messages, %v", keep, len(all), err)
		}
	}
}

// heldIDs publishes batches with gaps between their ids.
func heldIDs(w *world, batches, size int) (ids []int64) {
	for i := range batches {
		first := w.pub("t", numbered(fmt.Sprint("b", i, "-"), 1+i%4, size)...)
		for id := first; id < w.nextID; id++ {
			ids = append(ids, id)
		}
		if i%3 == 0 {
			w.nextID += 5
		}
	}
	return ids
}

// wantLocated checks every id from 0 to behind the newest, given those that
// are held.
func (w *world) wantLocated(ids []int64) {
	w.t.Helper()
	r, end := w.s.Reader("t"), w.topics["t"].End()
	held := map[int64]int{}
	for i, id := range ids {
		held[id] = i
	}
	first := w.logs("t")[0]
	newest := ids[len(ids)-1]
	candidates := []int64{newest + 1, newest + 1000, math.MaxInt64}
	for id := int64(1); id <= newest; id++ {
		candidates = append(candidates, id)
	}
	for _, id := range candidates {
		pos, err := r.Locate(id, end)
		i, ok := held[id]
		var removed *RemovedError
		switch {
		case ok && err != nil:
			w.t.Errorf("id %d: %v", id, err)
		case ok:
			next := int64(0)
			if p, _, err := r.ReadPush(pos, end, PushLimits{Messages: 1, Bytes: 1}, nil, nil); err != nil {
				w.t.Errorf("reading behind id %d: %v", id, err)
			} else if p.Messages > 0 {
				next = p.LastID
			}
			want := int64(0)
			if i+1 < len(ids) {
				want = ids[i+1]
			}
			if next != want {
				w.t.Errorf("behind id %d comes %d, want %d", id, next, want)
			}
		case errors.As(err, &removed):
			if first == 0 || id >= ids[0] || removed.Oldest != ids[0] {
				w.t.Errorf("id %d: %v, the oldest is %d in file %d", id, err, ids[0], first)
			}
		case !errors.Is(err, ErrNotHeld) || (first > 0 && id < ids[0]):
			w.t.Errorf("id %d: %v", id, err)
		}
	}
	if pos, err := r.Locate(0, end); err != nil || pos != (Pos{first, 0}) {
		w.t.Errorf("id 0: %v, %v", pos, err)
	}
}

func TestLocate(t *testing.T) {
	for _, c := range []struct {
		maxSize int64
		batches int
		size    int
	}{{1, 10, 10}, {300, 40, 10}, {1 << 20, 40, 10}, {150_000, 60, 8000}, {1 << 30, 60, 8000}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			w := opened(t, c.maxSize)
			w.create("t")
			ids := heldIDs(w, c.batches, c.size)
			w.wantLocated(ids)
			w.reopen().wantLocated(ids)
			// Retention takes the oldest files.
			files := w.logs("t")
			if len(files) < 4 {
				return
			}
			all := w.read("t")
			for _, id := range files[:len(files)/2] {
				must(t, os.Remove(fileName(w.s.topicPath("t"), id)))
				os.Remove(indexName(w.s.topicPath("t"), id))
			}
			kept := w.read("t")
			w.wantLocated(ids[len(all)-len(kept):])
		})
	}
}

func TestLocateInAnEmptyTopic(t *testing.T) {
	w := opened(t, 1000)
	w.create("t")
	r := w.s.Reader("t")
	if pos, err := r.Locate(0, Pos{}); err != nil || pos != (Pos{}) {
		t.Errorf("id 0: %v, %v", pos, err)
	}
	if _, err := r.Locate(5, Pos{}); !errors.Is(err, ErrNotHeld) {
		t.Errorf("id 5: %v", err)
	}
}

// The existing server leaves an empty file where a topic was subscribed to and
// not published to between two starts.
func TestLocateStepsOverEmptyFiles(t *testing.T) {
	for _, empty := range [][]int64{{0}, {2}, {3, 4, 5}, {0, 1}, {7}} {
		w := opened(t, 1)
		w.create("t")
		dir := w.s.topicPath("t")
		for _, id := range empty {
			for w.topics["t"].End().File < id {
				w.pub("t", "x")
			}
			must(t, os.WriteFile(fileName(dir, id), nil, 0o644))
			w.topics["t"].log.end = Pos{id + 1, 0}
		}
		for range 3 {
			w.pub("t", "y")
		}
		var ids []int64
		for _, g := range w.read("t") {
			ids = append(ids, g.id)
		}
		r, end := w.s.Reader("t"), w.topics["t"].End()
		for _, id := range ids {
			if _, err := r.Locate(id, end); err != nil {
				t.Errorf("empty %v: id %d of %v: %v", empty, id, ids, err)
			}
		}
	}
}

// Damage in one place must not hide what is whole in others.
func TestLocateStepsOverDamage(t *testing.T) {
	w := opened(t, 200)
	w.create("t")
	ids := heldIDs(w, 12, 20)
	dir := w.s.topicPath("t")
	for _, file := range w.logs("t") {
		c := w.copied().open()
		f, err := os.OpenFile(fileName(c.s.topicPath("t"), file), os.O_RDWR, 0)
		must(t, err)
		_, err = f.WriteAt([]byte{0xff}, 30)
		must(t, errors.Join(err, f.Close()))
		lost := 0
		for _, id := range ids {
			_, err := c.s.Reader("t").Locate(id, c.topics["t"].End())
			var damage *DamageError
			if errors.As(err, &damage) {
				lost++
			} else if err != nil {
				t.Errorf("file %d damaged: id %d: %v", file, id, err)
			}
		}
		if lost != 1 {
			t.Errorf("file %d damaged: %d of %d ids cannot be found, want 1", file, lost, len(ids))
		}
	}
	if _, err := os.Stat(fileName(dir, 0)); err != nil {
		t.Error(err)
	}
}

func (w *world) indexEntries(dir string, id int64) (out []indexEntry) {
	w.t.Helper()
	name := indexName(dir, id)
	if !w.there(name) {
		return nil
	}
	b := w.slurp(name)
	if len(b)%indexEntrySize != 0 {
		w.t.Errorf("index %d has %d bytes", id, len(b))
	}
	for ; len(b) >= indexEntrySize; b = b[indexEntrySize:] {
		out = append(out, parseIndexEntry(b))
	}
	return out
}

// wantIndexed checks that all index entries are right, and that none is
// missing.
func (w *world) wantIndexed(t *testing.T) {
	t.Helper()
	dir := w.s.topicPath("t")
	at, file := map[Pos]int64{}, int64(-1)
	from := Pos{}
	for _, g := range w.read("t") {
		at[from] = g.id
		from = g.next
	}
	for _, id := range w.logs("t") {
		if file = id; file < 0 {
			continue
		}
		last := int64(0)
		entries := w.indexEntries(dir, id)
		for _, e := range entries {
			if at[Pos{id, e.off}] != e.eventID {
				t.Errorf("file %d: an entry says id %d at %d, there is %d", id, e.eventID, e.off, at[Pos{id, e.off}])
			}
			if e.off-last < indexEvery || e.off-last > indexEvery+20_000 {
				t.Errorf("file %d: an entry at %d follows one at %d", id, e.off, last)
			}
			last = e.off
		}
		if size := w.size(fileName(dir, id)); size-last > indexEvery+20_000 {
			t.Errorf("file %d: the last entry is at %d of %d", id, last, size)
		}
	}
}

func TestIndexFollowsTheLog(t *testing.T) {
	w := opened(t, 400_000)
	w.create("t")
	for i := range 40 {
		switch i % 8 {
		case 3: // a batch that rolls fails, and is followed by another
			w.stagePub("t", numbered("lost", 60, 10_000)...)
			w.topics["t"].log.Write()
			must(t, w.s.Batch().Discard())
		case 5:
			w.reopen()
		case 7:
			c := w.copied().open()
			c.wantIndexed(t)
		}
		w.pub("t", numbered(fmt.Sprint(i, "-"), 4, 10_000)...)
	}
	if len(w.logs("t")) < 4 {
		t.Fatalf("files %v", w.logs("t"))
	}
	w.wantIndexed(t)
}

func TestIndexIsAHint(t *testing.T) {
	w := opened(t, 1<<30)
	w.create("t")
	ids := heldIDs(w, 80, 8000)
	name := indexName(w.s.topicPath("t"), 0)
	good, err := os.ReadFile(name)
	must(t, err)
	if len(good) < 5*indexEntrySize {
		t.Fatalf("index of %d bytes", len(good))
	}
	with := func(what string, b []byte) {
		t.Helper()
		if b == nil {
			must(t, os.Remove(name))
		} else {
			must(t, os.WriteFile(name, b, 0o644))
		}
		r, end := w.s.Reader("t"), w.topics["t"].End()
		for i := 0; i < len(ids); i += 7 {
			if _, err := r.Locate(ids[i], end); err != nil {
				t.Errorf("%s: id %d: %v", what, ids[i], err)
			}
		}
		w.pub("t", "more")
		ids = append(ids, w.nextID-1)
	}
	with("missing", nil)
	for _, n := range []int{0, 1, 23, 24, 25, len(good) - 1} {
		with(fmt.Sprintf("cut to %d", n), good[:n])
	}
	with("zeros", make([]byte, len(good)))
	for i := range good {
		bad := slices.Clone(good)
		bad[i] ^= 0x55
		if i%5 == 0 {
			with(fmt.Sprintf("byte %d", i), bad)
		}
	}
	stale := slices.Clone(good)
	for range 20 {
		e := indexEntry{ids[len(ids)-1] + 100, w.nowMs, 1 << 40}
		stale = e.append(stale)
	}
	with("stale", stale)
	with("twice", append(slices.Clone(good), good...))
}

// Readers run beside a writer that rolls, rolls back and commits: they see
// whole messages in order and never one that was taken back.
func TestReadersBesideTheWriter(t *testing.T) {
	w := opened(t, 700)
	w.create("t")
	var end sync.Map // "end" → Pos, as the engine publishes it
	end.Store("end", Pos{})
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			r, from, last := w.s.Reader("t"), Pos{}, int64(0)
			for finished := false; ; {
				v, _ := end.Load("end")
				p, _, err := r.ReadPush(from, v.(Pos), wide, nil, nil)
				if err != nil {
					t.Errorf("at %v: %v", from, err)
					return
				}
				if p.Messages > 0 {
					for _, g := range parsePush(t, p.Frame) {
						if g.id <= last || g.body[:2] != "ok" {
							t.Errorf("%v follows %d", g, last)
						}
						last = g.id
					}
					if _, err := r.Locate(last, v.(Pos)); err != nil {
						t.Errorf("locate %d: %v", last, err)
					}
				}
				from = p.Next
				if finished && p.Messages == 0 {
					return
				}
				select {
				case <-done:
					finished = true
				default:
				}
			}
		})
	}
	for i := range 300 {
		if i%3 == 0 {
			w.stagePub("t", numbered("no", 1+i%20, 100)...)
			must(t, w.topics["t"].log.Write())
			must(t, w.s.Batch().Discard())
		}
		w.pub("t", numbered("ok", 1+i%5, 100)...)
		end.Store("end", w.topics["t"].End())
	}
	close(done)
	wg.Wait()
}
