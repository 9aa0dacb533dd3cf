package test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// These are the cases about system calls that fail. strace makes them fail, so
// that no disk has to.

// TestCase27SyncFails: after a sync that failed nothing more is acknowledged,
// although the next one would succeed; what was acknowledged is there after a
// restart.
func TestCase27SyncFails(t *testing.T) {
	t.Parallel()
	needStrace(t)
	for _, level := range []int{2, 1} {
		for _, call := range []string{"fdatasync", "fsync", "msync"} {
			t.Run(fmt.Sprintf("flushLevel=%d/%s", level, call), func(t *testing.T) {
				t.Parallel()
				// Small files: a new one is what calls for an fsync.
				s := startServer(t, options{config: config{"store.flushLevel": level, "store.maxLogSize": 2000}})
				syncFails(t, s, level, call)
			})
		}
	}
}

func syncFails(t *testing.T, s *server, level int, call string) {
	t.Helper()
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	c.ok(reqCreate("u", 0))
	o := newOracle()
	publish := func(body string) bool {
		t.Helper()
		o.sent("t", body)
		r, err := c.do(reqPub("t", message(body)))
		if err != nil {
			t.Fatal(err)
		}
		if r.code == codeDone {
			o.acked("t", "p", body)
		}
		return r.code == codeDone
	}
	for i := range 5 {
		if !publish(fmt.Sprint("before", i)) {
			t.Fatal("refused before anything failed")
		}
	}
	reader := dial(t, s)
	reader.sub(sub{topic: "t", who: "w", batch: 1, ack: time.Minute})
	reader.one("before0")
	x := strace(t, s, "-e", "trace="+call, "-e", "inject="+call+":error=EIO:when=2")
	deadline := time.Now().Add(slack(20 * time.Second))
	for i := 0; publish(fmt.Sprint(i, strings.Repeat("x", 100))); i++ {
		if time.Now().After(deadline) {
			t.Fatal("no sync has failed")
		}
		if level == 1 {
			time.Sleep(20 * time.Millisecond) // it syncs by time, not by publishes
		}
	}
	x.detach(t, s) // every further sync would succeed
	for i := range 20 {
		body := fmt.Sprint("refused", i)
		c.refused(reqPub("t", message(body)), "")
		c.refused(reqDelay("t", 1000, message(body)), "")
		c.refused(reqPub("u", message(body)), "")
	}
	dial(t, s).refused(reqCreate("new", 0), "")
	c.refused(reqDelete("u"), "")
	time.Sleep(1500 * time.Millisecond) // a second is when the next sync would come
	c.refused(reqPub("t", message("refused late")), "")
	s.logs("stopped for good")
	// Running subscriptions go on.
	got := 1
	want := o.order["t\x00p"]
	for got < len(want) {
		reader.send(ackNext)
		reader.one(want[got])
		got++
	}
	if len(dial(t, s).list()) != 2 {
		t.Error("LIST does not show both topics")
	}
	s.kill()
	s.restart()
	all := drain(t, s, "t")
	o.check(t, "t", all)
	if i := slices.IndexFunc(all, func(m pushed) bool { return strings.HasPrefix(m.body, "refused") }); i >= 0 {
		t.Errorf("%s is there after the restart", all[i].body)
	}
	dial(t, s).ok(reqDelete("u"))
	s.stop()
	s.verified()
}

// TestCase27ReadsGoOn: who comes after a sync has failed reads what was
// acknowledged; a subscription writes nothing.
func TestCase27ReadsGoOn(t *testing.T) {
	t.Parallel()
	needStrace(t)
	s := startServer(t, options{config: config{"store.flushLevel": 2}})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	c.ok(reqPub("t", message("m")))
	strace(t, s, "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO")
	c.refused(reqPub("t", message("refused")), "")
	wantBodies(t, read(t, s, "t", 0, 1), "m")
}

// TestCase27ExitOnSyncError: by setting the process ends instead, with a
// status that says so.
func TestCase27ExitOnSyncError(t *testing.T) {
	t.Parallel()
	needStrace(t)
	for _, level := range []int{2, 1} {
		t.Run(fmt.Sprint("flushLevel=", level), func(t *testing.T) {
			t.Parallel()
			s := startServer(t, options{config: config{"store.flushLevel": level, "store.exitOnSyncError": true}})
			c := dial(t, s)
			c.ok(reqCreate("t", 0))
			strace(t, s, "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO")
			r, err := c.do(reqPub("t", message("m")))
			if level == 2 && err == nil && r.code == codeDone {
				t.Error("acknowledged although the sync failed")
			}
			if status := s.wait(slack(10 * time.Second)); status <= 0 {
				t.Errorf("exit status %d, want one above 0", status)
			}
			s.restart()
			if got := drain(t, s, "t"); level == 1 {
				wantBodies(t, got, "m")
			}
		})
	}
}

// TestCase34FailedWrites: of writes that fail now and then in binlog or topic
// nothing is left: refused messages are nowhere, ids rise, and all else is
// there in its order.
func TestCase34FailedWrites(t *testing.T) {
	t.Parallel()
	needStrace(t)
	for _, where := range []string{"binlog", "topic", "any"} {
		for _, errno := range []string{"ENOSPC", "EIO"} {
			t.Run(where+"/"+errno, func(t *testing.T) {
				t.Parallel()
				s := startServer(t, options{config: config{"store.maxLogSize": 3000}})
				failedWrites(t, s, where, errno)
			})
		}
	}
}

func failedWrites(t *testing.T, s *server, where, errno string) {
	t.Helper()
	c := dial(t, s)
	for _, topic := range []string{"t", "u"} {
		c.ok(reqCreate(topic, 0))
		c.ok(reqPub(topic, message("first")))
	}
	watcher := dial(t, s)
	watcher.sub(sub{topic: "t", who: "w", batch: 1, ack: time.Minute})
	watcher.one("first")
	watcher.send(ackNext)
	args := []string{"-e", "trace=pwrite64", "-e", "inject=pwrite64:error=" + errno + ":when=3+5"}
	dir := filepath.Join(s.dataDir(), "binlog")
	if where == "topic" {
		dir = filepath.Dir(topicFile(t, s, "t", 0))
	}
	if where != "any" {
		for n := range 50 {
			args = append(args, "-P", filepath.Join(dir, fmt.Sprint(n, ".log")))
		}
	}
	x := strace(t, s, args...)
	o := newOracle()
	refused := 0
	n := scale(150, 1000)
	for i := range n {
		topic := []string{"t", "u"}[i%2]
		body := fmt.Sprintf("%04d%s", i, strings.Repeat("x", 100))
		r, err := c.do(reqPub(topic, message(body)))
		if err != nil {
			t.Fatal(err)
		}
		if r.code != codeDone {
			refused++
			continue
		}
		o.sent(topic, body)
		o.acked(topic, "p", body)
		if topic == "t" {
			watcher.one(body)
			watcher.send(ackNext)
		}
	}
	x.detach(t, s)
	if refused < 5 || refused > n*3/4 {
		t.Errorf("%d of %d publishes were refused: the faults were not as meant", refused, n)
	}
	check := func() {
		t.Helper()
		for _, topic := range []string{"t", "u"} {
			all := drain(t, s, topic)
			if len(all) == 0 || all[0].body != "first" {
				t.Fatalf("%s begins with %s", topic, bodies(all))
			}
			o.check(t, topic, all[1:])
		}
	}
	check()
	s.kill()
	s.verified()
	s.restart()
	check()
}

// TestCase29Durable: at flush level 2 every reply comes after a sync of the
// binlog file that holds the record, and of its directory where the file is
// new.
func TestCase29Durable(t *testing.T) {
	t.Parallel()
	needStrace(t)
	out := filepath.Join(t.TempDir(), "strace.out")
	s := startServer(t, options{config: config{"store.flushLevel": 2, "store.maxLogSize": 500}, wrap: []string{
		"strace", "-D", "-f", "-y", "-s", "400", "-o", out, "-e", "trace=openat,pwrite64,write,writev,fsync,fdatasync"}})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	for i := range 12 {
		c.ok(reqPub("t", message(fmt.Sprint("body-", i, strings.Repeat("x", 100)))))
	}
	c.ok(reqCreate("u", 0))
	c.ok(reqDelay("u", tenYears, message("body-delay")))
	c.ok(reqPub("u", message("body-u")))
	c.ok(reqDelete("u"))
	s.stop()
	var text []byte
	await(t, 5*time.Second, "strace has written all", func() bool {
		var err error
		text, err = os.ReadFile(out)
		return err == nil && strings.Contains(string(text), "+++ exited with 0 +++")
	})
	checkDurable(t, s, parseTrace(t, string(text)), 17)
}

// call is one system call of a trace, as it began or ended.
type call struct {
	name, path string // path of its descriptor, or that it opens
	args       string
	begin, end bool // both for one that was not interrupted
	ok         bool // ended without an error
}

// parseTrace reads the output of strace -f -y, putting the two halves of an
// interrupted line together.
func parseTrace(t *testing.T, text string) []call {
	t.Helper()
	var all []call
	open := map[string]call{} // by thread
	for line := range strings.Lines(text) {
		pid, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		rest = strings.TrimSpace(rest)
		if strings.HasPrefix(rest, "<... ") {
			c := open[pid]
			delete(open, pid)
			c.begin, c.end = false, true
			c.ok = !strings.Contains(rest, " = -1 ")
			all = append(all, c)
			continue
		}
		name, args, found := strings.Cut(rest, "(")
		if !found {
			continue // a signal, or an exit
		}
		c := call{name: name, args: args, begin: true}
		if name == "openat" {
			if _, after, ok := strings.Cut(args, `"`); ok {
				c.path, _, _ = strings.Cut(after, `"`)
			}
		} else if _, after, ok := strings.Cut(args, "<"); ok {
			c.path, _, _ = strings.Cut(after, ">")
		}
		if strings.HasSuffix(rest, "<unfinished ...>") {
			open[pid] = c
		} else {
			c.end, c.ok = true, !strings.Contains(rest, " = -1 ")
		}
		all = append(all, c)
	}
	return all
}

// checkDurable walks a trace of requests that were made one at a time.
func checkDurable(t *testing.T, s *server, calls []call, replies int) {
	t.Helper()
	binlog := filepath.Join(s.dataDir(), "binlog")
	unsynced := map[string]bool{} // binlog files with bytes that no sync covers
	newName := false              // in the binlog's directory
	syncing := map[string]bool{}  // what a sync under way will cover
	dataSynced := false
	seen := 0
	for _, c := range calls {
		// The reserve of disk space beside the log files needs no sync.
		inBinlog := (filepath.Dir(c.path) == binlog || strings.HasPrefix(c.path, "data/binlog/")) && filepath.Ext(c.path) == ".log"
		name := filepath.Base(c.path)
		switch {
		case c.name == "openat" && c.end && c.ok && inBinlog && strings.Contains(c.args, "O_CREAT"):
			newName = true
		case c.name == "pwrite64" && c.begin && inBinlog:
			unsynced[name] = true
		case c.name == "fdatasync" && inBinlog:
			if c.begin {
				syncing[name] = unsynced[name]
			}
			if c.end && c.ok && syncing[name] {
				delete(unsynced, name)
			}
		case c.name == "fsync" && c.path == binlog && c.end && c.ok:
			newName = false
		case c.name == "fsync" && c.path == s.dataDir() && c.end && c.ok:
			dataSynced = true
		case strings.HasPrefix(c.name, "write") && c.begin && strings.Contains(c.args, `"\310\0\0\0\0\0\0\0\0\0"`):
			seen++
			if len(unsynced) > 0 || newName || !dataSynced {
				t.Errorf("reply %d comes with binlog files not synced: %v, its directory not synced: %v, the data directory synced: %v",
					seen, unsynced, newName, dataSynced)
			}
		}
	}
	if seen != replies {
		t.Errorf("the trace shows %d replies, want %d", seen, replies)
	}
}
