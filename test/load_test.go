package test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// These are the cases about connections, event loops and load.

// TestCase13NoDescriptorsLeft: more connections than descriptors do not end
// the server, nor keep it from its own files, and it recovers by itself.
func TestCase13NoDescriptorsLeft(t *testing.T) {
	t.Parallel()
	// Each message of 100 bytes and more fills a file, so that publishing
	// opens new ones all the time.
	s := startServer(t, options{nofile: 64, config: config{"store.maxLogSize": 100}})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	mark := len(s.log.String())

	const attempts = 120
	type result struct {
		c        *client
		accepted bool
	}
	results := make(chan result, attempts)
	for i := range attempts {
		go func() {
			x, err := dialErr(s.addr())
			if err != nil {
				results <- result{}
				return
			}
			x.limit = 2 * time.Second
			rep, err := x.do(reqAlive(""))
			served := err == nil && rep.code == codeAlive
			// Half of them become subscribers, which need files too.
			if served && i%2 == 0 {
				served = x.write(sub{topic: "t", who: fmt.Sprint("w", i)}.request()) == nil
			}
			results <- result{x, served}
		}()
	}
	var open []*client
	accepted := 0
	for range attempts {
		r := <-results
		if r.c != nil {
			open = append(open, r.c)
		}
		if r.accepted {
			accepted++
		}
	}
	t.Logf("%d of %d connections were served", accepted, attempts)
	if accepted == 0 || accepted > 64 {
		t.Errorf("%d connections served with 64 descriptors", accepted)
	}
	for i := range 10 {
		c.ok(reqPub("t", message(strings.Repeat("x", 100)+fmt.Sprint(i))))
	}
	if !s.running() {
		t.Fatal("the server ended")
	}
	if text := s.log.String()[mark:]; !regexp.MustCompile(`(?i)descriptor|connection`).MatchString(text) {
		t.Errorf("the log does not speak of the shortage:\n%s", text)
	}
	for _, x := range open {
		x.close()
	}
	// The places come free as the server notices the ends.
	await(t, slack(10*time.Second), "a new connection is served", func() bool {
		x, err := dialErr(s.addr())
		if err != nil {
			return false
		}
		defer x.close()
		x.limit = time.Second
		return x.doOK(reqPub("t", message("after"))) == nil
	})
	if got := len(drain(t, s, "t")); got != 11 {
		t.Errorf("%d messages, want 11", got)
	}
}

// TestCase14SubscriberNeverReads: what a subscriber does not take does not
// pile up, and publishers do not feel it.
func TestCase14SubscriberNeverReads(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	subs := scale(20, 200)
	for i := range subs {
		x := smallWindow(t, s)
		x.sub(sub{topic: "t", who: fmt.Sprint("w", i), batch: 255, ack: 2 * time.Second})
	}
	before := s.rss()
	body := strings.Repeat("x", 64<<10)
	var worst time.Duration
	var peak int64
	start := time.Now()
	for i := range scale(600, 30000) {
		at := time.Now()
		c.ok(reqPub("t", message(body)))
		worst = max(worst, time.Since(at))
		if i%20 == 0 {
			peak = max(peak, s.rss())
		}
	}
	t.Logf("publishing took %v, the slowest %v; resident memory grew by %d MiB", time.Since(start), worst, (peak-before)>>20)
	// Without a bound each subscriber would hold up to 255 × 64 KiB = 16 MiB.
	if limit := int64(40+2*subs) << 20; !raceEnabled && peak-before > limit {
		t.Errorf("resident memory grew by %d MiB, want less than %d", (peak-before)>>20, limit>>20)
	}
	if limit := slack(2 * time.Second); worst > limit {
		t.Errorf("a publish took %v", worst)
	}
	// Dropped after the acknowledgement or write time: the names are free.
	for i := range subs {
		await(t, slack(20*time.Second), "the name of a subscriber that never reads is free", func() bool {
			x := dial(t, s)
			defer x.close()
			x.sub(sub{topic: "t", who: fmt.Sprint("w", i), batch: 1})
			f, err := x.frame()
			return err == nil && f.code == codeDone
		})
	}
}

// TestCase16HalfClose: a client that sends, shuts its sending side and reads
// on gets its replies before the connection ends.
func TestCase16HalfClose(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{config: config{"store.flushLevel": 2}})
	for i := range scale(50, 1000) {
		topic := fmt.Sprint("t", i)
		c := dial(t, s)
		requests := append(reqCreate(topic, 0), reqPub(topic, message("half"))...)
		requests = append(requests, reqAlive("")...)
		c.send(requests)
		if err := c.conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		for _, want := range []int{codeDone, codeDone, codeAlive} {
			if r, err := c.reply(false); err != nil || r.code != want {
				t.Fatalf("round %d: %v, %v; want %d", i, r, err, want)
			}
		}
		if b, err := c.full(1); !errors.Is(err, io.EOF) {
			t.Fatalf("round %d: % x, %v; want the end of the stream", i, b, err)
		}
		c.close()
	}
	wantBodies(t, read(t, s, "t0", 0, 1), "half")
}

// TestCase17Churn: connections that die in the middle of anything leave
// nothing behind.
func TestCase17Churn(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	c.ok(reqPub("t", message("first")))
	files := s.openFiles()
	pub := reqPub("t", message(strings.Repeat("half", 100)))
	half := pub[:len(pub)/2]
	for i := range scale(1000, 10000) {
		x, err := dialErr(s.addr())
		if err != nil {
			t.Fatal(err)
		}
		x.t = t
		x.send(half[:1+i%len(half)])
		x.reset()
	}
	for i := range scale(500, 10000) {
		x, err := dialErr(s.addr())
		if err != nil {
			t.Fatal(err)
		}
		x.t = t
		x.sub(sub{topic: "t", who: fmt.Sprint("w", i%10), batch: 1})
		if i%3 == 0 {
			// Some wait for the push or the refusal of a name in use.
			if _, err := x.frame(); err != nil {
				t.Fatal(err)
			}
		}
		x.reset()
	}
	await(t, 30*time.Second, "the descriptors are back to where they were", func() bool { return s.openFiles() <= files+2 })
	for i := range 10 {
		x := dial(t, s)
		x.sub(sub{topic: "t", who: fmt.Sprint("w", i), batch: 1})
		x.one("first")
	}
	wantBodies(t, drain(t, s, "t"), "first")
}

// TestCase19ManyHands: subscribers, publishers, deletes and resets at the
// same time; every frame is parsed strictly. Meant for the race detector.
func TestCase19ManyHands(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	stop := time.Now().Add(time.Duration(scale(3, 300)) * time.Second)
	running := func() bool { return time.Now().Before(stop) }
	topics := []string{"a", "b", "c"}
	admin := dial(t, s)
	for _, topic := range topics {
		admin.ok(reqCreate(topic, 0))
	}
	var wg, subscribers sync.WaitGroup
	errs := make(chan error, 300)
	var pushes, ends atomic.Int64
	work := func(wg *sync.WaitGroup, f func(*client, *rand.Rand) error) {
		seed := uint64(names.Add(1))
		wg.Go(func() {
			random := rand.New(rand.NewPCG(seed, 19))
			for running() {
				x, err := dialErr(s.addr())
				if err == nil {
					err = f(x, random)
					x.reset()
				}
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	for range 4 {
		work(&wg, func(x *client, random *rand.Rand) error { // publishers
			for n := 0; n < 50 && running(); n++ {
				r, err := x.do(reqPub(topics[random.IntN(3)], batch(hashedBody(uint64(n), 50+random.IntN(2000)), "tail")))
				if err != nil {
					return fmt.Errorf("publisher: %w", err)
				}
				if r.code != codeDone && r.text != textNoTopic {
					return fmt.Errorf("publisher: %v", r)
				}
			}
			return nil
		})
	}
	for i := range scale(20, 200) {
		work(&subscribers, func(x *client, random *rand.Rand) error { // subscribers
			s := sub{topic: topics[random.IntN(3)], who: fmt.Sprint("w", i), batch: byte(random.IntN(20)), ack: 5 * time.Second}
			if err := x.write(s.request()); err != nil {
				return err
			}
			for n := 0; n < 20 && running(); n++ {
				f, err := x.frame()
				if err != nil {
					return fmt.Errorf("subscriber: %w", err)
				}
				switch f.code {
				case codeEnd:
					ends.Add(1)
					return nil
				case codeError:
					// Its topic is just being made anew, or the connection
					// before this one has not been noticed as gone yet.
					if f.text != textNoTopic && !strings.HasSuffix(f.text, textNameTaken) {
						return fmt.Errorf("subscriber: 400 %s", f.text)
					}
					return nil
				}
				pushes.Add(1)
				for _, m := range f.msgs {
					if m.body != "tail" && !intact(m.body) {
						return fmt.Errorf("message %d is damaged", m.id)
					}
				}
				if err := x.write(ackNext); err != nil {
					return err
				}
			}
			return nil
		})
	}
	work(&wg, func(x *client, random *rand.Rand) error { // the one who deletes
		topic := topics[random.IntN(3)]
		if err := x.doOK(reqDelete(topic)); err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		if err := x.doOK(reqCreate(topic, 0)); err != nil {
			return fmt.Errorf("create: %w", err)
		}
		time.Sleep(20 * time.Millisecond)
		return nil
	})
	wg.Wait()
	// Who waits at a topic that has become empty gets one more message: that
	// none comes is for a lost wake-up only.
	over := make(chan struct{})
	go func() {
		subscribers.Wait()
		close(over)
	}()
	for waiting := true; waiting; {
		for _, topic := range topics {
			admin.ok(reqPub(topic, message("tail")))
		}
		select {
		case <-over:
			waiting = false
		case <-time.After(50 * time.Millisecond):
		}
	}
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	t.Logf("%d pushes, %d subscriptions ended by a delete", pushes.Load(), ends.Load())
	if pushes.Load() == 0 || ends.Load() == 0 {
		t.Error("the test did not reach what it is about")
	}
}

// TestCase20LongWork: LIST over many topics and the delete of a large one do
// not keep other connections waiting.
func TestCase20LongWork(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	c := dial(t, s)
	topics := scale(1000, 10000)
	// Pipelined, but no more than a connection may have on its way.
	for from := 0; from < topics; from += 50 {
		var requests []byte
		for i := range 50 {
			requests = append(requests, reqCreate(fmt.Sprint("t", from+i), 0)...)
		}
		c.send(requests)
		for range 50 {
			if r, err := c.reply(false); err != nil || r.code != codeDone {
				t.Fatalf("CREATE: %v, %v", r, err)
			}
		}
	}
	large := message(strings.Repeat("x", 1<<20))
	for range scale(64, 2000) {
		c.ok(reqPub("t0", large))
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	errs := make(chan error, 100)
	var worst atomic.Int64
	for range scale(10, 50) {
		x := dial(t, s)
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(50 * time.Millisecond):
				}
				start := time.Now()
				if r, err := x.do(reqAlive("")); err != nil || r.code != codeAlive {
					errs <- fmt.Errorf("ALIVE: %v, %w", r, err)
					return
				}
				took := int64(time.Since(start))
				for old := worst.Load(); took > old && !worst.CompareAndSwap(old, took); old = worst.Load() {
				}
			}
		})
	}
	for i := range scale(20, 200) {
		if got := len(c.list()); got != topics {
			t.Errorf("LIST %d shows %d topics, want %d", i, got, topics)
		}
	}
	c.ok(reqDelete("t0"))
	for range 5 {
		c.list()
	}
	close(stop)
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	t.Logf("the slowest ALIVE took %v", time.Duration(worst.Load()))
	if limit := slack(500 * time.Millisecond); time.Duration(worst.Load()) > limit {
		t.Errorf("an ALIVE took %v, want less than %v", time.Duration(worst.Load()), limit)
	}
}

// TestMemory: an idle server with an empty store stays small, and idle
// subscribers cost little each.
func TestMemory(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector multiplies memory: only a run without it can measure")
	}
	t.Parallel()
	s := startServer(t, options{})
	idle := s.rss()
	t.Logf("idle: %.1f MiB resident", float64(idle)/(1<<20))
	if idle > 20<<20 {
		t.Errorf("idle server: %.1f MiB resident, want less than 20", float64(idle)/(1<<20))
	}
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	n := scale(500, 10000)
	before := s.rss()
	var subs []*client
	for i := range n {
		x := dial(t, s)
		x.sub(sub{topic: "t", who: fmt.Sprint("w", i)})
		subs = append(subs, x)
	}
	// All are subscribed when all get the same message.
	c.ok(reqPub("t", message("x")))
	for _, x := range subs {
		x.one("x")
		x.send(ackNext)
	}
	each := (s.rss() - before) / int64(n)
	t.Logf("%d idle subscribers cost %d bytes each", n, each)
	// The figure is for many; with few of them the heap's own growth shows.
	if limit := int64(scale(16<<10, 2<<10)); each > limit {
		t.Errorf("an idle subscriber costs %d bytes, want less than %d", each, limit)
	}
}
