package bench

import (
	"context"
	"fmt"
	"time"
)

// Ballast is what a server carries beside the load: idle subscribers and
// topics. A good server's figures do not change with it.

// The topics of ballast are made once on a server that was there before, and
// left to it.
const (
	ballastTopic  = "bench-ballast"
	ballastPrefix = "bench-ballast-topics"
)

func (s *settings) ballastTitle() []string {
	var parts []string
	if s.BallastSubscribers > 0 {
		parts = append(parts, fmt.Sprintf("with-%d-subscribers", s.BallastSubscribers))
	}
	if s.BallastTopics > 0 {
		parts = append(parts, fmt.Sprintf("with-%d-topics", s.BallastTopics))
	}
	return parts
}

// takeBallast makes what is asked for and returns what ends it. The heartbeats
// of idle subscribers stay in their sockets, which have room for weeks of them.
func takeBallast(ctx context.Context, s *settings, srv *server, p *progress) (unload func(), err error) {
	timeout := time.Duration(s.Timeout)
	if s.BallastTopics > 0 {
		p.say("making other topics")
		if err := fillTopics(ctx, srv.addr, timeout, ballastPrefix, s.BallastTopics, s.Size); err != nil {
			return nil, err
		}
	}
	if s.BallastSubscribers == 0 {
		return func() {}, nil
	}
	if err := createTopics(ctx, srv.addr, timeout, ballastTopic, 1); err != nil {
		return nil, err
	}
	q, err := newQuietSubscribers(srv.addr)
	if err != nil {
		return nil, err
	}
	if err = q.subscribeAll(ctx, ballastTopic, s.BallastSubscribers, p); err == nil {
		err = q.wait(ctx, 10*time.Millisecond) // a refusal shows here
	}
	if err != nil {
		q.close()
		return nil, err
	}
	return q.close, nil
}

// fillTopics creates n topics and publishes a message to each.
func fillTopics(ctx context.Context, addr string, timeout time.Duration, prefix string, n, size int) error {
	if err := createTopics(ctx, addr, timeout, prefix, n); err != nil {
		return err
	}
	work := newWorkload(prefix, n, size, 1, 16)
	g, err := dialGenerator(ctx, &load{addr: addr, connections: 1, loops: 1, pipeline: 16, work: work, timeout: timeout})
	if err != nil {
		return err
	}
	defer g.close()
	t, err := g.run(ctx, target{requests: n})
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil && t.failed > 0 {
		r := Result{Case: "fill topics", Server: addr, Failed: t.failed, Errors: t.errors}
		err = r.err()
	}
	return err
}
