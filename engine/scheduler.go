package engine

import (
	"container/heap"
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"smss/codec"
	"smss/storage"
)

// dueTimes is how the writer tells the scheduler of the earliest new delay and
// the earliest new end of a life, in Unix ms.
type dueTimes struct {
	firstDelay, firstExpiry atomic.Int64
	asleep                  atomic.Bool   // the scheduler waits for news, or is about to
	news                    chan struct{} // one slot
}

func (d *dueTimes) reset() {
	d.news = make(chan struct{}, 1)
	d.firstDelay.Store(0) // what is stored is not known yet
	d.firstExpiry.Store(math.MaxInt64)
}

func lower(v *atomic.Int64, to int64) {
	for {
		old := v.Load()
		if old <= to || v.CompareAndSwap(old, to) {
			return
		}
	}
}

func (d *dueTimes) delay(atMs int64) {
	lower(&d.firstDelay, atMs)
	d.tell()
}

func (d *dueTimes) expiry(atMs int64) {
	if atMs != 0 {
		lower(&d.firstExpiry, atMs)
		d.tell()
	}
}

// tell wakes a scheduler that waits for news. The time was stored before
// asleep is read, and the scheduler sets asleep before it looks at the times:
// one of the two sees the other.
func (d *dueTimes) tell() {
	if d.asleep.Load() && d.asleep.CompareAndSwap(true, false) {
		select {
		case d.news <- struct{}{}:
		default:
		}
	}
}

// none reports whether the writer has told nothing that was not taken.
func (d *dueTimes) none() bool {
	return d.firstDelay.Load() == math.MaxInt64 && d.firstExpiry.Load() == math.MaxInt64
}

// The scheduler's limits.
const (
	// tickEvery is how often the scheduler compares the clock with what is
	// due, as long as anything is pending. It never sleeps until a time of day,
	// so that a clock that steps changes nothing but which tick finds something.
	tickEvery = 25 * time.Millisecond
	// fireWindow is how many keys of due messages are in memory at once.
	fireWindow = 4096
	// fireBytes is how many bytes of due messages are on their way to the
	// writer at once.
	fireBytes = 4 << 20
	// After a failure a topic's delayed messages pause, twice as long each
	// time.
	retryFirst = time.Second
	retryMax   = 10 * time.Second
	// lookAgain is the pause between two looks while something that is due
	// pauses. It is what a message of another topic can be late by then.
	lookAgain = 50 * time.Millisecond
	// parkedMax is how many damaged delayed messages are stepped over; beyond
	// that they count as failing, which is loud enough.
	parkedMax = 1024
)

// scheduler publishes delayed messages that are due and deletes topics whose
// life is over, by commands through the ring. All fields are its own.
type scheduler struct {
	e       *Engine
	mailbox *Mailbox
	wake    chan struct{}
	wait    func() // immutable: until wake; tests step the writer meanwhile
	lull    func() // immutable: a moment, for room in the ring; likewise
	window  int    // immutable: fireWindow, but smaller in tests
	pool    CommandPool
	out     int // commands under way

	seekMs  int64 // no pending delay is due before
	nextMs  int64 // of the earliest pending delay, as far as known
	nextEnd int64 // of the earliest end of a life
	// Before these times nothing is done about what is due, because it has
	// just failed. They are no times of day: with one, a clock that steps back
	// would stretch the pause by as much.
	holdFires, holdEnds time.Time

	paused map[string]*pause
	parked map[storage.DelayKey]struct{}
}

// pause is a topic whose delayed messages could not be written.
type pause struct {
	until time.Time
	next  time.Duration
}

func (s *scheduler) init(e *Engine) {
	s.e = e
	s.wake = make(chan struct{}, 1)
	s.mailbox = NewMailbox(func() {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	})
	s.wait = func() { <-s.wake }
	s.lull = func() { time.Sleep(time.Millisecond) }
	s.window = fireWindow
	s.nextEnd = math.MaxInt64
	s.paused, s.parked = map[string]*pause{}, map[storage.DelayKey]struct{}{}
}

func (s *scheduler) run() {
	defer s.e.timers.Done()
	first := time.NewTimer(s.e.cfg.FirstScanAfter)
	defer first.Stop()
	select {
	case <-first.C:
	case <-s.e.quit:
		return
	}
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for {
		for s.step() && !s.stopping() {
		}
		c := tick.C
		if s.e.due.asleep.Store(true); s.idle() {
			c = nil // a server that has nothing pending is not woken for it
		}
		select {
		case <-c:
		case <-s.e.due.news:
		case <-s.e.quit:
			s.settle()
			return
		}
		s.e.due.asleep.Store(false)
	}
}

// idle reports whether nothing is pending, or somebody else sees to it.
func (s *scheduler) idle() bool {
	if s.e.Role() == Slave {
		return true
	}
	return s.nextMs == math.MaxInt64 && s.nextEnd == math.MaxInt64 && s.e.due.none()
}

func (s *scheduler) stopping() bool {
	select {
	case <-s.e.quit:
		return true
	default:
		return false
	}
}

// step does what is due now. It reports whether more may be due at once.
func (s *scheduler) step() bool {
	if s.e.Role() == Slave {
		return false // what the writer tells is taken when there is something to do with it
	}
	now, mono := s.e.clock.NowMs(), s.e.mono()
	if first := s.e.due.firstDelay.Swap(math.MaxInt64); first != math.MaxInt64 {
		s.seekMs, s.nextMs = min(s.seekMs, first), min(s.nextMs, first)
	}
	s.nextEnd = min(s.nextEnd, s.e.due.firstExpiry.Swap(math.MaxInt64))
	if s.nextEnd <= now && !mono.Before(s.holdEnds) {
		s.endLives(now)
	}
	if s.nextMs <= now && !mono.Before(s.holdFires) {
		return s.fireDue(now)
	}
	return false
}

// keyHeap is a max-heap of the earliest keys.
type keyHeap []storage.DelayKey

func (h keyHeap) Len() int           { return len(h) }
func (h keyHeap) Less(i, j int) bool { return h[j].Less(&h[i]) }
func (h keyHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *keyHeap) Push(x any)        { *h = append(*h, x.(storage.DelayKey)) }
func (h *keyHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// due returns the earliest keys that are due, at most a window, in order,
// and the earliest trigger time of those that were left out. Keys come from
// the store ordered by time but not within one millisecond, so a millisecond
// that does not fit is walked to its end to find its smallest ids.
func (s *scheduler) due(now int64) (keys []storage.DelayKey, left int64, err error) {
	var h keyHeap
	left = math.MaxInt64
	mono := s.e.mono()
	err = s.e.store.Meta().DelayKeys(s.seekMs, func(k storage.DelayKey) bool {
		if k.TriggerAtMs > now || (len(h) >= s.window && k.TriggerAtMs > h[0].TriggerAtMs) {
			left = min(left, k.TriggerAtMs)
			return false
		}
		if _, damaged := s.parked[k]; damaged {
			return true
		}
		if p := s.paused[k.Topic]; p != nil && mono.Before(p.until) {
			left = min(left, k.TriggerAtMs)
			return true
		}
		heap.Push(&h, k)
		if len(h) > s.window {
			out := heap.Pop(&h).(storage.DelayKey)
			left = min(left, out.TriggerAtMs)
		}
		return true
	})
	slices.SortFunc(h, func(a, b storage.DelayKey) int {
		if a.Less(&b) {
			return -1
		}
		return 1
	})
	return h, left, err
}

// fireDue sends what is due through the ring and waits for it. It reports
// whether more may be due at once.
func (s *scheduler) fireDue(now int64) bool {
	keys, left, err := s.due(now)
	if err != nil {
		s.e.events.Note("pending delayed messages cannot be read, will be tried again", err)
		s.holdFires = s.e.mono().Add(retryFirst)
		return false
	}
	failed := int64(math.MaxInt64)
	bytes := int64(0)
	for i := range keys {
		if s.stopping() {
			failed = min(failed, keys[i].TriggerAtMs)
			break
		}
		cmd, err := s.fireCommand(keys[i])
		if err != nil {
			s.e.events.Note("a delayed message cannot be read", err)
			failed = min(failed, keys[i].TriggerAtMs)
			continue
		}
		if cmd == nil {
			continue
		}
		if bytes += cmd.Size(); bytes > fireBytes {
			s.await(&failed)
			bytes = cmd.Size()
		}
		s.push(cmd, &failed)
	}
	s.await(&failed)
	s.seekMs = min(left, failed)
	s.nextMs = s.seekMs
	if s.nextMs == math.MaxInt64 {
		s.seekMs = now // what comes must be later, or the writer says so
		return false
	}
	if failed != math.MaxInt64 || (len(keys) == 0 && left <= now) {
		// What is left is paused: it is looked at again, but not at once.
		s.holdFires = s.e.mono().Add(lookAgain)
		return false
	}
	return left <= now
}

var errParked = errors.New("too many delayed messages are damaged")

// fireCommand reads a due message. A message that is gone is nil; one that is
// damaged is put aside, because it must not hold up the others.
func (s *scheduler) fireCommand(k storage.DelayKey) (*Command, error) {
	payload, found, err := s.e.store.Meta().DelayPayload(k)
	if err == nil && !found {
		return nil, nil
	}
	n, ok := countDelayed(k, payload)
	if err != nil || !ok {
		// The metadata is damaged here, and the binlog has it too, for as long
		// as retention keeps it.
		kept, found, lookErr := s.e.store.FindDelay(k)
		if lookErr != nil {
			return nil, lookErr
		}
		if !found && err != nil {
			return nil, err // it may pass
		}
		payload = kept
		n, ok = countDelayed(k, payload)
	}
	if !ok {
		if len(s.parked) >= parkedMax {
			return nil, errParked
		}
		s.parked[k] = struct{}{}
		s.e.events.Note("delayed message for topic "+k.Topic+" is damaged and stays undelivered", nil)
		return nil, nil
	}
	cmd := s.pool.Get()
	cmd.Kind, cmd.Mailbox, cmd.key, cmd.Messages = fire, s.mailbox, k, n
	cmd.ReceivedAtMs = s.e.clock.NowMs()
	cmd.SetText([]byte(k.Topic), nil, payload)
	return cmd, nil
}

// countDelayed returns how many messages the payload of a delayed message
// holds, or false where it is not the one that k names.
func countDelayed(k storage.DelayKey, payload []byte) (n int, ok bool) {
	messages, ok := codec.DelayMessages(payload)
	if !ok {
		return 0, false
	}
	if trigger, id := codec.ParseDelayPrefix(payload); trigger != k.TriggerAtMs || id != k.EventID {
		return 0, false
	}
	return codec.CountStored(messages)
}

// push hands cmd to the writer, waiting for room.
func (s *scheduler) push(cmd *Command, failed *int64) {
	for !s.e.Push(cmd) {
		if s.out > 0 {
			s.take(failed)
			continue
		}
		s.lull() // the ring is full of others' commands, which the writer works off
	}
	s.out++
}

// await waits until nothing is under way. failed becomes the earliest trigger
// time of a message that could not be published.
func (s *scheduler) await(failed *int64) {
	for s.out > 0 {
		s.take(failed)
	}
}

func (s *scheduler) settle() {
	var failed int64
	s.await(&failed)
}

// take waits for results and handles them.
func (s *scheduler) take(failed *int64) {
	s.wait()
	s.mailbox.Drain(func(n *Note) {
		cmd := n.Subject.(*Command)
		s.out--
		if cmd.Kind == fire {
			s.fired(cmd, failed)
		}
		s.pool.Put(cmd)
	})
}

// fired sees to one result: after a failure the topic's messages pause.
func (s *scheduler) fired(cmd *Command, failed *int64) {
	name := cmd.key.Topic
	if cmd.Err == nil {
		delete(s.paused, name)
		return
	}
	*failed = min(*failed, cmd.key.TriggerAtMs)
	p := s.paused[name]
	if p == nil {
		p = &pause{next: retryFirst}
		s.paused[name] = p
	}
	if mono := s.e.mono(); !mono.Before(p.until) {
		p.until = mono.Add(p.next)
		p.next = min(2*p.next, retryMax)
	}
}

// endLives deletes the topics whose life is over, and finds the next end.
func (s *scheduler) endLives(now int64) {
	var failed int64
	for _, t := range s.e.topics(func(t *Topic) bool { return t.Expired(now) }) {
		cmd := s.pool.Get()
		cmd.Kind, cmd.Mailbox, cmd.victim, cmd.ReceivedAtMs = expire, s.mailbox, t, now
		cmd.SetText([]byte(t.Meta.Name), nil, nil)
		s.push(cmd, &failed)
	}
	s.await(&failed)
	if s.nextEnd = s.earliestEnd(); s.nextEnd <= now {
		// A deletion failed, or the clock has stepped back meanwhile.
		s.holdEnds = s.e.mono().Add(retryFirst)
	}
}

// earliestEnd returns the earliest end of a life in the catalog.
func (s *scheduler) earliestEnd() int64 {
	first := int64(math.MaxInt64)
	s.e.catalog.Range(func(_, v any) bool {
		if at := v.(*Topic).Meta.ExpireAtMs; at != 0 {
			first = min(first, at)
		}
		return true
	})
	return first
}
