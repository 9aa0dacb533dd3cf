package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestPowerCutAfterRetention: what was stored before a retention run survives a
// power cut behind it, at every level, and so does what the metadata knows.
func TestPowerCutAfterRetention(t *testing.T) {
	for lvl := range 3 {
		for seed := range uint64(20) {
			r := newRig(t, func(r *rig) {
				r.opt.MaxLogSize = 300
				r.cfg.RetentionMs = (7 * day).Milliseconds()
				r.cfg.FlushLevel = lvl
			})
			keep := r.store.NewRetention()
			r.create("t", "old")
			life := r.ok(r.pushCreate("mortal", (60 * day).Milliseconds()))
			for i := range 10 {
				r.ok(r.pushPublish("old", fmt.Sprint("o", i)))
			}
			// A checkpoint of the running process comes first.
			r.time.pass(8 * day)
			for range 4 {
				r.turn()
				r.checkpoint()
			}
			var bodies []string
			for i := range 10 {
				bodies = append(bodies, fmt.Sprint("m", i))
				r.ok(r.pushPublish("t", bodies[i]))
			}
			r.delays("t", (100 * day).Milliseconds())
			before := r.files(root + "/binlog")
			r.settle()
			r.e.retain(keep)
			if n := r.files(root + "/binlog"); n == before {
				t.Fatalf("level %d: retention has removed nothing of the %d files", lvl, n)
			}
			r.ok(r.pushPublish("t", "later"))
			r.cutPower(rand.New(rand.NewPCG(seed, uint64(lvl))))
			r.open()
			var have []string
			for _, m := range r.read("t") {
				have = append(have, m.body)
			}
			if have = slices.DeleteFunc(have, func(b string) bool { return b == "later" }); !slices.Equal(have, bodies) {
				t.Fatalf("level %d, seed %d: t holds %q, want %q", lvl, seed, have, bodies)
			}
			if m := r.e.Lookup([]byte("mortal")); m == nil || m.Meta.ExpireAtMs != life.ExpireAtMs || r.meta.pending() != 1 {
				t.Fatalf("level %d, seed %d: topic %+v, %d delayed messages", lvl, seed, m, r.meta.pending())
			}
			if slices.ContainsFunc(r.notes, func(n string) bool { return strings.Contains(n, "lost") }) {
				t.Fatalf("level %d, seed %d: %q", lvl, seed, r.notes)
			}
		}
	}
}

// TestSettle: the checkpoint covers all that was committed when it was asked
// for, and is not that of a sync or checkpoint that ran already.
func TestSettle(t *testing.T) {
	for lvl := range 3 {
		for _, busy := range []bool{false, true} {
			r := newRig(t, level(lvl))
			r.create("t")
			r.ok(r.pushPublish("t", "1"))
			w := &r.e.writer
			if busy {
				r.time.pass(time.Minute)
				if w.Step(); lvl > 0 {
					r.turn()
				}
				if !w.checkpoint.busy {
					t.Fatalf("level %d: no checkpoint is under way", lvl)
				}
			}
			if r.ok(r.pushPublish("t", "2")); lvl == 1 && busy {
				r.time.pass(time.Minute)
				if w.Step(); !w.sync.busy {
					t.Fatal("no sync is under way")
				}
				r.ok(r.pushPublish("t", "3"))
			}
			end := r.store.BinlogEnd()
			r.settle()
			c, _, err := r.meta.Checkpoint()
			if err != nil || c.Durable != end || c.Applied != end {
				t.Errorf("level %d, busy %v: the checkpoint is %+v, %v; want %v", lvl, busy, c, err, end)
			}
			if w.settling != settleNone {
				t.Errorf("level %d, busy %v: left in state %d", lvl, busy, w.settling)
			}
			// At level 0 that was all: nothing more is synced.
			if lvl == 0 {
				r.time.pass(time.Minute)
				r.disk.fail = failing(root, "sync syncdir", unix.EIO)
				r.ok(r.pushPublish("t", "4"))
				r.turn()
				r.checkpoint()
				if r.e.broken.Load() {
					t.Error("level 0 syncs")
				}
			}
		}
	}
}

// TestSettleFails: retention goes on, and keeps what no checkpoint covers. A
// failed sync stops writing as anywhere.
func TestSettleFails(t *testing.T) {
	for lvl := range 3 {
		r := newRig(t, func(r *rig) { rolling(r); r.cfg.FlushLevel = lvl })
		r.create("t")
		r.ok(r.pushPublish("t", "1"), r.pushPublish("t", "2"))
		r.meta.fail = func(op string) error {
			if op == "commit" {
				return unix.ENOSPC
			}
			return nil
		}
		files := r.files(root + "/binlog")
		r.settle()
		r.time.pass(30 * day)
		r.e.retain(r.store.NewRetention())
		if n := r.files(root + "/binlog"); n != files || r.files(r.topicDir("t")) != 1 {
			t.Errorf("level %d: %d files of the binlog, want %d; %d of the topic", lvl, n, files, r.files(r.topicDir("t")))
		}
		if !slices.ContainsFunc(r.notes, func(n string) bool { return strings.HasPrefix(n, "no checkpoint before retention") }) {
			t.Errorf("level %d: nobody was told: %q", lvl, r.notes)
		}
		r.meta.fail = nil
		r.settle()
		if r.e.retain(r.store.NewRetention()); r.files(root+"/binlog") != 1 {
			t.Errorf("level %d: %d files of the binlog after it works again", lvl, r.files(root+"/binlog"))
		}
		r.disk.fail = failing(root+"/binlog", "sync", unix.EIO)
		r.pushPublish("t", "3")
		r.settle()
		if !r.e.broken.Load() {
			t.Errorf("level %d: writing goes on behind a failed sync", lvl)
		}
		r.settle() // does not wait for what never comes
	}
}
