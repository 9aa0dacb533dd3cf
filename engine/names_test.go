package engine

import (
	"runtime"
	"slices"
	"sync"
	"testing"
)

func TestNames(t *testing.T) {
	r := newRig(t, nil)
	r.create("t", "u")
	r.wantErr(r.pushAttach("none", "w", 0), "topic not exist")
	first := r.ok(r.pushAttach("t", "w", 0)).Sub
	r.ok(r.pushAttach("u", "w", 1)) // unique within a topic
	r.ok(r.pushAttach("t", "", 0))  // the empty name is one like any other
	r.wantErr(r.pushAttach("t", "w", 1), "w regiester exist")
	r.wantErr(r.pushAttach("t", "", 1), " regiester exist")
	r.e.Detach(first)
	second := r.ok(r.pushAttach("t", "w", 1)).Sub
	// The name is the second one's now: what the first one still says does not
	// count.
	r.e.Detach(first)
	r.wantErr(r.pushAttach("t", "w", 0), "w regiester exist")
	// A topic takes its names with it.
	r.ok(r.pushDelete("t"))
	r.create("t")
	third := r.ok(r.pushAttach("t", "w", 0)).Sub
	r.e.Detach(second)
	r.wantErr(r.pushAttach("t", "w", 0), "w regiester exist")
	r.e.Detach(third)
	r.ok(r.pushAttach("t", "w", 0))
}

// TestDetachBeforeAttach: a client leaves and comes back between the writer's
// look at who has left and its look into the ring. Its name is free.
func TestDetachBeforeAttach(t *testing.T) {
	r := newRig(t, nil)
	r.create("t")
	s := r.ok(r.pushAttach("t", "w", 0)).Sub
	w := &r.e.writer
	w.detach() // Step begins,
	r.e.Detach(s)
	again := r.pushAttach("t", "w", 0)
	w.gather() // and goes on
	w.commit()
	if r.drain(0); again.Err != nil {
		t.Errorf("refused: %v", again.Err)
	}
}

// TestDetachAttachStress does the same with a running writer, many times.
func TestDetachAttachStress(t *testing.T) {
	r := newRig(t, nil)
	r.create("t")
	r.e.Start()
	defer r.stop()
	done := make(chan *Command, 1)
	for loop := range 2 {
		s := (*Subscription)(nil)
		for range 3000 {
			if s != nil {
				r.e.Detach(s)
			}
			mailbox := NewMailbox(nil)
			mailbox.wake = func() { mailbox.Drain(func(n *Note) { done <- n.Subject.(*Command) }) }
			c := &Command{Kind: Attach, Mailbox: mailbox, Sub: &Subscription{Who: "w", Waiter: Waiter{Loop: loop, Mailbox: mailbox}}}
			c.note.Subject = c
			c.SetText([]byte("t"), nil, nil)
			for !r.e.Push(c) {
				runtime.Gosched()
			}
			if c := <-done; c.Err != nil {
				t.Fatalf("the name of one that has left is taken: %v", c.Err)
			} else {
				s = c.Sub
			}
		}
		r.e.Detach(s)
	}
}

// TestRingFull: who is refused asks for a note, tries once more, and gets it
// when there is room.
func TestRingFull(t *testing.T) {
	r := newRig(t, func(r *rig) { r.cfg.RingSize = 4 })
	r.create("t")
	var cmds []*Command
	for range 4 {
		cmds = append(cmds, r.pushPublish("t", "x"))
	}
	extra := r.command(Publish, "t", payload("y"))
	if r.e.Push(extra) {
		t.Fatal("a full ring took another")
	}
	if n := r.e.inflight.Load(); n != 4*cmds[0].Size() {
		t.Errorf("%d bytes are charged for 4 commands of %d", n, cmds[0].Size())
	}
	r.e.AwaitRoom(1)
	if r.e.Push(extra) {
		t.Fatal("a full ring took another")
	}
	r.turn()
	got := r.drain(1)
	if !slices.Equal(got, []any{&r.e.room[1]}) || !got[0].(*Lane).Room() {
		t.Fatalf("loop 1 got %v", got)
	}
	if !r.e.Push(extra) {
		t.Fatal("there is no room")
	}
	r.turn()
	if got := r.drain(1); len(got) != 0 {
		t.Errorf("loop 1 asked once and got %v", got)
	}
	if got := r.drain(0); len(got) != 5 {
		t.Errorf("%d of 5 answered", len(got))
	}
}

// TestBudget: bytes under way are bounded; a command that alone is larger than
// the bound passes when nothing else is under way.
func TestBudget(t *testing.T) {
	r := newRig(t, func(r *rig) { r.cfg.MaxInflightBytes = 1000 })
	r.create("t")
	huge := r.command(Publish, "t", payload(string(make([]byte, 5000))))
	small := r.pushPublish("t", "x")
	if r.e.Push(huge) {
		t.Fatal("over the budget beside another")
	}
	r.ok(small)
	if !r.e.Push(huge) {
		t.Fatal("refused although it is alone")
	}
	if r.e.Push(r.command(Publish, "t", payload("x"))) {
		t.Fatal("the budget is used up")
	}
	r.ok(huge)
	if n := r.e.inflight.Load(); n != 0 {
		t.Errorf("%d bytes are left charged", n)
	}
}

// TestRefusedBytesDoNotShow: an attempt that is refused takes nothing out of the
// budget, not even for a moment in which another one could be refused for it.
func TestRefusedBytesDoNotShow(t *testing.T) {
	r := newRig(t, func(r *rig) { r.cfg.MaxInflightBytes = 1000 })
	held := r.command(Publish, "t", payload("x"))
	r.push(held) // nobody takes it
	body := payload(string(make([]byte, 900)))
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			c := &Command{Kind: Publish}
			c.SetText([]byte("t"), nil, body)
			for range 20_000 {
				if r.e.Push(c) {
					t.Error("pushed over the budget")
					return
				}
			}
		})
	}
	var watch sync.WaitGroup
	quit := make(chan struct{})
	watch.Go(func() {
		for {
			select {
			case <-quit:
				return
			default:
			}
			if n := r.e.inflight.Load(); n != held.Size() {
				t.Errorf("%d bytes are charged, %d are pushed", n, held.Size())
				return
			}
			runtime.Gosched()
		}
	})
	wg.Wait()
	close(quit)
	watch.Wait()
}

// TestRefusalsDoNotRefuseEachOther: two loops that are refused for want of
// bytes both get their turn. A budget that counted attempts could refuse both
// with nothing under way whose answer would wake them.
func TestRefusalsDoNotRefuseEachOther(t *testing.T) {
	r := newRig(t, func(r *rig) { r.cfg.MaxInflightBytes = 1000 })
	r.create("t")
	notes := []chan struct{}{make(chan struct{}, 1), make(chan struct{}, 1)}
	for i := range notes {
		r.cfg.Mailboxes[i].wake = func() {
			select {
			case notes[i] <- struct{}{}:
			default:
			}
		}
	}
	r.e.Start()
	defer r.stop()
	finished := make(chan struct{}, len(notes))
	for loop := range notes {
		go func() {
			defer func() { finished <- struct{}{} }()
			m := r.cfg.Mailboxes[loop]
			var pool CommandPool
			body := payload(string(make([]byte, 400))) // two of them are over the budget
			for range 3000 {
				c := pool.Get()
				c.Kind, c.Mailbox, c.Messages = Publish, m, 1
				c.SetText([]byte("t"), nil, body)
				pushed, answered := false, false
				for !answered {
					if !pushed {
						pushed = r.e.Push(c)
					}
					if !pushed {
						r.e.AwaitRoom(loop)
						pushed = r.e.Push(c)
					}
					<-notes[loop] // a lost one ends in the test's timeout
					m.Drain(func(n *Note) {
						switch v := n.Subject.(type) {
						case *Lane:
							v.Wake(nil)
						case *Command:
							answered = v == c
						}
					})
				}
				pool.Put(c)
			}
		}()
	}
	for range notes {
		await(t, "both loops get their turns", func() bool {
			select {
			case <-finished:
				return true
			default:
				return false
			}
		})
	}
}
