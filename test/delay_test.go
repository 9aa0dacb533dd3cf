package test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// These are the cases about delayed messages and time.

// tenYears is the longest delay that is taken by default.
const tenYears = int64(10 * 365 * 24 * 60 * 60 * 1000)

// TestCase45DelayRange: a delay outside the range is refused, one inside is
// never early, however long it is.
func TestCase45DelayRange(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	watcher := dial(t, s)
	watcher.sub(sub{topic: "t", who: "w", batch: 255, ack: time.Minute})

	for _, delay := range []int64{0, 1, -1, 999, math.MinInt64} {
		c.refused(reqDelay("t", delay, message("never")), textDelayTime)
	}
	for _, delay := range []int64{9223372036854, 9223372036854775, 9223372036854776, math.MaxInt64, math.MaxInt64 / 2, 1 << 62, 2 * tenYears} {
		if text := c.refused(reqDelay("t", delay, message("never")), ""); text == textDelayTime {
			t.Errorf("delay %d is refused with %q, want the maximum", delay, text)
		}
	}
	pending := []int64{4294967296, 31536000000, tenYears}
	for _, delay := range pending {
		c.ok(reqDelay("t", delay, message("far")))
	}
	start := time.Now()
	c.ok(reqDelay("t", 1000, message("soon")))
	watcher.one("soon")
	// The server counts from its reading of the request, whole milliseconds.
	if took := time.Since(start); took < 999*time.Millisecond || took > slack(1500*time.Millisecond) {
		t.Errorf("1,000 ms were %v", took)
	}
	s.stop()
	if got := countDelays(t, s); got != len(pending) {
		t.Errorf("%d delays pending after a stop, want %d", got, len(pending))
	}
	s.restart()
	wantBodies(t, drain(t, s, "t"), "soon")
	s.kill()
	s.restart()
	wantBodies(t, drain(t, s, "t"), "soon")
}

// TestDelayPrecision: on an otherwise idle server a delayed message comes
// within 100 ms of its time, and never before.
func TestDelayPrecision(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	watcher := dial(t, s)
	watcher.sub(sub{topic: "t", who: "w", batch: 1, ack: time.Minute})
	due := map[string]time.Time{}
	// Not in order of time: the plan must be made anew for an earlier one.
	for _, ms := range []int64{1900, 1000, 1600, 1300} {
		body := fmt.Sprint(ms)
		due[body] = time.Now().Add(time.Duration(ms) * time.Millisecond)
		c.ok(reqDelay("t", ms, message(body)))
	}
	for _, body := range []string{"1000", "1300", "1600", "1900"} {
		watcher.one(body)
		off := time.Since(due[body])
		watcher.send(ackNext)
		if off < -2*time.Millisecond || off > slack(200*time.Millisecond) {
			t.Errorf("%s ms: off by %v", body, off)
		}
	}
}

// TestDelayOrder: what is due at the same time comes in publish order; the
// existing server ordered by the low byte of the id.
func TestDelayOrder(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	const n = 600 // more than 256, so that the ids carry over
	var requests []byte
	for i := range n {
		requests = append(requests, reqDelay("t", 1500, message(fmt.Sprint(i)))...)
	}
	sent := make(chan error, 1)
	go func() { sent <- c.write(requests) }()
	for i := range n {
		if r, err := c.reply(false); err != nil || r.code != codeDone {
			t.Fatalf("DELAY %d: %v, %v", i, r, err)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	for i, m := range read(t, s, "t", 0, n) {
		if m.body != fmt.Sprint(i) {
			t.Fatalf("message %d is %s", i, m.body)
		}
	}
}

// TestDelayDueWhileDown: what fell due while the server was down comes once,
// soon after the start, in order of time; a batch stays one batch.
func TestDelayDueWhileDown(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"stop", "kill"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, options{})
			c := dial(t, s)
			c.ok(reqCreate("t", 0))
			start := time.Now()
			c.ok(reqDelay("t", 1400, batch("second", "third")))
			c.ok(reqDelay("t", 1100, message("first", [2]string{"k", "v"})))
			c.ok(reqDelay("t", 4000, message("later")))
			if end == "kill" {
				s.kill()
			} else {
				s.stop()
			}
			// Time must pass while the server is down.
			time.Sleep(time.Until(start.Add(1600 * time.Millisecond)))
			s.restart()
			msgs := read(t, s, "t", 0, 3)
			wantBodies(t, msgs, "first", "second", "third")
			if !slices.Equal(msgs[0].headers, [][2]string{{"k", "v"}}) {
				t.Errorf("headers %v", msgs[0].headers)
			}
			if msgs[2].id != msgs[1].id+1 {
				t.Errorf("ids of a batch: %d, %d", msgs[1].id, msgs[2].id)
			}
			wantBodies(t, read(t, s, "t", msgs[2].id, 1), "later")
			wantBodies(t, drain(t, s, "t"), "first", "second", "third", "later")
		})
	}
}

// TestCase46CrashWhileFiring: a kill in the middle of firing neither loses a
// delayed message nor sends it twice.
func TestCase46CrashWhileFiring(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	random := rand.New(rand.NewPCG(46, 46))
	var want []string
	for round := range scale(3, 30) {
		c := dial(t, s)
		start := time.Now()
		var requests []byte
		const n = 300
		for i := range n {
			body := fmt.Sprintf("%d-%d", round, i)
			want = append(want, body)
			requests = append(requests, reqDelay("t", int64(1000+i*2), message(body))...)
		}
		sent := make(chan error, 1)
		go func() { sent <- c.write(requests) }()
		for i := range n {
			if r, err := c.reply(false); err != nil || r.code != codeDone {
				t.Fatalf("DELAY %d: %v, %v", i, r, err)
			}
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		// Two kills at random points of the window in which they fire.
		for _, at := range []int{1000 + random.IntN(300), 1350 + random.IntN(250)} {
			time.Sleep(time.Until(start.Add(time.Duration(at) * time.Millisecond)))
			s.kill()
			s.restart()
		}
	}
	all, err := readUntil(s.addr(), "t", 0, 255, func(all []pushed) bool { return len(all) >= len(want) })
	if err != nil {
		t.Fatal(err)
	}
	all = append(all, drain(t, s, "t")[len(all):]...)
	count := map[string]int{}
	for _, m := range all {
		count[m.body]++
	}
	for _, body := range want {
		if count[body] != 1 {
			t.Errorf("%s was delivered %d times", body, count[body])
		}
	}
	if len(count) != len(want) {
		t.Errorf("%d different messages, want %d", len(count), len(want))
	}
}

// TestCase50Recreated: a topic made anew gets nothing from its former life.
func TestCase50Recreated(t *testing.T) {
	t.Parallel()
	for _, between := range []string{"at once", "stop", "kill"} {
		t.Run(between, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, options{})
			c := dial(t, s)
			c.ok(reqCreate("t", 0))
			c.ok(reqPub("t", message("old")))
			c.ok(reqDelay("t", 1500, message("old delayed")))
			c.ok(reqDelay("t", tenYears, message("old delayed")))
			c.ok(reqDelete("t"))
			switch between {
			case "stop":
				s.stop()
				s.restart()
			case "kill":
				s.kill()
				s.restart()
			}
			c = dial(t, s)
			c.ok(reqCreate("t", 0))
			// Due after the old one: when it arrives the old one's time is over.
			c.ok(reqDelay("t", 2500, message("new delayed")))
			wantBodies(t, read(t, s, "t", 0, 1), "new delayed")
			wantBodies(t, drain(t, s, "t"), "new delayed")
			s.stop()
			if got := countDelays(t, s); got != 0 {
				t.Errorf("%d delays of the former life are still stored", got)
			}
		})
	}
}

// TestDelayTopicGone: the delay of a topic that has been deleted is dropped,
// and others that are due with it still come.
func TestDelayTopicGone(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	c := dial(t, s)
	c.ok(reqCreate("gone", 0))
	var wg sync.WaitGroup
	for i := range 20 {
		topic := fmt.Sprint("t", i)
		c.ok(reqCreate(topic, 0))
	}
	for i := range 20 {
		c.ok(reqDelay("gone", 1200, message("lost")))
		c.ok(reqDelay(fmt.Sprint("t", i), 1200, message("kept")))
	}
	c.ok(reqDelete("gone"))
	errs := make(chan error, 20)
	for i := range 20 {
		wg.Go(func() {
			all, err := readUntil(s.addr(), fmt.Sprint("t", i), 0, 1, func(all []pushed) bool { return len(all) == 1 })
			if err == nil && all[0].body != "kept" {
				err = fmt.Errorf("got %s", bodies(all))
			}
			errs <- err
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	c.refused(reqInfo("gone"), textNoTopic)
	if strings.Contains(strings.Join(topicNames(c), " "), "gone") {
		t.Error("gone is listed")
	}
}

func topicNames(c *client) []string {
	c.t.Helper()
	var all []string
	for name := range c.list() {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}
