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

// These are the cases about a disk that is full and has space again.

// smallDisk is a file system that a few messages fill.
const smallDisk = 600 << 10

// fullDisk prepares a server some of whose sub-directories are small file
// systems. The floor for free space is off: it would refuse before they fill.
func fullDisk(t *testing.T, c config, small ...string) (o options, dirs []string) {
	t.Helper()
	o = options{dir: t.TempDir(), config: config{"store.minFreeBytes": 0}}
	for k, v := range c {
		o.config[k] = v
	}
	for _, sub := range small {
		dir := filepath.Join(o.dir, "data", sub)
		mountSmall(t, dir, smallDisk)
		dirs = append(dirs, dir)
	}
	return o, dirs
}

// fillAll fills each of the directories; see fill.
func fillAll(t *testing.T, dirs []string, leave int64) (free func()) {
	t.Helper()
	var all []func()
	for _, dir := range dirs {
		all = append(all, fill(t, dir, leave))
	}
	return func() {
		t.Helper()
		for _, f := range all {
			f()
		}
	}
}

var smallDisks = map[string][]string{"topic": {"topic"}, "binlog": {"binlog"}, "both": {"topic", "binlog"}}

// TestCase36TornByFullDisk: what a full disk cut short leaves nothing behind,
// at once and after a restart, and what is published afterwards is delivered.
func TestCase36TornByFullDisk(t *testing.T) {
	t.Parallel()
	for name, small := range smallDisks {
		for _, leave := range []int64{0, 8192} {
			for _, level := range []int{1, 2} {
				if !long && (leave == 0) != (level == 1) {
					continue
				}
				t.Run(fmt.Sprintf("%s/leave=%d/flushLevel=%d", name, leave, level), func(t *testing.T) {
					t.Parallel()
					o, dirs := fullDisk(t, config{"store.flushLevel": level}, small...)
					tornByFullDisk(t, startServer(t, o), dirs, leave)
				})
			}
		}
	}
}

func tornByFullDisk(t *testing.T, s *server, dirs []string, leave int64) {
	t.Helper()
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	watcher := dial(t, s)
	watcher.sub(sub{topic: "t", who: "watcher", batch: 1, ack: time.Minute})
	c.ok(reqPub("t", message("small")))
	watcher.one("small")
	watcher.send(ackNext)
	free := fillAll(t, dirs, leave)
	big := strings.Repeat("torn", 5000)
	// More than one: the second must not find what the first has left.
	for range 3 {
		c.refused(reqPub("t", message(big)), "")
		c.refused(reqPub("t", batch("in a batch", big)), "")
	}
	c.refused(reqDelay("nowhere", 1000, message("x")), textNoTopic)
	free()
	for _, body := range []string{"after1", "after2"} {
		c.ok(reqPub("t", message(body)))
		watcher.one(body)
		watcher.send(ackNext)
	}
	want := []string{"small", "after1", "after2"}
	wantBodies(t, drain(t, s, "t"), want...)
	s.nowhere("torntorn")
	s.nowhere("in a batch")
	for _, end := range []func(){s.kill, s.stop} {
		end()
		s.verified()
		s.restart()
		wantBodies(t, drain(t, s, "t"), want...)
	}
	s.nowhere("torntorn")
}

// TestCase37WritableAgain: after a time of refusals the first publish with
// space again succeeds, without a restart. While the disk is full, deleting
// works, and what is stored is read.
func TestCase37WritableAgain(t *testing.T) {
	t.Parallel()
	for name, small := range smallDisks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, dirs := fullDisk(t, nil, small...)
			s := startServer(t, o)
			c := dial(t, s)
			c.ok(reqCreate("t", 0))
			c.ok(reqPub("t", message("first")))
			for i := range 20 {
				doomed := fmt.Sprint("doomed", i)
				c.ok(reqCreate(doomed, 0))
				c.ok(reqPub(doomed, message("m")))
			}
			watcher := dial(t, s)
			watcher.sub(sub{topic: "doomed0", who: "w", batch: 1, ack: time.Minute})
			watcher.one("m")
			watcher.send(ackNext)

			free := fillAll(t, dirs, 0)
			acked := 1 + untilFull(t, c)
			body := strings.Repeat("y", 5000)
			log := len(s.log.String())
			deadline := time.Now().Add(time.Duration(scale(2, 60)) * time.Second)
			for time.Now().Before(deadline) {
				if text := c.refused(reqPub("t", message(body)), ""); !strings.Contains(text, "full") {
					t.Fatalf("refused with %q, which does not say that the disk is full", text)
				}
			}
			if n := len(s.log.String()) - log; n > 20<<10 {
				t.Errorf("%d bytes of log in that time", n)
			}
			c.alive()
			if got := read(t, s, "t", 0, acked); got[0].body != "first" {
				t.Errorf("reading while the disk is full gives %s", bodies(got))
			}
			for i := range 20 {
				c.ok(reqDelete(fmt.Sprint("doomed", i)))
			}
			watcher.end()
			free()
			start := time.Now()
			await(t, 3*time.Second, "a publish succeeds", func() bool {
				r, err := c.do(reqPub("t", message("again")))
				return err == nil && r.code == codeDone
			})
			t.Logf("writable again after %v", time.Since(start))
			s.kill()
			s.restart()
			got := drain(t, s, "t")
			if len(got) != acked+1 || got[acked].body != "again" {
				t.Errorf("%d messages, want %d and then the one after", len(got), acked)
			}
			for name := range dial(t, s).list() {
				if name != "t" {
					t.Errorf("topic %s is there again after the restart", name)
				}
			}
			s.stop()
			s.verified()
		})
	}
}

// quiet expects the server to use no more than so much processor time and log
// while something goes on: what it does in that time is the subject.
func (s *server) quiet(cpu time.Duration, log int, meanwhile func()) {
	s.t.Helper()
	began, used, logged := time.Now(), s.cpuTime(), len(s.log.String())
	meanwhile()
	took := time.Since(began).Round(time.Millisecond)
	if used = s.cpuTime() - used; used > slack(cpu) {
		s.t.Errorf("%v of processor time in %v", used, took)
	}
	if text := s.log.String()[logged:]; len(text) > log {
		s.t.Errorf("%d bytes of log in %v:\n%s", len(text), took, text)
	}
}

// untilFull publishes small messages to t until not one more byte fits, and
// returns how many were taken.
func untilFull(t *testing.T, c *client) (taken int) {
	t.Helper()
	for _, size := range []int{1000, 100, 1} {
		for range 1000 {
			r, err := c.do(reqPub("t", message(strings.Repeat("x", size))))
			if err != nil {
				t.Fatal(err)
			}
			if r.code != codeDone {
				break
			}
			taken++
		}
	}
	return taken
}

// TestCase37RetentionWhenFull: retention frees a full disk by itself.
func TestCase37RetentionWhenFull(t *testing.T) {
	t.Parallel()
	o, _ := fixture(t, "smss-data")
	age(t, o.dir, 30*24*time.Hour)
	o.config["store.maxDays"] = 7
	o.config["store.clearInterval"] = 2
	o.config["store.minFreeBytes"] = 0
	var dirs []string
	for _, sub := range []string{"topic", "binlog"} {
		dir := filepath.Join(o.dir, "data", sub)
		kept := copyData(t, dir)
		mountSmall(t, dir, smallDisk)
		if err := os.CopyFS(dir, os.DirFS(kept)); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, dir)
	}
	s := startServer(t, o)
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	fillAll(t, dirs, 0)
	untilFull(t, c)
	await(t, slack(15*time.Second), "the old files are gone", func() bool {
		for _, p := range logFiles(t, s) {
			if n := filepath.Base(p); !strings.Contains(p, "/t/") && (n == "0.log" || n == "1.log") {
				return false
			}
		}
		return true
	})
	await(t, 3*time.Second, "a publish succeeds", func() bool {
		r, err := c.do(reqPub("t", message("again")))
		return err == nil && r.code == codeDone
	})
}

// TestCase39DelayWhenFull: a delayed message that cannot be stored waits with
// pauses, keeps nothing else from firing, and comes once when there is space.
func TestCase39DelayWhenFull(t *testing.T) {
	t.Parallel()
	for name, small := range smallDisks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, dirs := fullDisk(t, nil, small...)
			s := startServer(t, o)
			c := dial(t, s)
			large := strings.Repeat("large", 1800)
			for _, topic := range []string{"t", "u"} {
				c.ok(reqCreate(topic, 0))
				c.ok(reqPub(topic, message("first")))
			}
			c.ok(reqDelay("t", 1500, message(large)))
			// What is left of its file's last page is enough for this one.
			c.ok(reqDelay("u", 1600, message("other")))
			watcher := dial(t, s)
			watcher.sub(sub{topic: "u", who: "w", batch: 1, ack: time.Minute})
			watcher.one("first")
			watcher.send(ackNext)
			free := fillAll(t, dirs, 0)
			watcher.one("other")
			s.quiet(300*time.Millisecond, 4<<10, func() { time.Sleep(3 * time.Second) })
			free()
			start := time.Now()
			wantBodies(t, read(t, s, "t", 0, 2), "first", large)
			t.Logf("delivered %v after there was space", time.Since(start))
			for _, end := range []func(){s.kill, s.stop} {
				end()
				s.verified()
				s.restart()
				wantBodies(t, drain(t, s, "t"), "first", large)
				wantBodies(t, drain(t, s, "u"), "first", "other")
			}
		})
	}
}

// TestCase39ExpiryWhenFull: the end of a topic's life does not depend on free
// space.
func TestCase39ExpiryWhenFull(t *testing.T) {
	t.Parallel()
	o, dirs := fullDisk(t, nil, "topic", "binlog")
	s := startServer(t, o)
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	end := time.Now().Add(10500 * time.Millisecond)
	const n = 5 // more than may happen to fit where a message does not
	for i := range n {
		c.ok(reqCreate(fmt.Sprint("brief", i), end.UnixMilli()))
	}
	fillAll(t, dirs, 0)
	untilFull(t, c)
	s.quiet(time.Second, 8<<10, func() {
		await(t, slack(time.Until(end)+5*time.Second), "the topics are gone", func() bool { return len(c.list()) == 1 })
	})
}

// TestDiskFloor: below the floor for free space publishes are refused before
// the disk is full, deleting works, and service comes back by itself.
func TestDiskFloor(t *testing.T) {
	t.Parallel()
	o := options{dir: t.TempDir(), config: config{"store.minFreeBytes": "24MiB"}}
	dir := filepath.Join(o.dir, "data")
	mountSmall(t, dir, 48<<20)
	s := startServer(t, o)
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	c.ok(reqCreate("u", 0))
	c.ok(reqPub("t", message("first")))
	c.ok(reqDelay("t", 1500, message("delayed")))
	free := fill(t, dir, 8<<20)
	var text string
	await(t, 3*time.Second, "publishes are refused", func() bool {
		r, err := c.do(reqPub("t", message("m")))
		text = r.text
		return err == nil && r.code == codeError
	})
	if !strings.Contains(text, "minFreeBytes") {
		t.Errorf("refused with %q, which does not name the setting", text)
	}
	taken := len(read(t, s, "t", 0, 1))
	c.refused(reqDelay("t", 1000, message("m")), "")
	c.refused(reqCreate("v", 0), "")
	c.ok(reqDelete("u"))
	c.alive()
	// The delayed message falls due meanwhile.
	s.quiet(200*time.Millisecond, 4<<10, func() { time.Sleep(2 * time.Second) })
	free()
	await(t, 3*time.Second, "a publish succeeds", func() bool {
		r, err := c.do(reqPub("t", message("again")))
		return err == nil && r.code == codeDone
	})
	_, err := readUntil(s.addr(), "t", 0, 255, func(all []pushed) bool {
		return slices.ContainsFunc(all, func(m pushed) bool { return m.body == "delayed" })
	})
	if err != nil || taken == 0 {
		t.Error(err)
	}
}
