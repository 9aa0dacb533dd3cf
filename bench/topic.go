package bench

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"smss/codec"
)

// freshTopic makes a topic that nobody has used. drop deletes it, where the
// server stays: the one that bench started takes it along.
func freshTopic(ctx context.Context, s *settings, srv *server) (name string, drop func(), err error) {
	name = s.Topic + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	timeout := time.Duration(s.Timeout)
	if err := createTopics(ctx, srv.addr, timeout, name, 1); err != nil {
		return "", nil, err
	}
	if srv.command != nil {
		return name, func() {}, nil
	}
	return name, func() { _ = deleteTopic(context.WithoutCancel(ctx), srv.addr, timeout, name) }, nil
}

func deleteTopic(ctx context.Context, addr string, timeout time.Duration, name string) error {
	c, err := dialControl(ctx, addr, timeout)
	if err != nil {
		return err
	}
	defer c.close()
	code, text, err := c.exchange(codec.AppendPlain(nil, codec.DeleteTopic, name, ""))
	if err == nil && code != codec.CodeOK {
		err = fmt.Errorf("code %d %s", code, text)
	}
	if err != nil {
		return fmt.Errorf("delete topic %s: %w", name, err)
	}
	return nil
}

// Filling is done by a few connections, with requests of about fillRequest
// bytes.
const (
	fillConnections = 4
	fillRequest     = 100_000
)

// fillBatch is how many messages of a size go into one request.
func fillBatch(size int) int { return min(max(1, fillRequest/(size+codec.MessageOverhead)), 100) }

// fill publishes at least n messages of size bytes, batch in each request, and
// returns how many they were.
func fill(ctx context.Context, s *settings, srv *server, topic string, n int64, size, batch int, p *progress) (int64, time.Duration, error) {
	work := newWorkload(topic, 1, size, batch, 1)
	g, err := dialGenerator(ctx, &load{addr: srv.addr, connections: fillConnections, loops: 1, pipeline: 1, work: work, timeout: time.Duration(s.Timeout)})
	if err != nil {
		return 0, 0, err
	}
	defer g.close()
	requests := (n + int64(batch)*fillConnections - 1) / (int64(batch) * fillConnections)
	p.say("filling the topic with " + count(requests*fillConnections*int64(batch)) + " messages")
	p.total, p.duration = requests*fillConnections, 0
	var t *tally
	// Watched for the sake of the disk.
	w, err := observe(ctx, srv, p, g.done, func(ctx context.Context) error {
		t, err = g.run(ctx, target{requests: int(requests)})
		return err
	})
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil && t.failed > 0 {
		r := Result{Case: "fill", Server: srv.name, Failed: t.failed, Errors: t.errors}
		err = r.err()
	}
	if err != nil {
		return 0, 0, err
	}
	return t.requests * int64(batch), w.elapsed, nil
}
