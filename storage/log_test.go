package storage

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func testLog(t *testing.T, maxSize int64) *Log {
	t.Helper()
	l := newLog(OS{}, t.TempDir(), maxSize, Pos{})
	t.Cleanup(func() { closeLog(l) })
	return l
}

func closeLog(l *Log) {
	l.Close()
	l.closeDir()
	for _, f := range l.retired {
		f.Close()
	}
}

func stageText(l *Log, texts ...string) (at []Pos) {
	for _, s := range texts {
		buf, pos := l.Begin()
		l.Finish(append(buf, s...))
		at = append(at, pos)
	}
	return at
}

func appendText(t *testing.T, l *Log, texts ...string) {
	t.Helper()
	stageText(l, texts...)
	must(t, l.Write())
	l.Commit(1 << 20)
}

// wantFiles compares the files of a log's directory with their contents by
// number.
func wantFiles(t *testing.T, l *Log, want ...string) {
	t.Helper()
	ids := logNumbers(t, l.dir)
	var have []string
	for _, id := range ids {
		b, err := os.ReadFile(fileName(l.dir, id))
		must(t, err)
		have = append(have, fmt.Sprintf("%d=%s", id, b))
	}
	if !slices.Equal(have, want) {
		t.Errorf("files are %q, want %q", have, want)
	}
}

func TestLogRollsWhereAFileIsFull(t *testing.T) {
	l := testLog(t, 10)
	at := stageText(l, "aaaa", "bbbb", "cccc", "dd", "0123456789", "e")
	want := []Pos{{0, 0}, {0, 4}, {0, 8}, {1, 0}, {1, 2}, {2, 0}}
	if !slices.Equal(at, want) {
		t.Errorf("records were staged at %v, want %v", at, want)
	}
	if l.End() != (Pos{}) {
		t.Errorf("end is %v before the commit", l.End())
	}
	must(t, l.Write())
	l.Commit(1 << 20)
	wantFiles(t, l, "0=aaaabbbbcccc", "1=dd0123456789", "2=e")
	if l.End() != (Pos{2, 1}) {
		t.Errorf("end is %v, want 2:1", l.End())
	}
}

// A batch that ends exactly where its file is full leaves the end in a file
// that does not exist yet, and the next batch must go there.
func TestLogGoesOnBehindAFullFile(t *testing.T) {
	for _, batch := range [][]string{{"0123456789"}, {"01234", "56789"}, {"x", "0123456789", "0123456789"}} {
		l := testLog(t, 10)
		appendText(t, l, batch...)
		end := l.End()
		if end.Off != 0 {
			t.Fatalf("%q: end is %v, want the beginning of a file", batch, end)
		}
		before, err := os.ReadFile(fileName(l.dir, 0))
		must(t, err)
		appendText(t, l, "next")
		after, err := os.ReadFile(fileName(l.dir, 0))
		must(t, err)
		if !bytes.Equal(before, after) {
			t.Errorf("%q: file 0 was %q and is %q", batch, before, after)
		}
		b, err := os.ReadFile(fileName(l.dir, end.File))
		must(t, err)
		if string(b) != "next" {
			t.Errorf("%q: file %d holds %q", batch, end.File, b)
		}
	}
}

func TestLogRollback(t *testing.T) {
	cases := []struct {
		name  string
		kept  []string // committed before
		batch []string
	}{
		{"nothing before", nil, []string{"aaa"}},
		{"nothing before, rolls", nil, []string{"0123456789", "0123456789", "b"}},
		{"within the file", []string{"abc"}, []string{"def"}},
		{"to the border", []string{"abc"}, []string{"defghij"}},
		{"rolls once", []string{"abc"}, []string{"defghij", "k"}},
		{"rolls three times", []string{"abc"}, []string{"defghij", "0123456789", "0123456789", "k"}},
		{"behind a full file", []string{"0123456789"}, []string{"k"}},
		{"behind a full file, rolls", []string{"0123456789"}, []string{"0123456789", "k"}},
	}
	for _, reopened := range []bool{false, true} {
		for _, c := range cases {
			t.Run(fmt.Sprintf("%s, reopened %v", c.name, reopened), func(t *testing.T) {
				l := testLog(t, 10)
				appendText(t, l, c.kept...)
				if reopened {
					must(t, l.Close())
				}
				end := l.End()
				before := dirContents(t, l.dir)
				stageText(l, c.batch...)
				must(t, l.Write())
				must(t, l.Rollback(1<<20))
				if l.End() != end {
					t.Errorf("end is %v, was %v", l.End(), end)
				}
				if after := dirContents(t, l.dir); !slices.Equal(after, before) {
					t.Errorf("files are %q, were %q", after, before)
				}
				appendText(t, l, "ok")
				if b, err := os.ReadFile(fileName(l.dir, end.File)); err != nil || !bytes.HasSuffix(b, []byte("ok")) || int64(len(b)) != end.Off+2 {
					t.Errorf("after the next batch file %d holds %q, %v", end.File, b, err)
				}
			})
		}
	}
}

func dirContents(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		must(t, err)
		out = append(out, e.Name()+"="+string(b))
	}
	return out
}

// countingFS counts what was opened, synced and closed.
type countingFS struct {
	OS
	appends, open int
	synced        []string
}

type countingFile struct {
	File
	fs   *countingFS
	name string
	gone bool
}

func (c *countingFS) wrap(name string, f File, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	c.open++
	return &countingFile{File: f, fs: c, name: name}, nil
}

func (c *countingFS) Open(name string) (File, error) {
	f, err := c.OS.Open(name)
	return c.wrap(name, f, err)
}

func (c *countingFS) OpenAppend(name string) (File, error) {
	c.appends++
	f, err := c.OS.OpenAppend(name)
	return c.wrap(name, f, err)
}

func (c *countingFS) OpenDir(name string) (Dir, error) {
	d, err := c.OS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	c.open++
	return &countingDir{Dir: d, fs: c}, nil
}

type countingDir struct {
	Dir
	fs   *countingFS
	gone bool
}

func (d *countingDir) Sync() error {
	if d.gone {
		return errors.New("sync of a closed directory")
	}
	d.fs.synced = append(d.fs.synced, "dir")
	return d.Dir.Sync()
}

func (d *countingDir) Close() error {
	if d.gone {
		return errors.New("second close of a directory")
	}
	d.gone = true
	d.fs.open--
	return d.Dir.Close()
}

func (f *countingFile) Sync() error {
	if f.gone {
		return errors.New("sync of a closed file")
	}
	f.fs.synced = append(f.fs.synced, strings.TrimSuffix(filepath.Base(f.name), ".log"))
	return f.File.Sync()
}

func (f *countingFile) Close() error {
	if f.gone {
		return errors.New("second close")
	}
	f.gone = true
	f.fs.open--
	return f.File.Close()
}

func countedLog(t *testing.T, maxSize int64) (*Log, *countingFS) {
	c := &countingFS{}
	l := newLog(c, t.TempDir(), maxSize, Pos{})
	t.Cleanup(func() {
		closeLog(l)
		if c.open != 0 {
			t.Errorf("%d files stay open", c.open)
		}
	})
	return l, c
}

func TestLogKeepsItsHandle(t *testing.T) {
	l, c := countedLog(t, 1000)
	for range 10 {
		appendText(t, l, "abc")
	}
	if c.appends != 1 {
		t.Errorf("10 batches opened the file %d times", c.appends)
	}
	must(t, l.Close())
	appendText(t, l, "abc")
	if c.appends != 2 || l.End() != (Pos{0, 33}) {
		t.Errorf("after a close: opened %d times, end %v", c.appends, l.End())
	}
}

func wantSynced(t *testing.T, l *Log, c *countingFS, want ...string) {
	t.Helper()
	c.synced = nil
	task := l.takeSync()
	must(t, task.Run())
	slices.Sort(c.synced)
	if !slices.Equal(c.synced, want) {
		t.Errorf("synced %v, want %v", c.synced, want)
	}
}

func TestTakeSyncCoversWhatWasCommitted(t *testing.T) {
	l, c := countedLog(t, 10)
	appendText(t, l, "abc")
	wantSynced(t, l, c, "0", "dir")
	appendText(t, l, "def")
	wantSynced(t, l, c, "0")
	appendText(t, l, "0123456789", "0123456789", "x")
	wantSynced(t, l, c, "0", "1", "2", "dir")
	// Two batches, the first of which ends where its file is full.
	appendText(t, l, "123456789")
	appendText(t, l, "y")
	wantSynced(t, l, c, "2", "3", "dir")
	// The file is full and there is no other yet.
	appendText(t, l, "123456789")
	wantSynced(t, l, c, "3")
	// A closed handle leaves the file's name.
	appendText(t, l, "z")
	must(t, l.Close())
	wantSynced(t, l, c, "4", "dir")
}

// What was committed before a failed batch must be covered by the next sync,
// whichever way the batch's roll-back treated the handles.
func TestTakeSyncAfterARollback(t *testing.T) {
	for _, batch := range [][]string{{"q"}, {"0123456789"}, {"0123456789", "q"}} {
		l, c := countedLog(t, 10)
		appendText(t, l, "0123456789", "abc")
		stageText(l, batch...)
		must(t, l.Write())
		c.synced = nil
		must(t, l.Rollback(1<<20)) // syncs what it takes back
		task := l.takeSync()
		must(t, task.Run())
		for _, id := range []string{"0", "1", "dir"} {
			if !slices.Contains(c.synced, id) {
				t.Errorf("batch %q: %s was not synced: %v", batch, id, c.synced)
			}
		}
	}
}

// The syncer may be at work on the current file while a batch fails.
func TestRollbackLeavesALentHandleOpen(t *testing.T) {
	for _, batch := range [][]string{{"q"}, {"0123456789", "q"}} {
		l, _ := countedLog(t, 10)
		appendText(t, l, "abc")
		task := l.takeSync()
		stageText(l, batch...)
		must(t, l.Write())
		must(t, l.Rollback(1<<20))
		if err := task.Run(); err != nil {
			t.Errorf("batch %q: a sync that was under way: %v", batch, err)
		}
		appendText(t, l, "d")
		wantFiles(t, l, "0=abcd")
	}
}

func TestLogRefusesAFileThatWasCut(t *testing.T) {
	l := testLog(t, 1000)
	appendText(t, l, "abcdef")
	must(t, l.Close())
	cutFile(t, fileName(l.dir, 0), 3)
	stageText(l, "x")
	if err := l.Write(); err == nil || !strings.Contains(err.Error(), "shorter") {
		t.Errorf("error is %v", err)
	}
	must(t, l.Rollback(0))
	if b, _ := os.ReadFile(fileName(l.dir, 0)); string(b) != "abc" {
		t.Errorf("the file holds %q", b)
	}
}

func TestListFilesTakesLogsOnly(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"0.log", "10.log", "9.log", "01.log", "-1.log", "x.log", "2.log.cut", "3.idx", "16777216.log", "+4.log"} {
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
	}
	if ids := logNumbers(t, dir); !slices.Equal(ids, []int64{0, 9, 10}) {
		t.Errorf("found %v", ids)
	}
	if ids, err := listFiles(OS{}, filepath.Join(dir, "none")); ids != nil || err != nil {
		t.Errorf("a missing directory gives %v, %v", ids, err)
	}
}

func TestPosPacksInOrder(t *testing.T) {
	all := []Pos{{0, 0}, {0, 1}, {0, maxFileOff}, {1, 0}, {7, 5}, {maxFileID, 0}, {maxFileID, maxFileOff}}
	for i, p := range all {
		if got := UnpackPos(p.Pack()); got != p {
			t.Errorf("%v comes back as %v", p, got)
		}
		for j, q := range all {
			if p.Before(q) != (i < j) || (p.Pack() < q.Pack()) != (i < j) {
				t.Errorf("%v and %v are out of order", p, q)
			}
		}
	}
}

func TestScannerReadsRecordsAcrossItsBuffer(t *testing.T) {
	w := opened(t, 1<<30)
	w.create("t")
	var bodies []string
	for i, size := range []int{1, 100, readChunk - 1, readChunk, readChunk + 1, 3 * readChunk, 7, 1 << 20} {
		bodies = append(bodies, numbered(fmt.Sprint(i), 1, size)...)
	}
	w.pub("t", bodies...)
	w.want("t", bodies...)
	f, err := OS{}.Open(fileName(w.s.topicPath("t"), 0))
	must(t, err)
	defer f.Close()
	size, _ := f.Size()
	var rec TopicRecord
	s := newScanner(f, topicKind, 0, size, nil, 16)
	n := 0
	for ; ; n++ {
		_, err := s.next(func(b []byte) (int, error) { return ParseTopicRecord(b, maxStoredPayload, &rec) })
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
	}
	if n != len(bodies) || s.pos() != size {
		t.Errorf("%d records up to %d, want %d up to %d", n, s.pos(), len(bodies), size)
	}
}

// A sync that runs holds the file that was current when it began. What the
// writer syncs meanwhile must not close it: that would count as a failed sync.
func TestSyncWrittenBesideASync(t *testing.T) {
	dir := t.TempDir()
	l := newLog(OS{}, dir, 10, Pos{})
	write := func(s string, firm bool) {
		t.Helper()
		buf, _ := l.Begin()
		l.Finish(append(buf, s...))
		must(t, l.Write())
		if firm {
			must(t, l.syncWritten())
		}
		l.Commit(keepAll)
	}
	write("aaaa", false)
	running := l.takeSync()
	write("bbbbbbbb", false) // the file is full
	write("cccc", true)
	must(t, running.Run())
	next := l.takeSync()
	must(t, next.Run())
	must(t, l.Close())
}

// stuckFS cannot remove one file.
type stuckFS struct {
	OS
	stuck string
}

func (s *stuckFS) Remove(name string) error {
	if filepath.Base(name) == s.stuck {
		return errors.New("stuck")
	}
	return s.OS.Remove(name)
}

// A roll-back that fails leaves no hole: what was there before the file that
// cannot be removed stays, to the last byte.
func TestFailedRollbackLeavesNoHole(t *testing.T) {
	for stuck, want := range map[string][]string{
		"3.log": {"0=abcdefghijk", "1=0123456789", "2=0123456789", "3=q"},
		"2.log": {"0=abcdefghijk", "1=0123456789", "2=0123456789"},
		"1.log": {"0=abcdefghijk", "1=0123456789"},
	} {
		l := newLog(&stuckFS{stuck: stuck}, t.TempDir(), 10, Pos{})
		appendText(t, l, "abc")
		stageText(l, "defghijk", "0123456789", "0123456789", "q")
		must(t, l.Write())
		if err := l.Rollback(1 << 20); err == nil {
			t.Errorf("%s: the roll-back succeeded", stuck)
		}
		wantFiles(t, l, want...)
		closeLog(l)
	}
}
