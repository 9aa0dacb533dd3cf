package engine

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smss/storage"
)

// TestLevelTwo: nothing is visible or answered before the sync that covers it,
// batches that are written meanwhile wait for the next one, and each sync
// answers everything that it covers, in order.
func TestLevelTwo(t *testing.T) {
	r := newRig(t, level(2))
	r.create("t")
	topic := r.e.Lookup([]byte("t"))
	s := newSub(topic, 0)
	if !s.Park() {
		t.Fatal("there is nothing to read yet")
	}
	w := &r.e.writer
	one := r.pushPublish("t", "1")
	w.Step()
	if !w.sync.busy {
		t.Fatal("no sync is under way")
	}
	// Written while the sync runs: two batches, the second with nothing to
	// store, and a refusal whose turn it is not yet.
	two := r.pushPublish("t", "2")
	w.Step()
	none := r.pushPublish("none", "3")
	w.Step()
	invisible := func(what string) {
		t.Helper()
		if got := r.drain(0); len(got) != 0 {
			t.Fatalf("%s: %v is answered", what, got)
		}
		if end := topic.End(); end != (storage.Pos{}) {
			t.Fatalf("%s: the topic ends at %v", what, end)
		}
	}
	invisible("before the first sync")
	if len(w.syncing) != 1 || len(w.unsynced) != 2 {
		t.Fatalf("%d batches are being synced, %d wait", len(w.syncing), len(w.unsynced))
	}
	r.sync()
	if got := r.drain(0); !slices.Equal(got, []any{one, &topic.lanes[0]}) {
		t.Fatalf("after the first sync: %v", got)
	}
	r.want("t", "1")
	if !w.sync.busy || len(w.syncing) != 2 || len(w.unsynced) != 0 {
		t.Fatal("the next sync does not cover what was written meanwhile")
	}
	r.sync()
	if got := r.drain(0); !slices.Equal(got, []any{two, none}) {
		t.Fatalf("after the second sync: %v", got)
	}
	r.want("t", "1", "2")
	if r.turn(); w.sync.busy {
		t.Error("a sync without anything to sync")
	}
	// With nothing under way a batch that stores nothing is answered at once.
	none = r.pushPublish("none", "4")
	w.Step()
	if got := r.drain(0); !slices.Equal(got, []any{none}) {
		t.Errorf("a refusal waits: %v", got)
	}
}

// TestLevelTwoAttach: a name at a topic whose creation is not published yet is
// known when the topic is.
func TestLevelTwoAttach(t *testing.T) {
	r := newRig(t, level(2))
	c := r.pushCreate("t", 0)
	r.e.writer.Step()
	a := r.pushAttach("t", "w", 0)
	r.e.writer.Step()
	if got := r.drain(0); len(got) != 0 {
		t.Fatalf("answered before the sync: %v", got)
	}
	r.ok(c, a)
	if a.Sub.Topic != r.e.Lookup([]byte("t")) {
		t.Error("attached to another topic")
	}
}

// TestLevelTwoFailedSync: everything that waits is answered with an error and
// never published, and no sync is tried again.
func TestLevelTwoFailedSync(t *testing.T) {
	r := newRig(t, level(2))
	r.create("t", "gone")
	r.ok(r.pushPublish("t", "1"))
	topic, gone := r.e.Lookup([]byte("t")), r.e.Lookup([]byte("gone"))
	end := topic.End()
	w := &r.e.writer
	var cmds []*Command
	step := func(c *Command) { cmds = append(cmds, c); w.Step() }
	step(r.pushPublish("t", "2"))
	step(r.pushPublish("t", "3"))
	step(r.pushDelete("gone"))
	step(r.pushCreate("new", 0))
	step(r.pushPublish("none", "4"))
	syncs := 0
	r.disk.fail = func(op, name string) error {
		if op == "sync" {
			syncs++
			return unix.EIO
		}
		return nil
	}
	r.done(cmds...)
	r.disk.fail = func(op, _ string) error {
		if op == "sync" {
			syncs++
		}
		return nil
	}
	for i, c := range cmds[:4] {
		if c.Err != errBroken {
			t.Errorf("command %d: %v", i, c.Err)
		}
	}
	if cmds[4].Err != ErrTopicNotExist {
		t.Errorf("the refused one: %v", cmds[4].Err)
	}
	if topic.End() != end || r.e.Lookup([]byte("new")) != nil || r.e.Lookup([]byte("gone")) != gone || gone.Ended() {
		t.Error("something of what was not synced is visible")
	}
	if gone.leaving.Load() {
		t.Error("readers wait for a deletion that never comes")
	}
	r.wantErr(r.pushPublish("t", "5"), errBroken.Text)
	r.time.pass(time.Minute)
	for range 3 {
		r.turn()
		r.checkpoint()
	}
	if syncs != 1 {
		t.Errorf("%d syncs were tried", syncs)
	}
	if n := r.e.inflight.Load(); n != 0 {
		t.Errorf("%d bytes are charged and not given back", n)
	}
	if p := w.pause(); p < time.Minute {
		t.Errorf("a writer with nothing to do wakes after %v", p)
	}
}

// TestAttachWhenBroken: reading goes on when writing has stopped. The topics are
// those that are published: what was only written is taken back, be it created
// or deleted, with the names at it.
func TestAttachWhenBroken(t *testing.T) {
	for _, how := range []string{"sync", "undo"} {
		r := newRig(t, level(2))
		r.create("t", "gone", "bad")
		gone := r.e.Lookup([]byte("gone"))
		w := &r.e.writer
		var cmds []*Command
		step := func(c *Command) *Command { cmds = append(cmds, c); w.Step(); return c }
		step(r.pushPublish("bad", "0")) // the sync of which the others wait behind
		del := step(r.pushDelete("gone"))
		cre := step(r.pushCreate("gone", 0))
		step(r.pushCreate("new", 0))
		atT, atNew, atLife := step(r.pushAttach("t", "w", 0)), step(r.pushAttach("new", "w", 0)), step(r.pushAttach("gone", "w", 0))
		if how == "sync" {
			r.disk.fail = failing(root+"/binlog", "sync", unix.EIO)
		} else {
			fatal(r)
			cmds = append(cmds, r.pushPublish("bad", "x"))
			atNew2 := r.pushAttach("new", "v", 0)
			step(atNew2)
			if atNew2.Err != errBroken {
				t.Errorf("%s: a name at a topic that is taken back: %v", how, atNew2.Err)
			}
		}
		if how == "sync" {
			r.done(cmds...)
		} else {
			r.drain(0)
		}
		r.disk.fail = nil
		if r.e.Healthy() == nil {
			t.Fatalf("%s: the fault was in another place", how)
		}
		for i, c := range []*Command{del, cre, atT, atNew, atLife} {
			if want := []error{errBroken, errBroken, nil, errBroken, errBroken}[i]; c.Err != want {
				t.Errorf("%s: answer %d is %v, want %v", how, i, c.Err, want)
			}
		}
		r.wantErr(r.pushAttach("t", "w", 0), "w regiester exist")
		r.wantErr(r.pushAttach("new", "w", 0), "topic not exist")
		if s := r.ok(r.pushAttach("gone", "w", 0)).Sub; s.Topic != gone || gone.leaving.Load() {
			t.Errorf("%s: attached to a life that is taken back, or readers wait for its end", how)
		}
		r.ok(r.pushAttach("t", "v", 0))
		for range 3 {
			r.turn()
		}
	}
}

// TestLevelTwoCharge: what waits for a sync is held in memory and counts
// against the budget, and its answer makes room.
func TestLevelTwoCharge(t *testing.T) {
	r := newRig(t, func(r *rig) {
		r.cfg.FlushLevel = 2
		r.cfg.MaxInflightBytes = 2000
	})
	r.create("t")
	a := r.pushPublish("t", "1234567890")
	for range 3 {
		r.pushPublish("t", "1234567890")
	}
	r.e.writer.Step() // written, not synced
	big := r.command(Publish, "t", payload(string(make([]byte, 1000))))
	if r.e.Push(big) {
		t.Fatal("what is written and not synced does not count")
	}
	r.e.AwaitRoom(1)
	if r.e.Push(big) {
		t.Fatal("pushed at the second try")
	}
	r.e.writer.Step()
	r.drain(1) // the note for the ring's room, which is not what was missing
	r.e.AwaitRoom(1)
	r.sync()
	if got := r.drain(1); !slices.Equal(got, []any{&r.e.room[1]}) {
		t.Fatalf("the answers made room and told %v", got)
	}
	if !r.e.Push(big) {
		t.Fatal("there is no room")
	}
	if a.Err != nil {
		t.Fatal(a.Err)
	}
	r.drain(0)
	r.ok(big)
}

// TestLevelOne: a sync follows about a second after the first write that it
// covers, whether the writer has anything else to do or not; its failure stops
// the writing.
func TestLevelOne(t *testing.T) {
	r := newRig(t, level(1))
	w := &r.e.writer
	w.Step()
	if p := w.pause(); p < time.Minute || w.sync.busy {
		t.Fatalf("nothing is dirty, and the writer wakes after %v, busy %v", p, w.sync.busy)
	}
	r.ok(r.pushCreate("t", 0)) // answered without a sync
	r.time.pass(600 * time.Millisecond)
	r.ok(r.pushPublish("t", "1"))
	if w.sync.busy {
		t.Fatal("synced too early")
	}
	// An idle writer sleeps for what remains, counted from the first write.
	if p := w.pause(); p != 400*time.Millisecond {
		t.Errorf("the idle writer wakes after %v", p)
	}
	r.time.pass(400 * time.Millisecond)
	w.Step()
	if !w.sync.busy {
		t.Fatal("no sync after a second")
	}
	// A write while it runs is the next one's.
	r.pushPublish("t", "2")
	w.Step()
	r.time.pass(100 * time.Millisecond)
	r.sync()
	if p := w.pause(); p != 900*time.Millisecond {
		t.Errorf("the next sync is due after %v", p)
	}
	r.time.pass(900 * time.Millisecond)
	r.disk.fail = failing(root+"/binlog", "sync", unix.EIO)
	w.Step()
	r.sync()
	r.disk.fail = nil
	r.drain(0)
	if r.e.Healthy() == nil {
		t.Fatal("a failed sync did not stop the writing")
	}
	r.wantErr(r.pushPublish("t", "3"), errBroken.Text)
	if p := w.pause(); p < time.Minute {
		t.Errorf("a writer with nothing to do wakes after %v", p)
	}
}

// TestLevelOneIdle runs the real writer: it syncs with nobody asking.
func TestLevelOneIdle(t *testing.T) {
	r := newRig(t, level(1))
	r.create("t") // its record is synced at once: see storage.Batch
	r.time.pass(time.Minute)
	for range 3 {
		r.turn()
		r.checkpoint()
	}
	var syncs = make(chan struct{}, 100)
	r.disk.fail = func(op, name string) error {
		if op == "sync" {
			syncs <- struct{}{}
		}
		return nil
	}
	r.e.mono = time.Now
	r.e.writer.lastCheck = time.Now()
	r.e.Start()
	defer r.stop()
	start := time.Now()
	r.pushPublish("t", "1")
	select {
	case <-syncs:
	case <-time.After(10 * time.Second):
		t.Fatal("no sync in ten seconds")
	}
	if d := time.Since(start); d < syncEvery {
		t.Errorf("synced after %v", d)
	}
}

// TestLevelZero: nothing is synced for the sake of a reply.
func TestLevelZero(t *testing.T) {
	r := newRig(t, nil)
	r.create("t") // its record is synced: see storage.Batch
	r.disk.fail = func(op, name string) error {
		if op == "sync" || op == "syncdir" {
			t.Errorf("%s %s", op, name)
		}
		return nil
	}
	r.ok(r.pushPublish("t", "1"))
	r.time.pass(time.Minute)
	for range 3 {
		r.turn()
		r.checkpoint()
	}
}

// TestCheckpointsMove: at most once a second, as far as the last sync, or at
// level 0 as far as was written; and not where nothing has moved.
func TestCheckpointsMove(t *testing.T) {
	for lvl := range 3 {
		r := newRig(t, level(lvl))
		applied := func() storage.Pos {
			c, _, err := r.meta.Checkpoint()
			if err != nil {
				t.Fatal(err)
			}
			return c.Applied
		}
		settle := func() {
			for range 4 {
				r.turn()
				r.checkpoint()
			}
		}
		r.create("t")
		settle()
		if at := applied(); at != (storage.Pos{}) {
			t.Errorf("level %d: a checkpoint at %v within the first second", lvl, at)
		}
		r.time.pass(time.Second)
		settle()
		first := r.store.BinlogEnd()
		if at := applied(); at != first {
			t.Errorf("level %d: the checkpoint is at %v, want %v", lvl, at, first)
		}
		r.ok(r.pushPublish("t", "1"))
		r.time.pass(time.Second)
		settle()
		if at := applied(); at != r.store.BinlogEnd() || at == first {
			t.Errorf("level %d: the checkpoint stays at %v, want %v", lvl, at, r.store.BinlogEnd())
		}
		if lvl > 0 && r.e.durable.Load() != r.store.BinlogEnd().File {
			t.Errorf("level %d: retention is not told", lvl)
		}
		r.time.pass(time.Hour)
		if r.turn(); r.e.writer.checkpoint.busy {
			t.Errorf("level %d: a checkpoint where nothing has moved", lvl)
		}
		if lvl < 2 {
			continue
		}
		// What is written and not synced is no place for a checkpoint.
		settle()
		r.ok(r.pushPublish("t", "2"))
		settle()
		r.time.pass(500 * time.Millisecond)
		r.ok(r.pushPublish("t", "3"))
		synced := r.e.writer.synced
		r.time.pass(500 * time.Millisecond)
		r.pushPublish("t", "4")
		r.e.writer.Step()
		for r.checkpoint() {
		}
		if at := applied(); at != synced || synced == r.store.BinlogEnd() {
			t.Errorf("level %d: the checkpoint is at %v, synced is %v of %v", lvl, at, synced, r.store.BinlogEnd())
		}
	}
}
