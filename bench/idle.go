package bench

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"smss/codec"
)

// IdleResult is what quiet subscribers cost.
type IdleResult struct {
	Server             string   `json:"server"`
	Subscribers        int      `json:"subscribers"`
	ConnectSeconds     float64  `json:"connectSeconds"`
	MemoryBefore       int64    `json:"memoryBefore,omitempty"`
	MemoryAfter        int64    `json:"memoryAfter,omitempty"`
	BytesPerConnection float64  `json:"bytesPerConnection,omitempty"`
	HighWaterMark      int64    `json:"highWaterMark,omitempty"`
	Seconds            float64  `json:"seconds"`
	ServerCPUSeconds   *float64 `json:"serverCPUSeconds,omitempty"`
	Heartbeats         int      `json:"heartbeats"`
	Interrupted        bool     `json:"interrupted,omitempty"`
}

func runIdle(ctx context.Context, s *settings, out output) error {
	if err := checkFile(s.json); err != nil {
		return err
	}
	reserveDescriptors(s.Subscribers) // before the server starts: it inherits the limit
	report := newReport(s)
	p := newProgress(out, s, "idle")
	srv, err := openServer(ctx, s)
	if err != nil {
		return interruption(ctx, err)
	}
	r, err := measureIdle(ctx, s, srv, p)
	p.end()
	stopped := srv.stop()
	if err != nil {
		return interruption(ctx, err)
	}
	report.Idle = r
	if err := report.writeFile(s.json); err != nil {
		return err
	}
	report.Machine.print(out.stdout)
	r.print(out.stdout)
	return stopped
}

func measureIdle(ctx context.Context, s *settings, srv *server, p *progress) (*IdleResult, error) {
	if err := createTopics(ctx, srv.addr, time.Duration(s.Timeout), s.Topic, 1); err != nil {
		return nil, err
	}
	q, err := newQuietSubscribers(srv.addr)
	if err != nil {
		return nil, err
	}
	defer q.close()
	if err := q.wait(ctx, time.Duration(s.Settle)); err != nil {
		return nil, err
	}
	r := &IdleResult{Server: srv.name, Subscribers: s.Subscribers}
	before, err := srv.memory()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	for i := range s.Subscribers {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err := q.subscribe(s.Topic, i); err != nil {
			return nil, fmt.Errorf("subscriber %d: %w", i+1, err)
		}
		if i%1000 == 999 {
			p.say(count(int64(i+1)) + " subscribers")
		}
	}
	r.ConnectSeconds = time.Since(start).Seconds()
	p.say("settling")
	if err := q.wait(ctx, time.Duration(s.Settle)); err != nil {
		return nil, err
	}
	after, err := srv.memory()
	if err != nil {
		return nil, err
	}
	r.MemoryBefore, r.MemoryAfter, r.HighWaterMark = before.resident, after.resident, after.peak
	r.BytesPerConnection = float64(after.resident-before.resident) / float64(s.Subscribers)
	p.say("measuring CPU for " + time.Duration(s.Duration).String())
	return r, q.measureCPU(ctx, s, srv, r)
}

// measureCPU fills in what the server uses while nothing happens.
func (q *quietSubscribers) measureCPU(ctx context.Context, s *settings, srv *server, r *IdleResult) error {
	var start, end cpuTime
	var err error
	if srv.pid != 0 {
		if start, err = processCPU(srv.pid); err != nil {
			return srv.lost(err)
		}
	}
	began := time.Now()
	q.heartbeats = 0
	if err := q.wait(ctx, time.Duration(s.Duration)); err != nil {
		return err
	}
	r.Seconds, r.Heartbeats, r.Interrupted = time.Since(began).Seconds(), q.heartbeats, ctx.Err() != nil
	if srv.pid != 0 {
		if end, err = processCPU(srv.pid); err != nil {
			return srv.lost(err)
		}
		used := end.since(start).total.Seconds()
		r.ServerCPUSeconds = &used
	}
	return nil
}

// memory is zero where the server's process is not known.
func (srv *server) memory() (memory, error) {
	if srv.pid == 0 {
		return memory{}, nil
	}
	m, err := processMemory(srv.pid)
	if err != nil {
		return m, srv.lost(err)
	}
	return m, nil
}

// quietSubscribers are connections in stream mode that get heartbeats and
// nothing else.
type quietSubscribers struct {
	dialer     *dialer
	poller     *poller
	sockets    []int
	replies    []replyReader
	buffer     [4096]byte
	heartbeats int
}

func newQuietSubscribers(addr string) (*quietSubscribers, error) {
	d, err := newDialer(addr)
	if err != nil {
		return nil, err
	}
	p, err := newPoller()
	if err != nil {
		return nil, err
	}
	return &quietSubscribers{dialer: d, poller: p}, nil
}

func (q *quietSubscribers) close() {
	for _, fd := range q.sockets {
		unix.Close(fd)
	}
	q.poller.close()
}

// subscribe adds a subscriber with a name of its own. SUB has no reply that
// says done: a refusal shows in wait.
func (q *quietSubscribers) subscribe(topic string, i int) error {
	fd, err := q.dialer.dial()
	if err != nil {
		return err
	}
	q.sockets = append(q.sockets, fd)
	q.replies = append(q.replies, replyReader{})
	request := codec.AppendSub(nil, &codec.Subscription{Topic: topic, Who: "bench-" + strconv.Itoa(i), Batch: 1})
	if n, err := unix.Write(fd, request); err != nil || n < len(request) {
		return fmt.Errorf("subscribe: %s", closedText(err))
	}
	return q.poller.add(fd, i)
}

// wait takes heartbeats for a time. Anything else that a subscriber is told
// is an error.
func (q *quietSubscribers) wait(ctx context.Context, d time.Duration) error {
	end := time.Now().Add(d)
	for ctx.Err() == nil {
		left := time.Until(end)
		if left <= 0 {
			break
		}
		n, err := q.poller.wait(min(left+time.Millisecond, 100*time.Millisecond))
		if err != nil {
			return err
		}
		for i := range n {
			index, _, _ := q.poller.event(i)
			if err := q.receive(index); err != nil {
				return fmt.Errorf("subscriber %d: %w", index+1, err)
			}
		}
	}
	return nil
}

func (q *quietSubscribers) receive(index int) error {
	n, err := unix.Read(q.sockets[index], q.buffer[:])
	if err == unix.EAGAIN || err == unix.EINTR {
		return nil
	}
	if err != nil || n == 0 {
		return fmt.Errorf("%s", closedText(err))
	}
	r := &q.replies[index]
	for rest := q.buffer[:n]; len(rest) > 0; {
		code, tail, ok := r.next(rest)
		switch rest = tail; {
		case !ok:
		case code == codec.CodeAlive:
			q.heartbeats++
		case code == codec.CodeError:
			return fmt.Errorf("refused: %s", r.text)
		case code == codec.CodeOK:
			return fmt.Errorf("got a message: the topic is not quiet, choose another with -topic")
		default:
			return fmt.Errorf("got code %d instead of a heartbeat", code)
		}
	}
	return nil
}

func (r *IdleResult) print(w io.Writer) {
	t := table{w, 14}
	if r.Interrupted {
		fmt.Fprintln(w, "  interrupted: figures up to then")
	}
	t.row("server", r.Server)
	t.row("subscribers", count(int64(r.Subscribers)), fmt.Sprintf("connected in %.1f s", r.ConnectSeconds))
	if r.MemoryAfter > 0 {
		t.row("server memory before", mebibytes(r.MemoryBefore))
		t.row("server memory after", mebibytes(r.MemoryAfter), "VmHWM "+mebibytes(r.HighWaterMark))
		t.row("memory per connection", fmt.Sprintf("%.2f KiB", r.BytesPerConnection/1024))
	}
	if r.ServerCPUSeconds != nil {
		share := 100 * *r.ServerCPUSeconds / max(r.Seconds, 1e-9)
		t.row("server CPU", fmt.Sprintf("%.3f s", *r.ServerCPUSeconds), fmt.Sprintf("in %.1f s: %.2f %% of a core", r.Seconds, share))
	}
	t.row("heartbeats in that time", count(int64(r.Heartbeats)))
}
