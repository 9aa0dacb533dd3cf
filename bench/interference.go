package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// What can go on beside small publishes.
const (
	byNone      = "none"
	byLarge     = "large"
	byDelete    = "delete"
	byRetention = "retention"
)

var disturbances = []string{byNone, byLarge, byDelete, byRetention}

// runInterference measures small publishes at a fixed rate while something
// large happens on the same server.
func runInterference(ctx context.Context, s *settings, out output) error {
	var all []scenario
	for _, by := range s.By {
		name := s.interferenceTitle(by)
		all = append(all, scenario{name, func(ctx context.Context, srv *server, p *progress) ([]Result, error) {
			r, err := measureInterference(ctx, s, srv, name, by, p)
			if err != nil {
				return nil, err
			}
			return []Result{*r}, nil
		}})
	}
	return runPlan(ctx, s, out, all...)
}

func measureInterference(ctx context.Context, s *settings, srv *server, name, by string, p *progress) (*Result, error) {
	// First, since it may start the server anew.
	disturb, end, err := prepareDisturbance(ctx, s, srv, by, p)
	if err != nil {
		return nil, err
	}
	defer end()
	topic, drop, err := freshTopic(ctx, s, srv)
	if err != nil {
		return nil, err
	}
	defer drop()
	st, err := openStream(ctx, s, srv, topic, 1)
	if err != nil {
		return nil, err
	}
	defer st.close()
	if err := st.warmUp(ctx, time.Duration(s.Warmup), p); err != nil {
		return nil, err
	}
	figures, disturbed := Figures{}, error(nil)
	var wg sync.WaitGroup
	runCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() {
		if disturbed = disturb(runCtx, figures); disturbed != nil {
			cancel()
		}
	})
	r, err := st.measure(runCtx, s, srv, name, p)
	cancel()
	wg.Wait()
	if err := errors.Join(err, disturbed); err != nil {
		return nil, err
	}
	r.Interrupted = ctx.Err() != nil
	for key, v := range figures {
		r.Figures[key] = v
	}
	return r, nil
}

// prepareDisturbance makes what a disturbance needs and returns what does it,
// until its context ends.
func prepareDisturbance(ctx context.Context, s *settings, srv *server, by string, p *progress) (func(context.Context, Figures) error, func(), error) {
	switch by {
	case byNone:
		return func(context.Context, Figures) error { return nil }, func() {}, nil
	case byRetention:
		disturb, err := prepareRetention(ctx, s, srv, p)
		return disturb, func() {}, err
	}
	topic, drop, err := freshTopic(ctx, s, srv)
	if err != nil {
		return nil, nil, err
	}
	if by == byLarge {
		// Built and connected before anything is measured.
		work := newWorkload(topic, 1, s.LargeSize, 1, 1)
		g, err := dialGenerator(ctx, &load{addr: srv.addr, connections: 1, loops: 1, pipeline: 1, work: work, timeout: time.Duration(s.Timeout)})
		if err != nil {
			return nil, nil, err
		}
		end := func() {
			g.close()
			drop()
		}
		return func(ctx context.Context, f Figures) error { return publishLarge(ctx, s, g, f) }, end, nil
	}
	if _, _, err := fill(ctx, s, srv, topic, int64(s.Gigabytes*1e9)/deletedSize, deletedSize, fillBatch(deletedSize), p); err != nil {
		return nil, nil, errors.Join(err, ctx.Err())
	}
	return func(ctx context.Context, f Figures) error {
		if pause(ctx, time.Duration(s.Duration)/5) != nil {
			return nil // over before it began
		}
		start := time.Now()
		err := deleteTopic(ctx, srv.addr, time.Duration(s.Timeout), topic)
		f["deleteMillis"] = time.Since(start).Seconds() * 1000
		return err
	}, func() {}, nil
}

// deletedSize is that of the messages in a topic that is there to be deleted.
const deletedSize = 10_000

// publishLarge publishes large messages one after the other.
func publishLarge(ctx context.Context, s *settings, g *generator, f Figures) error {
	t, err := g.run(ctx, target{duration: 2 * time.Duration(s.Duration)})
	if err != nil {
		return err
	}
	if t.failed > 0 {
		r := Result{Case: "large messages", Failed: t.failed, Errors: t.errors}
		return r.err()
	}
	if t.requests == 0 {
		return fmt.Errorf("no message of %s was published meanwhile: -duration is too short", size(float64(s.LargeSize)))
	}
	f["largePerSecond"] = float64(t.requests) / max(t.elapsed.Seconds(), 1e-9)
	return nil
}
