package bench

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"smss/codec"
)

// publisher is one event loop that publishes messages which differ: each
// carries a time. With a rate it is an open loop: request i is due at i/rate
// whatever the server does, and its latency counts from then, so that a
// server that stalls cannot make the load wait with it. Without a rate it is
// a closed loop with a window of requests in flight on each connection.
// Everything but done and stop belongs to the goroutine that runs it.
type publisher struct {
	poller  *poller
	timer   *timer
	outlets []*outlet
	request []byte // one, with zeros for what differs
	stampAt int
	delayAt int // of the delay in a DELAY; 0: PUB
	clock   time.Time
	timeout time.Duration
	buffer  [4096]byte

	rate   int // a second; 0: closed loop
	window int
	count  int64                            // requests; 0: until the time is over
	due    func(number int64) time.Duration // of a delayed message; nil: no delays

	stop atomic.Bool
	done atomic.Int64

	begun     time.Duration // start of the run on the clock
	until     time.Duration
	next      int64 // number of the next request
	inFlight  int
	draining  bool
	near      bool // the next request is due so soon that waking up would take longer
	succeeded int64
	failed    int64
	errors    map[string]int64
	last      time.Duration
	latency   *hdrhistogram.Histogram // from when the request was due
	late      *hdrhistogram.Histogram // how much later than due it was sent
}

// outlet is one connection.
type outlet struct {
	fd       int
	pending  []byte // due, and not taken by the socket yet
	sent     int    // of pending
	due      []time.Duration
	oldest   int // index in due, which is a ring of the requests in flight
	inFlight int
	blocked  bool
	closed   bool
	replies  replyReader
}

// maxBehind and maxBehindBytes bound the requests in flight of an open loop, on
// each connection.
const (
	maxBehind      = 1 << 16
	maxBehindBytes = 256 << 20
)

// newPublisher connects n times. Messages have size bytes and go to topic.
func newPublisher(addr, topic string, n, size int, timeout time.Duration, clock time.Time) (*publisher, error) {
	p := &publisher{clock: clock, timeout: timeout, window: 1, errors: map[string]int64{}, latency: newHistogram(), late: newHistogram()}
	p.request = codec.AppendPub(nil, topic, "", newPayload(size, 1))
	p.stampAt = len(p.request) - size
	d, err := newDialer(addr)
	if err != nil {
		return nil, err
	}
	if p.poller, err = newPoller(); err != nil {
		return nil, err
	}
	if p.timer, err = newTimer(); err != nil {
		p.poller.close()
		return nil, err
	}
	if err := p.connect(d, n); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *publisher) connect(d *dialer, n int) error {
	for i := range n {
		fd, err := d.dial()
		if err != nil {
			return err
		}
		p.outlets = append(p.outlets, &outlet{fd: fd})
		if err := p.poller.add(fd, i); err != nil {
			return err
		}
	}
	return p.poller.add(p.timer.fd, n)
}

// delayed makes it publish with delays: message i falls due at due(i).
func (p *publisher) delayed(topic string, size int, due func(int64) time.Duration) {
	p.request = codec.AppendDelay(nil, topic, "", 0, newPayload(size, 1))
	p.stampAt = len(p.request) - size
	p.delayAt = codec.RequestHeaderSize + len(topic)
	p.due = due
}

func (p *publisher) close() {
	for _, o := range p.outlets {
		if !o.closed {
			unix.Close(o.fd)
			o.closed = true
		}
	}
	p.timer.close()
	p.poller.close()
}

func (p *publisher) now() time.Duration { return time.Since(p.clock) }

// run publishes for a time, or what is left of count, and takes the replies
// that are due. Figures begin anew.
func (p *publisher) run(d time.Duration) error {
	p.begin(d)
	heard := p.begun
	for {
		now := p.now()
		if p.stop.Load() || p.until > 0 && now >= p.until || p.count > 0 && p.next >= p.count {
			p.draining = true
		}
		if err := p.sendDue(now); err != nil {
			return err
		}
		if p.draining && p.inFlight == 0 {
			return nil
		}
		patience := stopLatency
		if p.near {
			patience = 0
		}
		n, err := p.poller.wait(patience)
		if err != nil {
			return err
		}
		for i := range n {
			if index, readable, writable := p.poller.event(i); index == len(p.outlets) {
				p.timer.clear()
			} else {
				heard = p.now()
				p.serve(p.outlets[index], index, readable, writable)
			}
		}
		if p.inFlight == 0 {
			heard = p.now()
		}
		p.giveUp(p.now() - heard)
		if p.closed() {
			return nil
		}
	}
}

func (p *publisher) begin(d time.Duration) {
	p.begun, p.until, p.draining = p.now(), 0, false
	if d > 0 {
		p.until = p.begun + d
	}
	p.next, p.succeeded, p.failed, p.last = 0, 0, 0, 0
	p.done.Store(0)
	p.latency.Reset()
	p.late.Reset()
	clear(p.errors)
	capacity := p.window
	if p.rate > 0 {
		capacity = min(maxBehind, max(1, maxBehindBytes/len(p.request)))
	}
	for _, o := range p.outlets {
		if len(o.due) != capacity {
			o.due, o.oldest = make([]time.Duration, capacity), 0
		}
	}
}

func (p *publisher) closed() bool {
	for _, o := range p.outlets {
		if !o.closed {
			return false
		}
	}
	return true
}

// sendDue hands over what is due, and sets the timer for what comes next.
func (p *publisher) sendDue(now time.Duration) error {
	p.near = false
	if p.draining {
		return nil
	}
	if p.rate == 0 {
		for i, o := range p.outlets {
			for !o.closed && o.inFlight < p.window && (p.count == 0 || p.next < p.count) {
				p.put(o, now, now)
			}
			p.flush(o, i)
		}
		return nil
	}
	for {
		due := p.begun + time.Duration(float64(p.next)*float64(time.Second)/float64(p.rate))
		if p.until > 0 && due >= p.until || p.count > 0 && p.next >= p.count {
			return p.timer.set(max(0, p.until-now))
		}
		if due > now {
			if p.near = due-now <= p.ahead(); p.near {
				return nil
			}
			return p.timer.set(due - p.ahead() - p.now())
		}
		index := int(p.next % int64(len(p.outlets)))
		o := p.outlets[index]
		if o.closed {
			p.next++
			p.failed++
			p.countError("connection closed before", 1)
			continue
		}
		if o.inFlight == len(o.due) {
			p.fail(o, fmt.Sprintf("%s requests are unanswered: the server cannot keep up with the rate", count(int64(o.inFlight))))
			continue
		}
		_ = p.late.RecordValue(min((now - due).Microseconds(), p.late.HighestTrackableValue()))
		p.put(o, due, now)
		p.flush(o, index)
	}
}

// ahead is how long before a request is due the loop stays awake for it: about
// what waking up takes on a virtual machine, and a tenth of the time at most.
func (p *publisher) ahead() time.Duration {
	return min(100*time.Microsecond, time.Second/10/time.Duration(p.rate))
}

// put appends a request to what o is to send.
func (p *publisher) put(o *outlet, due, now time.Duration) {
	if 2*o.sent >= len(o.pending) {
		// Not only when nothing is left: behind a slow server something always is.
		o.pending, o.sent = o.pending[:copy(o.pending, o.pending[o.sent:])], 0
	}
	at := len(o.pending)
	o.pending = append(o.pending, p.request...)
	stamp := due
	if p.due != nil {
		delay := max((p.due(p.next) - now + time.Millisecond - 1).Milliseconds(), minDelay.Milliseconds())
		stamp = now + time.Duration(delay)*time.Millisecond
		binary.LittleEndian.PutUint64(o.pending[at+p.delayAt:], uint64(delay))
	}
	binary.LittleEndian.PutUint64(o.pending[at+p.stampAt:], uint64(stamp))
	o.due[(o.oldest+o.inFlight)%len(o.due)] = due
	o.inFlight++
	p.inFlight++
	p.next++
}

// minDelay is the protocol's.
const minDelay = time.Second

func (p *publisher) serve(o *outlet, index int, readable, writable bool) {
	if writable && !o.closed {
		p.flush(o, index)
	}
	if !readable || o.closed {
		return
	}
	n, err := unix.Read(o.fd, p.buffer[:])
	if err == unix.EAGAIN || err == unix.EINTR {
		return
	}
	if err != nil || n == 0 {
		p.fail(o, closedText(err))
		return
	}
	now := p.now()
	for rest := p.buffer[:n]; len(rest) > 0 && !o.closed; {
		code, tail, ok := o.replies.next(rest)
		rest = tail
		if !ok {
			return
		}
		p.take(o, code, now)
	}
}

func (p *publisher) take(o *outlet, code codec.Code, now time.Duration) {
	if o.inFlight == 0 || code != codec.CodeOK && code != codec.CodeError {
		p.fail(o, "reply code "+strconv.Itoa(int(code))+" where none was due")
		return
	}
	due := o.due[o.oldest]
	o.oldest = (o.oldest + 1) % len(o.due)
	o.inFlight--
	p.inFlight--
	p.last = now
	p.done.Add(1)
	if code == codec.CodeError {
		p.failed++
		p.countError(string(o.replies.text), 1)
		return
	}
	p.succeeded++
	_ = p.latency.RecordValue(min((now - due).Microseconds(), p.latency.HighestTrackableValue()))
}

func (p *publisher) flush(o *outlet, index int) {
	for !o.closed && o.sent < len(o.pending) {
		n, err := unix.Write(o.fd, o.pending[o.sent:])
		switch err {
		case nil:
			o.sent += n
		case unix.EINTR:
		case unix.EAGAIN:
			p.block(o, index, true)
			return
		default:
			p.fail(o, closedText(err))
		}
	}
	p.block(o, index, false)
}

func (p *publisher) block(o *outlet, index int, on bool) {
	if o.closed || o.blocked == on {
		return
	}
	o.blocked = on
	if err := p.poller.watchWrite(o.fd, index, on); err != nil {
		p.fail(o, closedText(err))
	}
}

// giveUp ends the connections that wait for a reply, after a silence that is
// too long.
func (p *publisher) giveUp(silence time.Duration) {
	limit := p.timeout
	if p.stop.Load() {
		limit = min(limit, drainTimeout)
	}
	if silence < limit {
		return
	}
	for _, o := range p.outlets {
		if o.inFlight > 0 {
			p.fail(o, "no reply within "+limit.String())
		}
	}
}

// fail ends a connection; its requests in flight have failed.
func (p *publisher) fail(o *outlet, text string) {
	n := int64(max(1, o.inFlight))
	p.failed += n
	p.countError(text, n)
	p.inFlight -= o.inFlight
	o.inFlight, o.closed = 0, true
	unix.Close(o.fd)
}

func (p *publisher) countError(text string, n int64) { countError(p.errors, text, n) }
