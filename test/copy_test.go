package test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A slave whose master does not have the events any more that it needs.

// forgetful is a master whose binlog does not reach back to its first event:
// its oldest files are removed while it is down, as retention does it.
func forgetful(t *testing.T, fill func(s *server, c *client)) *server {
	t.Helper()
	m := startServer(t, options{config: config{"store.maxLogSize": 4096, "timeout.server.alive": 1000}})
	fill(m, dial(t, m))
	m.stop()
	forget(t, m)
	m.restart()
	return m
}

func forget(t *testing.T, m *server) {
	t.Helper()
	files := binlogFiles(t, m)
	if len(files) < 3 {
		t.Fatalf("%d files of binlog", len(files))
	}
	for _, name := range files[:len(files)-1] {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

// following returns the options of a slave.
func following(port int, c config) options {
	o := options{config: config{"timeout.server.alive": 1000, "store.maxLogSize": 4096, "replication.retryMaxMs": 500, "background.firstExecSecond": 1},
		args: []string{"-role", "slave", "-host", "127.0.0.1", "-port", strconv.Itoa(port)}}
	for k, v := range c {
		o.config[k] = v
	}
	return o
}

// launched starts a server and does not wait until it serves.
func launched(t *testing.T, o options) *server {
	t.Helper()
	s := newServer(t, o)
	s.port = freePort(t)
	if err := s.launch(); err != nil {
		t.Fatal(err)
	}
	return s
}

// caughtUp waits until the slave has all messages of a topic that the master
// has, and compares them.
func caughtUp(t *testing.T, m, s *server, topic string) {
	t.Helper()
	want := drain(t, m, topic)
	last := want[len(want)-1].id
	var got []pushed
	var err error
	await(t, slack(20*time.Second), "the slave has the messages of "+topic, func() bool {
		got, err = readUntil(s.addr(), topic, 0, 255, func(all []pushed) bool { return len(all) > 0 && all[len(all)-1].id >= last })
		return err == nil
	})
	got = slices.DeleteFunc(got, func(m pushed) bool { return m.id > last || strings.HasPrefix(m.body, "drain-mark-") })
	if len(got) != len(want) {
		t.Fatalf("%s: the slave has %d messages, the master %d", topic, len(got), len(want))
	}
	for i, w := range want {
		if got[i].id != w.id || got[i].body != w.body {
			t.Fatalf("%s: message %d of the slave is %d %.40q, the master's %d %.40q", topic, i, got[i].id, got[i].body, w.id, w.body)
		}
	}
}

// TestCopy: an empty slave of a master whose first events are gone becomes its
// copy by itself, while the master takes publishes, and fires its delays once
// it is promoted.
func TestCopy(t *testing.T) {
	t.Parallel()
	const before = 300
	m := forgetful(t, func(s *server, c *client) {
		for _, name := range []string{"t", "empty", "bytes", "later"} {
			c.ok(reqCreate(name, 0))
		}
		c.ok(reqDelay("later", 4000, message("delayed")))
		for i := range before {
			c.ok(reqPub("t", message(fmt.Sprintf("message %d %s", i, strings.Repeat("x", i)))))
		}
		c.ok(reqPub("bytes", message(strings.Repeat("\x00\xff\n\t", 20_000))))
	})
	stop, wait := make(chan struct{}), sync.WaitGroup{}
	var published atomic.Int64
	wait.Add(1)
	go func() {
		defer wait.Done()
		c, err := dialErr(m.addr())
		if err != nil {
			t.Error(err)
			return
		}
		defer c.close()
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := c.doOK(reqPub("t", message(fmt.Sprintf("meanwhile %d", i)))); err != nil {
				t.Error(err)
				return
			}
			published.Add(1)
		}
	}()
	s := launched(t, following(m.port, nil))
	await(t, slack(20*time.Second), "the copy is in place", func() bool {
		return strings.Contains(s.log.String(), "full copy") && strings.Contains(s.log.String(), "smss is ready") && strings.Count(s.log.String(), "smss starts") == 2
	})
	n := published.Load()
	await(t, slack(10*time.Second), "publishing goes on", func() bool { return published.Load() > n+20 })
	close(stop)
	wait.Wait()
	for _, topic := range []string{"t", "bytes"} {
		caughtUp(t, m, s, topic)
	}
	if _, ok := dial(t, s).list()["empty"]; !ok {
		t.Error("the slave lacks the topic without messages")
	}
	for _, left := range []string{"copy", "reseed.json"} {
		if _, err := os.Stat(filepath.Join(s.dataDir(), left)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", left, err)
		}
	}
	// Promotion, with the master gone before the delay is due there or not: what
	// the slave has of it fires here, unless it has come as fired.
	m.stop()
	s.stop()
	s.opts.args = nil
	s.restart()
	got := read(t, s, "later", 0, 1)
	wantBodies(t, got, "delayed")
	dial(t, s).ok(reqPub("t", message("by the new master")))
	all := drain(t, s, "t")
	if last := all[len(all)-1]; last.body != "by the new master" {
		t.Errorf("the last message is %q", last.body)
	}
	s.stop()
	s.verified()
}

// TestCopyInterrupted: a slave that is killed while it copies goes on where it
// was, again and again, over a link that breaks.
func TestCopyInterrupted(t *testing.T) {
	t.Parallel()
	m := forgetful(t, func(s *server, c *client) {
		for i := range 3 {
			name := fmt.Sprintf("t%d", i)
			c.ok(reqCreate(name, 0))
			for j := range 20 {
				c.ok(reqPub(name, message(fmt.Sprint(name, " ", j, strings.Repeat("y", 100_000)))))
			}
		}
	})
	link := newTap(t, m.addr())
	s := launched(t, following(link.port, nil))
	for i := range 4 {
		link.allow(1 << 20) // then it stalls
		await(t, slack(20*time.Second), "the link has stalled", func() bool { return link.stalled() })
		if i == 0 {
			await(t, slack(20*time.Second), "something is copied", func() bool { return copied(t, s) > 0 })
		}
		had := copied(t, s)
		if i%2 == 0 {
			s.kill()
			link.cut()
			if err := s.launch(); err != nil {
				t.Fatal(err)
			}
		} else {
			link.cut()
		}
		if now := copied(t, s); now < had {
			t.Errorf("round %d: %d bytes were copied, and now %d are left", i, had, now)
		}
	}
	link.allow(1 << 40)
	await(t, slack(20*time.Second), "the copy is in place", func() bool {
		_, err := os.Stat(filepath.Join(s.dataDir(), "copy"))
		return errors.Is(err, os.ErrNotExist)
	})
	for i := range 3 {
		caughtUp(t, m, s, fmt.Sprintf("t%d", i))
	}
	if sent := link.sent.Load(); sent > 9<<20 {
		t.Errorf("%d bytes were sent for 6 MB: it has begun anew", sent)
	}
	s.stop()
	s.verified()
}

// copied returns how much the staging area holds.
func copied(t *testing.T, s *server) (n int64) {
	t.Helper()
	for _, name := range logFiles(t, s, "copy") {
		if info, err := os.Stat(name); err == nil {
			n += info.Size()
		}
	}
	return n
}

// tap passes connections on to a server, as many bytes of its answers as are
// allowed.
type tap struct {
	port  int
	sent  atomic.Int64
	limit atomic.Int64
	stuck atomic.Bool

	mu    sync.Mutex
	conns []net.Conn
}

func newTap(t *testing.T, to string) *tap {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &tap{port: l.Addr().(*net.TCPAddr).Port}
	t.Cleanup(func() { l.Close(); p.allow(1 << 40); p.cut() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, in, out)
			p.mu.Unlock()
			go func() { _, _ = io.Copy(out, in); out.Close() }() // its end is the end of the test's, or of the cut's
			go p.pass(in, out)
		}
	}()
	return p
}

// pass copies the server's answers until the limit, at which it waits.
func (p *tap) pass(in, out net.Conn) {
	defer in.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := out.Read(buf)
		if err != nil {
			return
		}
		for p.sent.Load()+int64(n) > p.limit.Load() {
			p.stuck.Store(true)
			time.Sleep(time.Millisecond)
			if p.closed(in) {
				return
			}
		}
		p.sent.Add(int64(n))
		if _, err := in.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (p *tap) closed(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !slices.Contains(p.conns, c)
}

func (p *tap) allow(n int64) { p.stuck.Store(false); p.limit.Store(p.sent.Load() + n) }
func (p *tap) stalled() bool { return p.stuck.Load() }
func (p *tap) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

// TestCopyOfOld: a slave that was away for longer than the master's retention
// becomes its copy again and keeps aside what it had; without
// replication.autoCopy it says what it lacks and stays as it is.
func TestCopyOfOld(t *testing.T) {
	t.Parallel()
	for _, auto := range []bool{true, false} {
		t.Run(strconv.FormatBool(auto), func(t *testing.T) {
			t.Parallel()
			m := startServer(t, options{config: config{"store.maxLogSize": 4096, "timeout.server.alive": 1000}})
			c := dial(t, m)
			c.ok(reqCreate("t", 0))
			c.ok(reqPub("t", message("first")))
			s := startServer(t, following(m.port, config{"replication.autoCopy": auto}))
			caughtUp(t, m, s, "t")
			s.stop()
			for i := range 200 {
				c.ok(reqPub("t", message(fmt.Sprint("missed ", i, strings.Repeat("z", 100)))))
			}
			m.stop()
			forget(t, m)
			m.restart()
			if err := s.launch(); err != nil {
				t.Fatal(err)
			}
			if auto {
				await(t, slack(20*time.Second), "the copy is in place", func() bool { return strings.Count(s.log.String(), "smss is ready") == 3 })
				caughtUp(t, m, s, "t")
				old, err := filepath.Glob(filepath.Join(s.dataDir(), "old-*", "binlog", "*.log"))
				if err != nil || len(old) == 0 {
					t.Errorf("what it had is not kept: %v", err)
				}
				return
			}
			await(t, slack(10*time.Second), "it says that it needs a full copy", func() bool {
				return strings.Contains(s.log.String(), "it needs a full copy; replication.autoCopy is off")
			})
			wantBodies(t, read(t, s, "t", 0, 1), "first")
		})
	}
}

// TestCopyRefusals: what COPY answers to those who ask for what is not there.
func TestCopyRefusals(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{config: config{"replication.maxSlaves": 1}})
	c := dial(t, s)
	ask := func(body string) []byte { return request(cmdCopy, "", "", u32(len(body)), []byte(body)) }
	c.refused(ask(""), "this server holds no event that could be copied")
	c.ok(reqCreate("t", 0))
	for _, body := range []string{"{}", `{"ask":"else"}`, `{"ask":"piece","max":0}`, "\x00"} {
		c.refused(ask(body), "")
	}
	c.alive()
	piece := func(body string) string {
		t.Helper()
		c.send(ask(body))
		head, err := c.full(10)
		if err != nil || binary.LittleEndian.Uint16(head) != codeDone {
			t.Fatalf("% x, %v", head, err)
		}
		rest, err := c.full(int(binary.LittleEndian.Uint32(head[2:])))
		if err != nil {
			t.Fatal(err)
		}
		return string(rest[8:])
	}
	for body, want := range map[string]string{
		`{"ask":"piece","event":77,"topic":"dA==","max":10}`:                        `"gone":true`, // another life
		`{"ask":"piece","event":1,"topic":"bm9uZQ==","max":10}`:                     `"gone":true`,
		`{"ask":"piece","max":7,"off":4}`:                                           "{}1",
		`{"ask":"delays","event":9,"after":{"trigger":1,"event":1,"topic":"dA=="}}`: "{}",
	} {
		if got := piece(body); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
	second := dial(t, s)
	second.refused(ask(""), "too many copies at the same time, see replication.maxSlaves")
	c.close()
	await(t, 5*time.Second, "the place is given back", func() bool {
		x := dial(t, s)
		defer x.close()
		x.send(ask(`{"ask":"topics"}`))
		head, err := x.full(10)
		return err == nil && binary.LittleEndian.Uint16(head) == codeDone
	})
}

// TestCopyOfParted: a slave whose history has parted from its master's is not
// replaced by itself, but by an order.
func TestCopyOfParted(t *testing.T) {
	t.Parallel()
	m := startServer(t, options{config: config{"timeout.server.alive": 1000}})
	c := dial(t, m)
	c.ok(reqCreate("t", 0))
	c.ok(reqPub("t", message("of both")))
	s := startServer(t, following(m.port, nil))
	caughtUp(t, m, s, "t")
	s.stop()
	slave := s.opts.args
	s.opts.args = nil
	s.restart()
	dial(t, s).ok(reqPub("t", message("its own")))
	s.stop()
	c.ok(reqPub("t", message("the master's")))
	c.ok(reqPub("t", message("and another")))
	s.opts.args = slave
	s.restart()
	s.logs("histories part")
	if strings.Contains(s.log.String(), "full copy") {
		t.Error("a history that has parted is replaced without an order")
	}
	s.stop()
	order := fmt.Sprintf(`{"master": %q, "discard": true}`, m.addr())
	if err := os.WriteFile(filepath.Join(s.dataDir(), "reseed.json"), []byte(order), 0o644); err != nil {
		t.Fatal(err)
	}
	s.restart()
	caughtUp(t, m, s, "t")
	if old, err := filepath.Glob(filepath.Join(s.dataDir(), "old-*")); len(old) > 0 || err != nil {
		t.Errorf("what is discarded is kept: %v, %v", old, err)
	}
	s.stop()
	s.verified()
}
