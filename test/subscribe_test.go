package test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// These are the cases about subscribers, acknowledgements and names.

// TestCase54NameFreed: a name is taken while its subscriber lives and free
// within a second after it is gone.
func TestCase54NameFreed(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	c := dial(t, s)
	for _, state := range []string{"idle", "busy"} {
		for _, end := range []string{"close", "reset"} {
			for i, who := range []string{"w", "", "订阅者", strings.Repeat("n", 1000)} {
				t.Run(fmt.Sprintf("%s/%s/%.10q", state, end, who), func(t *testing.T) {
					topic := fmt.Sprint(state, end, i)
					c.ok(reqCreate(topic, 0))
					c.ok(reqPub(topic, message("m")))
					c.ok(reqCreate(topic+"other", 0))
					request := sub{topic: topic, who: who, batch: 1, ack: time.Minute}
					holder := dial(t, s)
					holder.sub(request)
					holder.one("m")
					if state == "idle" {
						holder.send(ackNext)
					}
					second := dial(t, s)
					second.refused(request.request(), who+textNameTaken)
					second.alive()
					// The same name elsewhere, and another name here, are free.
					elsewhere := request
					elsewhere.topic = topic + "other"
					second.sub(elsewhere)
					third := dial(t, s)
					other := request
					other.who = who + "2"
					third.sub(other)
					third.one("m")
					if end == "close" {
						holder.close()
					} else {
						holder.reset()
					}
					await(t, slack(time.Second), "the name is free", func() bool {
						x := dial(t, s)
						defer x.close()
						return !taken(t, x, request)
					})
				})
			}
		}
	}
}

// taken subscribes to a topic that has a message and says whether the name
// was refused as taken.
func taken(t *testing.T, c *client, o sub) bool {
	t.Helper()
	c.sub(o)
	f, err := c.frame()
	if err != nil {
		t.Fatal(err)
	}
	if f.code == codeError && strings.HasSuffix(f.text, textNameTaken) {
		return true
	}
	if f.code != codeDone {
		t.Fatalf("SUB: %d %s", f.code, f.text)
	}
	return false
}

// TestCase55LateAck: an acknowledgement in time goes on, one that is late
// changes nothing, and the batch is delivered again.
func TestCase55LateAck(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	for i := range 6 {
		c.ok(reqPub("t", message(fmt.Sprint(i))))
	}
	const limit = 1200 * time.Millisecond
	request := sub{topic: "t", who: "w", batch: 2, ack: limit}
	x := dial(t, s)
	x.sub(request)
	first := x.push()
	wantBodies(t, first, "0", "1")
	// The times are the subject here.
	time.Sleep(limit * 3 / 4)
	x.send(ackNext)
	wantBodies(t, x.push(), "2", "3")
	start := time.Now()
	x.closed()
	if took := time.Since(start); took < limit-50*time.Millisecond || took > slack(limit+time.Second) {
		t.Errorf("closed after %v, the acknowledgement timeout is %v", took, limit)
	}
	// A late one on a connection that is closed: it may fail, it must not count.
	_ = x.write(ackNext)

	again := dial(t, s)
	request.from = first[1].id
	again.sub(request)
	wantBodies(t, again.push(), "2", "3")
	again.send(ackNext)
	wantBodies(t, again.push(), "4", "5")
	again.send(ackLast)
	again.alive()
}

// TestAckTimeoutDefault: without a timeout in the request, or with one that
// is not positive, 3 s count.
func TestAckTimeoutDefault(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	c.ok(reqPub("t", message("m")))
	for _, ack := range []time.Duration{0, -time.Second, math.MinInt64} {
		t.Run(ack.String(), func(t *testing.T) {
			t.Parallel()
			x := dial(t, s)
			x.sub(sub{topic: "t", who: ack.String(), ack: ack})
			x.one("m")
			start := time.Now()
			x.closed()
			if took := time.Since(start); took < 2900*time.Millisecond || took > slack(4500*time.Millisecond) {
				t.Errorf("closed after %v", took)
			}
		})
	}
	t.Run("longest", func(t *testing.T) {
		t.Parallel()
		x := dial(t, s)
		x.sub(sub{topic: "t", who: "longest", ack: math.MaxInt64})
		x.one("m")
		x.silent(3500 * time.Millisecond)
		x.send(ackLast)
		x.alive()
	})
}

// TestCase56TwoAcks: a surplus acknowledgement is an error, never one for the
// next batch.
func TestCase56TwoAcks(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{config: config{"timeout.server.alive": 2000}})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	for i := range 4 {
		c.ok(reqPub("t", message(fmt.Sprint(i))))
	}
	for round := range 20 {
		request := sub{topic: "t", who: fmt.Sprint("w", round), batch: 1, ack: time.Minute}
		x := dial(t, s)
		x.sub(request)
		x.one("0")
		x.send([]byte{0, 0, 0, 0})
		for {
			f, err := x.frame()
			if err != nil || f.code == codeError {
				break // closed, perhaps with a reason
			}
			if f.code == codeDone && f.msgs[0].body != "1" {
				t.Fatalf("round %d: pushed %s before batch 2 was acknowledged", round, bodies(f.msgs))
			}
		}
		x.reset()
		await(t, slack(5*time.Second), "the name is free", func() bool {
			y := dial(t, s)
			defer y.reset()
			return !taken(t, y, request)
		})
	}
	// An acknowledgement before there was any push; the heartbeat shows that
	// the subscription stands.
	c.ok(reqCreate("empty", 0))
	x := dial(t, s)
	x.sub(sub{topic: "empty", who: "w"})
	if f, err := x.frame(); err != nil || f.code != codeAlive {
		t.Fatalf("%d, %v; want 201", f.code, err)
	}
	x.send(ackNext)
	for {
		f, err := x.frame()
		if err != nil {
			break
		}
		if f.code == codeDone {
			t.Fatalf("pushed %s", bodies(f.msgs))
		}
	}
	c.ok(reqPub("empty", message("m")))
	y := dial(t, s)
	y.sub(sub{topic: "empty", who: "w"})
	y.one("m")
}

// TestCase59Position: an id that a topic does not hold is refused, never
// skipped in silence; the newest waits.
func TestCase59Position(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1 << 30, 100} {
		t.Run(fmt.Sprintf("maxLogSize=%d", size), func(t *testing.T) {
			t.Parallel()
			s := startServer(t, options{config: config{"store.maxLogSize": size}})
			c := dial(t, s)
			c.ok(reqCreate("t", 0))
			c.ok(reqCreate("u", 0))
			c.ok(reqPub("t", message("t1")))
			c.ok(reqPub("u", message("u1")))
			c.ok(reqPub("t", batch("t2", "t3", "t4")))
			c.ok(reqPub("u", message("u2")))
			c.ok(reqPub("t", message("t5")))
			c.ok(reqPub("u", message("u3")))
			msgs := read(t, s, "t", 0, 5)
			foreign := read(t, s, "u", 0, 3)
			oldest, newest := msgs[0].id, msgs[4].id
			x := dial(t, s)
			for _, id := range []int64{-1, -2, math.MinInt64, oldest - 1, foreign[0].id, foreign[1].id, foreign[2].id,
				foreign[2].id + 1, newest + 1_000_000, math.MaxInt64} {
				x.refused(sub{topic: "t", who: "w", from: id}.request(), textNoEvent)
				x.alive()
			}
			for i := range 4 {
				x.sub(sub{topic: "t", who: "w", from: msgs[i].id, batch: 1})
				x.one(fmt.Sprintf("t%d", i+2))
				x.send(ackLast)
				x.alive()
			}
			x.sub(sub{topic: "t", who: "w", from: newest})
			c.ok(reqPub("t", message("t6")))
			x.one("t6")

			// A topic that was made anew holds nothing of its former life.
			c.ok(reqDelete("u"))
			c.ok(reqCreate("u", 0))
			y := dial(t, s)
			for _, id := range []int64{foreign[0].id, foreign[2].id, newest, 1} {
				y.refused(sub{topic: "u", who: "w", from: id}.request(), textNoEvent)
			}
			y.sub(sub{topic: "u", who: "w"})
			c.ok(reqPub("u", message("new life")))
			y.one("new life")
		})
	}
}

// TestCase60LargeBatch: a batch is cut by bytes too, and all is delivered.
func TestCase60LargeBatch(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	const size = 1 << 20
	n := scale(40, 300)
	for i := range n {
		c.ok(reqPub("t", message(hashedBody(uint64(i), size))))
	}
	before := s.rss()
	var wg sync.WaitGroup
	errs := make(chan error, 10)
	readers := scale(3, 10)
	for i := range readers {
		wg.Go(func() {
			x, err := dialErr(s.addr())
			if err != nil {
				errs <- err
				return
			}
			defer x.close()
			if err := x.write(sub{topic: "t", who: fmt.Sprint(i), batch: 255}.request()); err != nil {
				errs <- err
				return
			}
			for got := 0; got < n; {
				f, err := x.frame()
				if err != nil || f.code != codeDone {
					errs <- fmt.Errorf("after %d messages: %d, %w", got, f.code, err)
					return
				}
				if f.size > 8<<20 {
					errs <- fmt.Errorf("a push of %d bytes", f.size)
				}
				for _, m := range f.msgs {
					if len(m.body) != size || !intact(m.body) {
						errs <- fmt.Errorf("message %d is damaged", m.id)
					}
				}
				got += len(f.msgs)
				if err := x.write(ackNext); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	if grown := s.rss() - before; !raceEnabled && grown > 100<<20 {
		t.Errorf("resident memory grew by %d MiB", grown>>20)
	}
}

// TestCase61SegmentBorder: no gap, no repeat and no error at any border of
// files, wherever a subscriber comes in.
func TestCase61SegmentBorder(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{config: config{"store.maxLogSize": 100}})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	n := 12
	for i := range n {
		c.ok(reqPub("t", message(fmt.Sprintf("%02d", i)+strings.Repeat("x", i*7))))
	}
	check := func() []pushed {
		t.Helper()
		all := read(t, s, "t", 0, n)
		if len(all) != n {
			t.Fatalf("%d messages, want %d", len(all), n)
		}
		for i, m := range all {
			if !strings.HasPrefix(m.body, fmt.Sprintf("%02d", i)) {
				t.Fatalf("message %d is %.10q", i, m.body)
			}
			// The position is just after the message; after the last one of
			// a file it is the start of the next.
			if i > 0 {
				prev := all[i-1]
				if m.file < prev.file || m.file == prev.file && m.pos <= prev.pos || m.file == prev.file+1 && m.pos < 0 {
					t.Errorf("position %d/%d after %d/%d", m.file, m.pos, prev.file, prev.pos)
				}
			}
			if i < n-1 {
				rest := read(t, s, "t", m.id, n-1-i)
				if len(rest) != n-1-i || rest[0].id != all[i+1].id {
					t.Fatalf("after message %d come %s", i, bodies(rest))
				}
			}
		}
		return all
	}
	all := check()
	if all[n-1].file < 3 {
		t.Fatalf("only %d files: the test does not reach a border", all[n-1].file+1)
	}
	s.kill()
	s.restart()
	check()

	// An empty newest file, as a kill between its creation and the first
	// write leaves it.
	root := filepath.FromSlash(dial(t, s).info("t").TopicRoot)
	s.kill()
	dir := filepath.Join(s.dataDir(), "topic", root)
	newest := len(logFiles(t, s, "topic", root))
	if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.log", newest)), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s.restart()
	all = check()

	// Resume while the writer rolls.
	c = dial(t, s)
	x := dial(t, s)
	x.sub(sub{topic: "t", who: "w", from: all[n-1].id, batch: 3, ack: time.Minute})
	const live = 200
	sent := make(chan error, 1)
	go func() {
		for i := range live {
			if err := c.doOK(reqPub("t", message(fmt.Sprintf("live %d", i)))); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for got := 0; got < live; {
		for _, m := range x.push() {
			if want := fmt.Sprintf("live %d", got); m.body != want {
				t.Fatalf("got %q, want %q", m.body, want)
			}
			got++
		}
		x.send(ackNext)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

// TestHeartbeat: a subscription without traffic is kept alive, and a push in
// between does not stop that.
func TestHeartbeat(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{config: config{"timeout.server.alive": 300}})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	x := dial(t, s)
	x.sub(sub{topic: "t", who: "w"})
	start := time.Now()
	for range 3 {
		if f, err := x.frame(); err != nil || f.code != codeAlive {
			t.Fatalf("%d, %v; want 201", f.code, err)
		}
	}
	if took := time.Since(start); took < 800*time.Millisecond || took > slack(2*time.Second) {
		t.Errorf("three heartbeats of 300 ms took %v", took)
	}
	c.ok(reqPub("t", message("m")))
	x.one("m")
	x.send(ackNext)
	if f, err := x.frame(); err != nil || f.code != codeAlive {
		t.Fatalf("%d, %v; want 201", f.code, err)
	}
}
