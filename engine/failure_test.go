package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestFailingTopic: what fails is one topic's; the other commands of the batch
// are done, in order, and the refused ones appear nowhere.
func TestFailingTopic(t *testing.T) {
	for _, ops := range []string{"write", "create", "write create"} {
		t.Run(ops, func(t *testing.T) {
			r := newRig(t, nil)
			r.create("bad", "good", "other")
			r.disk.fail = failing(r.topicDir("bad"), ops, unix.EIO)
			next := r.e.writer.nextID
			a, b := r.pushPublish("good", "1"), r.pushPublish("bad", "2")
			c, d := r.pushPublish("other", "3"), r.pushDelay("bad", 5000, "4")
			e, f := r.pushPublish("bad", "5", "6"), r.pushPublish("good", "7")
			r.done(a, b, c, d, e, f)
			for _, cmd := range []*Command{a, c, d, f} { // a delay is not in the topic's files
				if cmd.Err != nil {
					t.Errorf("%s: %v", cmd.Topic(), cmd.Err)
				}
			}
			for _, cmd := range []*Command{b, e} {
				if cmd.Err == nil || cmd.Err.Error() != errStorage.Text {
					t.Errorf("bad: %v", cmd.Err)
				}
			}
			ids := []int64{a.EventID, c.EventID, d.EventID, f.EventID}
			if !slices.IsSorted(ids) || a.EventID < next {
				t.Errorf("ids %v after %d", ids, next)
			}
			if len(r.faults) != 1 {
				t.Errorf("%d failures reported", len(r.faults))
			}
			r.disk.fail = nil
			g := r.ok(r.pushPublish("bad", "8"))
			if g.EventID <= f.EventID {
				t.Errorf("id %d after %d", g.EventID, f.EventID)
			}
			for range 2 { // as it is, and as it is found again
				r.want("good", "1", "7")
				r.want("other", "3")
				r.want("bad", "8")
				r.open()
			}
			if r.state.NextEventID <= g.EventID {
				t.Errorf("next id %d after %d", r.state.NextEventID, g.EventID)
			}
		})
	}
}

// TestFailingCreateAndDelete: the catalog is what it was, and a later try
// succeeds.
func TestFailingCreateAndDelete(t *testing.T) {
	for _, ops := range []string{"mkdir", "rename", "commit"} {
		t.Run(ops, func(t *testing.T) {
			r := newRig(t, nil)
			r.create("old", "good")
			old := r.e.Lookup([]byte("old"))
			s := r.ok(r.pushAttach("old", "w", 0)).Sub
			r.ok(r.pushPublish("old", "kept"))
			fault := func() {
				r.disk.fail = failing(root+"/topic", ops, unix.EACCES)
				r.meta.fail = func(op string) error {
					if op == ops {
						return unix.EACCES
					}
					return nil
				}
			}
			mend := func() { r.disk.fail, r.meta.fail = nil, nil }
			fault()
			a, b := r.pushPublish("good", "1"), r.pushDelete("old")
			r.done(a, b)
			mend()
			if b.Err == nil {
				t.Fatal("the deletion succeeded, the fault was in another place")
			}
			if r.e.Lookup([]byte("old")) != old || old.Ended() || old.leaving.Load() || r.e.writer.topics["old"] != old {
				t.Error("a failed deletion has changed the catalog")
			}
			if old.names["w"] != s {
				t.Error("a failed deletion has freed a name")
			}
			r.want("old", "kept")
			r.ok(r.pushPublish("old", "more"))
			if ops != "rename" { // there is nothing to rename
				fault()
				c := r.done(r.pushCreate("new", 0))
				mend()
				if c.Err == nil {
					t.Fatal("the creation succeeded, the fault was in another place")
				}
				if r.e.Lookup([]byte("new")) != nil || r.e.writer.topics["new"] != nil {
					t.Error("a failed creation is in the catalog")
				}
			}
			r.create("new")
			r.ok(r.pushDelete("old"))
			if ops != "commit" && a.Err != nil {
				t.Errorf("the other topic's publish: %v", a.Err)
			}
			r.open()
			if r.e.Lookup([]byte("old")) != nil || r.e.Lookup([]byte("new")) == nil {
				t.Error("the catalog is another one after a restart")
			}
		})
	}
}

// TestManyFailingTopics: every topic that fails costs a round over the whole
// batch, so there is a bound, beyond which all of it is refused.
func TestManyFailingTopics(t *testing.T) {
	r := newRig(t, nil)
	var cmds []*Command
	for i := range 40 {
		r.create(fmt.Sprintf("bad%d", i))
	}
	r.create("good")
	r.disk.fail = func(op, name string) error {
		if op == "write" && strings.Contains(name, "/bad") {
			return unix.EIO
		}
		return nil
	}
	for i := range 40 {
		cmds = append(cmds, r.pushPublish(fmt.Sprintf("bad%d", i), "x"))
	}
	cmds = append(cmds, r.pushPublish("good", "x"))
	before := r.e.Stats().FailedBatches
	r.done(cmds...)
	if n := r.e.Stats().FailedBatches - before; n != failuresMax {
		t.Errorf("%d rounds, want %d", n, failuresMax)
	}
	for _, c := range cmds {
		if c.Err == nil {
			t.Errorf("%s: no error", c.Topic())
		}
	}
	r.disk.fail = nil
	r.ok(r.pushPublish("good", "y"))
	r.want("good", "y")
}

// fatal makes the next batch impossible to undo.
func fatal(r *rig) {
	r.disk.fail = func(op, name string) error {
		if op == "truncate" || (op == "write" && strings.HasPrefix(name, r.topicDir("bad"))) {
			return unix.EIO
		}
		return nil
	}
}

// TestFatalError: a batch that cannot be rolled back stops the writing. What
// comes after it is refused and answered; what is published stays readable.
func TestFatalError(t *testing.T) {
	for lvl := range 3 {
		t.Run(fmt.Sprintf("level%d", lvl), func(t *testing.T) {
			r := newRig(t, level(lvl))
			r.create("bad", "good")
			r.ok(r.pushPublish("good", "1"))
			fatal(r)
			a, b, c := r.pushPublish("good", "2"), r.pushPublish("bad", "3"), r.pushPublish("none", "4")
			r.done(a, b, c)
			if a.Err != errBroken || b.Err != errBroken || c.Err != ErrTopicNotExist {
				t.Errorf("answers %v, %v, %v", a.Err, b.Err, c.Err)
			}
			if r.e.Healthy() == nil || len(r.broken) != 1 {
				t.Errorf("healthy %v, told %v", r.e.Healthy(), r.broken)
			}
			r.disk.fail = nil
			r.wantErr(r.pushPublish("good", "5"), errBroken.Text)
			r.wantErr(r.pushDelete("good"), errBroken.Text)
			r.wantErr(r.pushCreate("x", 0), errBroken.Text)
			r.wantErr(r.pushDelay("good", 1000, "y"), errBroken.Text)
			r.want("good", "1")
			if n := r.e.inflight.Load(); n != 0 {
				t.Errorf("%d bytes are charged and not given back", n)
			}
			if p := r.e.writer.pause(); p < time.Minute {
				t.Errorf("a writer with nothing to do wakes after %v", p)
			}
		})
	}
}

// TestFatalErrorBehindUnsynced: batches that wait for a sync when writing stops
// are answered and not published, also where that sync succeeds after all: it
// may have missed a failure that another one was told of.
func TestFatalErrorBehindUnsynced(t *testing.T) {
	r := newRig(t, level(2))
	r.create("bad", "good")
	w := &r.e.writer
	a := r.pushPublish("good", "1")
	w.Step() // its sync is under way
	b := r.pushPublish("good", "2")
	w.Step() // waits for the next sync
	fatal(r)
	c := r.pushPublish("bad", "3")
	w.Step()
	r.disk.fail = nil
	if r.e.Healthy() == nil {
		t.Fatal("the fault was in another place")
	}
	if got := r.drain(0); !slices.Equal(got, []any{a, b, c}) {
		t.Fatalf("answered %v", got)
	}
	if a.Err != errBroken || b.Err != errBroken || c.Err != errBroken {
		t.Errorf("answers %v, %v, %v", a.Err, b.Err, c.Err)
	}
	if !r.sync() || w.sync.busy {
		t.Error("the sync under way is not the last one")
	}
	r.want("good")
}

// TestFatalErrorAtLevelOne: with a sync due that never comes the writer rests
// all the same.
func TestFatalErrorAtLevelOne(t *testing.T) {
	r := newRig(t, level(1))
	r.create("bad", "good")
	r.ok(r.pushPublish("good", "1"))
	fatal(r)
	r.wantErr(r.pushPublish("bad", "2"), errBroken.Text)
	r.disk.fail = nil
	r.time.pass(syncEvery)
	if r.e.writer.Step(); r.sync() {
		t.Error("synced after the writing has stopped")
	}
	if p := r.e.writer.pause(); p < time.Minute {
		t.Errorf("a writer with nothing to do wakes after %v", p)
	}
}

// TestFatalCheckpoint: a sync of a checkpoint that fails stops the writing; a
// checkpoint that cannot be written is tried again.
func TestFatalCheckpoint(t *testing.T) {
	r := newRig(t, nil)
	r.create("t")
	r.time.pass(checkpointEvery)
	r.meta.fail = func(op string) error {
		if op == "commit" {
			return errors.New("no room")
		}
		return nil
	}
	r.turn()
	if !r.checkpoint() || r.e.Healthy() != nil {
		t.Fatal("a checkpoint that could not be written stopped the writing, or was not tried")
	}
	r.meta.fail = nil
	if r.turn(); r.checkpoint() {
		t.Fatal("it is tried again at once")
	}
	r.time.pass(checkpointEvery)
	if r.turn(); !r.checkpoint() {
		t.Fatal("it is not tried again")
	}

	r = newRig(t, level(1))
	r.create("t")
	r.time.pass(syncEvery)
	r.turn()
	r.meta.fail = func(op string) error {
		if op == "sync" {
			return unix.EIO
		}
		return nil
	}
	if r.turn(); !r.checkpoint() || r.e.Healthy() == nil {
		t.Fatal("a failed sync of a checkpoint did not stop the writing, or was not tried")
	}
	r.wantErr(r.pushPublish("t", "x"), errBroken.Text)
}
