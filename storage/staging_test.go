package storage

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"smss/codec"
)

// filedMeta is metadata in memory that goes where its directory goes.
type filedMeta struct {
	fs   FS
	kept *[]*memMeta
}

func (m filedMeta) open(dir string, _ bool) (Meta, error) {
	name := filepath.Join(dir, "which")
	b, err := readSmallFile(m.fs, name)
	if isNotExist(err) {
		*m.kept = append(*m.kept, newMemMeta())
		b = []byte(strconv.Itoa(len(*m.kept) - 1))
		err = writeSmallFile(m.fs, name, b)
	}
	if err != nil {
		return nil, err
	}
	i, err := strconv.Atoi(string(b))
	if err != nil {
		return nil, err
	}
	return (*m.kept)[i], nil
}

// source is a world to be copied.
type source struct {
	*world
	eventID int64
	delays  []DelayKey
}

func newSource(t *testing.T) *source {
	s := &source{world: inMemory(t, 400)}
	s.create("a", "b", "empty", "gone")
	for i := range 12 {
		s.pub("a", fmt.Sprint("a", i), "second")
		if i%3 == 0 {
			s.pub("b", fmt.Sprint("b", i, strings.Repeat("x", 300)))
		}
		if i%5 == 0 {
			k, err := s.tryDelay("b", 5000-int64(i), fmt.Sprint("later ", i))
			must(t, err)
			s.delays = append(s.delays, k)
		}
	}
	must(t, s.tryDelete("gone"))
	s.eventID = s.nextID - 1
	return s
}

// state is what a copy of the source is of.
func (s *source) state() CopyState {
	s.t.Helper()
	pos, err := s.s.BinlogReader().Locate(s.eventID, s.s.BinlogEnd())
	must(s.t, err)
	return CopyState{Node: "source", Epochs: []codec.Epoch{{ID: "e", First: 1}}, EventID: s.eventID, Binlog: pos}
}

// stage copies the source into st, and whatever it may hold of it goes on.
func (s *source) stage(st *Staging) error {
	state := s.state()
	if _, begun := st.State(); !begun {
		if err := st.Begin(state); err != nil {
			return err
		}
	}
	put := func(topic string, f CopiedFile, piece func(file, off int64, buf []byte) (int, error)) error {
		for off := int64(0); off < f.Size || f.Size == 0; {
			buf := make([]byte, min(200, f.Size-off))
			n, err := piece(f.File, off, buf)
			if err == nil {
				err = st.Write(topic, f.File, off, buf[:n])
			}
			if err != nil || f.Size == 0 {
				return err
			}
			off += int64(n)
		}
		return nil
	}
	log := s.s.BinlogReader()
	err := put("", CopiedFile{state.Binlog.File, state.Binlog.Off}, func(file, off int64, buf []byte) (int, error) {
		return log.Piece(file, off, s.s.BinlogEnd(), buf)
	})
	if err == nil {
		err = st.Sync("")
	}
	if err != nil {
		return err
	}
	var topics []CopiedTopic
	for _, name := range sortedKeys(s.metas) {
		if s.metas[name].CreateEventID > s.eventID {
			continue
		}
		r, end := s.s.Reader(name), s.topics[name].End()
		files, more, err := r.FilesAsOf(s.eventID, end, 0, 1000)
		if err != nil || more {
			s.t.Fatal(more, err)
		}
		for _, f := range files {
			if err := put(name, f, func(file, off int64, buf []byte) (int, error) { return r.Piece(file, off, end, buf) }); err != nil {
				return err
			}
		}
		checked, err := st.Check(name)
		if err != nil {
			return err
		}
		if len(checked.Bad) > 0 {
			s.t.Fatalf("%s: %v is bad, at %v", name, checked.Bad, checked.At)
		}
		if err := st.Sync(name); err != nil {
			return err
		}
		topics = append(topics, CopiedTopic{s.metas[name], checked.End, checked.LastID})
	}
	err = st.Finish(topics, func(put func(DelayKey, []byte) error) error {
		for _, k := range s.delays {
			p, ok, err := s.meta.DelayPayload(k)
			if err != nil || !ok {
				s.t.Fatal(ok, err)
			}
			if err := put(k, p); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// target is a data directory with other data, on a file system in memory.
type target struct {
	t    *testing.T
	fs   *memFS
	opt  Options
	kept []*memMeta
}

const oldBody = "of before"

func newTarget(t *testing.T, ordered bool) *target {
	x := &target{t: t, fs: newMemFS()}
	x.use(x.fs)
	w := x.world()
	w.create("old")
	w.pub("old", oldBody)
	if ordered {
		must(t, w.s.OrderCopy(CopyOrder{Master: "m:1", Reason: "test"}))
	}
	w.close()
	return x
}

func (x *target) use(fs *memFS) {
	x.fs = fs
	x.opt = Options{Path: "/data", MaxLogSize: 400, FolderCount: 3, MaxOpenTopics: 4, FS: fs, Boot: "boot", OpenMeta: filedMeta{fs, &x.kept}.open}
}

// world opens the directory as a server does.
func (x *target) world() *world {
	x.t.Helper()
	w := &world{t: x.t, opt: x.opt, nowMs: 1_700_000_000_000}
	w.open()
	return w
}

// wantOld and wantNew compare what the directory holds.
func (x *target) wantOld() {
	x.t.Helper()
	w := x.world()
	w.want("old", oldBody)
	w.close()
}

func (x *target) wantNew(s *source) {
	x.t.Helper()
	w := x.world()
	defer w.close()
	if len(w.damages) > 0 || w.state.Replayed != 0 || w.state.PowerLost {
		x.t.Errorf("opening the copy: %v, %d replayed, power lost %v; it is to be as after a clean stop", w.damages, w.state.Replayed, w.state.PowerLost)
	}
	if want := []string{"a", "b", "empty"}; !slices.Equal(sortedKeys(w.topics), want) {
		x.t.Fatalf("topics %v, want %v", sortedKeys(w.topics), want)
	}
	for _, name := range []string{"a", "b", "empty"} {
		have, want := w.read(name), s.read(name)
		want = slices.DeleteFunc(want, func(g got) bool { return g.id > s.eventID })
		if fmt.Sprint(have) != fmt.Sprint(want) {
			x.t.Fatalf("%s: %v, want %v", name, have, want)
		}
		if w.metas[name] != s.metas[name] {
			x.t.Errorf("%s: %+v, want %+v", name, w.metas[name], s.metas[name])
		}
	}
	var keys []DelayKey
	must(x.t, w.s.Meta().DelayKeys(0, func(k DelayKey) bool { keys = append(keys, k); return true }))
	want := slices.Clone(s.delays)
	slices.SortFunc(want, func(a, b DelayKey) int {
		if a.StoredBefore(&b) {
			return -1
		}
		return 1
	})
	if !slices.Equal(keys, want) {
		x.t.Errorf("delays %v, want %v", keys, want)
	}
	state := s.state()
	if w.s.BinlogEnd() != state.Binlog || w.state.NextEventID != s.eventID+1 {
		x.t.Errorf("the binlog ends at %v, next event %d; want %v, %d", w.s.BinlogEnd(), w.state.NextEventID, state.Binlog, s.eventID+1)
	}
	if h := w.s.History(); !h.Slave || h.Node == "" || h.Node == "source" || len(h.Epochs) != 1 {
		x.t.Errorf("history %+v", h)
	}
	// It goes on where the source does.
	w.nextID = w.state.NextEventID
	w.pub("a", "more")
	if all := w.read("a"); all[len(all)-1].body != "more" {
		x.t.Errorf("behind the copy stands %v", all[len(all)-1])
	}
}

func (x *target) staging() (*Staging, error) {
	opt := x.opt
	opt.Events.Note = func(what string, err error) { x.t.Log(what, err) }
	return OpenStaging(opt)
}

func TestCopyTakesThePlaceOfWhatWasThere(t *testing.T) {
	s := newSource(t)
	s.pub("a", "behind the copy") // not part of it
	s.create("younger")
	x := newTarget(t, true)
	st, err := x.staging()
	must(t, err)
	if st == nil || st.Order().Master != "m:1" {
		t.Fatal("the order is not found")
	}
	must(t, s.stage(st))
	must(t, st.Complete())
	must(t, st.Install())
	must(t, st.Close())
	x.wantNew(s)
	// What was there is kept, as a directory of its own, until the next copy.
	olds, err := st.olds()
	must(t, err)
	if len(olds) != 1 {
		t.Fatalf("kept: %v", olds)
	}
	kept := *x
	kept.opt.Path = filepath.Join("/data", olds[0])
	kept.wantOld()
	if st, err := x.staging(); st != nil || err != nil {
		t.Fatalf("once it is in place: %v, %v", st, err)
	}
}

func TestCopyOfADirectoryWithoutEventsKeepsNothing(t *testing.T) {
	s := newSource(t)
	x := &target{t: t}
	x.use(newMemFS())
	w := x.world()
	must(t, w.s.OrderCopy(CopyOrder{Master: "m:1"}))
	w.close()
	st, err := x.staging()
	must(t, err)
	must(t, errors.Join(s.stage(st), st.Complete(), st.Install()))
	if olds, err := st.olds(); len(olds) > 0 || err != nil {
		t.Errorf("kept: %v, %v", olds, err)
	}
	x.wantNew(s)
}

// run makes a copy from whatever is there.
func (x *target) run(s *source) error {
	st, err := x.staging()
	if err != nil || st == nil {
		return err
	}
	if err := s.stage(st); err != nil {
		return err
	}
	if err := st.Complete(); err != nil {
		return err
	}
	return st.Install()
}

// TestCopyFailsAtEveryStep: whichever operation of a copy fails, the next start
// goes on, and ends with the copy in place.
func TestCopyFailsAtEveryStep(t *testing.T) {
	s := newSource(t)
	base := newTarget(t, true)
	disk := base.fs
	n := 0
	for at := 1; ; at++ {
		x := &target{t: t, kept: slices.Clone(base.kept)}
		x.use(disk.clone())
		x.fs.failAt, x.fs.failErr = at, unix.EIO
		err := x.run(s)
		failed := x.fs.failed
		x.fs.failAt = 0
		if failed == "" {
			must(t, err)
			x.wantNew(s)
			break
		}
		n++
		if err != nil {
			if err := x.run(s); err != nil {
				t.Fatalf("after a failure of %s: %v", failed, err)
			}
		}
		x.wantNew(s)
		if t.Failed() {
			t.Fatalf("after a failure of %s", failed)
		}
	}
	if n < 100 {
		t.Errorf("only %d operations", n)
	}
}

// TestCopyCrashesAtEveryStep: whenever the power goes, the directory holds the
// old data whole, or the copy whole, or a copy is made again; and the order taken
// back leaves the old data as they were.
func TestCopyCrashesAtEveryStep(t *testing.T) {
	s := newSource(t)
	base := newTarget(t, true)
	again, installed := 0, 0
	for at := 1; ; at++ {
		done := false
		for seed := range uint64(2) {
			x := &target{t: t, kept: slices.Clone(base.kept)}
			x.use(base.fs.clone())
			x.fs.crashAt = at
			_ = x.run(s) // the crash is its error
			where := x.fs.failed
			if done = where == ""; done {
				break
			}
			x.use(x.fs.crash(rand.New(rand.NewPCG(uint64(at), seed))))
			st, err := x.staging()
			if err != nil {
				t.Fatalf("after a crash before %s: %v", where, err)
			}
			if st == nil {
				installed++
				x.wantNew(s)
			} else {
				again++
				if err := x.run(s); err != nil {
					t.Fatalf("going on after a crash before %s: %v", where, err)
				}
				x.wantNew(s)
			}
			if t.Failed() {
				t.Fatalf("after a crash before %s, seed %d", where, seed)
			}
		}
		if done {
			break
		}
	}
	if again == 0 || installed == 0 {
		t.Errorf("%d times made again, %d times in place: one of them was not tried", again, installed)
	}
}

// TestCopyTakenBack: without the order what is staged is removed, and what was
// there stays.
func TestCopyTakenBack(t *testing.T) {
	s := newSource(t)
	x := newTarget(t, true)
	st, err := x.staging()
	must(t, err)
	must(t, errors.Join(s.stage(st), st.Close(), x.fs.Remove("/data/reseed.json")))
	st, err = x.staging()
	if st != nil || err != nil {
		t.Fatalf("%v, %v", st, err)
	}
	if there, err := exists(x.fs, "/data/copy"); there || err != nil {
		t.Errorf("the staging area is left: %v", err)
	}
	x.wantOld()
}

func TestOrderThatCannotBeRead(t *testing.T) {
	for _, text := range []string{"", "{", "{}", `{"master":7}`} {
		x := newTarget(t, false)
		must(t, writeSmallFile(x.fs, "/data/reseed.json", []byte(text)))
		if st, err := x.staging(); st != nil || err == nil || !strings.Contains(err.Error(), "reseed.json") {
			t.Errorf("%q: %v, %v", text, st, err)
		}
		x.wantOld()
	}
}

// TestStateThatCannotBeRead: the copy begins anew.
func TestStateThatCannotBeRead(t *testing.T) {
	s := newSource(t)
	x := newTarget(t, true)
	st, err := x.staging()
	must(t, err)
	must(t, errors.Join(st.Begin(s.state()), writeSmallFile(x.fs, "/data/copy/copy.json", []byte("{"))))
	if st, err = x.staging(); err != nil {
		t.Fatal(err)
	}
	if _, begun := st.State(); begun {
		t.Error("a state that cannot be read was used")
	}
	must(t, x.run(s))
	x.wantNew(s)
}

// TestMakeRoom: what need not be kept goes, what has to be kept stays.
func TestMakeRoom(t *testing.T) {
	x := newTarget(t, true)
	must(t, errors.Join(x.fs.MkdirAll("/data/old-123"), x.fs.MkdirAll("/data/old-mine")))
	st, err := x.staging()
	must(t, err)
	if some, err := st.MakeRoom(); !some || err != nil {
		t.Fatalf("an older copy's data are there to go: %v, %v", some, err)
	}
	if some, err := st.MakeRoom(); some || err != nil {
		t.Fatalf("nothing more may go: %v, %v", some, err)
	}
	st.order.Discard = true
	if some, err := st.MakeRoom(); !some || err != nil {
		t.Fatalf("the data are to be discarded: %v, %v", some, err)
	}
	for name, want := range map[string]bool{"old-mine": true, "binlog": false, "topic": false, "meta": false, "history.json": false, "smss.json": true} {
		if there, err := exists(x.fs, filepath.Join("/data", name)); there != want || err != nil {
			t.Errorf("%s is there: %v, want %v", name, there, want)
		}
	}
}

// TestCheckFindsEveryByte: a byte of a copied file that is another one is found.
func TestCheckFindsEveryByte(t *testing.T) {
	s := newSource(t)
	x := newTarget(t, true)
	st, err := x.staging()
	must(t, err)
	must(t, s.stage(st))
	for _, topic := range []string{"", "a", "b"} {
		files, err := st.Files(topic)
		must(t, err)
		for _, f := range files {
			name := fileName(st.logName(topic).Dir, f.File)
			w := &world{t: t, opt: x.opt}
			b := w.slurp(name)
			for off := 0; off < len(b); off += 13 {
				w.poke(name, int64(off), []byte{b[off] ^ 0x10})
				checked, err := st.Check(topic)
				must(t, err)
				if !slices.Contains(checked.Bad, f.File) {
					t.Fatalf("topic %q, file %d: the byte at %d is another one, and %v is bad", topic, f.File, off, checked.Bad)
				}
				w.poke(name, int64(off), b[off:off+1])
			}
		}
		if checked, err := st.Check(topic); len(checked.Bad) > 0 || err != nil {
			t.Fatalf("whole again: %+v, %v", checked, err)
		}
	}
}

// TestFilesAsOf: the files as of any event hold the records up to it, and no
// others, also where pages are small.
func TestFilesAsOf(t *testing.T) {
	w := inMemory(t, 300)
	w.create("t")
	var ids []int64
	rapid.Check(t, func(rt *rapid.T) {
		for range rapid.IntRange(1, 4).Draw(rt, "publishes") {
			n := rapid.IntRange(1, 4).Draw(rt, "messages")
			first := w.pub("t", numbered("m", n, rapid.IntRange(1, 200).Draw(rt, "size"))...)
			for i := range int64(n) {
				ids = append(ids, first+i)
			}
			w.takeIDs(rapid.IntRange(0, 2).Draw(rt, "gap"))
		}
		asOf := rapid.Int64Range(0, ids[len(ids)-1]+3).Draw(rt, "event")
		r, end := w.s.Reader("t"), w.topics["t"].End()
		limit := rapid.IntRange(1, 5).Draw(rt, "page")
		var all []CopiedFile
		for from := int64(0); ; {
			files, more, err := r.FilesAsOf(asOf, end, from, limit)
			if err != nil || len(files) > limit {
				rt.Fatal(files, err)
			}
			all = append(all, files...)
			if !more {
				break
			}
			from = files[len(files)-1].File + 1
		}
		var got []int64
		for _, f := range all {
			buf := make([]byte, f.Size+10)
			n, err := r.Piece(f.File, 0, Pos{f.File, f.Size}, buf)
			if err != nil || int64(n) != f.Size {
				rt.Fatalf("file %d: %d of %d bytes, %v", f.File, n, f.Size, err)
			}
			for b := buf[:n]; len(b) > 0; {
				var rec TopicRecord
				size, err := ParseTopicRecord(b, maxStoredPayload, &rec)
				if err != nil {
					rt.Fatalf("file %d does not end with a record: %v", f.File, err)
				}
				got, b = append(got, rec.EventID), b[size:]
			}
		}
		want := slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return id > asOf })
		if !slices.Equal(got, want) {
			rt.Fatalf("as of %d: %v, want %v", asOf, got, want)
		}
	})
}

// TestPieceOfRemovedFile: what retention has removed is told apart from what
// cannot be read.
func TestPieceOfRemovedFile(t *testing.T) {
	w := inMemory(t, 100)
	w.create("t")
	for range 5 {
		w.pub("t", strings.Repeat("x", 100))
	}
	must(t, errors.Join(w.fs().Remove(w.topicFile("t", 0)), w.fs().Remove(w.topicFile("t", 1)), w.fs().Remove(w.topicFile("t", 3))))
	r, end := w.s.Reader("t"), w.topics["t"].End()
	var gone *FileGoneError
	if _, err := r.Piece(1, 0, end, make([]byte, 9)); !errors.As(err, &gone) || gone.Oldest != 2 {
		t.Errorf("a file before the oldest: %v", err)
	}
	if _, err := r.Piece(3, 0, end, make([]byte, 9)); err == nil || errors.As(err, &gone) && gone.File == 3 {
		t.Errorf("a file in the middle: %v", err)
	}
	if n, err := r.Piece(2, 1000, end, make([]byte, 9)); n != 0 || err != nil {
		t.Errorf("behind the end: %d, %v", n, err)
	}
	if _, err := r.Piece(99, 0, end, make([]byte, 9)); err == nil {
		t.Error("a file behind the log's end is read")
	}
}
