package test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// These are the cases about single bits that are not what was written, and
// about files that shrink under a reader.

// readable reads a topic from its beginning to its end or to an error. What it
// gets must be what was published, in order, wherever damage ends it.
func readable(t *testing.T, s *server, topic string, want []string) (got []pushed, err error) {
	t.Helper()
	dial(t, s).ok(reqPub(topic, message("end")))
	atEnd := func(all []pushed) bool { return len(all) > 0 && all[len(all)-1].body == "end" }
	got, err = readUntil(s.addr(), topic, 0, 1, atEnd)
	if atEnd(got) {
		got = got[:len(got)-1]
	}
	next := 0
	for _, m := range got {
		at := slices.Index(want[next:], m.body)
		if at < 0 {
			t.Fatalf("delivered %.60q, which nobody published, or not in this place", m.body)
		}
		next += at + 1
	}
	if err != nil && !strings.Contains(err.Error(), ": 400 ") {
		t.Fatalf("the subscription ends without a reason: %v", err)
	}
	return got, err
}

// TestCase25FlippedBit: no bit of the first 64 bytes of a file keeps the server
// from starting, brings it down or changes what is delivered; other topics do
// not notice.
func TestCase25FlippedBit(t *testing.T) {
	t.Parallel()
	for _, settled := range []bool{false, true} {
		for i, where := range []string{"topic", "binlog"} {
			t.Run(fmt.Sprintf("%s/settled=%v", where, settled), func(t *testing.T) {
				t.Parallel()
				b := newBase(t, settled)
				file := b.topic
				if where == "binlog" {
					file = b.binlog
				}
				random := rand.New(rand.NewPCG(25, uint64(i)))
				for bit := range 512 {
					// One of each byte of one of the two bases in the normal run.
					if pick := random.IntN(16); !long && pick != bit%8+8*(bit/8%2) {
						continue
					}
					t.Run(fmt.Sprint("bit=", bit), func(t *testing.T) {
						thinned(t)
						t.Parallel()
						flippedBit(t, b.damaged(t, file, flip(bit)), where)
					})
				}
			})
		}
	}
}

func flippedBit(t *testing.T, s *server, where string) {
	t.Helper()
	s.restart()
	c := dial(t, s)
	c.ok(reqPub("u", message("after")))
	wantBodies(t, drain(t, s, "u"), "u1", "after")
	got, err := readable(t, s, "t", fiveBodies)
	switch {
	case where == "binlog" && err != nil:
		t.Errorf("reading t, whose files are whole: %v", err)
	case err != nil:
		s.logs("stored data is damaged")
	case len(got) != 5:
		t.Errorf("without an error %s", bodies(got))
	}
	if long {
		s.kill()
		s.restart()
		wantBodies(t, drain(t, s, "u"), "u1", "after")
	}
}

// TestCase26FlippedPayload: a bit in the middle of a stored body is found by
// its checksum. The message is delivered as it was published, from another
// copy, or not at all.
func TestCase26FlippedPayload(t *testing.T) {
	t.Parallel()
	var want []string
	for i := range 5 {
		want = append(want, fmt.Sprint("payload-", i, "-")+strings.Repeat(fmt.Sprint(i), 1000))
	}
	for _, settled := range []bool{false, true} {
		t.Run(fmt.Sprint("settled=", settled), func(t *testing.T) {
			t.Parallel()
			s := startServer(t, options{})
			c := dial(t, s)
			c.ok(reqCreate("t", 0))
			c.ok(reqCreate("u", 0))
			for _, body := range want {
				c.ok(reqPub("t", message(body)))
			}
			if settled {
				time.Sleep(2500 * time.Millisecond) // see newBase
			}
			file := topicFile(t, s, "t", 0)
			s.kill()
			topic, err := filepath.Rel(s.dir, file)
			if err != nil {
				t.Fatal(err)
			}
			b := base{dir: s.dir}
			for name, file := range map[string]string{"topic": topic, "binlog": filepath.Join("data", "binlog", "0.log")} {
				for i, body := range want {
					if !long && i%2 == 1 {
						continue
					}
					t.Run(fmt.Sprint(name, i), func(t *testing.T) {
						thinned(t)
						t.Parallel()
						s := b.damaged(t, file, flipIn(t, body))
						flippedPayload(t, s, name, want)
					})
				}
			}
		})
	}
}

// flipIn flips a bit in the middle of a text that a file holds.
func flipIn(t *testing.T, body string) func([]byte) []byte {
	return func(b []byte) []byte {
		at := bytes.Index(b, []byte(body))
		if at < 0 {
			t.Fatalf("the file does not hold %.20q", body)
		}
		return flip((at+len(body)/2)*8 + 2)(b)
	}
}

func flippedPayload(t *testing.T, s *server, where string, want []string) {
	t.Helper()
	wantDamage(t, s, map[string]string{"topic": "topic t", "binlog": "binlog"}[where], "0.log")
	s.restart()
	c := dial(t, s)
	c.ok(reqPub("u", message("after")))
	wantBodies(t, drain(t, s, "u"), "after")
	got, err := readable(t, s, "t", want)
	switch {
	case err != nil && (where == "binlog" || !strings.Contains(err.Error(), "damaged")):
		t.Errorf("after %s: %v", bodies(got), err)
	case err != nil:
		s.logs("stored data is damaged")
	case len(got) != len(want):
		t.Errorf("without an error %s", bodies(got))
	}
}

// TestCase26FlippedDelay: a bit in the body of a pending delayed message, in
// whichever of Badger's files. It comes as it was published or not at all, and
// the other one comes.
func TestCase26FlippedDelay(t *testing.T) {
	t.Parallel()
	for _, size := range []int{200, 3000} { // in a table; in the value log
		for _, end := range []string{"kill", "stop"} { // in the memtable's log; in a table
			for _, first := range []bool{false, true} { // before the other one in the file
				t.Run(fmt.Sprintf("size=%d/%s/first=%v", size, end, first), func(t *testing.T) {
					thinned(t)
					t.Parallel()
					flippedDelay(t, size, end, first)
				})
			}
		}
	}
}

func flippedDelay(t *testing.T, size int, end string, first bool) {
	t.Helper()
	body, other := strings.Repeat("victim", size/6), strings.Repeat("other", size/5)
	var s *server
	var due time.Time
	pending(t, 4*time.Second, func(delay time.Duration) time.Time {
		s = startServer(t, options{})
		c := dial(t, s)
		c.ok(reqCreate("t", 0))
		c.ok(reqCreate("u", 0))
		due = time.Now().Add(delay)
		requests := [][]byte{reqDelay("u", delay.Milliseconds(), message(other)), reqDelay("t", delay.Milliseconds(), message(body))}
		if first {
			slices.Reverse(requests)
		}
		for _, r := range requests {
			c.ok(r)
		}
		time.Sleep(2500 * time.Millisecond) // see newBase
		if end == "kill" {
			s.kill()
		} else {
			s.stop()
		}
		return due
	})
	meta, err := os.ReadDir(filepath.Join(s.dataDir(), "meta"))
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, e := range meta {
		name := filepath.Join(s.dataDir(), "meta", e.Name())
		// Whole files are read here, of which most is a hole: not cheap.
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for from := 0; ; {
			at := bytes.Index(text[from:], []byte(body))
			if at < 0 {
				break
			}
			found = true
			from += at + len(body)
			t.Logf("flipped in %s", e.Name())
			flipAt(t, name, int64(from-len(body)/2))
		}
	}
	if !found {
		t.Fatal("no file of the metadata holds the delayed message")
	}
	if refusal := s.startOrRefuse(); refusal != "" {
		s.rebuild(refusal)
	}
	time.Sleep(time.Until(due)) // longer than a read waits, maybe
	wantBodies(t, read(t, s, "u", 0, 1), other)
	time.Sleep(time.Until(due.Add(time.Second))) // it has had its time
	for _, m := range drain(t, s, "t") {
		if m.body != body {
			t.Errorf("delivered %.30q…, changed", m.body)
		}
	}
}

// flipAt flips a bit of one byte and leaves the holes of the file alone.
func flipAt(t *testing.T, name string, at int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 4
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

// TestCase44TruncatedUnderReader: a file that somebody empties while it is read
// is an error to its subscriber; the process and the other topics live.
func TestCase44TruncatedUnderReader(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 100_000} {
		t.Run(fmt.Sprint("to=", size), func(t *testing.T) {
			t.Parallel()
			s := startServer(t, options{})
			c := dial(t, s)
			c.ok(reqCreate("t", 0))
			c.ok(reqCreate("u", 0))
			for i := range 1000 {
				c.ok(reqPub("t", message(fmt.Sprint(i, strings.Repeat("x", 1000)))))
			}
			x := dial(t, s)
			x.sub(sub{topic: "t", who: "w", batch: 100, ack: time.Minute})
			for range 3 {
				x.push()
				x.send(ackNext)
			}
			x.push()
			if err := os.Truncate(topicFile(t, s, "t", 0), int64(size)); err != nil {
				t.Fatal(err)
			}
			x.send(ackNext)
			told := false
			for !told {
				f, err := x.frame()
				switch {
				case err != nil:
					t.Fatalf("the subscriber is not told: %v", err)
				case f.code == codeError:
					told = true
				case f.code == codeDone: // of what was read before
					x.send(ackNext)
				}
			}
			s.logs("t/0.log")
			c.ok(reqPub("u", message("m")))
			wantBodies(t, drain(t, s, "u"), "m")
			// To the topic itself a publish may be refused; one that is
			// acknowledged is delivered.
			r, err := c.do(reqPub("t", message("after")))
			if err != nil {
				t.Fatal(err)
			}
			s.kill()
			s.restart()
			wantBodies(t, drain(t, s, "u"), "m")
			_, err = readUntil(s.addr(), "t", 0, 255, func(all []pushed) bool {
				return len(all) > 0 && all[len(all)-1].body == "after"
			})
			if r.code == codeDone && err != nil && !strings.Contains(err.Error(), "damaged") {
				t.Errorf("what was acknowledged after it: %v", err)
			}
		})
	}
}
