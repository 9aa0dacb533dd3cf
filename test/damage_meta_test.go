package test

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// These are the cases about damage to the metadata, which is Badger's. All that
// it holds is in the logs too: either nothing is missing after a start, or the
// start is refused with the command that has it made again, and then nothing is
// missing.

// metaBase is a data directory with topics, a lifetime, and delayed messages
// short and long, some of which have fired.
type metaBase struct {
	dir string
	end int64     // of the life of topic brief
	due time.Time // when the delayed messages fall due
}

const (
	metaTopics = 6
	metaDelays = 40
)

func newMetaBase(t *testing.T, end string) (b metaBase) {
	t.Helper()
	pending(t, 6*time.Second, func(delay time.Duration) time.Time {
		b = makeMetaBase(t, end, delay)
		return b.due
	})
	return b
}

// pending has a server build what it leaves behind when it ends with delayed
// messages that have not fired. On a machine that is too slow for the delay
// build is called again with a longer one. build returns when they fall due.
func pending(t *testing.T, delay time.Duration, build func(delay time.Duration) (due time.Time)) {
	t.Helper()
	const longest = 2 * time.Minute
	for time.Until(build(delay)) <= 0 {
		if delay *= 2; delay > longest {
			t.Fatalf("the server has not ended within %v of the first delayed message", delay/2)
		}
		t.Logf("too slow: again with a delay of %v", delay)
	}
}

func makeMetaBase(t *testing.T, end string, delay time.Duration) metaBase {
	t.Helper()
	s := startServer(t, options{})
	c := dial(t, s)
	b := metaBase{dir: s.dir, end: time.Now().Add(240 * time.Hour).UnixMilli()}
	for i := range metaTopics {
		topic := fmt.Sprint("t", i)
		c.ok(reqCreate(topic, 0))
		c.ok(reqPub(topic, message("first of "+topic)))
	}
	c.ok(reqCreate("brief", b.end))
	c.ok(reqCreate("gone", 0))
	c.ok(reqDelay("gone", tenYears, message("never")))
	c.ok(reqDelete("gone"))
	c.ok(reqDelay("t0", 1000, message("fired")))
	read(t, s, "t0", 0, 2)
	// One run more, so that there are tables and a log of the memtable.
	s.stop()
	s.restart()
	c = dial(t, s)
	b.due = time.Now().Add(delay)
	for i := range metaDelays {
		c.ok(reqDelay(fmt.Sprint("t", i%metaTopics), delay.Milliseconds(), message(delayBody(i))))
	}
	c.ok(reqDelay("t0", tenYears, message("far")))
	switch end {
	case "settled":
		time.Sleep(2500 * time.Millisecond) // see newBase
		s.kill()
	case "kill":
		s.kill()
	default:
		s.stop()
	}
	return b
}

func delayBody(i int) string { return fmt.Sprint("delayed ", i, strings.Repeat("x", i%4*1000)) }

// check looks for everything that the base holds.
func (b *metaBase) check(t *testing.T, s *server) {
	t.Helper()
	c := dial(t, s)
	list := c.list()
	if len(list) != metaTopics+1 {
		t.Errorf("%d topics: %v", len(list), topicNames(c))
	}
	if got := list["brief"].ExpireAt; got != b.end {
		t.Errorf("brief ends at %d, want %d", got, b.end)
	}
	c.ok(reqCreate("gone", 0))
	wantBodies(t, drain(t, s, "gone"))
	// What falls due later than the others comes behind them. A start looks
	// for due messages after a second.
	time.Sleep(time.Until(b.due.Add(-900 * time.Millisecond)))
	for i := range metaTopics {
		c.ok(reqDelay(fmt.Sprint("t", i), 2500, message("last")))
	}
	for i := range metaTopics {
		topic := fmt.Sprint("t", i)
		want := []string{"first of " + topic}
		if i == 0 {
			want = append(want, "fired")
		}
		for n := i; n < metaDelays; n += metaTopics {
			want = append(want, delayBody(n))
		}
		got, err := readUntil(s.addr(), topic, 0, 255, func(all []pushed) bool {
			return slices.ContainsFunc(all, func(m pushed) bool { return m.body == "last" })
		})
		if err != nil {
			t.Errorf("%s: %v", topic, err)
		}
		have := map[string]int{}
		for _, m := range got {
			have[m.body]++
		}
		for _, body := range want {
			if have[body] != 1 {
				t.Errorf("%s: %.24q is there %d times", topic, body, have[body])
			}
		}
		if len(got) != len(want)+1 {
			t.Errorf("%s: %d messages, want %d", topic, len(got), len(want)+1)
		}
	}
	s.stop()
	if n := countDelays(t, s); n != 1 {
		t.Errorf("%d delayed messages are pending, want 1", n)
	}
}

// TestCase32Badger: no damage to the metadata goes by unseen and none keeps the
// server from coming back with everything.
func TestCase32Badger(t *testing.T) {
	t.Parallel()
	changes := []struct {
		name, file string // file: a suffix, of which the newest one is meant
		change     func(t *testing.T, name string)
	}{
		{"mem/cut=1", ".mem", cutWritten(1)},
		{"mem/cut=half", ".mem", cutWritten(0)},
		{"mem/deleted", ".mem", remove},
		{"mem/zero page", ".mem", zeroPage},
		{"vlog/cut=1", ".vlog", cutWritten(1)},
		{"vlog/cut=half", ".vlog", cutWritten(0)},
		{"vlog/deleted", ".vlog", remove},
		{"vlog/zero page", ".vlog", zeroPage},
		{"manifest/cut=1", "MANIFEST", cutWritten(1)},
		{"manifest/cut=half", "MANIFEST", cutWritten(0)},
		{"manifest/deleted", "MANIFEST", remove},
		{"sst/cut=1", ".sst", cutWritten(1)},
		{"sst/cut=half", ".sst", cutWritten(0)},
		{"sst/deleted", ".sst", remove},
		{"sst/zero page", ".sst", zeroPage},
		{"keyregistry/deleted", "KEYREGISTRY", remove},
		{"all deleted", "", func(t *testing.T, name string) {
			if err := os.RemoveAll(name); err != nil {
				t.Fatal(err)
			}
		}},
		{"nothing", "", func(*testing.T, string) {}},
	}
	for _, end := range []string{"settled", "stop", "kill"}[:scale(2, 3)] {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			b := newMetaBase(t, end)
			for _, c := range changes {
				t.Run(c.name, func(t *testing.T) {
					thinned(t)
					t.Parallel()
					name := newest(t, filepath.Join(b.dir, "data", "meta"), c.file)
					if name == "" {
						t.Skipf("the end %q leaves no %s file; another one does", end, c.file)
					}
					s := newServer(t, options{dir: copyData(t, b.dir)})
					c.change(t, filepath.Join(s.dataDir(), "meta", name))
					refusal := s.startOrRefuse()
					if refusal != "" {
						t.Logf("refused: %s", lastLine(refusal))
						s.rebuild(refusal)
					}
					b.check(t, s)
				})
			}
		})
	}
}

// TestCase85UnbornFiles: Badger makes its files in two steps, and a kill between
// them leaves an empty one, from which the next start has nothing to fear.
func TestCase85UnbornFiles(t *testing.T) {
	t.Parallel()
	b := newMetaBase(t, "settled")
	for _, suffix := range []string{".mem", ".vlog"} {
		t.Run(suffix, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, options{dir: copyData(t, b.dir)})
			s.port = freePort(t)
			meta := filepath.Join(s.dataDir(), "meta")
			name := newest(t, meta, suffix)
			id, err := strconv.Atoi(strings.TrimSuffix(name, suffix))
			if err != nil {
				t.Fatal(err)
			}
			next := fmt.Sprintf("%0*d%s", len(name)-len(suffix), id+1, suffix)
			if err := os.WriteFile(filepath.Join(meta, next), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			s.restart()
			b.check(t, s)
		})
	}
}

// newest returns the name of the newest of Badger's files with a suffix, "."
// where that is empty, "" where there is none.
func newest(t *testing.T, meta, suffix string) string {
	t.Helper()
	if suffix == "" {
		return "."
	}
	entries, err := os.ReadDir(meta)
	if err != nil {
		t.Fatal(err)
	}
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return !strings.HasSuffix(e.Name(), suffix) })
	if len(entries) == 0 {
		return ""
	}
	return slices.MaxFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) }).Name()
}

func remove(t *testing.T, name string) {
	t.Helper()
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
}

// written returns how much of a file was written: Badger makes some of its
// files larger ahead of time.
func written(t *testing.T, name string) int64 {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for len(b) > 0 && b[len(b)-1] == 0 {
		b = b[:len(b)-1]
	}
	return int64(len(b))
}

// cutWritten cuts so many bytes off what was written to a file, half of it
// where that is 0.
func cutWritten(n int64) func(*testing.T, string) {
	return func(t *testing.T, name string) {
		t.Helper()
		size := written(t, name)
		left := size - n
		if n == 0 {
			left = size / 2
		}
		if err := os.Truncate(name, left); err != nil {
			t.Fatal(err)
		}
	}
}

// zeroPage puts zeros in place of the last 4096 bytes that were written.
func zeroPage(t *testing.T, name string) {
	t.Helper()
	size := written(t, name)
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := min(size, 4096)
	if _, err := f.WriteAt(make([]byte, n), size-n); err != nil {
		t.Fatal(err)
	}
}
