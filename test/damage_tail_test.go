package test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// These are the cases about the ends of log files: records that a power cut has
// left half-written, and zeros.

// base is a data directory in which a kill has left topic t with five messages
// and topic u with one, and t's is not the file that was written last.
type base struct {
	dir           string
	topic, binlog string // t's file and the binlog's, below dir
	topicSizes    []int  // of t's records
	binlogSizes   []int
}

var fiveBodies = []string{"one", "two", "three", "four", "five"}

// newBase makes one. A settled base is killed when the checkpoint covers
// everything, another one before there was a checkpoint at all.
func newBase(t *testing.T, settled bool) base {
	t.Helper()
	s := startServer(t, options{})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	c.ok(reqCreate("u", 0))
	for _, body := range fiveBodies[:4] {
		c.ok(reqPub("t", message(body)))
	}
	c.ok(reqPub("u", message("u1")))
	c.ok(reqPub("t", message("five")))
	if settled {
		// A checkpoint is due a second after the sync that is due a second
		// after the first write.
		time.Sleep(2500 * time.Millisecond)
	}
	file := topicFile(t, s, "t", 0)
	s.kill()
	b := base{dir: s.dir, binlog: filepath.Join("data", "binlog", "0.log")}
	var err error
	if b.topic, err = filepath.Rel(s.dir, file); err != nil {
		t.Fatal(err)
	}
	b.topicSizes = recordSizes(t, file, 3)
	b.binlogSizes = recordSizes(t, filepath.Join(b.dir, b.binlog), 5)
	return b
}

// recordSizes walks a log file by its published grammar: a count, a line of
// fields, and a payload whose length is the field of that number.
func recordSizes(t testing.TB, name string, lengthField int) (sizes []int) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for len(b) > 0 {
		line := int(binary.LittleEndian.Uint32(b))
		payload := 0
		if _, err := fmt.Sscan(strings.Split(string(b[4:4+line]), "\t")[lengthField], &payload); err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, 4+line+payload)
		b = b[4+line+payload:]
	}
	return sizes
}

// damaged copies the base, damages a file of the copy, and returns a server on
// it that is not started yet.
func (b *base) damaged(t *testing.T, file string, change func([]byte) []byte) *server {
	t.Helper()
	s := newServer(t, options{dir: copyData(t, b.dir)})
	s.port = freePort(t)
	damage(t, filepath.Join(s.dir, file), change)
	return s
}

// TestCase21TornBinlog: whatever is missing at the binlog's end, the server
// starts with every message before it, and goes on; or it refuses with the
// command that makes it start.
func TestCase21TornBinlog(t *testing.T) {
	t.Parallel()
	for _, settled := range []bool{false, true} {
		t.Run(fmt.Sprint("settled=", settled), func(t *testing.T) {
			t.Parallel()
			b := newBase(t, settled)
			last, before := b.binlogSizes[len(b.binlogSizes)-1], b.binlogSizes[len(b.binlogSizes)-2]
			var cuts []int
			for n := 1; n <= last+before+1; n++ {
				atBorder := n < 6 || n > last-3 && n < last+3 || n > last+before-2
				if long || atBorder && !settled || n%23 == 0 {
					cuts = append(cuts, n)
				}
			}
			for _, n := range cuts {
				t.Run(fmt.Sprint("cut=", n), func(t *testing.T) {
					thinned(t)
					t.Parallel()
					s := b.damaged(t, b.binlog, cut(n))
					if refusal := s.startOrRefuse(); refusal != "" {
						if !settled {
							t.Errorf("refused to start:\n%s", refusal)
						}
						s.rebuild(refusal)
					}
					checkTorn(t, s, n, last, before)
					s.kill()
					s.verified()
				})
			}
		})
	}
}

// checkTorn looks at a server of whose binlog n bytes were cut.
func checkTorn(t *testing.T, s *server, n, last, before int) {
	t.Helper()
	c := dial(t, s)
	c.ok(reqPub("t", message("after")))
	c.ok(reqPub("u", message("after")))
	got := drain(t, s, "t")
	// What lies before the cut is there. What it has hit may have been kept by
	// the topic.
	least := 5
	if n > 0 {
		least = 4
	}
	if n > last+before {
		least = 3 // the fourth is the third record from the end
	}
	whole := got[:len(got)-1]
	if len(whole) < least || len(whole) > 5 || got[len(got)-1].body != "after" {
		t.Fatalf("%s, want at least %d of five and then the new one", bodies(got), least)
	}
	wantBodies(t, whole, fiveBodies[:len(whole)]...)
	u := drain(t, s, "u")
	if n <= last {
		wantBodies(t, u, "u1", "after")
	} else if last := u[len(u)-1]; last.body != "after" {
		t.Errorf("u holds %s", bodies(u))
	}
	s.kill()
	s.restart()
	if again := drain(t, s, "t"); len(again) != len(got) {
		t.Errorf("%s after another restart, %s before it", bodies(again), bodies(got))
	}
}

// TestCase23And24TornTopic: what is missing at the end of a topic comes back
// from the binlog, also where the topic is not the one that was written last,
// and so does what is zeros instead.
func TestCase23And24TornTopic(t *testing.T) {
	t.Parallel()
	for _, settled := range []bool{false, true} {
		t.Run(fmt.Sprint("settled=", settled), func(t *testing.T) {
			t.Parallel()
			b := newBase(t, settled)
			last := b.topicSizes[4]
			for name, change := range map[string]func([]byte) []byte{
				"cut=3": cut(3), "cut=1": cut(1), "cut=record": cut(last), "cut=record+3": cut(last + 3), "cut=all": cut(1 << 20),
				"zeros=3": addZeros(3), "zeros=4096": addZeros(4096), "zeros=1MiB": addZeros(1 << 20),
				"zeroed=record": zeroTail(last), "zeroed=half": zeroTail(last / 2), "zeroed=two": zeroTail(last + b.topicSizes[3]),
			} {
				t.Run(name, func(t *testing.T) {
					thinned(t)
					t.Parallel()
					tornTopic(t, b.damaged(t, b.topic, change))
				})
			}
		})
	}
}

func tornTopic(t *testing.T, s *server) {
	t.Helper()
	s.restart()
	c := dial(t, s)
	c.ok(reqPub("t", message("after")))
	want := append(slices.Clone(fiveBodies), "after")
	wantBodies(t, drain(t, s, "t"), want...)
	wantBodies(t, drain(t, s, "u"), "u1")
	if used := s.cpuTime(); used > slack(2*time.Second) {
		t.Errorf("%v of processor time", used)
	}
	s.kill()
	s.verified()
	s.restart()
	wantBodies(t, drain(t, s, "t"), want...)
}

// TestCase24ZerosInBinlog: zeros at the binlog's end were never written, and
// go.
func TestCase24ZerosInBinlog(t *testing.T) {
	t.Parallel()
	for _, settled := range []bool{false, true} {
		t.Run(fmt.Sprint("settled=", settled), func(t *testing.T) {
			t.Parallel()
			b := newBase(t, settled)
			for name, change := range map[string]func([]byte) []byte{
				"zeros=3": addZeros(3), "zeros=4096": addZeros(4096), "zeros=1MiB": addZeros(1 << 20),
			} {
				t.Run(name, func(t *testing.T) {
					thinned(t)
					t.Parallel()
					s := b.damaged(t, b.binlog, change)
					s.restart()
					checkTorn(t, s, 0, 1, 1)
					s.kill()
					s.verified()
				})
			}
			t.Run("zeroed=record", func(t *testing.T) {
				t.Parallel()
				last := b.binlogSizes[len(b.binlogSizes)-1]
				s := b.damaged(t, b.binlog, zeroTail(last))
				s.restart()
				checkTorn(t, s, last, last, 1<<20)
				s.kill()
				if !settled {
					s.verified()
					return
				}
				// What a checkpoint covers is not read at a start: the topic
				// has the message, and the place in the binlog is damage.
				wantDamage(t, s, "binlog", "0.log")
			})
		})
	}
}

// TestCase24ZerosInside: zeros at the end of a file that others follow are
// damage: told, never stepped over in silence, and an error to that
// subscription only.
func TestCase24ZerosInside(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{config: config{"store.maxLogSize": 200}})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	c.ok(reqCreate("u", 0))
	for _, body := range fiveBodies {
		c.ok(reqPub("t", message(body+strings.Repeat("x", 100))))
	}
	file := topicFile(t, s, "t", 1)
	s.kill()
	damage(t, file, addZeros(100))
	s.restart()
	got, err := readUntil(s.addr(), "t", 0, 255, func(all []pushed) bool { return len(all) == 5 })
	if err != nil && !strings.Contains(err.Error(), "damaged") {
		t.Errorf("the subscription ends with %v", err)
	}
	if len(got) < 2 {
		t.Errorf("%s before the damage", bodies(got))
	}
	if err == nil {
		t.Logf("read over it: %s", bodies(got))
	}
	s.logs("stored data is damaged")
	c = dial(t, s)
	c.ok(reqPub("u", message("m")))
	wantBodies(t, drain(t, s, "u"), "m")
	wantDamage(t, s, "topic t", "1.log")
}

// wantDamage expects smss verify to find damage and to name the place.
func wantDamage(t *testing.T, s *server, log, file string) {
	t.Helper()
	status, out := s.tool("verify", "-quiet")
	_, out, found := strings.Cut(out, log+":")
	if status != 1 || !found || !strings.Contains(out, "damaged record at file "+file+", offset ") {
		t.Errorf("verify ends with %d:\n%s", status, out)
	}
}

// TestCase33TornRestarts: a server that is killed again and again, with
// something torn each time, always starts at once.
func TestCase33TornRestarts(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	file := topicFile(t, s, "t", 0)
	binlog := filepath.Join(s.dataDir(), "binlog", "0.log")
	var want []string
	for i := range 20 {
		body := fmt.Sprint(i)
		dial(t, s).ok(reqPub("t", message(body)))
		want = append(want, body)
		s.kill()
		tear := func(b []byte) []byte { return append(b, "\x40\x00\x00\x001796073091860\t1\t"[:4+i%12]...) }
		damage(t, []string{file, binlog}[i%2], tear)
		s.restart()
	}
	wantBodies(t, drain(t, s, "t"), want...)
	if n := len(logFiles(t, s)); n != 2 {
		t.Errorf("%d log files, want one of the binlog and one of the topic", n)
	}
}
