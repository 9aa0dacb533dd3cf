package bench

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"smss/codec"
)

// runIdle measures what quiet subscribers cost.
func runIdle(ctx context.Context, s *settings, out output) error {
	name := s.title()
	return runPlan(ctx, s, out, scenario{name, func(ctx context.Context, srv *server, p *progress) ([]Result, error) {
		r := newResult(name)
		err := measureIdle(ctx, s, srv, p, &r)
		if err != nil {
			return nil, err
		}
		return []Result{r}, nil
	}})
}

func measureIdle(ctx context.Context, s *settings, srv *server, p *progress, r *Result) error {
	if err := createTopics(ctx, srv.addr, time.Duration(s.Timeout), s.Topic, 1); err != nil {
		return err
	}
	q, err := newQuietSubscribers(srv.addr)
	if err != nil {
		return err
	}
	defer q.close()
	if err := q.wait(ctx, time.Duration(s.Settle)); err != nil {
		return err
	}
	before, err := srv.memory()
	if err != nil {
		return err
	}
	start := time.Now()
	if err := q.subscribeAll(ctx, s.Topic, s.Subscribers, p); err != nil {
		return err
	}
	r.Figures["subscribers"] = float64(s.Subscribers)
	r.Figures["connectSeconds"] = time.Since(start).Seconds()
	p.say("settling")
	if err := q.wait(ctx, time.Duration(s.Settle)); err != nil {
		return err
	}
	p.say("measuring CPU for " + time.Duration(s.Duration).String())
	q.heartbeats = 0
	p.unit, p.duration = "", time.Duration(s.Duration)
	w, err := observe(ctx, srv, p, func() int64 { return 0 }, func(ctx context.Context) error {
		return q.wait(ctx, time.Duration(s.Duration))
	})
	if err != nil {
		return err
	}
	r.Interrupted = ctx.Err() != nil
	r.Figures[keySeconds] = w.elapsed.Seconds()
	r.Figures["heartbeats"] = float64(q.heartbeats)
	r.Series = w.series
	if srv.pid != 0 {
		r.Figures[keyServerCores] = w.cpu.total.Seconds() / max(w.elapsed.Seconds(), 1e-9)
		r.Figures[keyResidentBefore] = float64(before.resident)
		r.Figures[keyResidentPeak] = float64(max(w.before.resident, w.peak.resident))
		r.Figures[keyResidentEnd] = float64(w.end.resident)
		r.Figures[keyHighWaterMark] = float64(w.peak.peak)
		r.Figures["bytesPerSubscriber"] = float64(w.before.resident-before.resident) / float64(s.Subscribers)
	}
	return nil
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
	name       string // begins those of the subscribers
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
	return &quietSubscribers{dialer: d, poller: p, name: "bench-" + strconv.FormatInt(time.Now().UnixNano(), 36)}, nil
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
	request := codec.AppendSub(nil, &codec.Subscription{Topic: topic, Who: q.name + "-" + strconv.Itoa(i), Batch: 1})
	if n, err := unix.Write(fd, request); err != nil || n < len(request) {
		return fmt.Errorf("subscribe: %s", closedText(err))
	}
	return q.poller.add(fd, i)
}

// subscribeAll adds n subscribers.
func (q *quietSubscribers) subscribeAll(ctx context.Context, topic string, n int, p *progress) error {
	for i := range n {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := q.subscribe(topic, i); err != nil {
			return fmt.Errorf("subscriber %d: %w", i+1, err)
		}
		if i%1000 == 999 {
			p.say(count(int64(i+1)) + " subscribers")
		}
	}
	return nil
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
