package test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// These are the cases about topics, lifetime and retention.

// TestCase62DeleteUnderSubscribers: a delete never waits for subscribers,
// stops nobody else, and every subscriber gets 255 exactly once.
func TestCase62DeleteUnderSubscribers(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, scale(100, 1000)} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			s := startServer(t, options{})
			c, other := dial(t, s), dial(t, s)
			c.ok(reqCreate("t", 0))
			c.ok(reqCreate("u", 0))
			c.ok(reqPub("t", message("m")))
			var idle, busy []*client
			for i := range n {
				x := dial(t, s)
				x.sub(sub{topic: "t", who: fmt.Sprint("w", i), batch: 1, ack: time.Minute})
				x.one("m")
				if i%5 == 1 {
					busy = append(busy, x) // owes an acknowledgement
					continue
				}
				x.send(ackNext)
				idle = append(idle, x)
			}
			start := time.Now()
			c.ok(reqDelete("t"))
			if took := time.Since(start); took > slack(2*time.Second) {
				t.Errorf("DELETE took %v", took)
			}
			start = time.Now()
			other.ok(reqPub("u", message("m")))
			if took := time.Since(start); took > slack(500*time.Millisecond) {
				t.Errorf("a publish to another topic took %v", took)
			}
			c.refused(reqPub("t", message("m")), textNoTopic)
			c.refused(sub{topic: "t", who: "late"}.request(), textNoTopic)
			for _, x := range idle {
				x.end()
			}
			// Who owes an answer gives it and then hears of the end; the
			// answer must not be taken for the start of a request.
			for _, x := range busy {
				x.send(ackNext)
				x.end()
			}
			// Exactly once, in command mode, the name free.
			c.ok(reqCreate("t", 0))
			for i, x := range append(idle, busy...) {
				x.alive()
				x.sub(sub{topic: "t", who: fmt.Sprint("w", i), batch: 1})
			}
			c.ok(reqPub("t", message("new")))
			for _, x := range append(idle, busy...) {
				x.one("new")
			}
		})
	}
}

// TestCase64DeleteAndCreate: a topic made anew at once holds its own messages
// and no others, also over a kill.
func TestCase64DeleteAndCreate(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	for round := range scale(30, 200) {
		body := func(what string, i int) []byte { return message(fmt.Sprintf("%s %d-%d", what, round, i)) }
		for i := range 3 {
			c.ok(reqPub("t", body("old", i)))
		}
		c.ok(reqDelete("t"))
		c.ok(reqCreate("t", 0))
		for i := range 3 {
			c.ok(reqPub("t", body("new", i)))
		}
		if round%10 == 9 {
			s.kill()
			s.restart()
			c = dial(t, s)
		}
		got := read(t, s, "t", 0, 3)
		for i, m := range got {
			if want := fmt.Sprintf("new %d-%d", round, i); m.body != want {
				t.Fatalf("round %d: %s", round, bodies(got))
			}
		}
		if got := len(drain(t, s, "t")); got != 3 {
			t.Fatalf("round %d: %d messages, want 3", round, got)
		}
	}
}

// TestDeleteKilled: a kill around a delete leaves either the topic with its
// messages or nothing of it.
func TestDeleteKilled(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	for round := range scale(6, 60) {
		c := dial(t, s)
		c.ok(reqCreate("t", 0))
		c.ok(reqPub("t", batch("a", "b")))
		c.send(reqDelete("t"))
		time.Sleep(time.Duration(round%6) * 400 * time.Microsecond) // the moment of the kill is the subject
		s.kill()
		s.restart()
		c = dial(t, s)
		if _, there := c.list()["t"]; there {
			wantBodies(t, drain(t, s, "t"), "a", "b")
			c.ok(reqDelete("t"))
		}
		c.ok(reqCreate("t", 0))
		wantBodies(t, drain(t, s, "t"))
		c.ok(reqDelete("t"))
	}
}

// agedServer starts on the fixture with files 0 and 1 of every directory a
// month old, and returns the messages of topic order by file.
func agedServer(t *testing.T, c config) (*server, [3][]int64) {
	t.Helper()
	o, want := fixture(t, "smss-data")
	age(t, o.dir, 30*24*time.Hour)
	o.config["store.maxDays"] = 7
	for k, v := range c {
		o.config[k] = v
	}
	var files [3][]int64
	ids := want.Topics["order"]
	for i, m := range ids {
		files[i*3/len(ids)] = append(files[i*3/len(ids)], m.ID)
	}
	return startServer(t, o), files
}

// TestRetention: whole files that are too old go, by the times of their
// records, never the newest one; who asks for what is gone is told the oldest
// id kept.
func TestRetention(t *testing.T) {
	t.Parallel()
	s, ids := agedServer(t, config{"store.clearInterval": 1})
	await(t, slack(15*time.Second), "the old files are gone", func() bool {
		for _, p := range logFiles(t, s) {
			if n := filepath.Base(p); n == "0.log" || n == "1.log" {
				return false
			}
		}
		return true
	})
	for _, dir := range []string{"binlog", "topic/3/3/order"} {
		if len(logFiles(t, s, filepath.FromSlash(dir))) == 0 {
			t.Errorf("the newest file of %s is gone too", dir)
		}
	}
	oldest := strconv.FormatInt(ids[2][0], 10)
	c := dial(t, s)
	for _, id := range []int64{ids[0][0], ids[0][5], ids[1][7]} {
		text := c.refused(sub{topic: "order", who: "w", from: id}.request(), "")
		if !strings.Contains(text, oldest) {
			t.Errorf("SUB from %d: %q does not name the oldest id kept, %s", id, text, oldest)
		}
		c.alive()
	}
	got := read(t, s, "order", 0, len(ids[2]))
	for i, id := range ids[2] {
		if got[i].id != id {
			t.Fatalf("message %d has id %d, want %d", i, got[i].id, id)
		}
	}
	// Ids go on above everything that was.
	c.ok(reqPub("order", message("after")))
	newest := read(t, s, "order", got[len(got)-1].id, 1)
	s.kill()
	s.restart()
	c = dial(t, s)
	c.ok(reqPub("order", message("after restart")))
	all := drain(t, s, "order")
	if last := all[len(all)-1]; last.id <= newest[0].id {
		t.Errorf("id %d after %d", last.id, newest[0].id)
	}
}

// TestRetentionOneRule (case 69 from outside): before the clean-up has run, a
// subscriber meets the same rule: it reads, or it is told.
func TestRetentionOneRule(t *testing.T) {
	t.Parallel()
	s, ids := agedServer(t, config{"store.clearInterval": 3600})
	c := dial(t, s)
	c.sub(sub{topic: "order", who: "w", from: ids[0][0], batch: 1})
	f, err := c.frame()
	switch {
	case err != nil:
		t.Fatal(err)
	case f.code == codeDone && f.msgs[0].id == ids[0][1]:
	case f.code == codeError && strings.Contains(f.text, strconv.FormatInt(ids[2][0], 10)):
	default:
		t.Errorf("SUB from an id past retention: %d %q %s", f.code, f.text, bodies(f.msgs))
	}
}

// TestCase65RetiredUnderReader: a reader whose next files have gone goes on
// at the oldest kept one or is told; never silence. The files are removed as
// retention would.
func TestCase65RetiredUnderReader(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{config: config{"store.maxLogSize": 100, "timeout.server.alive": 500}})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	for i := range 6 {
		c.ok(reqPub("t", message(fmt.Sprint(i)+strings.Repeat("x", 100))))
	}
	// Nothing of the past is in the server's memory after a restart.
	s.stop()
	s.restart()
	c = dial(t, s)
	x := dial(t, s)
	x.sub(sub{topic: "t", who: "w", batch: 1, ack: time.Minute})
	if first := x.push(); first[0].body[0] != '0' {
		t.Fatalf("pushed %s", bodies(first))
	}
	dir := filepath.Join(s.dataDir(), "topic", filepath.FromSlash(c.info("t").TopicRoot))
	for _, n := range []string{"1.log", "2.log"} {
		if err := os.Remove(filepath.Join(dir, n)); err != nil {
			t.Fatal(err)
		}
	}
	x.send(ackNext)
	silence := 0
	for silence < 4 {
		f, err := x.frame()
		if err != nil {
			return // closed: it can subscribe again
		}
		switch f.code {
		case codeAlive:
			silence++
		case codeError:
			return // told
		case codeDone:
			b := f.msgs[0].body[0]
			if b != '1' && b != '3' {
				t.Fatalf("pushed %s after message 0, with 1 and 2 removed", bodies(f.msgs))
			}
			return
		default:
			t.Fatalf("frame %d", f.code)
		}
	}
	t.Error("only heartbeats, although there are newer messages")
}

// TestCase67RetentionValues: without a value the documented default counts,
// 0 keeps for ever, and nonsense stops the start.
func TestCase67RetentionValues(t *testing.T) {
	t.Parallel()
	for _, value := range []any{absent, 0, 7} {
		t.Run(fmt.Sprintf("fresh files, maxDays=%v", value), func(t *testing.T) {
			t.Parallel()
			s := startServer(t, options{config: config{"store.maxDays": value, "store.clearInterval": 1, "store.maxLogSize": 100}})
			c := dial(t, s)
			c.ok(reqCreate("t", 0))
			for i := range 6 {
				c.ok(reqPub("t", message(fmt.Sprint(i)+strings.Repeat("x", 100))))
			}
			// Two clean-ups must have run; nothing on the wire tells of them.
			time.Sleep(2500 * time.Millisecond)
			if got := len(drain(t, s, "t")); got != 6 {
				t.Errorf("%d messages kept, want 6", got)
			}
		})
	}
	t.Run("old files, maxDays=0", func(t *testing.T) {
		t.Parallel()
		s, ids := agedServer(t, config{"store.maxDays": 0, "store.clearInterval": 1})
		time.Sleep(2500 * time.Millisecond) // as above
		if got := read(t, s, "order", 0, 1); got[0].id != ids[0][0] {
			t.Errorf("the oldest message is %d, want %d", got[0].id, ids[0][0])
		}
	})
	for _, value := range []any{-1, "7d", 0.5, 99999999, "", "seven"} {
		t.Run(fmt.Sprintf("maxDays=%v", value), func(t *testing.T) {
			t.Parallel()
			s := newServer(t, options{config: config{"store.maxDays": value}})
			if out := s.refusesToStart(); !strings.Contains(out, "maxDays") {
				t.Errorf("the output does not name the key:\n%s", out)
			}
		})
	}
}

// TestCase70Lifetime: topics whose life ends in a crowd are gone within
// seconds, their subscribers get 255 and their publishers are told.
func TestCase70Lifetime(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	c := dial(t, s)
	now := time.Now().UnixMilli()
	for _, at := range []int64{1, now, now + 9000, -1, math.MinInt64} {
		c.refused(reqCreate("refused", at), textExpire)
	}
	// The least that is allowed is 10 s from the server's reading; a little
	// more, since its clock goes on while the requests travel.
	const crowd, watched = 30, 5
	due := time.Now().Add(12500 * time.Millisecond)
	var watchers []*client
	for i := range crowd {
		topic := fmt.Sprint("t", i)
		c.ok(reqCreate(topic, due.UnixMilli()))
		c.ok(reqPub(topic, message("m")))
		if i >= watched {
			continue
		}
		for j := range 2 {
			x := dial(t, s)
			x.sub(sub{topic: topic, who: fmt.Sprint("w", j), batch: 1, ack: time.Minute})
			x.one("m")
			x.send(ackNext)
			x.limit = slack(20 * time.Second)
			watchers = append(watchers, x)
		}
	}
	c.ok(reqCreate("stays", 0))
	c.ok(reqCreate("far", math.MaxInt64))
	c.ok(reqDelay("t0", 60000, message("never")))
	if got := c.info("t0").ExpireAt; got != due.UnixMilli() {
		t.Errorf("expireAt %d, want %d", got, due.UnixMilli())
	}

	// A publisher is served until the end, then told, and nobody else stops.
	var wg sync.WaitGroup
	errs := make(chan error, 2)
	publish := func(topic string, until func(reply, time.Time) bool) {
		x := dial(t, s)
		wg.Go(func() {
			for {
				r, err := x.do(reqPub(topic, message("more")))
				if err != nil || r.code != codeDone && r.text != textNoTopic {
					errs <- fmt.Errorf("publish to %s: %v, %w", topic, r, err)
					return
				}
				if until(r, time.Now()) {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	publish("t9", func(r reply, at time.Time) bool {
		if r.code == codeError {
			if at.Before(due) {
				errs <- fmt.Errorf("publish refused %v before the end", due.Sub(at))
			}
			return true
		}
		if at.After(due.Add(slack(2 * time.Second))) {
			errs <- fmt.Errorf("publish accepted %v after the end", at.Sub(due))
			return true
		}
		return false
	})
	publish("stays", func(r reply, at time.Time) bool { return at.After(due.Add(2 * time.Second)) })
	for _, x := range watchers {
		x.end()
		if early := time.Until(due); early > 0 {
			t.Errorf("255 came %v before the end", early)
		}
		x.alive()
	}
	await(t, slack(5*time.Second), "all topics whose life is over are gone", func() bool { return len(c.list()) == 2 })
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	c.refused(reqInfo("t0"), textNoTopic)
	c.ok(reqPub("far", message("m")))
	c.ok(reqCreate("t0", 0))
	wantBodies(t, drain(t, s, "t0"))
	s.stop()
	if got := countDelays(t, s); got != 0 {
		t.Errorf("%d delays of topics whose life is over are still stored", got)
	}
}

// TestDocumentedLists: LIST shows every topic, VALID_LIST leaves out those
// created after an event id.
func TestDocumentedLists(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	c := dial(t, s)
	c.ok(reqCreate("a", 0))
	c.ok(reqCreate("b", 0))
	id := c.info("b").CreateEventID
	c.ok(reqCreate("c", 0))
	for from, want := range map[int64]int{0: 3, id: 2, id - 1: 1, id + 1: 3, math.MaxInt64: 3} {
		r, err := c.do(reqValidList(from))
		if err != nil || r.code != codeDone {
			t.Fatalf("VALID_LIST: %v, %v", r, err)
		}
		if got := strings.Count(string(r.json), `"name"`); got != want {
			t.Errorf("VALID_LIST %d shows %d topics, want %d: %s", from, got, want, r.json)
		}
	}
	c.refused(reqCreate("a", 0), textTopicExists)
	if got := strings.Join(topicNames(c), " "); got != "a b c" {
		t.Errorf("LIST shows %s", got)
	}
}

// TestCase70LifetimeWhileDown: a life that ends while the server is down is
// over soon after its start.
func TestCase70LifetimeWhileDown(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	c := dial(t, s)
	expire := time.Now().Add(12300 * time.Millisecond)
	for i := range 10 {
		topic := fmt.Sprint("t", i)
		c.ok(reqCreate(topic, expire.UnixMilli()))
		c.ok(reqPub(topic, message("m")))
	}
	c.ok(reqCreate("stays", expire.Add(time.Hour).UnixMilli()))
	c.ok(reqDelay("t0", 1500, message("while down")))
	s.kill()
	time.Sleep(time.Until(expire.Add(100 * time.Millisecond))) // the life must end meanwhile
	s.restart()
	c = dial(t, s)
	c.refused(reqPub("t3", message("m")), textNoTopic)
	await(t, slack(5*time.Second), "the topics are gone", func() bool { return len(c.list()) == 1 })
	c.ok(reqPub("stays", message("m")))
	c.ok(reqCreate("t0", 0))
	wantBodies(t, drain(t, s, "t0"))
	var left []string
	await(t, slack(5*time.Second), "the files are gone", func() bool {
		left = logFiles(t, s, "topic")
		return len(left) <= 2
	})
}
