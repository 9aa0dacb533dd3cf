package reactor

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/panjf2000/gnet/v2"
	"github.com/panjf2000/gnet/v2/pkg/logging"
	"golang.org/x/sys/unix"

	"smss/codec"
	"smss/engine"
)

// Reactor is the server's connections.
type Reactor struct {
	gnet.BuiltinEventEngine
	cfg    Config
	engine *engine.Engine
	clock  engine.Clock
	loops  []*loop

	conns  atomic.Int64  // open, those being refused not counted
	input  atomic.Int64  // bytes of input that wait, over all sessions
	copies atomic.Int64  // connections that have a place for copies
	client *gnet.Client  // set by Start
	accept net.Listener  // set by Start
	quit   chan struct{} // closed by StopAccepting
	once   sync.Once     // for quit
	done   chan struct{} // closed when accepting has ended
	// monotonic is the loops' clock; immutable once connections come.
	monotonic func() int64

	stopping atomic.Bool  // no request is begun any more
	silent   atomic.Bool  // no loop may be woken any more
	waking   atomic.Int64 // wake-ups under way
}

// New returns a reactor. Its mailboxes belong into the engine's configuration;
// Start takes the engine.
func New(cfg Config) *Reactor {
	r := &Reactor{cfg: cfg, quit: make(chan struct{}), done: make(chan struct{}), monotonic: sinceStart}
	for i := range cfg.Loops {
		r.loops = append(r.loops, newLoop(r, i))
	}
	return r
}

// Mailboxes returns the loops' mailboxes.
func (r *Reactor) Mailboxes() []*engine.Mailbox {
	out := make([]*engine.Mailbox, len(r.loops))
	for i, l := range r.loops {
		out[i] = l.mailbox
	}
	return out
}

// Connections returns how many connections are open. Any goroutine.
func (r *Reactor) Connections() int64 { return r.conns.Load() }

// readBuffer is what a loop reads from a socket at once; there is one such
// buffer for each loop.
const readBuffer = 64 << 10

// Start starts the event loops and accepts connections from ln, which it
// closes in the end.
func (r *Reactor) Start(ln net.Listener, e *engine.Engine, clock engine.Clock, log logging.Logger) error {
	r.engine, r.clock, r.accept = e, clock, ln
	for _, l := range r.loops {
		t := time.AfterFunc(time.Duration(never), l.ring)
		t.Stop()
		l.alarm = t
	}
	client, err := gnet.NewClient(r,
		gnet.WithNumEventLoop(len(r.loops)),
		gnet.WithReadBufferCap(readBuffer),
		gnet.WithWriteBufferCap(4<<10),
		gnet.WithTCPNoDelay(gnet.TCPNoDelay),
		gnet.WithLogger(log),
	)
	if err != nil {
		return fmt.Errorf("event loops: %w", err)
	}
	if err := client.Start(); err != nil {
		return fmt.Errorf("event loops: %w", err)
	}
	r.client = client
	go r.acceptAll()
	return nil
}

// Keep-alive finds a peer that has vanished within a minute, so that a
// subscriber's name does not stay taken.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 6 * time.Second, Count: 5}

// vanishedAfter is how long a peer may leave unacknowledged what it was sent. A
// heartbeat on its way to one that has vanished puts keep-alive off, and alone
// would be sent again for a quarter of an hour.
const vanishedAfter = time.Minute

// setUserTimeout bounds how long the peer of a socket may acknowledge nothing,
// or take nothing.
func setUserTimeout(fd int, d time.Duration) {
	// Without it the peer is found gone later; what it takes is watched anyway.
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
}

// acceptAll is the accepting goroutine.
func (r *Reactor) acceptAll() {
	defer close(r.done)
	pause := time.Duration(0)
	for {
		c, err := r.accept.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Descriptors or memory are short: what waits in the backlog is
			// taken when there are some again.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			if r.cfg.Events.AcceptFailed != nil {
				r.cfg.Events.AcceptFailed(err)
			}
			select {
			case <-time.After(pause):
			case <-r.quit:
				return
			}
			continue
		}
		pause = 0
		r.admit(c)
	}
}

// admit hands a connection to the event loops, or refuses it.
func (r *Reactor) admit(c net.Conn) {
	if r.conns.Add(1) > int64(r.cfg.MaxConnections) {
		r.conns.Add(-1)
		r.cfg.Events.refused(c.RemoteAddr(), "too many connections")
		// Ten bytes and a text always fit into an empty socket buffer; the
		// deadline is for a socket that is not what it seems.
		_ = c.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = c.Write(codec.AppendError(nil, "too many connections, see limits.maxConnections"))
		_ = c.Close()
		return
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		// A connection that is gone already shows itself when it is read.
		_ = tcp.SetKeepAliveConfig(keepAlive)
		if raw, err := tcp.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { setUserTimeout(int(fd), max(vanishedAfter, r.cfg.WriteTimeout)) })
		}
	}
	s := &session{linger: -1}
	_, err := r.client.EnrollContext(c, s)
	if err == nil && s.loop == nil {
		// gnet waits for the loop to take the connection, but does not say
		// where it could not watch the descriptor.
		err = errors.New("the event loop cannot watch the connection")
	}
	if err != nil {
		r.conns.Add(-1)
		if r.cfg.Events.AcceptFailed != nil {
			r.cfg.Events.AcceptFailed(err)
		}
	}
}

// leave is called when a connection's last descriptor is closed.
func (r *Reactor) leave() { r.conns.Add(-1) }

// loopOf returns the loop of an event loop, giving it one when its first
// connection opens. It runs on that event loop.
func (r *Reactor) loopOf(el gnet.EventLoop) *loop {
	for _, l := range r.loops {
		if p := l.el.Load(); p != nil {
			if *p == el {
				return l
			}
		} else if l.el.CompareAndSwap(nil, &el) {
			return l
		} else if *l.el.Load() == el {
			return l
		}
	}
	panic("reactor: gnet runs more event loops than it was told to")
}

// OnOpen implements gnet.EventHandler.
func (r *Reactor) OnOpen(c gnet.Conn) ([]byte, gnet.Action) {
	s := c.Context().(*session)
	l := r.loopOf(c.EventLoop())
	l.clock()
	s.conn, s.loop, s.remote, s.activeNs = c, l, c.RemoteAddr(), l.nowNs
	s.retime()
	l.arm()
	return nil, gnet.None
}

// OnTraffic implements gnet.EventHandler. It takes everything that was read, so
// that gnet never buffers input.
func (r *Reactor) OnTraffic(c gnet.Conn) gnet.Action {
	s := c.Context().(*session)
	s.loop.clock()
	data, err := c.Next(-1)
	if err != nil || len(data) == 0 {
		return gnet.None
	}
	s.traffic(data)
	s.loop.arm()
	return gnet.None
}

// OnClose implements gnet.EventHandler. gnet calls it inside a write that
// fails, too.
func (r *Reactor) OnClose(c gnet.Conn, err error) gnet.Action {
	if s, ok := c.Context().(*session); ok && !s.closed {
		s.closedNow(err)
	}
	return gnet.None
}

// StopAccepting closes the listener. Connections go on.
func (r *Reactor) StopAccepting() {
	r.once.Do(func() { close(r.quit) })
	_ = r.accept.Close()
	<-r.done
}

// Stop answers what was asked for, waiting at most timeout for it, and closes
// all connections. Requests that were not begun when it is called are not
// executed.
func (r *Reactor) Stop(timeout time.Duration) error {
	r.StopAccepting()
	r.stopping.Store(true)
	for _, l := range r.loops {
		l.wake()
	}
	for deadline := time.Now().Add(timeout); r.busy() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	// gnet closes the descriptor by which its loops are woken. A wake-up that
	// came later would write to whatever file has that number then.
	r.silent.Store(true)
	for r.waking.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
	err := r.client.Stop()
	for _, l := range r.loops {
		l.alarm.Stop()
	}
	if err != nil {
		return fmt.Errorf("event loops: %w", err)
	}
	return nil
}

// busy reports whether requests wait for their reply, or a loop may still
// begin one.
func (r *Reactor) busy() bool {
	for _, l := range r.loops {
		if l.el.Load() != nil && (!l.quiet.Load() || l.outstanding.Load() > 0) {
			return true
		}
	}
	return false
}
