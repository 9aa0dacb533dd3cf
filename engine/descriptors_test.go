package engine

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestNoDescriptorForADirectory: a shortage of descriptors is met before
// anything is written and refuses the request; it never counts as a failed
// sync, at any level.
func TestNoDescriptorForADirectory(t *testing.T) {
	for lvl := range 3 {
		r := newRig(t, func(r *rig) { rolling(r); r.cfg.FlushLevel = lvl })
		r.create("t", "gone")
		r.ok(r.pushPublish("t", "1"), r.pushPublish("gone", "1"))
		short := func(what string, c *Command) {
			t.Helper()
			r.disk.fail = failing(root, "opendir", unix.EMFILE)
			r.done(c)
			r.time.pass(2 * time.Second)
			for range 4 { // syncs and checkpoints are due, too
				r.turn()
				r.checkpoint()
			}
			r.disk.fail = nil
			if c.Err == nil || r.e.broken.Load() {
				t.Fatalf("level %d, %s: answer %v, stopped %v", lvl, what, c.Err, r.broken)
			}
		}
		short("publish into a new file", r.pushPublish("t", "2"))
		short("deletion", r.pushDelete("gone"))
		short("creation", r.pushCreate("new", 0))
		r.ok(r.pushPublish("t", "3"))
		r.want("t", "1", "3")
		r.want("gone", "1")
		r.ok(r.pushDelete("gone"))
		r.time.pass(2 * time.Second)
		for range 4 {
			r.turn()
			r.checkpoint()
		}
		r.open()
		r.want("t", "1", "3")
	}
}

// TestMetadataSyncFails: the reason for which writing stops names the metadata.
func TestMetadataSyncFails(t *testing.T) {
	r := newRig(t, level(1))
	r.create("t")
	r.meta.fail = func(op string) error {
		if op == "sync" {
			return unix.EIO
		}
		return nil
	}
	r.time.pass(2 * time.Second)
	for range 4 {
		r.turn()
		r.checkpoint()
		r.time.pass(2 * time.Second)
	}
	if len(r.broken) != 1 || !strings.Contains(r.broken[0].Error(), "sync of the metadata in "+root+"/meta") {
		t.Errorf("stopped by %v", r.broken)
	}
}

// TestOneSyncForADeletion: what takes something away is synced before the rest
// is written, and not once more for the reply.
func TestOneSyncForADeletion(t *testing.T) {
	for lvl := range 3 {
		r := newRig(t, level(lvl))
		r.create("t", "u")
		r.ok(r.pushPublish("t", "1"))
		if lvl == 1 {
			r.time.pass(2 * time.Second)
			r.turn()
		}
		syncs := 0
		r.disk.fail = func(op, name string) error {
			if op == "sync" && strings.HasPrefix(name, root+"/binlog") {
				syncs++
			}
			return nil
		}
		r.ok(r.pushDelete("t"))
		if syncs != 1 {
			t.Errorf("level %d: %d syncs of the binlog for a deletion", lvl, syncs)
		}
		r.delays("u", 1000)
		r.time.pass(time.Minute)
		for range 3 {
			r.turn()
		}
		syncs = 0
		r.fireAll()
		if syncs != 1 {
			t.Errorf("level %d: %d syncs of the binlog for a delayed message", lvl, syncs)
		}
		r.want("u", "1000+0")
	}
}
