package reactor

import (
	"bytes"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"smss/codec"
	"smss/engine"
)

// quietLog is gnet's log.
type quietLog struct{}

func (quietLog) Debugf(string, ...any) {}
func (quietLog) Infof(string, ...any)  {}
func (quietLog) Warnf(string, ...any)  {}
func (quietLog) Errorf(string, ...any) {}
func (quietLog) Fatalf(string, ...any) {}

// flaky fails the first accepts.
type flaky struct {
	net.Listener
	failures atomic.Int64 // still to come
}

func (f *flaky) Accept() (net.Conn, error) {
	if f.failures.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", unix.EMFILE)}
	}
	return f.Listener.Accept()
}

// startReal runs the reactor on gnet's loops and a socket. stop may be called
// by the test, and is at its end.
func startReal(t *testing.T, o setup, failures int64) (h *harness, addr string, stop func()) {
	t.Helper()
	cfg, hold := o.cfg, o.hold
	o.hold = true
	o.cfg = func(c *Config) {
		c.Loops = 2
		if cfg != nil {
			cfg(c)
		}
	}
	h = newHarness(t, o)
	h.r.monotonic = sinceStart
	h.l.alarm = nil
	if !hold {
		h.release()
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &flaky{Listener: ln}
	f.failures.Store(failures)
	if err := h.r.Start(f, h.e, h.clock, quietLog{}); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	stop = func() {
		once.Do(func() {
			if err := h.r.Stop(20 * time.Second); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(stop)
	return h, ln.Addr().String(), stop
}

func dial(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

func talk(t *testing.T, c net.Conn, send, want []byte) {
	t.Helper()
	if _, err := c.Write(send); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("got %x, want %x: %v", got[:n], want, err)
	}
}

func wantEOF(t *testing.T, c net.Conn) {
	t.Helper()
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || os.IsTimeout(err) {
		t.Fatalf("read %d bytes, %v; want the end", n, err)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// TestAcceptGoesOn: running out of descriptors is no reason to stop.
func TestAcceptGoesOn(t *testing.T) {
	var failed atomic.Int64
	_, addr, _ := startReal(t, setup{cfg: func(c *Config) {
		c.Events.AcceptFailed = func(error) { failed.Add(1) }
	}}, 5)
	c := dial(t, addr)
	talk(t, c, reqAlive(), codec.AppendCode(nil, codec.CodeAlive))
	if n := failed.Load(); n != 5 {
		t.Errorf("%d failures were told, want 5", n)
	}
}

// TestStopWhileAcceptFails: the pause behind a failure does not hold up the
// stop.
func TestStopWhileAcceptFails(t *testing.T) {
	var failed atomic.Int64
	h, _, stop := startReal(t, setup{cfg: func(c *Config) {
		c.Events.AcceptFailed = func(error) { failed.Add(1) }
	}}, 1<<60)
	eventually(t, "accept is not tried again", func() bool { return failed.Load() >= 3 })
	h.r.StopAccepting()
	stop()
}

// TestOverLimit: a connection too many is told so, and there is room again
// when another one leaves.
func TestOverLimit(t *testing.T) {
	h, addr, _ := startReal(t, setup{cfg: func(c *Config) { c.MaxConnections = 2; c.Events = Events{} }}, 0)
	alive := codec.AppendCode(nil, codec.CodeAlive)
	a, b := dial(t, addr), dial(t, addr)
	talk(t, a, reqAlive(), alive)
	talk(t, b, reqAlive(), alive)
	c := dial(t, addr)
	talk(t, c, nil, codec.AppendError(nil, "too many connections, see limits.maxConnections"))
	wantEOF(t, c)
	talk(t, a, reqAlive(), alive)
	a.Close()
	eventually(t, "the place of a closed connection is not free", func() bool { return h.r.Connections() == 1 })
	talk(t, dial(t, addr), reqAlive(), alive)
}

// TestHalfCloseReal: as printf … | nc -N does it.
func TestHalfCloseReal(t *testing.T) {
	h, addr, _ := startReal(t, setup{hold: true}, 0)
	c := dial(t, addr)
	if _, err := c.Write(append(reqCreate("t"), reqPub("t", "m")...)); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	h.release()
	got, err := io.ReadAll(c)
	if want := bytes.Repeat(codec.AppendCode(nil, codec.CodeOK), 2); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x: %v", got, want, err)
	}
	eventually(t, "the connection is still counted", func() bool { return h.r.Connections() == 0 })
}

// TestTimeoutsReal: the alarm wakes gnet's loops.
func TestTimeoutsReal(t *testing.T) {
	_, addr, _ := startReal(t, setup{cfg: func(c *Config) {
		c.Heartbeat, c.IdleTimeout, c.Events = 100*time.Millisecond, 200*time.Millisecond, Events{}
	}}, 0)
	ok, alive := codec.AppendCode(nil, codec.CodeOK), codec.AppendCode(nil, codec.CodeAlive)
	quiet, sub := dial(t, addr), dial(t, addr)
	talk(t, sub, reqCreate("t"), ok)
	talk(t, sub, reqSub("t", "w"), bytes.Repeat(alive, 4))
	wantEOF(t, quiet)
}

// TestStop answers what was asked for, begins nothing more, closes
// everything, and leaves nothing running.
func TestStop(t *testing.T) {
	defer goleak.VerifyNone(t,
		goleak.IgnoreTopFunction("github.com/panjf2000/ants/v2.(*poolCommon).purgeStaleWorkers"),
		goleak.IgnoreTopFunction("github.com/panjf2000/ants/v2.(*poolCommon).ticktock"))
	t.Run("", func(t *testing.T) {
		h, addr, stop := startReal(t, setup{hold: true, engine: func(c *engine.Config) { c.RingSize = 64 }}, 0)
		const clients, requests = 10, 20 // more than the ring takes
		missing := codec.AppendError(nil, codec.TextTopicNotExist)
		var conns []*net.TCPConn
		outstanding := func() (n int64) {
			for _, l := range h.r.loops {
				n += l.outstanding.Load()
			}
			return n
		}
		for i := range clients {
			c := dial(t, addr)
			conns = append(conns, c)
			send := bytes.Repeat(reqPub("missing", "m"), requests)
			if i == 0 {
				send = reqList()
			}
			if _, err := c.Write(send); err != nil {
				t.Fatal(err)
			}
			// The list, what the ring takes, and one in line for each connection
			// that finds it full: those behind the third. One after the other,
			// because two loops would share the last places in many ways.
			want := int64(1 + min(i*requests, 64) + max(0, i-3))
			eventually(t, "the requests do not arrive", func() bool { return outstanding() == want })
		}
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			stop()
		}()
		eventually(t, "a loop does not see the stop", func() bool {
			return h.r.loops[0].quiet.Load() && h.r.loops[1].quiet.Load()
		})
		if _, err := conns[1].Write(reqCreate("late")); err != nil {
			t.Fatal(err)
		}
		h.release()
		<-stopped
		for i, c := range conns {
			got, _ := io.ReadAll(c) // ends in a reset where input was left
			n := len(got) / len(missing)
			if i == 0 {
				if !bytes.Equal(got, codec.AppendJSON(nil, nil)) {
					t.Errorf("the list is %x", got)
				}
				continue
			}
			// One request of each connection is in line at most; what is
			// behind it was not begun.
			if n == 0 || !bytes.Equal(got, bytes.Repeat(missing, n)) {
				t.Errorf("connection %d got %d replies in %d bytes", i, n, len(got))
			}
		}
		if n := outstanding(); n != 0 {
			t.Errorf("%d requests are outstanding", n)
		}
		if n := h.r.Connections(); n != 0 {
			t.Errorf("%d connections are open", n)
		}
		if h.e.Lookup([]byte("late")) != nil {
			t.Error("a request was begun after the stop")
		}
	})
}
