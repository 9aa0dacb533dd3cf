package test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// equal wants both nodes to hold the same binlog, byte for byte, and the same
// topic.
func equal(t *testing.T, a, b *node, topic string) {
	t.Helper()
	b.awaitEqual(a)
	binlog := func(n *node) (all string) {
		for _, name := range logFiles(t, n.server, "binlog") {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			all += string(text)
		}
		return all
	}
	if x, y := binlog(a), binlog(b); x != y || x == "" {
		t.Errorf("binlogs of %d and %d bytes differ", len(x), len(y))
	}
	got := func(n *node) string {
		all, err := readUntil(n.addr(), topic, 0, 255, func(all []pushed) bool { return len(all) > 0 && all[len(all)-1].body == "last" })
		if err != nil {
			t.Fatal(err)
		}
		return bodies(all)
	}
	if x, y := got(a), got(b); x != y {
		t.Errorf("%s holds %.200s and %.200s", topic, x, y)
	}
}

// TestPromote: a slave whose master was killed becomes the master by command.
// Every delayed message that it had received fires once, those that had fired
// do not again, and the role holds over a restart.
func TestPromote(t *testing.T) {
	t.Parallel()
	m := startNode(t, nil)
	s := startNode(t, nil, slaveOf(m)...)
	c := dial(t, m.server)
	c.ok(reqCreate("t", 0))
	c.ok(reqDelay("t", 1000, message("fired before")))
	read(t, m.server, "t", 0, 1)
	var want []string
	for i := range 30 {
		want = append(want, fmt.Sprint("delayed ", i))
		c.ok(reqDelay("t", int64(1500+i%5*100), message(want[i])))
	}
	s.awaitEqual(m)
	m.kill()
	d := dial(t, s.server)
	d.refused(reqPub("t", message("x")), "just master can pub message")
	out := s.change("promote")
	if !strings.Contains(out, "is the master") {
		t.Errorf("smss promote says %s", out)
	}
	d.ok(reqPub("t", message("its own")))
	epoch := s.status().Replication.Epoch
	read(t, s.server, "t", 0, 32)
	s.opts.args = nil // by the roles that an operator writes into the unit then
	s.stop()
	s.restart()
	all := drain(t, s.server, "t")
	count := map[string]int{}
	for _, p := range all {
		count[p.body]++
	}
	for _, body := range append(want, "fired before", "its own") {
		if count[body] != 1 {
			t.Errorf("%q is there %d times", body, count[body])
		}
	}
	if len(all) != 32 {
		t.Errorf("%d messages: %s", len(all), bodies(all))
	}
	if now := s.status().Replication; now.Epoch != epoch || now.Role != "master" {
		t.Errorf("after a restart it is a %s of epoch %s, not of %s", now.Role, now.Epoch, epoch)
	}
	// The old master has nothing of its own: it can follow.
	m.opts.args = slaveOf(s)
	m.restart()
	m.awaitEqual(s)
}

// TestPromoteByRestart: a slave that is started as master was promoted by it.
func TestPromoteByRestart(t *testing.T) {
	t.Parallel()
	m := startNode(t, nil)
	s := startNode(t, nil, slaveOf(m)...)
	c := dial(t, m.server)
	c.ok(reqCreate("t", 0))
	c.ok(reqDelay("t", 1000, message("delayed")))
	s.awaitEqual(m)
	old := m.status().Replication.Epoch
	m.kill()
	s.kill()
	s.opts.args = nil
	s.restart()
	wantBodies(t, read(t, s.server, "t", 0, 1), "delayed")
	if now := s.status().Replication; now.Role != "master" || now.Epoch == old {
		t.Errorf("it is a %s of epoch %s as before", now.Role, now.Epoch)
	}
	wantBodies(t, drain(t, s.server, "t"), "delayed")
}

// TestCase78SplitBrain: two that have written different events under the same
// ids find out, and the one that wants to follow is told from where on.
func TestCase78SplitBrain(t *testing.T) {
	t.Parallel()
	a := startNode(t, nil)
	b := startNode(t, nil, slaveOf(a)...)
	c := dial(t, a.server)
	c.ok(reqCreate("t", 0))
	c.ok(reqPub("t", message("a")))
	b.awaitEqual(a)
	b.stop()
	c.ok(reqPub("t", message("b")))
	follow := b.opts.args
	b.opts.args = nil
	b.restart()
	dial(t, b.server).ok(reqPub("t", message("slave-only")))
	b.stop()
	c.ok(reqPub("t", message("c")))
	b.opts.args = follow
	b.restart()
	parted := func(n *node, after int) {
		t.Helper()
		await(t, 10*time.Second, "the link is refused", func() bool { return n.status().Replication.Link.State == "refused" })
		if text := n.status().Replication.Link.Error; !strings.Contains(text, fmt.Sprintf("histories part after event %d:", after)) {
			t.Errorf("refused with %q", text)
		}
	}
	parted(b, 2)
	if status, out := b.command("status"); status != 1 || !strings.Contains(out, "histories part after event 2") {
		t.Errorf("smss status: %d: %s", status, out)
	}
	wantBodies(t, read(t, b.server, "t", 0, 2), "a", "slave-only")
	wantBodies(t, read(t, a.server, "t", 0, 3), "a", "b", "c")
	// The other way round likewise, by command.
	b.change("promote")
	a.change("demote", b.addr())
	parted(a, 2)
	wantBodies(t, read(t, a.server, "t", 0, 3), "a", "b", "c")
	// An empty master makes nobody empty.
	e := startNode(t, nil)
	b.change("demote", e.addr())
	await(t, 10*time.Second, "the link is refused", func() bool { return b.status().Replication.Link.State == "refused" })
	wantBodies(t, read(t, b.server, "t", 0, 2), "a", "slave-only")
	// Nor is it its own master.
	b.change("demote", b.addr())
	await(t, 10*time.Second, "the link is refused", func() bool { return b.status().Replication.Link.State == "refused" })
}

// load publishes to whoever is the master until it is stopped.
type load struct {
	t       *testing.T
	o       *oracle
	nodes   []*node
	stop    chan struct{}
	done    sync.WaitGroup
	acked   atomic.Int64
	refused atomic.Int64
}

func publishTo(t *testing.T, o *oracle, publishers int, nodes ...*node) *load {
	l := &load{t: t, o: o, nodes: nodes, stop: make(chan struct{})}
	for i := range publishers {
		l.done.Go(func() { l.publish(i) })
	}
	return l
}

func (l *load) publish(publisher int) {
	var c *client
	at := 0
	for n := 0; ; n++ {
		select {
		case <-l.stop:
			return
		default:
		}
		if c == nil {
			var err error
			if c, err = dialErr(l.nodes[at%len(l.nodes)].addr()); err != nil {
				at++
				time.Sleep(time.Millisecond)
				continue
			}
			c.limit = slack(5 * time.Second)
		}
		body := fmt.Sprintf("%d-%d", publisher, n)
		l.o.sent("t", body)
		switch r, err := c.do(reqPub("t", message(body))); {
		case err == nil && r.code == codeDone:
			l.o.acked("t", fmt.Sprint(publisher), body)
			l.acked.Add(1)
		default:
			l.refused.Add(1)
			c.close()
			c = nil
			at++
			time.Sleep(time.Millisecond)
		}
	}
}

// progress waits until n more messages are acknowledged.
func (l *load) progress(n int64) {
	l.t.Helper()
	goal := l.acked.Load() + n
	await(l.t, 20*time.Second, "publishes are acknowledged", func() bool { return l.acked.Load() >= goal })
}

func (l *load) end() {
	close(l.stop)
	l.done.Wait()
}

// TestSwitchover: the role goes to and fro under load, and nothing that was
// acknowledged is lost, doubled or out of order.
func TestSwitchover(t *testing.T) {
	t.Parallel()
	a := startNode(t, nil)
	b := startNode(t, nil, slaveOf(a)...)
	third := startNode(t, nil, slaveOf(a)...)
	dial(t, a.server).ok(reqCreate("t", 0))
	dial(t, a.server).ok(reqDelay("t", 2000, message("delayed")))
	b.awaitEqual(a)
	third.awaitEqual(a)
	o := newOracle()
	o.sent("t", "delayed")
	o.acked("t", "", "delayed")
	l := publishTo(t, o, 4, a, b)
	l.progress(50)
	if status, out := a.command("switchover"); status != 1 || !strings.Contains(out, "say which one") {
		t.Errorf("with two slaves: %d: %s", status, out)
	}
	epochs := map[string]bool{a.status().Replication.Epoch: true}
	m, s := a, b
	for range 4 {
		if out := m.change("switchover", s.addr()); !strings.Contains(out, s.addr()+" is the master") {
			t.Errorf("smss switchover says %s", out)
		}
		m, s = s, m
		epochs[m.status().Replication.Epoch] = true
		l.progress(50)
		await(t, 10*time.Second, "the old master follows", func() bool {
			r := s.status().Replication
			return r.Role == "slave" && r.Link != nil && r.Link.State == "streaming"
		})
	}
	l.end()
	if len(epochs) != 5 {
		t.Errorf("%d reigns had %d epochs", 5, len(epochs))
	}
	// The third one was left behind by the reigns, and finds its way.
	third.change("demote", m.addr())
	_, err := readUntil(m.addr(), "t", 0, 255, func(all []pushed) bool {
		return slices.ContainsFunc(all, func(p pushed) bool { return p.body == "delayed" })
	})
	if err != nil {
		t.Fatalf("the delayed message: %v", err)
	}
	o.check(t, "t", drain(t, m.server, "t"))
	dial(t, m.server).ok(reqPub("t", message("last")))
	equal(t, m, s, "t")
	equal(t, m, third, "t")
	t.Logf("%d acknowledged, %d refused meanwhile", l.acked.Load(), l.refused.Load())
}

// TestSwitchoverFails: where the slave does not answer, the master is the master
// as before.
func TestSwitchoverFails(t *testing.T) {
	t.Parallel()
	m := startNode(t, nil)
	s := startNode(t, nil, slaveOf(m)...)
	c := dial(t, m.server)
	c.ok(reqCreate("t", 0))
	s.awaitEqual(m)
	epoch := m.status().Replication.Epoch
	s.freeze()
	c.ok(reqPub("t", message("1")))
	status, out := m.command("switchover")
	s.signal(syscall.SIGCONT)
	if status != 1 || !strings.Contains(out, "this server is the master as before") {
		t.Fatalf("smss switchover: %d: %s", status, out)
	}
	c.ok(reqPub("t", message("last")))
	if now := m.status().Replication; now.Role != "master" || now.Epoch != epoch {
		t.Errorf("it is a %s of epoch %s, not of %s", now.Role, now.Epoch, epoch)
	}
	equal(t, m, s, "t")
	if status, out := s.command("switchover"); status != 1 || !strings.Contains(out, "this server is a slave of "+m.addr()) {
		t.Errorf("asked of a slave: %d: %s", status, out)
	}
	if status, out := m.command("switchover", "nobody"); status != 1 || !strings.Contains(out, s.addr()) {
		t.Errorf("to nobody: %d: %s", status, out)
	}
}

// TestMinAcks: with minAcks 1 a master that is killed takes nothing along that
// it has acknowledged.
func TestMinAcks(t *testing.T) {
	t.Parallel()
	for round := range scale(2, 20) {
		m := startNode(t, config{"replication.minAcks": 1, "replication.ackTimeoutMs": 60000, "replication.onAckTimeout": "refuse"})
		dial(t, m.server).refused(reqCreate("t", 0), "not stored: fewer slaves are connected than replication.minAcks")
		s := startNode(t, nil, slaveOf(m)...)
		await(t, 10*time.Second, "the slave is connected", func() bool { return len(m.status().Replication.Slaves) == 1 })
		dial(t, m.server).ok(reqCreate("t", 0))
		o := newOracle()
		l := publishTo(t, o, 8, m)
		l.progress(int64(100 + 50*round))
		if st := m.status().Engine; st.AckWaits == 0 || st.AckTimeouts != 0 || st.AckLapsed {
			t.Errorf("status %+v", st)
		}
		m.kill()
		l.end()
		s.change("promote")
		o.check(t, "t", drain(t, s.server, "t"))
	}
}
