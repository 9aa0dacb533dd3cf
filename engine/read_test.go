package engine

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smss/storage"
)

func (r *rig) locate(topic *Topic, eventID int64) (storage.Pos, error) {
	job := &Read{Kind: Locate, Topic: topic, EventID: eventID}
	r.e.read(job, nil)
	return job.Pos, job.Err
}

func TestLocate(t *testing.T) {
	r := newRig(t, nil)
	r.create("t", "u")
	a := r.ok(r.pushPublish("t", "1", "2"))
	b := r.ok(r.pushPublish("u", "3"))
	r.ok(r.pushPublish("t", "4"))
	topic := r.e.Lookup([]byte("t"))
	for id, want := range map[int64]int{0: 3, a.EventID: 2, a.EventID + 1: 1, b.EventID + 1: 0} {
		at, err := r.locate(topic, id)
		if err != nil {
			t.Errorf("event %d: %v", id, err)
		} else if n := len(r.readFrom(topic, at)); n != want {
			t.Errorf("event %d: %d messages follow, want %d", id, n, want)
		}
	}
	for _, id := range []int64{-1, -1 << 63, 1, b.EventID, 99} {
		if _, err := r.locate(topic, id); err != errEventNotFound {
			t.Errorf("event %d: %v", id, err)
		}
	}
}

// TestLists: they are sorted and leave out what is over.
func TestLists(t *testing.T) {
	r := newRig(t, nil)
	r.create("b", "a")
	after := r.e.Lookup([]byte("a")).Meta.CreateEventID
	r.ok(r.pushCreate("short", 10_000))
	r.create("c")
	names := func(k ReadKind, id int64) (out string) {
		rendered := false
		job := &Read{Kind: k, EventID: id, Render: func(*Read) { rendered = true }}
		r.e.read(job, nil)
		for _, t := range job.List {
			out += t.Meta.Name + " "
		}
		if !rendered {
			t.Error("not rendered")
		}
		return out
	}
	if got := names(ListAll, 0); got != "a b c short " {
		t.Errorf("LIST: %s", got)
	}
	if got := names(ListValid, after); got != "a b " {
		t.Errorf("VALID_LIST: %s", got)
	}
	r.time.nowMs.Add(10_000)
	if got := names(ListAll, 0) + names(ListValid, 0); got != "a b c short a b c " {
		t.Errorf("expired: %s", got)
	}
}

// TestReadErrors: the client is told what it needs to know, the log the rest.
func TestReadErrors(t *testing.T) {
	r := newRig(t, nil)
	r.create("t")
	r.ok(r.pushPublish("t", "1"), r.pushPublish("t", "2"))
	topic := r.e.Lookup([]byte("t"))
	push := func() error {
		job := &Read{Kind: ReadPush, Topic: topic, Batch: 10}
		r.e.read(job, nil)
		defer job.Release()
		return job.Err
	}
	r.disk.fail = failing(r.topicDir("t"), "open", unix.EMFILE)
	if err := push(); err != errReading {
		t.Errorf("cannot be opened: %v", err)
	}
	r.disk.fail = nil
	data := r.disk.names[r.topicDir("t")+"/0.log"].data
	data[len(data)/2-20] ^= 1
	first := &Read{Kind: ReadPush, Topic: topic, Batch: 10}
	r.e.read(first, nil)
	if first.Err == nil {
		// What lies before the damage is delivered; the next read meets it.
		first = &Read{Kind: ReadPush, Topic: topic, Batch: 10, From: first.Push.Next}
		r.e.read(first, nil)
	}
	if first.Err != errDamaged || !r.noted("damage t") {
		t.Errorf("damaged: %v, notes %q", first.Err, r.notes)
	}
	r.ok(r.pushDelete("t"))
	if err := push(); err != nil && err != ErrTopicNotExist {
		t.Errorf("of a topic that is gone: %v", err)
	}
	if _, err := r.locate(topic, 1); err != ErrTopicNotExist {
		t.Errorf("of a topic that is gone: %v", err)
	}
}

// TestReadOfALeavingTopic: at flush level 2 the directory of a topic is gone
// before its end is published, and another life may have files under the same
// names. A reader neither hands those out nor takes them for damage.
func TestReadOfALeavingTopic(t *testing.T) {
	r := newRig(t, level(2))
	r.create("t")
	r.ok(r.pushPublish("t", "an old message", "another old message"))
	old := r.e.Lookup([]byte("t"))
	del := r.pushDelete("t")
	r.e.writer.Step()
	cre := r.pushCreate("t", 0)
	r.e.writer.Step()
	pub := r.pushPublish("t", "new")
	r.e.writer.Step()
	job := &Read{Kind: ReadPush, Topic: old, Batch: 10}
	r.e.read(job, nil)
	if !r.e.unsettled(job) || job.Err != nil || job.Push.Messages != 0 || job.Push.Next != (storage.Pos{}) {
		t.Errorf("the old topic's reader got %d messages, next %v, %v", job.Push.Messages, job.Push.Next, job.Err)
	}
	if len(r.notes) != 0 {
		t.Errorf("told: %q", r.notes)
	}
	r.ok(del, cre, pub)
	if r.e.unsettled(job) || !old.Ended() {
		t.Error("the old topic has not ended")
	}
	r.want("t", "new")
}

// TestReaderWaitsForADeletion runs a real reader: a Locate is answered once the
// deletion is published.
func TestReaderWaitsForADeletion(t *testing.T) {
	r := newRig(t, nil)
	r.create("t")
	c := r.ok(r.pushPublish("t", "x"))
	topic := r.e.Lookup([]byte("t"))
	topic.leaving.Store(true)
	r.e.readers.Add(1)
	go r.e.runReader()
	answered := make(chan struct{})
	job := &Read{Kind: Locate, Topic: topic, EventID: c.EventID, Mailbox: NewMailbox(func() { close(answered) })}
	r.e.Read(job)
	select {
	case <-answered:
		t.Fatal("answered before the deletion is decided")
	case <-time.After(5 * time.Millisecond):
	}
	topic.ended.Store(true)
	<-answered
	if job.Err != nil && job.Err != ErrTopicNotExist {
		t.Error(job.Err)
	}
	close(r.e.reads)
	r.e.readers.Wait()
}

// TestReadersQueue refuses when it is full, and every read is answered.
func TestReadersQueue(t *testing.T) {
	r := newRig(t, nil)
	n := 0
	m := NewMailbox(func() {})
	for r.e.Read(&Read{Kind: ListAll, Mailbox: m}) {
		n++
	}
	if n != readQueue {
		t.Errorf("the queue takes %d", n)
	}
	close(r.e.reads)
	r.e.readers.Add(1)
	r.e.runReader()
	got := 0
	m.Drain(func(*Note) { got++ })
	if got != n {
		t.Errorf("%d of %d answered", got, n)
	}
}

// TestFrames: a frame is valid until it is released, and large ones are not
// kept.
func TestFrames(t *testing.T) {
	r := newRig(t, nil)
	r.create("t")
	r.ok(r.pushPublish("t", string(make([]byte, frameKeep))))
	job := &Read{Kind: ReadPush, Topic: r.e.Lookup([]byte("t")), Batch: 1}
	r.e.read(job, nil)
	if job.Push.Messages != 1 {
		t.Fatal(job.Err)
	}
	job.Release()
	job.Release() // without effect
	if job.Push.Frame != nil {
		t.Error("a frame that was given back is still there")
	}
	if b := *frames.Get().(*[]byte); cap(b) > frameKeep {
		t.Errorf("a frame of %d bytes is kept", cap(b))
	}
}

func TestRefusalsAreErrors(t *testing.T) {
	var refusal *Refusal
	if err := fmt.Errorf("wrapped: %w", ErrTopicExist); !errors.As(err, &refusal) || refusal.Text != "topic exist" {
		t.Error("a refusal is no error that can be found")
	}
}
