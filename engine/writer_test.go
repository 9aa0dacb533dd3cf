package engine

import (
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// These are the commands' conditions, in the order in which the existing server
// checks them, and what a batch leaves behind.

func TestCreateConditions(t *testing.T) {
	r := newRig(t, func(r *rig) { r.cfg.MaxTopics = 3; r.cfg.MinFreeBytes = 1000 })
	r.create("t")
	for _, c := range []struct {
		name     string
		expireAt int64 // 0 = none, else relative to now
		low      bool
		want     string
	}{
		{"u", -1 << 62, false, "expire MUST more than 10s"}, // negative: no life is that short
		{"u", 9_999, false, "expire MUST more than 10s"},
		{"t", 9_999, true, "expire MUST more than 10s"}, // before "exists"
		{"t", 0, true, "topic exist"},                   // before the disk
		{"u", 0, true, errDiskLow.Error()},
		{"u", 10_000, false, ""},
		{"v", 0, false, ""},
		{"w", 0, true, errTooManyTopics.Error()}, // before the disk
		{"w", 0, false, errTooManyTopics.Error()},
	} {
		t.Run(fmt.Sprintf("%s %d %v", c.name, c.expireAt, c.low), func(t *testing.T) {
			r.t = t
			r.e.lowDisk.Store(c.low)
			cmd := r.command(Create, c.name, nil)
			if c.expireAt != 0 {
				cmd.ExpireAtMs = cmd.ReceivedAtMs + c.expireAt
			}
			if c.want == "" {
				r.ok(r.push(cmd))
			} else {
				r.wantErr(r.push(cmd), c.want)
			}
		})
	}
}

// TestExpireOverflow: no sum in the check may wrap around.
func TestExpireOverflow(t *testing.T) {
	r := newRig(t, nil)
	cmd := r.command(Create, "t", nil)
	cmd.ExpireAtMs = 1<<63 - 1
	r.ok(r.push(cmd))
	r.ok(r.pushPublish("t", "a"))
	if r.e.Lookup([]byte("t")).Expired(r.time.NowMs()) {
		t.Error("a topic for ever is expired")
	}
}

func TestPublishConditions(t *testing.T) {
	r := newRig(t, nil)
	r.ok(r.pushCreate("short", 10_000))
	r.create("t")
	kinds := map[string]func(topic string) *Command{
		"publish": func(topic string) *Command { return r.pushPublish(topic, "x") },
		"delay":   func(topic string) *Command { return r.pushDelay(topic, 1000, "x") },
	}
	for name, push := range kinds {
		r.e.lowDisk.Store(true)
		r.wantErr(push("none"), "topic not exist") // before the disk
		r.wantErr(push("t"), errDiskLow.Error())
		r.e.lowDisk.Store(false)
		if c := r.ok(push("t")); c.EventID == 0 {
			t.Errorf("%s: no id", name)
		}
	}
	r.ok(r.pushAttach("short", "w", 0))
	r.time.nowMs.Add(9_999)
	r.ok(r.pushPublish("short", "x"))
	r.time.nowMs.Add(1) // from the millisecond of expiry on
	for _, push := range kinds {
		r.wantErr(push("short"), "topic not exist")
	}
	r.wantErr(r.pushAttach("short", "v", 0), "topic not exist")
	// It is there until it is deleted, which its owner may do, too.
	r.wantErr(r.pushCreate("short", 0), "topic exist")
	r.ok(r.pushDelete("short"))
	r.create("short")
}

func TestDeleteConditions(t *testing.T) {
	r := newRig(t, nil)
	r.wantErr(r.pushDelete("t"), "topic not exist")
	r.create("t")
	r.e.lowDisk.Store(true)
	r.ok(r.pushDelete("t")) // frees space, and so must work without
	r.wantErr(r.pushDelete("t"), "topic not exist")
}

func TestExpireConditions(t *testing.T) {
	r := newRig(t, nil)
	r.ok(r.pushCreate("t", 10_000))
	first := r.e.Lookup([]byte("t"))
	expireFirst := func() *Command {
		c := r.command(expire, "t", nil)
		c.victim = first
		return r.push(c)
	}
	// The clock says that it lives: it has stepped back since the scheduler
	// looked.
	r.wantErr(expireFirst(), "topic not exist")
	if r.e.Lookup([]byte("t")) != first {
		t.Fatal("a living topic was deleted")
	}
	r.time.nowMs.Add(10_000)
	r.ok(expireFirst())
	if r.e.Lookup([]byte("t")) != nil || !first.Ended() {
		t.Fatal("the topic is still there")
	}
	// Another life of the name is not the scheduler's victim.
	r.create("t")
	r.wantErr(expireFirst(), "topic not exist")
	if r.e.Lookup([]byte("t")) == nil {
		t.Fatal("another life was deleted")
	}
}

// TestIDsAreConsecutive: within a batch and over batches, also where a command
// takes several.
func TestIDsAreConsecutive(t *testing.T) {
	r := newRig(t, nil)
	c := r.ok(r.pushCreate("t", 0))
	next := c.EventID + 1
	for range 3 {
		cmds := []*Command{
			r.pushPublish("t", "a"), r.pushPublish("none", "x"), r.pushPublish("t", "b", "c", "d"),
			r.pushDelay("t", 5000, "e"), r.pushPublish("t", "f"),
		}
		r.done(cmds...)
		for i, n := range []int64{1, 0, 3, 1, 1} {
			if n > 0 && cmds[i].EventID != next {
				t.Errorf("command %d has id %d, want %d", i, cmds[i].EventID, next)
			}
			next += n
		}
	}
	if got := r.e.writer.nextID; got != next {
		t.Errorf("next id is %d, want %d", got, next)
	}
	r.want("t", "a", "b", "c", "d", "f", "a", "b", "c", "d", "f", "a", "b", "c", "d", "f")
}

// TestOneNoteForALoopAndBatch: a batch wakes each loop that it concerns once,
// with its commands in order and then the topics that have moved.
func TestOneNoteForALoopAndBatch(t *testing.T) {
	r := newRig(t, nil)
	r.create("t", "u")
	topic := r.e.Lookup([]byte("t"))
	for loop := range 2 {
		s := newSub(topic, loop)
		if !s.Park() {
			t.Fatal("there is nothing to read yet")
		}
	}
	before := []int64{r.wakes[0].Load(), r.wakes[1].Load()}
	cmds := []*Command{r.pushPublish("t", "1"), r.pushPublish("u", "2"), r.pushPublish("none", "3"), r.pushPublish("t", "4")}
	other := r.command(Publish, "u", payload("5"))
	other.Mailbox = r.cfg.Mailboxes[1]
	r.push(other)
	r.turn()
	for loop, want := range [][]any{{cmds[0], cmds[1], cmds[2], cmds[3], &topic.lanes[0]}, {other, &topic.lanes[1]}} {
		if n := r.wakes[loop].Load() - before[loop]; n != 1 {
			t.Errorf("loop %d was woken %d times", loop, n)
		}
		if got := r.drain(loop); !slices.Equal(got, want) {
			t.Errorf("loop %d got %v, want %v", loop, got, want)
		}
	}
}

// TestCreateAndDeleteCloseTheBatch, so that what follows them meets the state
// that they leave.
func TestCreateAndDeleteCloseTheBatch(t *testing.T) {
	r := newRig(t, nil)
	cmds := []*Command{
		r.pushPublish("t", "early"), r.pushCreate("t", 0), r.pushPublish("t", "first life"),
		r.pushDelete("t"), r.pushPublish("t", "between"), r.pushCreate("t", 0), r.pushPublish("t", "second life"),
	}
	r.done(cmds...)
	for i, want := range []error{ErrTopicNotExist, nil, nil, nil, ErrTopicNotExist, nil, nil} {
		if cmds[i].Err != want {
			t.Errorf("command %d: %v, want %v", i, cmds[i].Err, want)
		}
	}
	r.want("t", "second life")
}

// TestSameBatchDelete: messages that a batch publishes to a topic which it then
// deletes are answered, and the topic's end is told.
func TestSameBatchDelete(t *testing.T) {
	r := newRig(t, nil)
	r.create("t")
	topic := r.e.Lookup([]byte("t"))
	s := newSub(topic, 0)
	s.Park()
	r.ok(r.pushPublish("t", "a"), r.pushDelete("t"))
	if !topic.Ended() || r.e.Lookup([]byte("t")) != nil {
		t.Error("the topic is still there")
	}
}

// TestCatalogIsVisibleAfterPublish: until a batch is published nobody but the
// writer knows what it has created.
func TestCatalogIsVisibleAfterPublish(t *testing.T) {
	r := newRig(t, level(2))
	c := r.pushCreate("t", 0)
	r.e.writer.Step()
	if r.e.writer.topics["t"] == nil {
		t.Fatal("the writer does not know its topic")
	}
	if r.e.Lookup([]byte("t")) != nil || len(r.drain(0)) != 0 {
		t.Fatal("visible or answered before the sync")
	}
	r.done(c)
	if r.e.Lookup([]byte("t")) == nil {
		t.Fatal("answered and not visible")
	}
	d := r.pushDelete("t")
	r.e.writer.Step()
	if r.e.Lookup([]byte("t")) == nil || r.e.Lookup([]byte("t")).Ended() {
		t.Fatal("gone before the sync")
	}
	r.done(d)
	if r.e.Lookup([]byte("t")) != nil {
		t.Fatal("answered and still visible")
	}
}

// TestSampledPublishes: the function is called for every n-th one, with the
// command as the client sent it.
func TestSampledPublishes(t *testing.T) {
	var seen []string
	r := newRig(t, func(r *rig) {
		r.cfg.SampleEvery = 3
		r.cfg.Events.Published = func(c *Command) { seen = append(seen, string(c.Topic())+" "+string(c.Trace())) }
	})
	r.create("t")
	for range 7 {
		r.ok(r.pushPublish("t", "x"))
	}
	r.done(r.pushPublish("none", "x")) // a refused one does not count
	if !slices.Equal(seen, []string{"t trace", "t trace"}) {
		t.Errorf("sampled %q", seen)
	}
	st := r.e.Stats()
	if st.Published != 7 || st.Refused != 1 || st.InflightBytes != 0 {
		t.Errorf("stats %+v", st)
	}
}

func TestDiskFullText(t *testing.T) {
	r := newRig(t, nil)
	r.create("t")
	for err, want := range map[error]string{unix.ENOSPC: errDiskFull.Text, unix.EDQUOT: errDiskFull.Text, unix.EIO: errStorage.Text} {
		r.disk.fail = failing(root+"/binlog", "write", err)
		r.wantErr(r.pushPublish("t", "x"), want)
		r.disk.fail = nil
		r.ok(r.pushPublish("t", "y")) // it recovers by itself
	}
	r.want("t", "y", "y", "y")
}
