package engine

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const day = 24 * time.Hour

// rolling gives every file room for one record.
func rolling(r *rig) {
	r.opt.MaxLogSize = 1
	r.cfg.RetentionMs = (7 * day).Milliseconds()
}

func (r *rig) files(name string) int {
	r.t.Helper()
	names, err := r.disk.ReadDir(name)
	if err != nil {
		r.t.Fatal(err)
	}
	n := 0
	for _, name := range names {
		if strings.HasSuffix(name, ".log") {
			n++
		}
	}
	return n
}

// TestRetention decides by record times on the engine's clock. The newest file
// stays, and of the binlog nothing goes that recovery needs.
func TestRetention(t *testing.T) {
	r := newRig(t, rolling)
	keep := r.store.NewRetention()
	r.create("t", "idle")
	for i := range 5 {
		r.ok(r.pushPublish("t", fmt.Sprint(i)))
		r.time.pass(day)
	}
	r.ok(r.pushPublish("idle", "only"))
	count := func(topic, binlog int) {
		t.Helper()
		if n := r.files(r.topicDir("t")); n != topic {
			t.Errorf("%d files of the topic, want %d", n, topic)
		}
		if n := r.files(root + "/binlog"); n != binlog {
			t.Errorf("%d files of the binlog, want %d", n, binlog)
		}
	}
	r.e.retain(keep)
	count(5, 8)
	r.time.pass(2*day - time.Millisecond) // the first one is a millisecond short of 7 days old
	r.e.retain(keep)
	count(5, 8)
	r.time.pass(time.Millisecond)
	r.e.retain(keep)
	count(4, 8) // no checkpoint covers the binlog yet
	r.turn()
	for r.checkpoint() {
	}
	r.e.retain(keep)
	count(4, 8) // it was not synced
	r.settle()
	r.e.retain(keep)
	count(4, 5)
	r.want("t", "1", "2", "3", "4")
	r.time.pass(30 * day)
	r.e.retain(keep)
	count(1, 1)
	r.want("t", "4") // the newest file stays whatever its age
	r.want("idle", "only")
	r.time.nowMs.Add(-(60 * day).Milliseconds()) // a clock that steps back removes nothing
	r.ok(r.pushPublish("t", "5"))
	r.e.retain(keep)
	r.want("t", "4", "5")
	if !r.noted("retention removed " + r.topicDir("t") + "/0.log") {
		t.Error("nobody was told")
	}
}

// TestRetentionOfAnotherLife: what the janitor remembers of a file is not taken
// for another life's file of the same name.
func TestRetentionOfAnotherLife(t *testing.T) {
	r := newRig(t, rolling)
	keep := r.store.NewRetention()
	r.create("t")
	r.ok(r.pushPublish("t", "old 0"))
	r.ok(r.pushPublish("t", "old 1"))
	r.e.retain(keep) // has looked at 0.log, and leaves it
	r.time.pass(6 * day)
	r.ok(r.pushDelete("t"))
	r.create("t")
	r.ok(r.pushPublish("t", "new 0"))
	r.ok(r.pushPublish("t", "new 1"))
	r.time.pass(2 * day)
	r.e.retain(keep)
	r.want("t", "new 0", "new 1")
}

// TestRetentionLeavesATopicOnItsWayOut alone: its files are another's to move.
func TestRetentionLeavesATopicOnItsWayOut(t *testing.T) {
	r := newRig(t, func(r *rig) { rolling(r); r.cfg.FlushLevel = 2 })
	r.create("t")
	r.ok(r.pushPublish("t", "0"))
	r.ok(r.pushPublish("t", "1"))
	c := r.pushDelete("t")
	r.e.writer.Step()
	r.time.pass(30 * day)
	r.disk.fail = func(op, name string) error {
		if op == "readdir" && name == r.topicDir("t") {
			t.Error("looked at")
		}
		return nil
	}
	r.e.retain(r.store.NewRetention())
	r.disk.fail = nil
	r.done(c)
}

func TestRetentionFailure(t *testing.T) {
	r := newRig(t, rolling)
	r.create("bad", "good")
	for i := range 3 {
		r.ok(r.pushPublish("bad", fmt.Sprint(i)), r.pushPublish("good", fmt.Sprint(i)))
	}
	r.time.pass(30 * day)
	r.disk.fail = failing(r.topicDir("bad"), "remove", unix.EACCES)
	keep := r.store.NewRetention()
	r.e.retain(keep)
	if b, g := r.files(r.topicDir("bad")), r.files(r.topicDir("good")); b != 3 || g != 1 {
		t.Errorf("%d files and %d files, want 3 and 1", b, g)
	}
	r.disk.fail = nil
	r.e.retain(keep)
	if b := r.files(r.topicDir("bad")); b != 1 {
		t.Errorf("%d files after it works again", b)
	}
}

// TestDiskGuard: below the floor nothing is stored, above it by a tenth it is
// again; in between it stays as it was. Deleting works throughout.
func TestDiskGuard(t *testing.T) {
	r := newRig(t, func(r *rig) { r.cfg.MinFreeBytes = 1000 })
	r.create("t", "u")
	for _, s := range []struct {
		free int64
		low  bool
	}{{1001, false}, {1000, false}, {999, true}, {1000, true}, {1099, true}, {1100, false}, {1050, false}, {0, true}} {
		r.disk.setFree(s.free)
		r.e.checkDisk()
		if low := r.e.Stats().LowDisk; low != s.low || (r.e.Healthy() != nil) != s.low {
			t.Errorf("%d bytes free: low %v, want %v", s.free, low, s.low)
		}
	}
	r.wantErr(r.pushPublish("t", "x"), errDiskLow.Text)
	r.ok(r.pushDelete("u"))
	r.ok(r.pushAttach("t", "w", 0))
	if err := r.e.emptyTrash(); err != nil {
		t.Error(err)
	}
	// What cannot be asked stays as it was.
	r.disk.fail = func(op, _ string) error {
		if op == "free" {
			return errors.New("no answer")
		}
		return nil
	}
	r.e.checkDisk()
	if !r.e.Stats().LowDisk || !strings.Contains(strings.Join(r.notes, "\n"), "no answer") {
		t.Error("an error counts as free space, or nobody was told")
	}
	r.disk.fail = nil
	r.disk.setFree(1 << 30)
	r.e.checkDisk()
	r.ok(r.pushPublish("t", "x"))
}

// TestDiskGuardOfEveryMount: binlog, topics and metadata can lie on file systems
// of their own, and the fullest of them counts, also where another one cannot be
// asked.
func TestDiskGuardOfEveryMount(t *testing.T) {
	for _, dir := range []string{root, root + "/binlog", root + "/topic", root + "/meta"} {
		r := newRig(t, func(r *rig) { r.cfg.MinFreeBytes = 1000 })
		look := func(free int64, want bool) {
			t.Helper()
			r.disk.freeOf = map[string]int64{dir: free}
			if r.e.checkDisk(); r.e.Stats().LowDisk != want {
				t.Errorf("%d bytes free in %s: low is %v", free, dir, !want)
			}
		}
		look(5000, false)
		look(999, true)
		if !strings.Contains(strings.Join(r.notes, "\n"), "free space of "+dir+", 999 bytes") {
			t.Errorf("told is %q", r.notes)
		}
		look(5000, false)
		for _, other := range []string{root, root + "/binlog", root + "/topic", root + "/meta"} {
			if other == dir {
				continue
			}
			if other == root {
				continue // failing there is failing everywhere
			}
			r.disk.fail = failing(other, "free", unix.EIO)
			look(10, true)
			look(5000, true)
			r.disk.fail = nil
			look(5000, false)
		}
	}
}

// settle takes the checkpoint before retention.
func (r *rig) settle() { r.janitor(func() { r.e.settle(nil) }) }

// dropOrphans runs the janitor's walk.
func (r *rig) dropOrphans() { r.janitor(r.e.dropOrphans) }

// janitor runs what waits for the writer, and steps that.
func (r *rig) janitor(do func()) {
	done := make(chan struct{})
	go func() { do(); close(done) }()
	await(r.t, "what the janitor does ends", func() bool {
		select {
		case <-done:
			return true
		default:
			r.turn()
			r.checkpoint()
			return false
		}
	})
}

// TestDropOrphans: delayed messages of topics that are gone, or of a former
// life, are forgotten, and only those.
func TestDropOrphans(t *testing.T) {
	for _, lvl := range []int{0, 2} {
		r := newRig(t, level(lvl))
		r.create("gone", "again", "lives")
		var in []int64
		for i := range int64(1500) { // more than one command carries
			in = append(in, 1000+i%3) // many in one millisecond
		}
		r.delays("gone", in...)
		r.delays("again", in...)
		r.delays("lives", 1000, 1001, 1002)
		r.ok(r.pushDelete("gone"))
		r.ok(r.pushDelete("again"))
		r.create("again")
		r.delays("again", 1001)
		if !r.e.orphans.Load() {
			t.Error("the janitor is not told")
		}
		r.dropOrphans()
		if n := r.meta.pending(); n != 4 {
			t.Errorf("%d are left, want 4", n)
		}
		r.time.pass(2 * time.Second)
		r.fireAll()
		r.want("lives", "1000+0", "1001+1", "1002+2")
		r.want("again", "1001+0")
		if r.e.inflight.Load() != 0 {
			t.Error("bytes are left charged")
		}
	}
}

// TestDropOrphansOfAnUnpublishedTopic: at flush level 2 a topic and its delayed
// messages are stored before anybody can look the topic up.
func TestDropOrphansOfAnUnpublishedTopic(t *testing.T) {
	r := newRig(t, level(2))
	c := r.pushCreate("t", 0)
	r.e.writer.Step()
	d := r.pushDelay("t", 1000, "kept")
	r.e.writer.Step()
	if r.e.Lookup([]byte("t")) != nil || r.meta.pending() != 1 {
		t.Fatal("the test is not in the moment that it is about")
	}
	r.dropOrphans()
	r.time.pass(time.Second)
	r.drain(0)
	r.fireAll()
	if c.Err != nil || d.Err != nil {
		t.Fatal(c.Err, d.Err)
	}
	r.want("t", "kept")
}

// TestDropOrphansFails: the walk is done again later.
func TestDropOrphansFails(t *testing.T) {
	r := newRig(t, nil)
	r.create("t")
	r.delays("t", 1000)
	r.ok(r.pushDelete("t"))
	for _, op := range []string{"scan", "commit"} {
		r.e.orphans.Store(false)
		r.meta.fail = func(o string) error {
			if o == op {
				return unix.EIO
			}
			return nil
		}
		r.dropOrphans()
		if !r.e.orphans.Load() {
			t.Errorf("%s: not tried again", op)
		}
		r.meta.fail = nil
	}
	r.dropOrphans()
	if n := r.meta.pending(); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// TestTrash: files of deleted topics go, but not once writing has stopped: the
// deletion may then not be durable.
func TestTrash(t *testing.T) {
	r := newRig(t, nil)
	r.create("t", "u")
	r.ok(r.pushPublish("t", "x"), r.pushPublish("u", "x"))
	trash := func() int {
		names, err := r.disk.ReadDir(root + "/topic/.trash")
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	r.ok(r.pushDelete("t"))
	if n := trash(); n != 1 {
		t.Fatalf("%d directories in the trash", n)
	}
	if err := r.e.emptyTrash(); err != nil || trash() != 0 {
		t.Fatalf("%v, %d left", err, trash())
	}
	r.ok(r.pushDelete("u"))
	r.e.broken.Store(true)
	if err := r.e.emptyTrash(); err != nil || trash() != 1 {
		t.Fatalf("%v, %d left of a deletion that may not be durable", err, trash())
	}
}

// TestJanitorRuns: the goroutine does all of it by itself.
func TestJanitorRuns(t *testing.T) {
	r := newRig(t, func(r *rig) {
		rolling(r)
		r.cfg.RetentionEvery = time.Millisecond
		r.cfg.MinFreeBytes = 1000
	})
	r.create("t", "u")
	for i := range 3 {
		r.ok(r.pushPublish("t", fmt.Sprint(i)))
	}
	r.delays("u", 3_600_000_000)
	r.ok(r.pushDelete("u"))
	r.time.nowMs.Add((30 * day).Milliseconds())
	r.disk.setFree(10)
	r.e.scheduler.wait = func() { <-r.e.scheduler.wake }
	r.e.Start()
	await(t, "the disk guard", func() bool { return r.e.Stats().LowDisk })
	await(t, "retention", func() bool { return r.files(r.topicDir("t")) == 1 })
	await(t, "orphans", func() bool { return r.meta.pending() == 0 })
	r.disk.setFree(1 << 40)
	await(t, "the disk guard lets go", func() bool { return !r.e.Stats().LowDisk })
	r.stop()
}
