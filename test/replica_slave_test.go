package test

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What a slave does when it cannot apply, is told where to begin, or its master
// is away, and what a master bears of those who play slave.

// TestCase72SlaveDiskFull: an event that a slave has no room for is seen in its
// log, holds up those behind it, and is applied once there is room.
func TestCase72SlaveDiskFull(t *testing.T) {
	t.Parallel()
	for name, small := range smallDisks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := startServer(t, options{config: config{"timeout.server.alive": 1000}})
			c := dial(t, m)
			c.ok(reqCreate("t", 0))
			o := following(m.port, config{"store.minFreeBytes": 0})
			o.dir = t.TempDir()
			var dirs []string
			for _, sub := range small {
				dir := filepath.Join(o.dir, "data", sub)
				mountSmall(t, dir, smallDisk)
				dirs = append(dirs, dir)
			}
			s := startServer(t, o)
			c.ok(reqPub("t", message("before")))
			wantSame(t, m, s)
			free := fillAll(t, dirs, 0)
			size := len(s.log.String())
			bodies := []string{"m1" + strings.Repeat("x", 20_000), "m2", "m3" + strings.Repeat("x", 20_000)}
			for _, b := range bodies {
				c.ok(reqPub("t", message(b)))
			}
			await(t, slack(10*time.Second), "the slave says that it cannot apply", func() bool {
				return strings.Contains(s.log.String()[size:], "not applied behind event 2")
			})
			// Many attempts, in which nothing may be passed over.
			time.Sleep(1500 * time.Millisecond)
			if got := read(t, s, "t", 0, 1); got[0].body != "before" {
				t.Errorf("the slave serves %.20q", got[0].body)
			}
			if n := len(s.log.String()) - size; n > 8<<10 {
				t.Errorf("%d bytes of log in that time", n)
			}
			free()
			wantSame(t, m, s)
			caughtUp(t, m, s, "t")
			s.kill()
			s.restart()
			c.ok(reqPub("t", message("after")))
			wantSame(t, m, s)
			wantBodies(t, read(t, s, "t", 0, 4), append([]string{"before"}, bodies...)...)
		})
	}
}

// TestSlaveBeginsBehind: a slave that is told an event id takes what comes
// behind it, with the topics as of then.
func TestSlaveBeginsBehind(t *testing.T) {
	t.Parallel()
	m := startServer(t, options{config: config{"timeout.server.alive": 1000}})
	c := dial(t, m)
	c.ok(reqCreate("t", 0))
	c.ok(reqPub("t", batch("before", "before"))) // events 2 and 3
	c.ok(reqPub("t", message("behind")))
	for _, from := range []string{"2", "3"} {
		o := following(m.port, nil)
		o.args = append(o.args, "-event", from)
		s := startServer(t, o)
		await(t, slack(10*time.Second), "the slave knows the topic", func() bool { _, ok := dial(t, s).list()["t"]; return ok })
		got := read(t, s, "t", 0, 1)
		if got[0].body != "behind" || got[0].id != 4 {
			t.Errorf("behind event %s the slave has %s first", from, bodies(got))
		}
		s.kill() // and goes on by what it has
		s.restart()
		c.ok(reqPub("t", message("more")))
		if got = read(t, s, "t", 4, 1); got[0].body != "more" {
			t.Errorf("after a restart came %s", bodies(got))
		}
	}
}

// TestCase79EndOfLife: the subscribers of a slave are told of the end of a
// topic's life, by the master's event: while the master is away it goes on.
func TestCase79EndOfLife(t *testing.T) {
	t.Parallel()
	m := startServer(t, options{config: config{"timeout.server.alive": 1000}})
	c := dial(t, m)
	s := startSlave(t, m, nil)
	end := time.Now().Add(12 * time.Second)
	if raceEnabled {
		end = end.Add(8 * time.Second)
	}
	c.ok(reqCreate("t", end.UnixMilli()))
	c.ok(reqPub("t", message("m")))
	wantSame(t, m, s)
	x := dial(t, s)
	x.sub(sub{topic: "t", who: "w", batch: 1, ack: time.Minute})
	x.one("m")
	x.send(ackNext)
	m.stop()
	x.limit = time.Until(end) + 1500*time.Millisecond
	for time.Until(end) > -time.Second {
		if f, err := x.frame(); err != nil || f.code != codeAlive {
			t.Fatalf("without its master came %v, %v", f, err)
		}
	}
	m.restart()
	x.limit = slack(10 * time.Second)
	x.end()
	x.alive()
	wantSame(t, m, s)
}

// TestCase76FiveHundredSlaves: a crowd that plays slave and never reads holds
// up neither the master nor its real slaves, and costs little memory.
func TestCase76FiveHundredSlaves(t *testing.T) {
	t.Parallel()
	// None of the crowd may be dropped before the last of it has asked.
	m := startServer(t, options{config: config{
		"timeout.server.alive": 1000, "replication.maxSlaves": 18,
		"replication.sendTimeoutMs": slack(10 * time.Second).Milliseconds(),
	}})
	c := dial(t, m)
	c.ok(reqCreate("t", 0))
	large := message(strings.Repeat("x", 1<<20))
	for range 8 {
		c.ok(reqPub("t", large))
	}
	first, second := startSlave(t, m, nil), startSlave(t, m, nil)
	wantSame(t, m, first)
	wantSame(t, m, second)
	before := m.rss()
	var crowd []*client
	size := 500
	if raceEnabled {
		size = 150
	}
	for range size {
		x := smallWindow(t, m)
		x.send(request(cmdReplica, "", "", nil, i64(0)))
		crowd = append(crowd, x)
	}
	refused := 0
	for _, x := range crowd {
		head, err := x.full(10)
		if err != nil {
			t.Fatal(err)
		}
		if le.Uint16(head) == codeError {
			refused++
		}
	}
	if refused != size-16 {
		t.Errorf("%d of %d were refused with room for 16", refused, size)
	}
	start := time.Now()
	for range 20 {
		c.ok(reqPub("t", large))
	}
	if d := time.Since(start); d > slack(5*time.Second) {
		t.Errorf("20 publishes took %v beside them", d)
	}
	wantSame(t, m, first)
	wantSame(t, m, second)
	// Each that is fed costs limits.maxOutboundBytes and a record.
	if grown := m.rss() - before; grown > 128<<20 && !raceEnabled {
		t.Errorf("the master has grown by %d MiB", grown>>20)
	}
	await(t, slack(40*time.Second), "those that take nothing are dropped", func() bool {
		return strings.Count(m.log.String(), "no progress in sending for replication.sendTimeoutMs") > 0 &&
			strings.Count(m.log.String(), "a slave has left") >= 16
	})
	far := dial(t, m)
	for _, id := range []int64{math.MaxInt64, math.MaxInt64 - 1} {
		far.refused(request(cmdReplica, "", "", nil, i64(id)), textNoEvent)
	}
	far.refused(request(cmdReplica, "", "", nil, i64(math.MinInt64)), "invalid replica eventId")
	far.alive()
}

// TestCase80MasterAway: a hundred subscribers and a slave whose master was
// killed, and clients that go on trying, write little into any log.
func TestCase80MasterAway(t *testing.T) {
	t.Parallel()
	m := startServer(t, options{config: config{"timeout.server.alive": 1000}})
	c := dial(t, m)
	c.ok(reqCreate("t", 0))
	c.ok(reqPub("t", message("m")))
	s := startSlave(t, m, config{"replication.retryMaxMs": 100})
	wantSame(t, m, s)
	for i := range 100 {
		x := dial(t, s)
		x.sub(sub{topic: "t", who: fmt.Sprint("w", i), batch: 1, ack: time.Minute})
		x.one("m")
		x.send(ackNext)
	}
	size := len(s.log.String())
	m.kill()
	w := dial(t, s)
	deadline := time.Now().Add(time.Duration(scale(2, 600)) * time.Second)
	for time.Now().Before(deadline) {
		w.refused(reqPub("t", message("m")), "just master can pub message")
		time.Sleep(5 * time.Millisecond) // how much it logs in that time is the subject
	}
	if n := len(s.log.String()) - size; n > 4<<10 && !long || n > 1<<20 {
		t.Errorf("%d bytes of log", n)
	}
	m.restart()
	dial(t, m).ok(reqPub("t", message("again")))
	wantSame(t, m, s)
}
