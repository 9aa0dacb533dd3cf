package engine

import (
	"fmt"
	"testing"

	"smss/codec"
	"smss/storage"
)

// readAll reads a topic as a session does: whole pushes of at most batch
// messages, cut from what was read.
func (r *rig) readAll(topic *Topic, batch int) (bodies []string, reads int) {
	r.t.Helper()
	for from := (storage.Pos{}); from.Before(topic.End()); reads++ {
		job := &Read{Kind: ReadPush, Topic: topic, From: from, Batch: batch}
		if r.e.read(job, nil); job.Err != nil {
			r.t.Fatal(job.Err)
		}
		for rest := job.Push.Frame[codec.ReplyHeaderSize:]; len(rest) > 0; {
			size, n, last := codec.CutPushed(rest, batch)
			push := append(codec.AppendPushHead(nil, n, size), rest[:size]...)
			for _, g := range parsePush(r.t, push) {
				bodies = append(bodies, g.body)
			}
			rest, from = rest[size:], storage.Pos{File: last.NextFile, Off: last.NextPos}
		}
		if from != job.Push.Next {
			r.t.Fatalf("the last push leads to %v, the read to %v", from, job.Push.Next)
		}
		job.Release()
	}
	return bodies, reads
}

func TestReadAhead(t *testing.T) {
	for _, batch := range []int{1, 7, 255} {
		for _, ahead := range []int{0, 2000} {
			r := newRig(t, func(r *rig) { r.cfg.ReadAhead = ahead; r.opt.MaxLogSize = 3000 })
			r.create("t")
			for i := range 100 {
				r.ok(r.pushPublish("t", fmt.Sprintf("%040d", i)))
			}
			bodies, reads := r.readAll(r.e.Lookup([]byte("t")), batch)
			if len(bodies) != 100 {
				t.Fatalf("%d messages", len(bodies))
			}
			for i, b := range bodies {
				if b != fmt.Sprintf("%040d", i) {
					t.Fatalf("message %d is %q", i, b)
				}
			}
			if most := 100/batch + 1; ahead == 0 && batch == 1 && reads != 100 || ahead > 0 && batch == 1 && reads > most/5 {
				t.Errorf("batch %d, ahead %d: %d reads", batch, ahead, reads)
			}
			r.e.forgetSlabs()
			if n := r.e.ahead.Load(); n != 0 {
				t.Errorf("%d bytes are charged with nothing held", n)
			}
		}
	}
}

// Who stands at the same place gets what was read for another, also after that
// one has let it go; who stands elsewhere does not.
func TestSharedSlab(t *testing.T) {
	r := newRig(t, func(r *rig) { r.cfg.ReadAhead = 1000 })
	r.create("t", "u")
	for _, topic := range []string{"t", "u"} {
		for i := range 5 {
			r.ok(r.pushPublish(topic, fmt.Sprint(topic, i)))
		}
	}
	read := func(topic string, from storage.Pos) *Read {
		job := &Read{Kind: ReadPush, Topic: r.e.Lookup([]byte(topic)), From: from, Batch: 1}
		if r.e.read(job, nil); job.Err != nil {
			t.Fatal(job.Err)
		}
		return job
	}
	first := read("t", storage.Pos{})
	slab := first.slab
	first.Release()
	second := read("t", storage.Pos{})
	if second.slab != slab || second.Push.Messages != 5 {
		t.Errorf("it was read again: %d messages", second.Push.Messages)
	}
	if other := read("u", storage.Pos{}); other.slab == slab {
		t.Error("another topic's messages")
	}
	// What is published since comes with the next read.
	r.ok(r.pushPublish("t", "t5"))
	if more := read("t", second.Push.Next); more.Push.Messages != 1 {
		t.Errorf("%d messages behind it", more.Push.Messages)
	}
	// The topic's next life has places of the same numbers.
	second.Release()
	r.ok(r.pushDelete("t"))
	r.create("t")
	r.ok(r.pushPublish("t", "new"))
	if got := read("t", storage.Pos{}); got.Push.Messages != 1 {
		t.Errorf("the new life has %d messages", got.Push.Messages)
	}
	r.e.forgetSlabs()
	if again := read("t", storage.Pos{}); again.slab == slab {
		t.Error("a slab that was given back is handed out")
	}
}

func TestReadAheadBudget(t *testing.T) {
	r := newRig(t, func(r *rig) { r.cfg.ReadAhead = 1000 })
	r.create("t")
	for i := range 5 {
		r.ok(r.pushPublish("t", fmt.Sprint(i)))
	}
	r.e.ahead.Store(readAheadMax + 1)
	job := &Read{Kind: ReadPush, Topic: r.e.Lookup([]byte("t")), Batch: 1}
	if r.e.read(job, nil); job.Push.Messages != 1 {
		t.Errorf("%d messages are read although there is too much in memory", job.Push.Messages)
	}
}
