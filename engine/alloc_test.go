package engine

import (
	"reflect"
	"testing"

	"smss/storage"
)

// TestPublishAllocations: from Get to Put a publish allocates nothing of its
// own. A batch may allocate a few times, whatever its size: it is written to
// files whose buffers and indexes belong to the store.
func TestPublishAllocations(t *testing.T) {
	const perBatch = 20 // the bound; most of it is the index, for the largest
	if raceEnabled {
		t.Skip("the race detector allocates: only a run without it can count")
	}
	measure := func(size int) float64 {
		r := newRig(t, func(r *rig) {
			r.opt.FS, r.opt.Path = storage.OS{}, t.TempDir() // the disk in memory copies what it is given
			r.opt.MaxLogSize = 1 << 30
			r.cfg.RingSize = 4096
		})
		defer func() {
			if err := r.store.Close(1<<40, false); err != nil {
				t.Error(err)
			}
		}()
		r.create("t")
		topic, body := []byte("t"), payload(string(make([]byte, 200)))
		var pool CommandPool
		m := r.cfg.Mailboxes[0]
		done := 0
		take := func(n *Note) {
			c := n.Subject.(*Command)
			if c.Err != nil {
				t.Fatal(c.Err)
			}
			pool.Put(c)
			done++
		}
		batch := func() {
			for range size {
				c := pool.Get()
				c.Kind, c.Mailbox, c.Messages, c.ReceivedAtMs = Publish, m, 1, r.time.NowMs()
				c.SetText(topic, nil, body)
				if !r.e.Push(c) {
					t.Fatal("refused")
				}
			}
			r.e.writer.Step()
			m.Drain(take)
		}
		batch()
		done = 0
		n := testing.AllocsPerRun(50, batch)
		if done != 51*size {
			t.Fatalf("%d publishes done, want %d", done, 51*size)
		}
		return n
	}
	for _, size := range []int{1, 64, batchCommands} {
		n := measure(size)
		t.Logf("batches of %d: %.0f allocations a batch", size, n)
		if n > perBatch {
			t.Errorf("batches of %d: %.0f allocations a batch, the bound is %d", size, n, perBatch)
		}
	}
}

// TestPoolBounds: the pool keeps neither more commands nor more memory than it
// says.
func TestPoolBounds(t *testing.T) {
	var pool CommandPool
	var cmds []*Command
	for range poolMax + 100 {
		c := pool.Get()
		c.SetText([]byte("t"), nil, make([]byte, 1000))
		cmds = append(cmds, c)
	}
	for _, c := range cmds {
		pool.Put(c)
	}
	if len(pool.free) != poolMax || pool.size > poolBytes {
		t.Errorf("%d commands, %d bytes", len(pool.free), pool.size)
	}
	size := 0
	for _, c := range pool.free {
		size += cap(c.buf)
	}
	if size != pool.size {
		t.Errorf("%d bytes are kept, %d are counted", size, pool.size)
	}
	for range poolMax {
		c := pool.Get()
		if c.note.Subject != c || c.Err != nil || len(c.buf) != 0 {
			t.Fatal("a command comes back with something in it")
		}
	}
	if pool.size != 0 {
		t.Errorf("an empty pool counts %d bytes", pool.size)
	}
}

// TestPoolForgets: a command that comes back from the pool knows nothing of
// what it was used for, whatever that was.
func TestPoolForgets(t *testing.T) {
	var pool CommandPool
	for _, k := range []Kind{Publish, Delay, Create, Attach, fire} {
		c := pool.Get()
		c.Kind, c.Session, c.Mailbox = k, t, NewMailbox(func() {})
		c.SetText([]byte("t"), []byte("trace"), payload("m"))
		c.ReceivedAtMs, c.Messages, c.EventID, c.Err = 1, 2, 3, errStorage
		c.staged, c.dropped, c.target = true, true, &Topic{}
		if k != Publish {
			c.ExpireAtMs, c.TriggerAtMs, c.Sub, c.victim = 4, 5, &Subscription{}, &Topic{}
			c.key, c.orphans, c.stream, c.Role = storage.DelayKey{EventID: 6}, []storage.DelayKey{{}}, 7, Slave
		}
		pool.Put(c)
		if c = pool.Get(); len(c.buf) != 0 {
			t.Errorf("kind %d: %d bytes of text are left", k, len(c.buf))
		}
		c.buf, c.Kind = nil, 0 // the pool's user sets the kind
		if want := (Command{note: Note{Subject: c}}); !reflect.DeepEqual(*c, want) {
			t.Errorf("kind %d: left: %+v", k, *c)
		}
		pool.Put(c)
	}
}
