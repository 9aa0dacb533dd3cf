package test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Masters and slaves as processes.

// startSlave starts a slave of another server.
func startSlave(t *testing.T, m *server, c config) *server {
	t.Helper()
	return startServer(t, following(m.port, c))
}

// binlog returns everything that a server's binlog holds.
func binlog(t testing.TB, s *server) (all []byte) {
	t.Helper()
	for _, name := range binlogFiles(t, s) {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	return all
}

// binlogFiles returns the files of a server's binlog, oldest first.
func binlogFiles(t testing.TB, s *server) []string {
	t.Helper()
	files := logFiles(t, s, "binlog")
	number := func(name string) int {
		n, err := strconv.Atoi(strings.TrimSuffix(filepath.Base(name), ".log"))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	slices.SortFunc(files, func(a, b string) int { return number(a) - number(b) })
	return files
}

// wantSame waits until two servers have the same binlog, byte for byte.
func wantSame(t *testing.T, a, b *server) {
	t.Helper()
	await(t, slack(30*time.Second), "the binlogs are as long", func() bool { return binlogSize(t, a) == binlogSize(t, b) })
	if !bytes.Equal(binlog(t, a), binlog(t, b)) {
		t.Error("the binlogs differ")
	}
}

func binlogSize(t testing.TB, s *server) (n int64) {
	t.Helper()
	for _, name := range logFiles(t, s, "binlog") {
		fi, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		n += fi.Size()
	}
	return n
}

// TestReplicaKillLoop: master and slave are killed at any moment, under load;
// in the end both have what was acknowledged, and the same bytes.
func TestReplicaKillLoop(t *testing.T) {
	t.Parallel()
	m := startServer(t, options{config: config{"store.maxLogSize": 20000, "timeout.server.alive": 1000}})
	s := startSlave(t, m, config{"store.maxLogSize": 20000, "replication.retryMaxMs": 200})
	random := rand.New(rand.NewPCG(71, 1))
	topics := []string{"a", "b", "c"}
	admin := dial(t, m)
	for _, topic := range topics {
		admin.ok(reqCreate(topic, 0))
	}
	o := newOracle()
	for round := range scale(4, 40) {
		var wg sync.WaitGroup
		errs := make(chan error, 4)
		for p := range 4 {
			x := dial(t, m)
			seed := random.Uint64()
			wg.Go(func() { errs <- o.publish(x, topics, round, p, rand.New(rand.NewPCG(seed, 1))) })
		}
		for range 1 + random.IntN(2) {
			time.Sleep(time.Duration(50+random.IntN(250)) * time.Millisecond) // the moment of the kill
			s.kill()
			s.restart()
		}
		time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond) // likewise
		m.kill()
		wg.Wait()
		close(errs)
		for err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
		m.restart()
	}
	time.Sleep(1600 * time.Millisecond) // delays of the last round may still be due
	wantSame(t, m, s)
	for _, topic := range topics {
		o.check(t, topic, drain(t, m, topic))
		caughtUp(t, m, s, topic)
	}
}

// TestCase71ResumeBehindAnything: a slave goes on behind a batch, a delay, a
// fired one, a creation and a deletion.
func TestCase71ResumeBehindAnything(t *testing.T) {
	t.Parallel()
	m := startServer(t, options{config: config{"timeout.server.alive": 1000}})
	c := dial(t, m)
	c.ok(reqCreate("t", 0))
	s := startSlave(t, m, nil)
	last := map[string]func(){
		"batch":  func() { c.ok(reqPub("t", batch("b1", "b2", "b3"))) },
		"delay":  func() { c.ok(reqDelay("t", 3_600_000, batch("never", "never"))) },
		"fired":  func() { c.ok(reqDelay("t", 1000, batch("d1", "d2"))); time.Sleep(1200 * time.Millisecond) },
		"create": func() { c.ok(reqCreate("u", 0)) },
		"delete": func() { c.ok(reqDelete("u")) },
	}
	for _, what := range []string{"batch", "delay", "fired", "create", "delete"} {
		last[what]()
		wantSame(t, m, s)
		s.kill()
		c.ok(reqPub("t", message("behind "+what)))
		s.restart()
		wantSame(t, m, s)
	}
	want := []string{"b1", "b2", "b3", "behind batch", "behind delay", "d1", "d2", "behind fired", "behind create", "behind delete"}
	wantBodies(t, drain(t, m, "t"), want...)
	caughtUp(t, m, s, "t")
}

// TestSlaveBeforeItsMaster: a slave whose master is down starts, serves what it
// has and connects later; in the meantime its log stays small (case 80).
func TestSlaveBeforeItsMaster(t *testing.T) {
	t.Parallel()
	m := startServer(t, options{config: config{"timeout.server.alive": 1000}})
	c := dial(t, m)
	c.ok(reqCreate("t", 0))
	c.ok(reqPub("t", message("m")))
	s := startSlave(t, m, config{"replication.retryMaxMs": 100})
	wantSame(t, m, s)
	s.stop()
	m.stop()
	s.restart()
	if got := read(t, s, "t", 0, 1); got[0].body != "m" {
		t.Errorf("the slave serves %q", got[0].body)
	}
	size := len(s.log.String())
	time.Sleep(1500 * time.Millisecond) // some ten attempts
	if n := len(s.log.String()) - size; n > 2000 {
		t.Errorf("%d bytes of log for a master that is away", n)
	}
	m.restart()
	dial(t, m).ok(reqPub("t", message("later")))
	wantSame(t, m, s)
	caughtUp(t, m, s, "t")
}

// TestChainedSlaves: a slave that is told to has slaves of its own.
func TestChainedSlaves(t *testing.T) {
	t.Parallel()
	m := startServer(t, options{config: config{"timeout.server.alive": 1000}})
	c := dial(t, m)
	c.ok(reqCreate("t", 0))
	middle := startSlave(t, m, config{"replication.chain": true})
	end := startSlave(t, middle, nil)
	for i := range 50 {
		c.ok(reqPub("t", message(fmt.Sprint(i))))
	}
	wantSame(t, m, middle)
	wantSame(t, m, end)
	middle.kill()
	c.ok(reqPub("t", message("while it was away")))
	middle.restart()
	wantSame(t, m, end)
}

// TestCase74SilentMaster: a master that is stopped without closing anything is
// taken for lost, and followed again when it is back.
func TestCase74SilentMaster(t *testing.T) {
	t.Parallel()
	m := startServer(t, options{config: config{"timeout.server.alive": 300}})
	dial(t, m).ok(reqCreate("t", 0))
	s := startSlave(t, m, config{"timeout.server.alive": 300, "replication.retryMaxMs": 200})
	wantSame(t, m, s)
	m.freeze()
	await(t, slack(10*time.Second), "the slave notices", func() bool { return strings.Contains(s.log.String(), "was silent for") })
	m.signal(syscall.SIGCONT)
	dial(t, m).ok(reqPub("t", message("after")))
	wantSame(t, m, s)
}

// TestCase76AnyoneCanPlaySlave: many that never read cost little and end, wrong
// ids are refused, and who is not allowed gets nothing.
func TestCase76AnyoneCanPlaySlave(t *testing.T) {
	t.Parallel()
	m := startServer(t, options{config: config{"replication.maxSlaves": 4, "replication.sendTimeoutMs": 5000}})
	c := dial(t, m)
	c.ok(reqCreate("t", 0))
	large := message(strings.Repeat("x", 1<<20))
	for range 16 {
		c.ok(reqPub("t", large))
	}
	before := m.rss()
	refused := 0
	for range 40 {
		x := dial(t, m)
		x.send(request(cmdReplica, "", "", nil, i64(0)))
		if head, err := x.full(10); err != nil {
			t.Fatal(err)
		} else if le.Uint16(head) == 400 {
			refused++
		}
	}
	if refused != 36 {
		t.Errorf("%d of 40 were refused with room for 4", refused)
	}
	c.ok(reqPub("t", message("still here")))
	if grown := m.rss() - before; grown > 64<<20 && !raceEnabled {
		t.Errorf("the master has grown by %d MiB", grown>>20)
	}
	far := dial(t, m)
	far.refused(request(cmdReplica, "", "", nil, i64(1<<62)), "can't find event id")
	far.refused(request(cmdReplica, "", "", nil, i64(-1)), "invalid replica eventId")
	far.alive()

	closed := startServer(t, options{config: config{"replication.allow": "10.0.0.0/8, 192.0.2.1"}})
	x := dial(t, closed)
	x.refused(request(cmdReplica, "", "", nil, i64(0)), "this address may not replicate, see replication.allow")
	x.alive()
}

// TestSlaveOfItself: a server that is pointed at itself refuses.
func TestSlaveOfItself(t *testing.T) {
	t.Parallel()
	m := startServer(t, options{config: config{"timeout.server.alive": 1000}})
	dial(t, m).ok(reqCreate("t", 0))
	m.stop()
	m.opts.args = []string{"-role", "slave", "-host", "127.0.0.1", "-port", fmt.Sprint(m.port)}
	m.opts.config["replication.chain"] = true
	m.restart()
	await(t, slack(10*time.Second), "it is refused", func() bool { return strings.Contains(m.log.String(), "a server cannot follow itself") })
}

// TestCase79DeletedUnderASlave: subscribers of a slave are told of the end of a
// topic by the master's event, and writes are refused in step.
func TestCase79DeletedUnderASlave(t *testing.T) {
	t.Parallel()
	m := startServer(t, options{config: config{"timeout.server.alive": 1000}})
	c := dial(t, m)
	c.ok(reqCreate("t", 0))
	s := startSlave(t, m, nil)
	wantSame(t, m, s)
	x := dial(t, s)
	await(t, slack(10*time.Second), "the slave knows the topic", func() bool { _, ok := dial(t, s).list()["t"]; return ok })
	x.sub(sub{topic: "t", who: "w", batch: 1})
	c.ok(reqPub("t", message("m")))
	x.one("m")
	x.send(ackNext)
	c.ok(reqDelete("t"))
	if f, err := x.frame(); err != nil || f.code != codeEnd {
		t.Errorf("at the topic's end came %v, %v", f, err)
	}
	w := dial(t, s)
	w.refused(reqPub("t", message("m")), "just master can pub message")
	w.refused(reqDelay("t", 2000, message("m")), "just master can pub message")
	w.refused(reqCreate("u", 0), "just master can manage topic")
	w.refused(reqDelete("t"), "just master can manage topic")
	w.alive()
}
