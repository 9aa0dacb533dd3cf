package test

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// These are the cases about files that cannot be written or opened for a while,
// although nothing is wrong with them.

// fileNames returns the names of all files below dir.
func fileNames(t *testing.T, dir string) []string {
	t.Helper()
	return slices.Sorted(maps.Keys(fileStates(t, dir)))
}

// unchanged expects that no file of the directories was made, renamed or
// removed since before.
func unchanged(t *testing.T, before []string, dir string) {
	t.Helper()
	after := fileNames(t, dir)
	for _, name := range before {
		if !slices.Contains(after, name) {
			t.Errorf("%s is gone", name)
		}
	}
	for _, name := range after {
		if !slices.Contains(before, name) {
			t.Errorf("%s has come into being", name)
		}
	}
}

// TestCase40ReadOnly: a file system that turns read-only is an error to who
// wants to write there, and nothing else.
func TestCase40ReadOnly(t *testing.T) {
	t.Parallel()
	o, dirs := fullDisk(t, nil, "topic")
	s := startServer(t, o)
	c := dial(t, s)
	topics := []string{"t", "u", "v"}
	for _, topic := range topics {
		c.ok(reqCreate(topic, 0))
		c.ok(reqPub(topic, message("first")))
	}
	// Without a file open for writing: with one the kernel would refuse.
	s.stop()
	s.restart()
	before := fileNames(t, dirs[0])
	remount(t, dirs[0], syscall.MS_RDONLY)
	c = dial(t, s)
	for range 3 {
		for _, topic := range topics {
			c.refused(reqPub(topic, message("refused")), "")
		}
		c.refused(reqCreate("new", 0), "")
		c.refused(reqDelete("v"), "")
	}
	c.ok(reqDelay("u", 1000, message("delayed")))
	time.Sleep(1500 * time.Millisecond) // it falls due meanwhile
	for _, topic := range topics {
		wantBodies(t, read(t, s, topic, 0, 1), "first")
	}
	unchanged(t, before, dirs[0])
	remount(t, dirs[0], 0)
	c.ok(reqPub("t", message("second")))
	c.ok(reqPub("v", message("second")))
	wantBodies(t, read(t, s, "u", 0, 2), "first", "delayed")
	c.ok(reqCreate("new", 0))
	for _, end := range []func(){s.kill, s.stop} {
		end()
		s.verified()
		s.restart()
		wantBodies(t, drain(t, s, "t"), "first", "second")
		wantBodies(t, drain(t, s, "u"), "first", "delayed")
		wantBodies(t, drain(t, s, "v"), "first", "second")
	}
	s.nowhere("refused")
}

func remount(t *testing.T, dir string, flags uintptr) {
	t.Helper()
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|flags, ""); err != nil {
		t.Fatalf("remount: %v", err)
	}
}

// unprivileged prepares a server for which permissions count: root's does not
// meet them.
func unprivileged(t *testing.T, c config) options {
	t.Helper()
	o := options{dir: t.TempDir(), config: c}
	if os.Getuid() != 0 {
		return o
	}
	o.uid = 65534
	for _, dir := range []string{o.dir, filepath.Dir(o.dir)} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(o.dir, o.uid, o.uid); err != nil {
		lacking(t, "root may not give files to the user as whom the server would run (CAP_CHOWN is missing?): %v", err)
	}
	return o
}

// TestCase40NotOurs: a data directory that the server may not write to keeps it
// from starting, and the last line says as whom it runs.
func TestCase40NotOurs(t *testing.T) {
	t.Parallel()
	o := unprivileged(t, nil)
	s := newServer(t, o)
	if err := os.Mkdir(s.dataDir(), 0o555); err != nil {
		t.Fatal(err)
	}
	uid := cmp.Or(o.uid, os.Getuid())
	if err := os.Chown(s.dataDir(), uid, uid); err != nil && o.uid != 0 {
		t.Fatal(err)
	}
	if line, want := lastLine(s.refusesToStart()), fmt.Sprint("running as uid ", uid); !strings.Contains(line, want) || !strings.Contains(line, "store.path") {
		t.Errorf("the last line does not say %q:\n%s", want, line)
	}
}

// TestCase40Permission: a directory that may not be written to for a while, in
// which a file becomes full, is an error for that time; nothing is renamed or
// marked.
func TestCase40Permission(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"topic", "binlog"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, unprivileged(t, config{"store.maxLogSize": 2000}))
			c := dial(t, s)
			c.ok(reqCreate("t", 0))
			c.ok(reqCreate("u", 0))
			c.ok(reqPub("t", message("first")))
			dir := filepath.Join(s.dataDir(), "binlog")
			if where == "topic" {
				dir = filepath.Dir(topicFile(t, s, "t", 0))
			}
			if err := os.Chmod(dir, 0o500); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.Chmod(dir, 0o755) }) // for who removes it
			before := fileNames(t, dir)
			want := []string{"first"}
			refused := 0
			for i := range 40 {
				body := fmt.Sprint(i, strings.Repeat("x", 200))
				r, err := c.do(reqPub("t", message(body)))
				if err != nil {
					t.Fatal(err)
				}
				if r.code == codeDone {
					want = append(want, body)
				} else {
					refused++
				}
			}
			if refused == 0 {
				t.Fatal("no publish was refused: the file did not become full")
			}
			if where == "topic" {
				c.ok(reqPub("u", message("other")))
			}
			got := read(t, s, "t", 0, len(want))
			wantBodies(t, got, want...)
			unchanged(t, before, dir)
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			for i := range 20 {
				body := fmt.Sprint("after", i, strings.Repeat("x", 200))
				c.ok(reqPub("t", message(body)))
				want = append(want, body)
			}
			wantBodies(t, drain(t, s, "t"), want...)
			for _, end := range []func(){s.kill, s.stop} {
				end()
				s.verified()
				s.restart()
				wantBodies(t, drain(t, s, "t"), want...)
			}
		})
	}
}

// limitFiles sets the server's limit of descriptors while it runs.
func limitFiles(t *testing.T, s *server, n int) {
	t.Helper()
	lim := syscall.Rlimit{Cur: uint64(n), Max: 4096}
	const nofile = 7
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, uintptr(s.pid), nofile, uintptr(unsafe.Pointer(&lim)), 0, 0, 0)
	if errno != 0 {
		lacking(t, "the limits of another process cannot be changed here by prlimit: %v", errno)
	}
}

// TestCase41NoDescriptors: when no data file can be opened for want of
// descriptors, that is an error to who asked, files stay as they are, and all
// works when there are descriptors again.
func TestCase41NoDescriptors(t *testing.T) {
	t.Parallel()
	for spare := range 4 {
		t.Run(fmt.Sprint("spare=", spare), func(t *testing.T) {
			t.Parallel()
			s := startServer(t, options{nofile: 4096, config: config{"store.maxLogSize": 1000}})
			c := dial(t, s)
			const topics = 12
			want := map[string][]string{}
			for i := range topics {
				topic := fmt.Sprint("t", i)
				c.ok(reqCreate(topic, 0))
				c.ok(reqPub(topic, message("first")))
				want[topic] = []string{"first"}
			}
			s.kill()
			s.restart()
			c = dial(t, s)
			reader := dial(t, s)
			c.alive()
			reader.alive()
			limitFiles(t, s, s.openFiles()+spare)
			before := fileNames(t, s.dataDir())
			refused := 0
			for round := range 3 {
				for i := range topics {
					topic := fmt.Sprint("t", i)
					body := fmt.Sprint(round, strings.Repeat("x", 100))
					r, err := c.do(reqPub(topic, message(body)))
					if err != nil {
						t.Fatalf("%s: %v", topic, err)
					}
					if r.code == codeDone {
						want[topic] = append(want[topic], body)
					} else {
						refused++
					}
				}
				reader.sub(sub{topic: "t0", who: "reader", batch: 255, ack: time.Minute})
				f, err := reader.frame()
				switch {
				case err != nil:
					t.Fatalf("subscribe: %v", err)
				case f.code == codeDone:
					reader.send(ackLast)
				case f.code == codeError:
					refused++
				}
				reader.alive()
			}
			t.Logf("%d refused", refused)
			if spare == 0 && refused == 0 {
				t.Error("nothing was refused: the limit was not met")
			}
			for _, name := range before {
				if _, err := os.Stat(name); err != nil && !strings.Contains(name, "/meta/") {
					t.Errorf("a file is gone: %v", err)
				}
			}
			limitFiles(t, s, 4096)
			for topic := range want {
				c.ok(reqPub(topic, message("after")))
				want[topic] = append(want[topic], "after")
			}
			check := func() {
				t.Helper()
				for topic, bodies := range want {
					wantBodies(t, drain(t, s, topic), bodies...)
				}
			}
			check()
			s.kill()
			s.verified()
			s.restart()
			check()
		})
	}
}

// TestCase41FolderRemoved: a topic whose directory somebody removed is an
// error to who uses it; the others go on.
func TestCase41FolderRemoved(t *testing.T) {
	t.Parallel()
	for _, open := range []bool{false, true} {
		t.Run(fmt.Sprint("open=", open), func(t *testing.T) {
			t.Parallel()
			s := startServer(t, options{})
			c := dial(t, s)
			c.ok(reqCreate("t", 0))
			c.ok(reqCreate("u", 0))
			if open {
				c.ok(reqPub("t", message("lost")))
			}
			dir := filepath.Dir(topicFile(t, s, "t", 0))
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				c.refused(reqPub("t", message("refused")), "")
				c.ok(reqPub("u", message("m")))
			}
			wantBodies(t, read(t, s, "u", 0, 3), "m", "m", "m")
			x := dial(t, s)
			x.sub(sub{topic: "t", who: "w"})
			c.alive()
			s.logs(dir[strings.Index(dir, "data/"):])
			s.kill()
			s.restart()
			c = dial(t, s)
			wantBodies(t, drain(t, s, "u"), "m", "m", "m")
			c.ok(reqPub("t", message("after")))
			got := drain(t, s, "t")
			if last := got[len(got)-1]; last.body != "after" {
				t.Errorf("after the restart the topic holds %s", bodies(got))
			}
			s.nowhere("refused")
		})
	}
}
