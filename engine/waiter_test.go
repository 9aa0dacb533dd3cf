package engine

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"smss/storage"
)

// parkable returns a topic whose published end a test moves by hand.
func parkable(lanes int) *Topic {
	t := new(Topic)
	t.lanes = make([]Lane, lanes)
	for i := range t.lanes {
		t.lanes[i].tail, t.lanes[i].note.Subject = &t.Tail, &t.lanes[i]
	}
	return t
}

// newSub returns a subscription of a topic that nobody had to attach.
func newSub(topic *Topic, loop int) *Subscription {
	s := &Subscription{Topic: topic}
	s.Session, s.Loop, s.tail = s, loop, &topic.Tail
	return s
}

// woken makes of what is to be done with a subscription what Lane.Wake wants.
func woken(resume func(*Subscription)) func(*Waiter) {
	return func(w *Waiter) { resume(w.Session.(*Subscription)) }
}

func (t *Topic) moveTo(off int64) { t.end.Store(storage.Pos{Off: off}.Pack()) }

func TestParkAndUnpark(t *testing.T) {
	topic := parkable(2)
	subs := make([]*Subscription, 5)
	for i := range subs {
		subs[i] = newSub(topic, 1)
		if !subs[i].Park() {
			t.Fatal("there is nothing to read yet")
		}
	}
	if topic.armed.Load() != 1<<1 {
		t.Fatalf("armed bits %b", topic.armed.Load())
	}
	parked := func() (out []int) {
		for s := topic.lanes[1].head; s != nil; s = s.next {
			out = append(out, slices.Index(subs, s.Session.(*Subscription)))
		}
		slices.Sort(out)
		return out
	}
	subs[2].Unpark() // middle, newest, oldest, and twice
	subs[4].Unpark()
	subs[0].Unpark()
	subs[0].Unpark()
	if got := parked(); !slices.Equal(got, []int{1, 3}) {
		t.Fatalf("parked: %v", got)
	}
	topic.moveTo(10)
	if subs[0].Park() {
		t.Fatal("parked with something to read")
	}
	subs[0].Pos.Off = 10
	if !subs[0].Park() {
		t.Fatal("not parked at the end")
	}
	topic.ended.Store(true)
	subs[2].Pos.Off = 10
	if subs[2].Park() {
		t.Fatal("parked at a topic that has ended")
	}
	if got := parked(); !slices.Equal(got, []int{0, 1, 3}) {
		t.Fatalf("parked: %v", got)
	}
}

// TestLaneWake: everybody is resumed once; who parks again from inside, leaves,
// or makes another one leave, disturbs nobody.
func TestLaneWake(t *testing.T) {
	topic := parkable(1)
	lane := &topic.lanes[0]
	subs := make([]*Subscription, 4) // woken in the order 3, 2, 1, 0
	for i := range subs {
		subs[i] = newSub(topic, 0)
		subs[i].Park()
	}
	lane.posted.Store(true)
	var resumed []int
	lane.Wake(woken(func(s *Subscription) {
		if lane.posted.Load() {
			t.Error("a writer cannot post again from here on")
		}
		i := slices.Index(subs, s)
		resumed = append(resumed, i)
		switch i {
		case 3:
			s.Park()
			subs[1].Unpark() // that connection was closed
		case 2:
			s.Unpark()
		case 0:
			s.Park()
		}
	}))
	if !slices.Equal(resumed, []int{3, 2, 1, 0}) {
		t.Fatalf("resumed %v", resumed)
	}
	var left []int
	for s := lane.head; s != nil; s = s.next {
		left = append(left, slices.Index(subs, s.Session.(*Subscription)))
	}
	if !slices.Equal(left, []int{0, 3}) || subs[1].parked || subs[2].parked {
		t.Fatalf("parked now: %v", left)
	}
	resumed = nil
	lane.Wake(woken(func(s *Subscription) { resumed = append(resumed, slices.Index(subs, s)) }))
	if !slices.Equal(resumed, []int{0, 3}) || lane.head != nil {
		t.Fatalf("the second time resumed %v", resumed)
	}
}

// TestWakeOnePost: a lane whose note lies in the mailbox is not posted again;
// one that was taken out is.
func TestWakeOnePost(t *testing.T) {
	r := newRig(t, nil)
	r.create("t")
	topic := r.e.Lookup([]byte("t"))
	s := newSub(topic, 1)
	for i := range 3 {
		s.Park()
		r.ok(r.pushPublish("t", "x"))
		s.Unpark() // reads by itself, for another reason, and parks again
		s.Pos = topic.End()
		s.Park()
		r.ok(r.pushPublish("t", "y"))
		var lanes []*Lane
		r.cfg.Mailboxes[1].Drain(func(n *Note) { lanes = append(lanes, n.Subject.(*Lane)) })
		if len(lanes) != 1 {
			t.Fatalf("round %d: %d notes", i, len(lanes))
		}
		n := 0
		lanes[0].Wake(func(*Waiter) { n++ })
		if n != 1 {
			t.Fatalf("round %d: %d woken", i, n)
		}
		s.Pos = topic.End()
	}
}

// TestNoLostWakeUps is loops with parked subscriptions against a writer that
// publishes one step at a time and waits until every subscription has seen it:
// one lost wake-up stops everything.
func TestNoLostWakeUps(t *testing.T) {
	const loops, topics, subs = 3, 2, 1 // subs: of each loop at each topic
	steps := 20_000
	if testing.Short() {
		steps = 2000
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	e := &Engine{}
	w := &writer{e: e}
	type loop struct {
		m    *Mailbox
		wake chan struct{}
	}
	ls := make([]*loop, loops)
	for i := range ls {
		l := &loop{wake: make(chan struct{}, 1)}
		l.m = NewMailbox(func() {
			select {
			case l.wake <- struct{}{}:
			default:
			}
		})
		ls[i] = l
		e.cfg.Mailboxes = append(e.cfg.Mailboxes, l.m)
	}
	var all []*Topic
	seen := make([]atomic.Int64, topics) // subscriptions that have seen the newest end
	for range topics {
		all = append(all, parkable(loops))
	}
	quit := make(chan struct{})
	var wg sync.WaitGroup
	for i, l := range ls {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(i)))
			// pump reads what is there and parks, as a session does. Now and
			// then it looks away first, so that the end moves in between.
			pump := func(s *Subscription) {
				for {
					if end := s.Topic.End(); s.Pos.Before(end) {
						s.Pos = end
						seen[slices.Index(all, s.Topic)].Add(1)
					} else if s.Park() {
						return
					}
					if rnd.IntN(3) == 0 {
						time.Sleep(0)
					}
				}
			}
			for _, topic := range all {
				for range subs {
					pump(newSub(topic, i))
				}
			}
			for {
				select {
				case <-l.wake:
					l.m.Drain(func(n *Note) { n.Subject.(*Lane).Wake(woken(pump)) })
				case <-quit:
					return
				}
			}
		})
	}
	rnd := rand.New(rand.NewPCG(seed, 99))
	timeout := time.Now().Add(60 * time.Second)
	for step := 1; step <= steps; step++ {
		// Several topics in one batch now and then.
		n := 1 + rnd.IntN(topics)
		order := rnd.Perm(topics)[:n]
		for _, i := range order {
			seen[i].Store(0)
			all[i].moveTo(int64(step))
		}
		for _, i := range order {
			w.wake(&all[i].Tail)
		}
		w.post()
		for _, i := range order {
			for spins := 0; seen[i].Load() < loops*subs; spins++ {
				// Mostly at full speed, so that the next step comes while the
				// last loop is on its way to sleep.
				if spins%256 == 255 {
					runtime.Gosched()
				}
				if spins%4096 == 4095 && time.Now().After(timeout) {
					close(quit)
					t.Fatalf("step %d: %d of %d have seen topic %d move (seed %d)", step, seen[i].Load(), loops*subs, i, seed)
				}
			}
		}
	}
	close(quit)
	wg.Wait()
}

// TestWakeUpsThroughTheEngine: subscriptions on several loops of a running
// engine park and read while publishers publish; each sees every message.
func TestWakeUpsThroughTheEngine(t *testing.T) {
	const loops, topics = 3, 4
	each := 300
	r := newRig(t, func(r *rig) { r.cfg.Loops = loops })
	for i := range topics {
		r.create(fmt.Sprint("t", i))
	}
	wakes := make([]chan struct{}, loops)
	for i := range wakes {
		wakes[i] = make(chan struct{}, 1)
		r.cfg.Mailboxes[i].wake = func() {
			select {
			case wakes[i] <- struct{}{}:
			default:
			}
		}
	}
	r.e.Start()
	defer r.stop()
	var wg sync.WaitGroup
	for loop := range loops {
		wg.Go(func() {
			m := r.cfg.Mailboxes[loop]
			left := topics // subscriptions that have not seen everything
			count := map[*Subscription]int{}
			pump := func(s *Subscription) {
				if s.Park() {
					return
				}
				job := s.ReadOf()
				*job = Read{Kind: ReadPush, Session: s, Mailbox: m, Topic: s.Topic, From: s.Pos, Batch: 7}
				if !r.e.Read(job) {
					panic("the readers' queue is full")
				}
			}
			for i := range topics {
				s := newSub(r.e.Lookup(fmt.Append(nil, "t", i)), loop)
				s.Mailbox = m
				pump(s)
			}
			timeout := time.After(30 * time.Second)
			for left > 0 {
				select {
				case <-wakes[loop]:
				case <-timeout:
					t.Errorf("loop %d: asleep with %v", loop, count)
					return
				}
				m.Drain(func(n *Note) {
					switch v := n.Subject.(type) {
					case *Lane:
						v.Wake(woken(pump))
					case *Read:
						s := v.Session.(*Subscription)
						for _, g := range parsePush(t, v.Push.Frame) {
							if want := fmt.Sprint(count[s]); g.body != want {
								t.Errorf("%s: got %q, want %q", s.Topic.Meta.Name, g.body, want)
							}
							count[s]++
						}
						s.Pos = v.Push.Next
						v.Release()
						if count[s] == each {
							left--
						}
						pump(s)
					}
				})
			}
		})
	}
	answered := make(chan struct{}, 1)
	box := NewMailbox(func() { answered <- struct{}{} })
	for n := range each {
		for i := range topics {
			c := r.pool.Get()
			c.Kind, c.Mailbox, c.Messages = Publish, box, 1
			c.SetText(fmt.Append(nil, "t", i), nil, message(fmt.Sprint(n)))
			r.push(c)
			<-answered
			box.Drain(func(*Note) {})
			if c.Err != nil {
				t.Fatal(c.Err)
			}
			r.pool.Put(c)
		}
	}
	wg.Wait()
}
