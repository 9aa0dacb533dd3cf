package test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Links between a master and a slave that are slow, lose packets, or end at a
// process that stands still.

// links counts how often slaves have connected to a master.
func links(m *server) int { return strings.Count(m.log.String(), "a slave copies this server") }

// TestCase77SlowLink: a record that takes several times the silence that is
// borne comes through a slow link, in one connection, and so do those behind it.
func TestCase77SlowLink(t *testing.T) {
	t.Parallel()
	alive := config{"timeout.server.alive": slack(500 * time.Millisecond).Milliseconds()}
	m := startServer(t, options{config: alive})
	c := dial(t, m)
	c.ok(reqCreate("t", 0))
	p := newTap(t, m.addr())
	p.allow(1 << 20)
	s := startServer(t, following(p.port, alive))
	wantSame(t, m, s)
	p.allow(0)
	stop := make(chan struct{})
	defer close(stop)
	go func() { // 100 KB/s, in pieces of the tap's buffer
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				p.limit.Add(2000)
			}
		}
	}()
	start := time.Now()
	c.ok(reqPub("t", message(strings.Repeat("large", scale(80_000, 400_000)))))
	for i := range 100 {
		c.ok(reqPub("t", message(fmt.Sprint(i))))
	}
	await(t, time.Minute, "the binlogs are as long", func() bool { return binlogSize(t, m) == binlogSize(t, s) })
	if d := time.Since(start); d < 2*time.Second {
		t.Errorf("the link was not slow: %v", d)
	}
	wantSame(t, m, s)
	if n := links(m); n != 1 {
		t.Errorf("it took %d connections", n)
	}
}

// namespaces counts the network namespaces of the suite.
var namespaces atomic.Int64

// namespace makes a network namespace that is reached on two ways: by the first
// the test reaches a server in it, by the second that reaches its master. It
// returns a command that runs a process there and the addresses: of the
// namespace on the first way, and of this side on the second, whose interface
// here is device.
func namespace(t *testing.T) (wrap []string, inside, outside, device string) {
	t.Helper()
	if os.Getuid() != 0 {
		lacking(t, "making a network namespace needs root")
	}
	for _, tool := range []string{"ip", "tc"} {
		if _, err := exec.LookPath(tool); err != nil {
			lacking(t, "a network namespace cannot be made: %v", err)
		}
	}
	id := fmt.Sprint(os.Getpid()%10_000, "n", namespaces.Add(1))
	name, net := "smss"+id, fmt.Sprintf("198.18.%d", rand.IntN(256)) // a network for tests of networks
	device = "sb" + id
	for i, line := range []string{
		"ip netns add " + name,
		"ip link add sa" + id + " type veth peer name eth0 netns " + name,
		"ip link add " + device + " type veth peer name eth1 netns " + name,
		"ip addr add " + net + ".1/30 dev sa" + id,
		"ip addr add " + net + ".5/30 dev " + device,
		"ip link set sa" + id + " up",
		"ip link set " + device + " up",
		"ip -n " + name + " addr add " + net + ".2/30 dev eth0",
		"ip -n " + name + " addr add " + net + ".6/30 dev eth1",
		"ip -n " + name + " link set eth0 up",
		"ip -n " + name + " link set eth1 up",
	} {
		args := strings.Fields(line)
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			lacking(t, "a network namespace cannot be made: %s: %s", line, out)
		}
		if i == 0 {
			t.Cleanup(func() {
				// The interfaces go with it.
				if out, err := exec.Command("ip", "netns", "del", name).CombinedOutput(); err != nil {
					t.Errorf("the namespace stays: %s", out)
				}
			})
		}
	}
	return []string{"ip", "netns", "exec", name}, net + ".2", net + ".5", device
}

// TestCase74DroppedPackets: a slave whose link loses everything without an end
// notices, and catches up when the link is back; over 1 Mbit/s a record that
// takes several times the silence that is borne comes in one connection.
func TestCase74DroppedPackets(t *testing.T) {
	t.Parallel()
	wrap, inside, outside, device := namespace(t)
	alive := slack(500 * time.Millisecond).Milliseconds()
	m := startServer(t, options{host: outside, config: config{"timeout.server.alive": alive, "replication.sendTimeoutMs": 5000}})
	c := dial(t, m)
	c.ok(reqCreate("t", 0))
	o := following(m.port, config{"timeout.server.alive": alive})
	o.wrap, o.host = wrap, inside
	o.args[3] = outside
	s := startServer(t, o)
	wantSame(t, m, s)

	tool := func(line string) {
		t.Helper()
		args := strings.Fields(line)
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %s", line, out)
		}
	}
	tool("tc qdisc add dev " + device + " root tbf rate 1mbit burst 20kb latency 100ms")
	before := m.rss()
	c.ok(reqPub("t", message(strings.Repeat("large", scale(60_000, 4_000_000)))))
	start := time.Now()
	for i := range 100 {
		c.ok(reqPub("t", message(fmt.Sprint(i))))
	}
	await(t, 5*time.Minute, "the binlogs are as long", func() bool { return binlogSize(t, m) == binlogSize(t, s) })
	if d := time.Since(start); d < 2*time.Second {
		t.Errorf("the link was not slow: %v", d)
	}
	if n := links(m); n != 1 {
		t.Errorf("it took %d connections", n)
	}
	if grown := m.rss() - before; grown > 128<<20 && !raceEnabled {
		t.Errorf("the master has grown by %d MiB", grown>>20)
	}
	tool("tc qdisc del dev " + device + " root")

	tool("ip link set " + device + " down")
	await(t, slack(10*time.Second), "the slave notices", func() bool { return strings.Contains(s.log.String(), "was silent for") })
	c.ok(reqPub("t", message("meanwhile")))
	await(t, 15*time.Second, "the master notices", func() bool { return strings.Count(m.log.String(), "a slave has left") == links(m) })
	tool("ip link set " + device + " up")
	wantSame(t, m, s)
	caughtUp(t, m, s, "t")
}

// TestReplicaStopped: master and slave stand still in turn, for longer and for
// shorter than the silence that is borne, under load; in the end both have what
// was acknowledged, and the same bytes.
func TestReplicaStopped(t *testing.T) {
	t.Parallel()
	m := startNode(t, config{"timeout.server.alive": 200})
	dial(t, m.server).ok(reqCreate("t", 0))
	s := startNode(t, config{"timeout.server.alive": 200}, slaveOf(m)...)
	o := newOracle()
	l := publishTo(t, o, 2, m)
	for round := range scale(4, 60) {
		side := []*node{m, s}[round%2]
		l.progress(20)
		side.signal(syscall.SIGSTOP)
		time.Sleep(time.Duration(100+400*(round/2%3)) * time.Millisecond) // the subject
		side.signal(syscall.SIGCONT)
	}
	l.progress(20)
	l.end()
	wantSame(t, m.server, s.server)
	caughtUp(t, m.server, s.server, "t")
	o.check(t, "t", drain(t, m.server, "t"))
}
