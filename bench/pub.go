package bench

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// runPub is pub, limit and levels: the same load, on different servers.
func runPub(ctx context.Context, s *settings, out output) error {
	var all []scenario
	for _, pipeline := range s.Pipelines {
		name := s.loadTitle(pipeline)
		all = append(all, scenario{name, func(ctx context.Context, srv *server, p *progress) ([]Result, error) {
			r, err := measureLoad(ctx, s, srv, name, pipeline, p)
			if err != nil {
				return nil, err
			}
			return []Result{*r}, nil
		}})
	}
	return runPlan(ctx, s, out, all...)
}

// loadTitle names a load: connections, requests in flight on each, messages a
// request and bytes a message, and what else is not as usual.
func (s *settings) loadTitle(pipeline int) string {
	parts := []string{fmt.Sprintf("%dc", s.Threads), fmt.Sprintf("%dp", pipeline)}
	if s.Batch > 1 {
		parts = append(parts, fmt.Sprintf("%dm", s.Batch))
	}
	parts = append(parts, fmt.Sprintf("%db", s.Size))
	if s.Topics > 1 {
		parts = append(parts, fmt.Sprintf("%dt", s.Topics))
	}
	return strings.Join(append(parts, s.ballastTitle()...), "-")
}

// measureLoad puts the load of s on srv and returns what came of it. After ctx
// has ended in the middle of the measured window the result is of what was
// done till then.
func measureLoad(ctx context.Context, s *settings, srv *server, name string, pipeline int, p *progress) (*Result, error) {
	timeout := time.Duration(s.Timeout)
	unload, err := takeBallast(ctx, s, srv, p)
	if err != nil {
		return nil, err
	}
	defer unload()
	if err := createTopics(ctx, srv.addr, timeout, s.Topic, s.Topics); err != nil {
		return nil, err
	}
	work := newWorkload(s.Topic, s.Topics, s.Size, s.Batch, pipeline)
	g, err := dialGenerator(ctx, &load{addr: srv.addr, connections: s.Threads, loops: s.Loops,
		pipeline: pipeline, work: work, timeout: timeout})
	if err != nil {
		return nil, err
	}
	defer g.close()
	if s.Warmup > 0 {
		p.say("warming up")
		warm, err := g.run(ctx, target{duration: time.Duration(s.Warmup)})
		if err != nil {
			return nil, err
		}
		if warm.failed > 0 {
			r := Result{Case: name, Server: srv.name, Failed: warm.failed, Errors: warm.errors}
			return nil, fmt.Errorf("warm-up: %w", r.err())
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	p.total = int64(s.Threads) * int64(s.Requests)
	p.duration = time.Duration(s.Duration)
	var t *tally
	w, err := observe(ctx, srv, p, g.done, func(ctx context.Context) error {
		t, err = g.run(ctx, target{requests: s.Requests, duration: time.Duration(s.Duration)})
		return err
	})
	if err != nil {
		return nil, err
	}
	r := newResult(name)
	r.Interrupted = ctx.Err() != nil
	t.describe(&r, work)
	w.describe(&r, keyServerCPU, keyOwnCPU, t.requests)
	w.describeLag(&r)
	return &r, nil
}

// describe puts what the generator counted into a result.
func (t *tally) describe(r *Result, work *workload) {
	r.Failed, r.Errors = t.failed, t.errors
	rate := float64(t.requests) / max(t.elapsed.Seconds(), 1e-9)
	r.Figures[keySeconds] = t.elapsed.Seconds()
	r.Figures[keyRequests] = float64(t.requests)
	r.Figures["messages"] = float64(t.requests * int64(work.batch))
	r.Figures[keyRequestRate] = rate
	r.Figures[keyMessageRate] = rate * float64(work.batch)
	r.Figures["megabytesPerSecond"] = rate * float64(work.body) / 1e6
	r.Figures[keyRepliesPerRead] = float64(t.requests) / float64(max(1, t.reads))
	r.addLatency("latency", "publish", t.latency)
}
