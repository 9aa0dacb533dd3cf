package storage

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smss/codec"
)

func TestOpenCloseReopen(t *testing.T) {
	w := opened(t, 500)
	if w.state.NextEventID != 1 || len(w.state.Topics) != 0 || w.state.Adopted {
		t.Errorf("a new directory gives %+v", w.state)
	}
	w.create("a", "b")
	var a, b []string
	for i := range 5 {
		w.pub("a", fmt.Sprint("a", i))
		w.pub("b", fmt.Sprint("b", i), fmt.Sprint("b", i, "+"))
		a, b = append(a, fmt.Sprint("a", i)), append(b, fmt.Sprint("b", i), fmt.Sprint("b", i, "+"))
		next := w.nextID
		w.reopen()
		if w.nextID != next || w.state.Replayed != 0 {
			t.Errorf("turn %d: next id %d, was %d; %d replayed", i, w.nextID, next, w.state.Replayed)
		}
		if len(w.notes)+len(w.damages) > 0 {
			t.Errorf("turn %d: %v %v", i, w.notes, w.damages)
		}
		w.want("a", a...)
		w.want("b", b...)
	}
}

// Ids never go back, whatever is left of the logs.
func TestIDsNeverGoBack(t *testing.T) {
	w := opened(t, 100)
	w.create("t")
	for range 20 {
		w.pub("t", "x")
	}
	w.checkpoint()
	next := w.nextID
	for _, clean := range []bool{true, false} {
		if clean {
			w.reopen()
		} else {
			w.kill()
			w.open()
		}
		if w.nextID != next {
			t.Errorf("clean %v: next id %d, was %d", clean, w.nextID, next)
		}
	}
	// A topic that is gone, and retention of all but the newest file.
	must(t, w.tryDelete("t"))
	w.create("u")
	w.checkpoint()
	next = w.nextID
	r := w.s.NewRetention()
	if _, err := r.Binlog(w.s.BinlogEnd().File, w.nowMs+1); err != nil {
		t.Fatal(err)
	}
	w.kill()
	if w.open(); w.nextID != next {
		t.Errorf("after retention: next id %d, was %d", w.nextID, next)
	}
}

func TestRestartsDoNotMultiplyFiles(t *testing.T) {
	w := opened(t, 1<<20)
	for i := range 20 {
		w.create(fmt.Sprint("t", i))
	}
	for i := range 10 {
		for name := range w.topics {
			w.pub(name, fmt.Sprint(i))
		}
		if i%2 == 0 {
			w.reopen()
		} else {
			w.kill()
			w.open()
		}
	}
	for name := range w.topics {
		if ids := w.logs(name); len(ids) != 1 {
			t.Errorf("%s has files %v", name, ids)
		}
		w.want(name, numbered("", 10, 0)...)
	}
	if ids := logNumbers(t, w.binlogDir()); len(ids) != 1 {
		t.Errorf("the binlog has files %v", ids)
	}
}

func TestMaxLogSizeMayChange(t *testing.T) {
	w := opened(t, 1000)
	w.create("t")
	var bodies []string
	for i, size := range []int64{1000, 100, 1 << 20, 1, 333, 1 << 20, 50} {
		for j := range 12 {
			bodies = append(bodies, fmt.Sprintf("%d-%d", i, j))
			w.pub("t", bodies[len(bodies)-1])
		}
		w.opt.MaxLogSize = size
		if i%2 == 0 {
			w.reopen()
		} else {
			c := w.copied()
			c.open()
			c.want("t", bodies...)
			w.reopen()
		}
		w.want("t", bodies...)
	}
	if n := len(w.binlogEvents()); n != len(bodies)+1 {
		t.Errorf("the binlog holds %d events, want %d", n, len(bodies)+1)
	}
}

func TestSecondOpenIsRefused(t *testing.T) {
	w := opened(t, 1000)
	w.create("t")
	second := &world{t: t, opt: w.opt, meta: w.meta}
	before := dirContents(t, w.binlogDir())
	err := second.tryOpen()
	if err == nil || !strings.Contains(err.Error(), "in use") || !strings.Contains(err.Error(), w.opt.Path) {
		t.Errorf("the second one says %v", err)
	}
	if after := dirContents(t, w.binlogDir()); !slices.Equal(before, after) {
		t.Error("the second one touched the binlog")
	}
	w.pub("t", "still ours")
	w.close()
	must(t, second.tryOpen())
	second.want("t", "still ours")
	second.close()
}

func TestFormatIsRemembered(t *testing.T) {
	w := opened(t, 1000)
	w.create("t")
	w.close()
	name := filepath.Join(w.opt.Path, formatFile)
	good, err := os.ReadFile(name)
	must(t, err)
	for _, c := range []struct {
		folderCount int
		format      string
		want        string // in the error
	}{
		{3, "", ""},
		{0, "", ""},
		{4, "", "folderCount is 4"},
		{3, `{"version":2,"folderCount":3,"badgerMemTableBytes":8388608}`, "version 2"},
		{3, `{"version":1,"folderCount":0,"badgerMemTableBytes":8388608}`, "folderCount"},
		{3, `{"version":1,"folderCount":3,"badgerMemTableBytes":67108864}`, "memtable"},
		{3, `{"version":`, formatFile},
		{3, ` `, formatFile},
	} {
		text := good
		if c.format != "" {
			text = []byte(c.format)
		}
		must(t, os.WriteFile(name, text, 0o644))
		w.opt.FolderCount = c.folderCount
		err := w.tryOpen()
		if c.want == "" {
			must(t, err)
			w.want("t")
			w.close()
		} else if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("folderCount %d, format %q: %v", c.folderCount, c.format, err)
		}
		if after, _ := os.ReadFile(name); string(after) != string(text) {
			t.Errorf("folderCount %d: the file was changed to %q", c.folderCount, after)
		}
	}
	var f format
	must(t, json.Unmarshal(good, &f))
	if f != (format{FormatVersion, 3, memTableSize}) {
		t.Errorf("a new directory is %+v", f)
	}
}

// A directory of the existing server has no file that says it; its folders do.
func TestFolderCountIsInferred(t *testing.T) {
	for _, c := range []struct {
		asked, want int
		refused     bool
	}{{0, 7, false}, {7, 7, false}, {10, 0, true}} {
		w := newWorld(t, 1000)
		for i := range 7 {
			must(t, os.MkdirAll(filepath.Join(w.opt.Path, topicDir, fmt.Sprint(i), "0"), 0o755))
		}
		must(t, os.MkdirAll(filepath.Join(w.opt.Path, topicDir, trashDir), 0o755))
		w.opt.FolderCount = c.asked
		err := w.tryOpen()
		if c.refused != (err != nil) {
			t.Errorf("asked for %d: %v", c.asked, err)
		}
		if err == nil {
			if w.s.fmt.FolderCount != c.want {
				t.Errorf("asked for %d: has %d", c.asked, w.s.fmt.FolderCount)
			}
			w.close()
		}
	}
}

func TestTopicPathsAreTheExistingServers(t *testing.T) {
	s := &Store{path: "data", fmt: format{FolderCount: 10}}
	if got := s.topicPath("order"); got != filepath.Join("data", "topic", "3", "3", "order") {
		t.Errorf("order lies in %s", got)
	}
	if got := s.TopicRoot("order"); got != "/3/3/order" {
		t.Errorf("its root is %s", got)
	}
}

func trashed(t *testing.T, w *world) []string {
	t.Helper()
	names, err := OS{}.ReadDir(filepath.Join(w.opt.Path, topicDir, trashDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return names
}

func TestDeleteAndTrash(t *testing.T) {
	w := opened(t, 100)
	w.create("t", "u")
	w.pub("t", numbered("old", 10, 20)...)
	w.pub("u", "stays")
	dir := w.s.topicPath("t")
	must(t, w.tryDelete("t"))
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
	if names := trashed(t, w); len(names) != 1 {
		t.Errorf("trash holds %v", names)
	}
	w.create("t")
	w.pub("t", "new")
	w.want("t", "new")
	w.kill()
	w.open()
	w.want("t", "new")
	w.want("u", "stays")
	must(t, w.s.EmptyTrash())
	if names := trashed(t, w); len(names) != 0 {
		t.Errorf("emptied trash holds %v", names)
	}
	must(t, w.s.EmptyTrash())
	// Many at once, one of them with messages in the batch that deletes it.
	for i := range 20 {
		w.create(fmt.Sprint("x", i))
		w.pub(fmt.Sprint("x", i), "a")
	}
	for i := range 20 {
		w.stagePub(fmt.Sprint("x", i), "b")
		must(t, w.tryDelete(fmt.Sprint("x", i)))
	}
	if names := trashed(t, w); len(names) != 20 {
		t.Errorf("trash holds %d", len(names))
	}
	if len(w.notes) != 0 {
		t.Errorf("noted: %v", w.notes)
	}
	w.reopen()
	if len(w.topics) != 2 {
		t.Errorf("topics are %v", sortedKeys(w.topics))
	}
}

// The janitor runs while a deletion is undone: what may come back stays.
func TestTrashLeavesAnUnsettledDeletionAlone(t *testing.T) {
	w := opened(t, 1000)
	w.create("t")
	w.pub("t", "a")
	boom := errors.New("no")
	w.meta.fail = func(op string) error {
		if op != "meta commit" {
			return nil
		}
		must(t, w.s.EmptyTrash())
		return boom
	}
	if err := w.tryDelete("t"); !errors.Is(err, boom) {
		t.Fatalf("delete: %v", err)
	}
	w.meta.fail = nil
	w.want("t", "a")
	w.pub("t", "b")
	w.kill()
	w.open()
	w.want("t", "a", "b")
}

// A deletion that the existing server marked and did not finish.
func TestMarkedDeletionIsFinishedAtOpen(t *testing.T) {
	w := opened(t, 1000)
	w.create("gone", "stays")
	w.pub("gone", "x")
	w.close()
	m := w.metas["gone"]
	m.State, m.ExpireAtMs, m.StateChangeEventID = StateDeleted, 5, 40
	var b MetaBatch
	b.PutTopic(&m)
	must(t, w.meta.Commit(&b))
	w.open()
	if len(w.topics) != 1 || w.topics["stays"] == nil {
		t.Errorf("topics are %v", sortedKeys(w.topics))
	}
	if keys := append(w.meta.prefixed(topicPrefix), w.meta.prefixed(lifePrefix)...); len(keys) != 1 {
		t.Errorf("keys are %q", keys)
	}
	if w.nextID <= 40 {
		t.Errorf("next id is %d, the deletion had 40", w.nextID)
	}
	w.create("gone")
	w.want("gone")
}

// The existing server took names that lead out of the directory.
func TestUnsafeNamesAreLeftAlone(t *testing.T) {
	w := newWorld(t, 1000)
	victim := filepath.Join(filepath.Dir(w.opt.Path), "victim")
	must(t, os.MkdirAll(victim, 0o755))
	must(t, os.WriteFile(filepath.Join(victim, "0.log"), []byte("mine"), 0o644))
	names := []string{"", ".", "..", "../../../../victim", "a/b", "x\x00y"}
	for i, name := range names {
		var b MetaBatch
		b.PutTopic(&TopicMeta{Name: name, CreateEventID: int64(i + 1), State: byte(i % 2)})
		must(t, w.meta.Commit(&b))
	}
	var buf []byte
	for i, name := range names {
		for _, c := range []codec.Command{codec.CreateTopic, codec.Pub, codec.DeleteTopic} {
			p := map[codec.Command][]byte{codec.CreateTopic: make([]byte, 8), codec.Pub: message("x")}[c]
			buf = codec.AppendBinlogRecord(buf, &codec.BinlogRecord{Command: c, EventID: int64(10*i + int(c)), Topic: []byte(name), Payload: p}, nil)
		}
	}
	must(t, os.MkdirAll(w.binlogDir(), 0o755))
	must(t, os.WriteFile(fileName(w.binlogDir(), 0), buf, 0o644))
	w.open()
	defer w.close()
	if len(w.topics) != 0 {
		t.Errorf("topics are %q", sortedKeys(w.topics))
	}
	if b, err := os.ReadFile(filepath.Join(victim, "0.log")); string(b) != "mine" {
		t.Errorf("the victim holds %q, %v", b, err)
	}
	if len(w.meta.prefixed(topicPrefix)) != len(names) || !w.noted("left alone") {
		t.Errorf("keys %q, notes %q", w.meta.prefixed(topicPrefix), w.notes)
	}
}

func TestRetentionGoesByRecordTime(t *testing.T) {
	w := opened(t, 100)
	w.create("t", "u")
	var at []int64
	for i := range 10 {
		w.nowMs += 1000
		w.pub("t", fmt.Sprintf("%020d", i))
		at = append(at, w.nowMs)
	}
	w.checkpoint()
	files := w.logs("t")
	if len(files) < 5 {
		t.Fatalf("files %v", files)
	}
	r := w.s.NewRetention()
	end := w.topics["t"].End()
	sweep := func(cutoff, keepFrom int64, want int) {
		t.Helper()
		names, err := r.Topic("t", keepFrom, cutoff)
		must(t, err)
		if len(names) != want {
			t.Errorf("cutoff %d, keep from %d: removed %v, want %d", cutoff, keepFrom, names, want)
		}
	}
	sweep(at[0]-1, end.File, 0)
	sweep(w.nowMs+1e9, 0, 0)
	// Two messages a file: the second one's time counts, and equal is old.
	all := w.read("t")
	firstFile := 0
	for all[firstFile].next.File == 0 {
		firstFile++
	}
	sweep(at[firstFile]-1, end.File, 0)
	sweep(at[firstFile], end.File, 1)
	sweep(at[firstFile], end.File, 0)
	sweep(w.nowMs+1e9, 2, 1)
	sweep(w.nowMs+1e9, end.File, len(files)-2-1)
	if left := w.logs("t"); len(left) == 0 || left[len(left)-1] != files[len(files)-1] {
		t.Errorf("files %v are left of %v", left, files)
	}
	r.Forget()
	if len(r.last) != 0 {
		t.Errorf("remembers %v", r.last)
	}
	names, err := r.Binlog(w.s.BinlogEnd().File, w.nowMs)
	must(t, err)
	if left := logNumbers(t, w.binlogDir()); len(names) == 0 || len(left) == 0 || left[0] != int64(len(names)) {
		t.Errorf("removed %v, left %v", names, left)
	}
	// All this changes nothing for what is kept.
	before := w.read("t")
	w.kill()
	w.open()
	if after := w.read("t"); !slices.Equal(before, after) {
		t.Errorf("read %v, before %v", after, before)
	}
}

// A topic that was deleted and made again has files of the same names, and
// what was remembered of the old ones must not count for them.
func TestRetentionTellsLivesApart(t *testing.T) {
	w := opened(t, 100)
	w.create("t")
	fill := func() {
		for range 6 {
			w.pub("t", strings.Repeat("x", 20))
		}
	}
	fill()
	r := w.s.NewRetention()
	old := w.nowMs
	if names, err := r.Topic("t", w.topics["t"].End().File, 1); err != nil || len(names) != 0 {
		t.Fatalf("removed %v, %v", names, err)
	}
	must(t, w.tryDelete("t"))
	w.nowMs += 1e6
	w.create("t")
	fill()
	if names, err := r.Topic("t", w.topics["t"].End().File, old); err != nil || len(names) != 0 {
		t.Errorf("removed %v of the new life, %v", names, err)
	}
}

// A file of which no record can be read is as old as the next one.
func TestRetentionKeepsDamagedFilesAsLongAsTheNext(t *testing.T) {
	w := opened(t, 1)
	w.create("t")
	for range 6 {
		w.nowMs += 1000
		w.pub("t", "x")
	}
	dir := w.s.topicPath("t")
	for _, id := range []int64{0, 1} {
		must(t, os.WriteFile(fileName(dir, id), []byte("no record at all"), 0o644))
	}
	first := w.nowMs - 5*1001
	r := w.s.NewRetention()
	if names, err := r.Topic("t", 6, first+1500); err != nil || len(names) != 0 {
		t.Errorf("removed %v, %v", names, err)
	}
	if names, err := r.Topic("t", 6, first+2500); err != nil || len(names) != 3 {
		t.Errorf("removed %v, %v", names, err)
	}
}

func wantsUID(t *testing.T, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), fmt.Sprint("uid ", os.Getuid())) {
		t.Errorf("error is %v", err)
	}
}

func TestOpenSaysWhoMayNot(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("needs a user other than root, to whom nothing is forbidden; TestOpenSaysWhoMayNotInMemory stands for it, and TestCase40NotOurs of package test")
	}
	w := newWorld(t, 1000)
	must(t, os.MkdirAll(w.opt.Path, 0o500))
	wantsUID(t, w.tryOpen())
}

// TestOpenSaysWhoMayNotInMemory does so for each step of a first start, for
// root as well.
func TestOpenSaysWhoMayNotInMemory(t *testing.T) {
	for at := 1; ; at++ {
		w := newWorld(t, 1000).memory()
		m := w.mem()
		m.failAt, m.failErr = m.ops+at, unix.EACCES
		err := w.tryOpen()
		m.failAt = 0
		w.kill()
		if m.failed == "" {
			must(t, err)
			return
		}
		if err != nil {
			wantsUID(t, err)
		}
	}
}

// A folder that somebody removed is an error to that topic alone.
func TestMissingTopicDirectory(t *testing.T) {
	w := opened(t, 1000)
	w.create("t", "u")
	w.pub("t", "a")
	w.pub("u", "b")
	must(t, w.s.closeTopic(w.topics["t"]))
	must(t, os.RemoveAll(w.s.topicPath("t")))
	w.stagePub("u", "c")
	_, err := w.tryPub("t", "d")
	var failed *BatchError
	if !errors.As(err, &failed) || failed.Topic != "t" {
		t.Fatalf("error is %v", err)
	}
	w.pub("u", "e")
	w.want("u", "b", "e")
	w.checkpoint()
	w.kill()
	w.open()
	w.want("u", "b", "e")
	w.pub("t", "again")
	w.want("t", "a", "again") // what the binlog has of it
}

func TestMaxOpenTopics(t *testing.T) {
	c := &countingFS{}
	w := newWorld(t, 200)
	w.opt.FS, w.opt.MaxOpenTopics = c, 3
	w.open()
	for i := range 12 {
		w.create(fmt.Sprint("t", i))
	}
	for i := range 60 {
		w.stagePub(fmt.Sprint("t", i*7%12), strings.Repeat("x", 30))
		w.pub(fmt.Sprint("t", i*5%12), strings.Repeat("y", 30))
		if n := w.s.open.Len(); n > 3 {
			t.Fatalf("%d topics are open", n)
		}
		held := c.open - len(w.s.binlog.retired) - 1
		if w.s.binlog.dirFile != nil {
			held--
		}
		if held > 3 {
			t.Fatalf("%d files of topics are open", held)
		}
	}
	w.close()
	if c.open != 0 {
		t.Errorf("%d files are open after the end", c.open)
	}
}

// Who only asks whether a server is running holds the lock for a moment: a start
// in that moment waits. A second server is refused soon.
func TestLockIsWaitedFor(t *testing.T) {
	w := newWorld(t, 1000)
	must(t, os.MkdirAll(w.opt.Path, 0o755))
	name := filepath.Join(w.opt.Path, lockFile)
	holder, err := os.Create(name)
	must(t, err)
	must(t, unix.Flock(int(holder.Fd()), unix.LOCK_SH))
	asker, err := os.Open(name)
	must(t, err)
	defer asker.Close()
	if err := flock(asker, 3*lockPoll); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Fatalf("a lock that is held: %v", err)
	}
	time.AfterFunc(5*lockPoll, func() { holder.Close() })
	must(t, flock(asker, time.Minute))
	must(t, asker.Close())
	w.open()
	o, err := OpenOffline(w.opt.Path)
	must(t, err)
	if !o.InUse() {
		t.Error("an open directory is not in use")
	}
	w.close()
	if o.InUse() {
		t.Error("a closed directory is in use")
	}
}
