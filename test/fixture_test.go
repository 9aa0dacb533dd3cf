package test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"
)

// unpack extracts testdata/fixtures/name.tar.gz and returns the directory in
// it. Badger's files in there are sparse, 2 GiB of them: blocks of zeros are
// stepped over, so that they stay holes.
func unpack(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "fixtures", name+".tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return filepath.Join(dir, name)
		}
		if err != nil {
			t.Fatal(err)
		}
		if !filepath.IsLocal(h.Name) {
			t.Fatalf("the fixture holds %q", h.Name)
		}
		target := filepath.Join(dir, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(target, 0o755)
		case tar.TypeReg, tar.TypeGNUSparse:
			err = writeSparse(target, r, h)
		default:
			t.Fatalf("%s is of type %q", h.Name, h.Typeflag)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func writeSparse(target string, r io.Reader, h *tar.Header) error {
	f, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, os.FileMode(h.Mode).Perm())
	if err != nil {
		return err
	}
	defer f.Close()
	block, zeros := make([]byte, 64<<10), make([]byte, 64<<10)
	for at := int64(0); ; {
		n, err := io.ReadFull(r, block)
		if n > 0 && !bytes.Equal(block[:n], zeros[:n]) {
			if _, err := f.WriteAt(block[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			break
		}
		if err != nil {
			return err
		}
	}
	// The size counts the hole at the end.
	if err := f.Truncate(h.Size); err != nil {
		return err
	}
	return os.Chtimes(target, h.ModTime, h.ModTime)
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

// fixture unpacks a data directory and returns options to start on it. The
// configuration is the fixture's own file, as an upgrade in place would use
// it, but for the port, the address and the retention: the fixture's messages
// grow older with every day.
func fixture(t *testing.T, name string) (options, expectation) {
	t.Helper()
	dir := unpack(t, name)
	text, err := os.ReadFile(filepath.Join(dir, "expected.json"))
	if err != nil {
		t.Fatal(err)
	}
	var want expectation
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	text, err = os.ReadFile(filepath.Join(dir, "config", "config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var root map[string]any
	if err := yaml.Unmarshal(text, &root); err != nil {
		t.Fatal(err)
	}
	c := config{}
	flatten(c, "", root)
	delete(c, "port")
	c["store.maxDays"] = 36500
	return options{dir: dir, config: c}, want
}

func flatten(c config, prefix string, node map[string]any) {
	for k, v := range node {
		if sub, ok := v.(map[string]any); ok {
			flatten(c, prefix+k+".", sub)
			continue
		}
		c[prefix+k] = v
	}
}

// checkFixture compares every topic with what is expected, and returns what
// follows the expected messages of topic order.
func checkFixture(t *testing.T, s *server, want expectation) []pushed {
	t.Helper()
	list := dial(t, s).list()
	for _, name := range want.AbsentTopics {
		if _, ok := list[name]; ok {
			t.Errorf("topic %q is listed, it was deleted", name)
		}
	}
	if len(list) != len(want.Topics) {
		t.Errorf("%d topics listed, want %d", len(list), len(want.Topics))
	}
	var more []pushed
	for name, msgs := range want.Topics {
		if _, ok := list[name]; !ok {
			t.Errorf("topic %q is not listed", name)
			continue
		}
		got := drain(t, s, name)
		if len(got) < len(msgs) {
			t.Errorf("%q: %d messages, want %d", name, len(got), len(msgs))
			continue
		}
		for i, m := range msgs {
			sum := sha256.Sum256(got[i].raw)
			if got[i].id != m.ID || hex.EncodeToString(sum[:]) != m.SHA256 {
				t.Errorf("%q: message %d has id %d, want %d, or another content: %.60q", name, i, got[i].id, m.ID, got[i].body)
				break
			}
		}
		if rest := got[len(msgs):]; name == "order" {
			more = rest
		} else if len(rest) > 0 {
			t.Errorf("%q: %s too many", name, bodies(rest))
		}
	}
	return more
}

// TestFixture opens data directories that the existing server wrote and a
// kill −9 left, checks every message and carries on.
func TestFixture(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"smss-data", "smss-data-many-delays"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, want := fixture(t, name)
			s := startServer(t, o)
			// The message that fell due while the server was down may need
			// a moment after the start.
			deadline := time.Now().Add(slack(10 * time.Second))
			more := checkFixture(t, s, want)
			for len(more) == 0 && time.Now().Before(deadline) {
				more = checkFixture(t, s, want)
			}
			wantBodies(t, more, want.DueWhileDown)
			if more[0].id <= want.LastEventID {
				t.Errorf("the due message has id %d, the last one before was %d", more[0].id, want.LastEventID)
			}
			// Resume from an id out of the former life.
			ids := want.Topics["order"]
			next := read(t, s, "order", ids[10].ID, 1)
			if next[0].id != ids[11].ID {
				t.Errorf("after %d comes %d, want %d", ids[10].ID, next[0].id, ids[11].ID)
			}
			c := dial(t, s)
			c.ok(reqDelay("order", tenYears, message("one more")))
			for _, end := range []func(){s.stop, s.kill} {
				end()
				s.restart()
				wantBodies(t, checkFixture(t, s, want), want.DueWhileDown)
			}
			s.stop()
			if got := countDelays(t, s); got != want.PendingDelays+1 {
				t.Errorf("%d delays pending, want %d", got, want.PendingDelays+1)
			}
		})
	}
}

// TestFixtureAge keeps the aging of the fixture for the retention tests
// honest: the files must keep their sizes.
func TestFixtureAge(t *testing.T) {
	t.Parallel()
	dir := unpack(t, "smss-data")
	sizes := func() map[string]int64 {
		m := map[string]int64{}
		s := &server{dir: dir}
		for _, p := range logFiles(t, s) {
			fi, err := os.Stat(p)
			if err != nil {
				t.Fatal(err)
			}
			m[p] = fi.Size()
		}
		return m
	}
	before := sizes()
	age(t, dir, 30*24*time.Hour)
	for p, n := range sizes() {
		if before[p] != n {
			t.Errorf("%s was %d bytes and is %d", p, before[p], n)
		}
	}
}

// The command lines of records, found by their two 13-digit times.
var (
	topicLine  = regexp.MustCompile(`(\d{13})(\t\d+\t)(\d{13})(\t\d+\t\d+\t\d+\t\d+\n)`)
	binlogLine = regexp.MustCompile(`(\d{13})(\t\d+\t\d+\t)(\d{13})(\t[^\t\n]+\t\d+\n)`)
)

// age makes the records of a fixture as old as they would be had the server
// run then: in each directory the newest file with messages becomes a minute
// old, and every earlier file older by the given time. Times keep their
// number of digits, so no length and no position changes.
func age(t *testing.T, dir string, old time.Duration) {
	t.Helper()
	now := time.Now().Add(-time.Minute)
	s := &server{dir: dir}
	// Of four binlog files and three of each topic the last is the newest;
	// the binlog of the newest messages is number 2.
	fresh := func(p string) bool {
		n := strings.TrimSuffix(filepath.Base(p), ".log")
		return n == "2" || n == "3"
	}
	for _, p := range logFiles(t, s) {
		stamp := now
		if !fresh(p) {
			stamp = now.Add(-old)
		}
		line := topicLine
		if strings.Contains(p, "binlog") {
			line = binlogLine
		}
		text, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		ms := strconv.FormatInt(stamp.UnixMilli(), 10)
		aged := line.ReplaceAll(text, []byte(ms+"${2}"+ms+"${4}"))
		if len(aged) != len(text) || bytes.Equal(aged, text) {
			t.Fatalf("%s: aging changed %d bytes into %d", p, len(text), len(aged))
		}
		if err := os.WriteFile(p, aged, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(p, stamp, stamp); err != nil {
			t.Fatal(err)
		}
	}
}
