package test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// oldRecord is a record as the existing server's readers see it: the fields
// that they know, and the payload.
type oldRecord struct {
	at      int64 // in its file
	fields  []string
	payload []byte
}

func (r *oldRecord) number(t *testing.T, i int) int64 {
	t.Helper()
	n, err := strconv.ParseInt(r.fields[i], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// oldGrammar parses a log file as the existing server's readers do: they know
// so many fields, of which one is the payload's length, and ignore more.
func oldGrammar(t *testing.T, name string, known, lengthField int) (all []oldRecord) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for at := int64(0); at < int64(len(b)); {
		rest := b[at:]
		bad := func(what string) {
			t.Helper()
			t.Fatalf("%s at %d: %s: %.80q", filepath.Base(name), at, what, rest)
		}
		n := int(binary.LittleEndian.Uint32(rest))
		const longest = 508 // what its reader holds
		if n > longest || 4+n > len(rest) || rest[4+n-1] != '\n' {
			bad(fmt.Sprintf("a line of %d bytes", n))
		}
		r := oldRecord{at: at, fields: strings.Split(string(rest[4:4+n-1]), "\t")}
		if len(r.fields) < known {
			bad(fmt.Sprintf("%d fields", len(r.fields)))
		}
		size := r.number(t, lengthField)
		end := 4 + int64(n) + size
		if size > 0 {
			if end > int64(len(rest)) || rest[end-1] != '\n' {
				bad(fmt.Sprintf("a payload of %d bytes", size))
			}
			r.payload = rest[4+n : end-1]
		}
		all = append(all, r)
		at += end
	}
	return all
}

// The fields of both kinds of record by the existing server's order.
const (
	binlogFields, binlogCommand, binlogID, binlogTopic, binlogLength = 6, 1, 2, 4, 5
	topicFields, topicID, topicLength, topicIndex, topicSource       = 7, 1, 3, 4, 5 // and 6
)

// TestUpgradeCarriesOn: what is written to a directory of the existing server
// is there after a kill, with everything from before, and all of it is in the
// grammar of the existing server.
func TestUpgradeCarriesOn(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"smss-data", "smss-data-many-delays"} {
		t.Run(name, func(t *testing.T) {
			if raceEnabled && !long && name == "smss-data-many-delays" {
				t.Skip("TestFixture opens it under the race detector; SMSS_TEST_LONG=1 does this, too")
			}
			t.Parallel()
			o, want := fixture(t, name)
			old := map[string]int{}
			for _, p := range logFiles(t, &server{dir: o.dir}) {
				fi, err := os.Stat(p)
				if err != nil {
					t.Fatal(err)
				}
				old[p] = int(fi.Size())
			}
			s := startServer(t, o)
			c := dial(t, s)
			c.ok(reqCreate("new", 0))
			c.ok(reqPub("order", message("upgraded", [2]string{"k", "v"})))
			c.ok(reqPub("order", batch("in", "one", "batch")))
			c.ok(reqPub("new", message("first")))
			c.ok(reqDelay("new", 1000, batch("delayed", "twice")))
			c.ok(reqDelay("new", tenYears, message("far")))
			wantBodies(t, read(t, s, "new", 0, 3), "first", "delayed", "twice")
			for _, end := range []func(){s.kill, s.stop} {
				end()
				s.verified()
				s.restart()
				checkUpgraded(t, s, want)
			}
			s.kill()
			for p, size := range old {
				now, err := os.ReadFile(p)
				if err != nil || len(now) < size {
					t.Errorf("a file of the existing server is gone or shorter: %v", err)
				}
			}
			checkOldGrammar(t, s)
			s.restart()
			s.stop()
			if got := countDelays(t, s); got != want.PendingDelays+1 {
				t.Errorf("%d delays pending, want %d", got, want.PendingDelays+1)
			}
		})
	}
}

func checkUpgraded(t *testing.T, s *server, want expectation) {
	t.Helper()
	last := int64(0)
	for name, msgs := range want.Topics {
		got := drain(t, s, name)
		if name == "order" {
			i := slices.IndexFunc(got, func(m pushed) bool { return m.body == "upgraded" })
			if i < len(msgs) {
				t.Fatalf("order has %s", bodies(got))
			}
			if !slices.Equal(got[i].headers, [][2]string{{"k", "v"}}) {
				t.Errorf("headers %v", got[i].headers)
			}
			mine := slices.DeleteFunc(slices.Clone(got[i:]), func(m pushed) bool { return m.body == want.DueWhileDown })
			wantBodies(t, mine, "upgraded", "in", "one", "batch")
			last = got[i].id
		}
		for i, m := range msgs {
			if i >= len(got) || got[i].id != m.ID {
				t.Errorf("%q: message %d is not the one of before", name, i)
				break
			}
		}
	}
	if last <= want.LastEventID {
		t.Errorf("the first new id is %d, the last one before was %d", last, want.LastEventID)
	}
	wantBodies(t, drain(t, s, "new"), "first", "delayed", "twice")
}

// checkOldGrammar parses all files, and looks up each topic record's source in
// the binlog.
func checkOldGrammar(t *testing.T, s *server) {
	t.Helper()
	type place struct{ file, at int64 }
	events := map[place]oldRecord{}
	last := int64(0)
	for n := range int64(len(logFiles(t, s, "binlog"))) {
		for _, r := range oldGrammar(t, filepath.Join(s.dataDir(), "binlog", fmt.Sprint(n, ".log")), binlogFields, binlogLength) {
			events[place{n, r.at}] = r
			if id := r.number(t, binlogID); id <= last {
				t.Errorf("binlog: event %d after %d", id, last)
			} else {
				last = id
			}
		}
	}
	for _, p := range logFiles(t, s, "topic") {
		topic := filepath.Base(filepath.Dir(p))
		last := int64(0)
		for _, r := range oldGrammar(t, p, topicFields, topicLength) {
			id := r.number(t, topicID)
			if id <= last {
				t.Errorf("%s: event %d after %d", topic, id, last)
			}
			last = id
			e, ok := events[place{r.number(t, topicSource), r.number(t, topicSource+1)}]
			if !ok || e.fields[binlogTopic] != topic || e.number(t, binlogID)+r.number(t, topicIndex) != id || !bytes.Contains(e.payload, r.payload) {
				t.Errorf("%s: the source of event %d does not hold it", topic, id)
			}
			if e.fields[binlogCommand] != "1" && e.fields[binlogCommand] != "101" {
				t.Errorf("%s: the source of event %d is a command %s", topic, id, e.fields[binlogCommand])
			}
		}
	}
}

// TestUpgradeInterrupted: a kill in the middle of taking a directory over leaves
// one that the next start takes over.
func TestUpgradeInterrupted(t *testing.T) {
	t.Parallel()
	o, want := fixture(t, "smss-data")
	s := newServer(t, o)
	s.port = freePort(t)
	for step := range scale(8, 60) {
		if err := s.launch(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(step) * 10 * time.Millisecond) // the moment of the kill is the subject
		s.kill()
	}
	s.restart()
	_, err := readUntil(s.addr(), "order", 0, 255, func(all []pushed) bool {
		return slices.ContainsFunc(all, func(m pushed) bool { return m.body == want.DueWhileDown })
	})
	if err != nil {
		t.Error(err)
	}
	wantBodies(t, checkFixture(t, s, want), want.DueWhileDown)
	s.stop()
	if got := countDelays(t, s); got != want.PendingDelays {
		t.Errorf("%d delays pending, want %d", got, want.PendingDelays)
	}
}
