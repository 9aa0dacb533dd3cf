package test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestVerifyBesideServer: verify and dump read the directory of a server under
// load and find nothing wrong: a record that is being written is no damage.
func TestVerifyBesideServer(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{config: config{"store.maxLogSize": 100_000}})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	stop := make(chan struct{})
	sent := make(chan error, 4)
	for range cap(sent) {
		x := dial(t, s)
		go func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					sent <- nil
					return
				default:
				}
				if err := x.doOK(reqPub("t", message(fmt.Sprint(n, strings.Repeat("x", n%500))))); err != nil {
					sent <- err
					return
				}
			}
		}()
	}
	for range scale(2, 50) {
		s.verified()
		for _, args := range [][]string{{"dump", "-topic", "t"}, {"dump", "-json"}} {
			if status, out := s.tool(args...); status != 0 {
				t.Errorf("%v ends with %d: %s", args, status, lastLine(out))
			}
		}
	}
	close(stop)
	for range cap(sent) {
		if err := <-sent; err != nil {
			t.Error(err)
		}
	}
}

// TestVerifyWritesNothing: whatever state a directory is in, looking at it
// changes nothing, and a server starts on it afterwards.
func TestVerifyWritesNothing(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{config: config{"store.maxLogSize": 400}})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	for i := range 20 {
		c.ok(reqPub("t", message(fmt.Sprint("body-", i, strings.Repeat("x", 50)))))
	}
	file := topicFile(t, s, "t", 1)
	s.kill()
	damage(t, filepath.Join(s.dataDir(), "binlog", fmt.Sprint(len(logFiles(t, s, "binlog"))-1, ".log")), cut(3))
	look := func(want int) {
		t.Helper()
		before := fileStates(t, s.dir)
		for _, args := range [][]string{{"verify"}, {"verify", "-json"}, {"verify", "-topic", "t"}, {"dump", "-topic", "t"}, {"dump", "-topic", "t", "-json"}} {
			status, out := s.tool(args...)
			if status != want {
				t.Errorf("%v ends with %d, want %d:\n%s", args, status, want, tail(out, 5))
			}
			if args[0] == "dump" && !strings.Contains(out, "body-19") {
				t.Errorf("%v does not reach the end", args)
			}
		}
		if status, out := s.tool("dump"); status != 0 || !strings.Contains(out, "body-18") {
			t.Errorf("dump of the binlog ends with %d: %s", status, lastLine(out))
		}
		if after := fileStates(t, s.dir); !maps.Equal(before, after) {
			t.Errorf("the directory has changed: %v",
				slices.DeleteFunc(slices.Sorted(maps.Keys(after)), func(name string) bool { return after[name] == before[name] }))
		}
	}
	look(0) // a torn tail is what a power cut leaves, no damage
	damage(t, file, flipIn(t, "xxxxx"))
	wantDamage(t, s, "topic t", "1.log")
	look(1)
	if err := os.Chmod(file, 0o400); err != nil {
		t.Fatal(err)
	}
	s.restart()
	c = dial(t, s)
	c.ok(reqCreate("u", 0))
	wantBodies(t, drain(t, s, "u"))
}
