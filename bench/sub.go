package bench

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// runSub measures how fast a topic that is full already is drained. All batch
// sizes drain the same topic, each from its beginning.
func runSub(ctx context.Context, s *settings, out output) error {
	return runPlan(ctx, s, out, scenario{"drain", func(ctx context.Context, srv *server, p *progress) ([]Result, error) {
		unload, err := takeBallast(ctx, s, srv, p)
		if err != nil {
			return nil, err
		}
		defer unload()
		topic, drop, err := freshTopic(ctx, s, srv)
		if err != nil {
			return nil, err
		}
		defer drop()
		n, _, err := fill(ctx, s, srv, topic, int64(s.Messages), s.Size, fillBatch(s.Size), p)
		if err != nil {
			return nil, err
		}
		var all []Result
		for _, batch := range s.Batches {
			r, err := measureDrain(ctx, s, srv, topic, batch, n, p)
			if err != nil {
				return all, err
			}
			if all = append(all, *r); ctx.Err() != nil {
				break
			}
		}
		return all, nil
	}})
}

// measureDrain drains the n messages of topic to all subscribers.
func measureDrain(ctx context.Context, s *settings, srv *server, topic string, batch int, n int64, p *progress) (*Result, error) {
	a, err := newAudience(srv.addr, time.Now(), s.Loops, false)
	if err != nil {
		return nil, err
	}
	defer a.close()
	for _, r := range a.receivers {
		r.expect = n
	}
	p.label = fmt.Sprintf("%d subscribers, batch %d", s.Subscribers, batch)
	p.unit, p.total, p.duration = "messages", n*int64(s.Subscribers), time.Duration(s.Duration)
	var elapsed time.Duration
	w, err := observe(ctx, srv, p, a.delivered, func(ctx context.Context) error {
		if s.Duration > 0 {
			bounded, cancel := context.WithTimeout(ctx, time.Duration(s.Duration))
			defer cancel()
			ctx = bounded
		}
		start := time.Now()
		if err := a.subscribe(ctx, topic, s.Subscribers, batch); err != nil {
			return err
		}
		err := a.listen(ctx, time.Duration(s.Timeout))
		elapsed = time.Since(start)
		return err
	})
	if err != nil {
		return nil, err
	}
	r := newResult(s.streamTitle(strconv.Itoa(batch)))
	r.Interrupted = ctx.Err() != nil
	got := a.delivered()
	r.Figures[keySeconds] = elapsed.Seconds()
	r.Figures["messages"] = float64(got)
	r.Figures["subscribers"] = float64(s.Subscribers)
	r.Figures[keyMessageRate] = float64(got) / max(elapsed.Seconds(), 1e-9)
	r.Figures["megabytesPerSecond"] = r.Figures[keyMessageRate] * float64(s.Size) / 1e6
	r.Figures["messagesPerPush"] = float64(got) / float64(max(1, a.pushes()))
	w.describe(&r, keyServerMessage, keyOwnMessage, got)
	return &r, nil
}

// audience is the subscribers of a topic, spread over a few event loops.
type audience struct {
	// name begins those of the subscribers. The existing server keeps a name
	// for a while after its subscriber has gone, so that each audience has
	// its own.
	name      string
	receivers []*receiver
	failed    atomic.Pointer[error]
}

func newAudience(addr string, clock time.Time, loops int, stamped bool) (*audience, error) {
	a := &audience{name: "bench-" + strconv.FormatInt(time.Now().UnixNano(), 36)}
	for range loops {
		r, err := newReceiver(addr, clock, stamped)
		if err != nil {
			a.close()
			return nil, err
		}
		a.receivers = append(a.receivers, r)
	}
	return a, nil
}

func (a *audience) close() {
	for _, r := range a.receivers {
		r.close()
	}
}

func (a *audience) subscribe(ctx context.Context, topic string, n, batch int) error {
	for i := range n {
		if ctx.Err() != nil {
			return nil // listen has nothing to wait for then
		}
		who := a.name + "-" + strconv.Itoa(i)
		if err := a.receivers[i%len(a.receivers)].subscribe(topic, who, batch); err != nil {
			return fmt.Errorf("subscriber %d: %w", i+1, err)
		}
	}
	return nil
}

// listen runs all receivers until they have what they expect or ctx ends, and
// returns the first error of one. Silence is an error unless timeout is 0.
func (a *audience) listen(ctx context.Context, timeout time.Duration) error {
	defer context.AfterFunc(ctx, a.stop)()
	var wg sync.WaitGroup
	for _, r := range a.receivers {
		wg.Go(func() {
			if err := r.run(timeout); err != nil {
				a.failed.CompareAndSwap(nil, &err)
				a.stop()
			}
		})
	}
	wg.Wait()
	return a.err()
}

func (a *audience) stop() {
	for _, r := range a.receivers {
		r.stop.Store(true)
	}
}

func (a *audience) err() error {
	if err := a.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// delivered may be called while the receivers run.
func (a *audience) delivered() int64 {
	var n int64
	for _, r := range a.receivers {
		n += r.delivered.Load()
	}
	return n
}

func (a *audience) pushes() int64 {
	var n int64
	for _, r := range a.receivers {
		n += r.pushes.Load()
	}
	return n
}
