package bench

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"smss/codec"
)

// connection is owned by its loop.
type connection struct {
	fd, index int
	position  int // in the workload's cycle, of the next byte to write
	unsent    int // bytes that are due at that position
	left      int // requests of the run still to begin
	sentAt    []time.Duration
	oldest    int // index in sentAt, which is a ring of the requests in flight
	inFlight  int
	blocked   bool // the socket took no more: waiting to write
	active    bool // part of the run, and not done
	closed    bool
	replies   replyReader
}

// loop is one event loop of the generator: a goroutine around epoll_wait over
// its share of the connections. Everything but done and stop belongs to it
// while it runs.
//
// Why sockets of our own? Measured against the bare server over 256
// connections, medians of five runs of each in turn, in generator CPU per
// request at 1 and at 16 in flight: one goroutine per connection with
// net.Conn costs 1.5 and 1.8 times what this loop does, gnet's client the
// same within 5 %. In all of it 96 % of this loop's time is the kernel's read
// and write, so that nothing is left to win; and where gnet costs the same,
// sockets of our own are simpler to count exactly with: when a request was
// handed over, what is in flight when a run stops, and that the window is one
// write of shared bytes rather than a copy in a buffer.
type loop struct {
	load        *load
	poller      *poller
	connections []*connection
	buffer      []byte
	stop        *atomic.Bool
	done        atomic.Int64

	start    time.Time
	active   int  // connections that are
	draining bool // nothing more is sent

	succeeded int64
	finished  int64
	reads     int64         // that gave bytes
	last      time.Duration // of the latest reply
	errors    map[string]int64
	latency   *hdrhistogram.Histogram
}

const (
	readBuffer = 64 << 10
	// stopLatency bounds how late a loop without traffic sees stop.
	stopLatency = 20 * time.Millisecond
	// drainTimeout bounds how long replies are awaited after stop.
	drainTimeout = 2 * time.Second
	// maxErrorTexts bounds the different texts that are told apart.
	maxErrorTexts = 32
)

func newLoop(l *load, stop *atomic.Bool) (*loop, error) {
	p, err := newPoller()
	if err != nil {
		return nil, err
	}
	return &loop{load: l, poller: p, stop: stop, buffer: make([]byte, readBuffer),
		errors: map[string]int64{}, latency: newHistogram()}, nil
}

// add takes over fd; number tells connections apart, so that they begin at
// different topics.
func (l *loop) add(fd, number int) error {
	w := l.load.work
	c := &connection{fd: fd, index: len(l.connections), sentAt: make([]time.Duration, l.load.pipeline),
		position: number * w.request % w.cycle}
	l.connections = append(l.connections, c)
	return l.poller.add(fd, c.index)
}

func (l *loop) close() {
	for _, c := range l.connections {
		if !c.closed {
			unix.Close(c.fd)
			c.closed = true
		}
	}
	l.poller.close()
}

func (l *loop) run(t target, start time.Time) error {
	l.begin(t, start)
	heard := l.now()
	for l.active > 0 {
		n, err := l.poller.wait(stopLatency)
		if err != nil {
			return err
		}
		for i := range n {
			index, readable, writable := l.poller.event(i)
			c := l.connections[index]
			if writable && !c.closed {
				l.flush(c)
			}
			if readable && !c.closed {
				l.receive(c)
			}
		}
		l.done.Store(l.finished)
		now := l.now()
		if n > 0 {
			heard = now
		}
		l.checkTime(t, now, heard)
	}
	return nil
}

func (l *loop) now() time.Duration { return time.Since(l.start) }

// begin forgets the last run and fills every connection's window.
func (l *loop) begin(t target, start time.Time) {
	l.start, l.active, l.draining = start, 0, false
	l.succeeded, l.finished, l.reads, l.last = 0, 0, 0, 0
	l.done.Store(0)
	l.latency.Reset()
	clear(l.errors)
	for _, c := range l.connections {
		if c.closed {
			continue
		}
		c.left = t.requests
		if t.duration > 0 {
			c.left = 1 << 62
		}
		c.active = true
		l.active++
		l.send(c, l.now())
	}
}

// checkTime ends the run when its time is over, it is stopped, or replies
// have ceased to come.
func (l *loop) checkTime(t target, now, heard time.Duration) {
	stopped := l.stop.Load()
	if !l.draining && (stopped || t.duration > 0 && now >= t.duration) {
		l.draining = true
	}
	limit := l.load.timeout
	if stopped {
		limit = min(limit, drainTimeout)
	}
	if now-heard >= limit {
		for _, c := range l.connections {
			if c.inFlight > 0 {
				l.fail(c, "no reply within "+limit.String())
			}
		}
	}
}

// send begins as many requests as the window takes and hands them to the
// socket in one write.
func (l *loop) send(c *connection, now time.Duration) {
	if !l.draining {
		n := min(l.load.pipeline-c.inFlight, c.left)
		for range n {
			at := c.oldest + c.inFlight
			if at >= len(c.sentAt) {
				at -= len(c.sentAt)
			}
			c.sentAt[at] = now
			c.inFlight++
		}
		c.left -= n
		c.unsent += n * l.load.work.request
	}
	if c.inFlight == 0 {
		l.finish(c)
	} else if c.unsent > 0 && !c.blocked {
		l.flush(c)
	}
}

func (l *loop) flush(c *connection) {
	w := l.load.work
	for c.unsent > 0 {
		chunk := w.bytes[c.position:]
		if len(chunk) > c.unsent {
			chunk = chunk[:c.unsent]
		}
		n, err := unix.Write(c.fd, chunk)
		switch err {
		case nil:
			c.unsent -= n
			c.position = (c.position + n) % w.cycle
		case unix.EINTR:
		case unix.EAGAIN:
			l.block(c, true)
			return
		default:
			l.fail(c, closedText(err))
			return
		}
	}
	if c.blocked {
		l.block(c, false)
	}
}

func (l *loop) block(c *connection, on bool) {
	if c.blocked == on {
		return
	}
	c.blocked = on
	if err := l.poller.watchWrite(c.fd, c.index, on); err != nil {
		l.fail(c, closedText(err))
	}
}

// receive takes one read's worth of replies and sends what they make room
// for. What is left in the socket is reported again.
func (l *loop) receive(c *connection) {
	n, err := unix.Read(c.fd, l.buffer)
	if err == unix.EAGAIN || err == unix.EINTR {
		return
	}
	if err != nil || n == 0 {
		l.fail(c, closedText(err))
		return
	}
	l.reads++
	now := l.now()
	for rest := l.buffer[:n]; len(rest) > 0; {
		code, tail, ok := c.replies.next(rest)
		rest = tail
		if !ok {
			break
		}
		if c.inFlight == 0 {
			l.fail(c, "reply without a request")
			return
		}
		if code != codec.CodeOK && code != codec.CodeError {
			l.fail(c, "reply code "+strconv.Itoa(int(code)))
			return
		}
		l.take(c, code, now)
	}
	l.send(c, now)
}

// take accounts for one reply to the oldest request in flight.
func (l *loop) take(c *connection, code codec.Code, now time.Duration) {
	l.last = now
	micros := (now - c.sentAt[c.oldest]).Microseconds()
	if c.oldest++; c.oldest == len(c.sentAt) {
		c.oldest = 0
	}
	c.inFlight--
	l.finished++
	if code == codec.CodeError {
		l.countError(string(c.replies.text), 1)
		return
	}
	l.succeeded++
	_ = l.latency.RecordValue(min(micros, l.latency.HighestTrackableValue()))
}

// fail ends a connection; its requests in flight have failed.
func (l *loop) fail(c *connection, text string) {
	l.countError(text, int64(max(1, c.inFlight)))
	l.finished += int64(c.inFlight)
	if c.inFlight > 0 {
		l.last = l.now()
	}
	c.inFlight, c.unsent, c.left, c.closed = 0, 0, 0, true
	unix.Close(c.fd)
	l.finish(c)
}

// finish ends a connection's part in the run. It may be done before: a server
// can close a connection that has nothing in flight.
func (l *loop) finish(c *connection) {
	if c.active {
		c.active = false
		l.active--
	}
}

func (l *loop) countError(text string, n int64) { countError(l.errors, text, n) }

func countError(all map[string]int64, text string, n int64) {
	if _, known := all[text]; !known && len(all) >= maxErrorTexts {
		text = "other errors"
	}
	all[text] += n
}
