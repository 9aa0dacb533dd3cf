package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// runStream is latency and fanout: publishers and subscribers of one topic at
// the same time.
func runStream(ctx context.Context, s *settings, out output) error {
	var all []scenario
	for _, batch := range s.Batches {
		name := s.streamTitle(strconv.Itoa(batch))
		all = append(all, scenario{name, func(ctx context.Context, srv *server, p *progress) ([]Result, error) {
			unload, err := takeBallast(ctx, s, srv, p)
			if err != nil {
				return nil, err
			}
			defer unload()
			r, err := measureStream(ctx, s, srv, name, batch, p)
			if err != nil {
				return nil, err
			}
			return []Result{*r}, nil
		}})
	}
	return runPlan(ctx, s, out, all...)
}

// stream is a topic with its publisher and its audience.
type stream struct {
	publisher *publisher
	audience  *audience
	published int64 // in all runs
	stop      context.CancelFunc
	ended     chan error // the audience's
}

func openStream(ctx context.Context, s *settings, srv *server, topic string, batch int) (*stream, error) {
	clock := time.Now()
	pub, err := newPublisher(srv.addr, topic, s.Threads, s.Size, time.Duration(s.Timeout), clock)
	if err != nil {
		return nil, err
	}
	pub.rate = s.Rate
	if len(s.Pipelines) > 0 {
		pub.window = s.Pipelines[0]
	}
	aud, err := newAudience(srv.addr, clock, max(1, s.Loops), true)
	if err != nil {
		pub.close()
		return nil, err
	}
	st := &stream{publisher: pub, audience: aud, stop: func() {}}
	if err := aud.subscribe(ctx, topic, s.Subscribers, batch); err != nil {
		st.close()
		return nil, err
	}
	return st, nil
}

// listen lets the audience run until close or an error, which also ends the
// publishing.
func (st *stream) listen(ctx context.Context) {
	ctx, st.stop = context.WithCancel(ctx)
	st.ended = make(chan error, 1)
	go func() {
		err := st.audience.listen(ctx, 0)
		if err != nil {
			st.publisher.stop.Store(true)
		}
		st.ended <- err
	}()
}

// quiet ends the audience and returns its error.
func (st *stream) quiet() error {
	st.stop()
	if st.ended == nil {
		return nil
	}
	err := <-st.ended
	st.ended = nil
	return err
}

func (st *stream) close() {
	_ = st.quiet()
	st.publisher.close()
	st.audience.close()
}

func measureStream(ctx context.Context, s *settings, srv *server, name string, batch int, p *progress) (*Result, error) {
	topic, drop, err := freshTopic(ctx, s, srv)
	if err != nil {
		return nil, err
	}
	defer drop()
	st, err := openStream(ctx, s, srv, topic, batch)
	if err != nil {
		return nil, err
	}
	defer st.close()
	// The audience outlives the context: what has been published at its end
	// is delivered still.
	st.listen(context.WithoutCancel(ctx))
	if err := st.warmUp(ctx, time.Duration(s.Warmup), p); err != nil {
		return nil, err
	}
	for _, r := range st.audience.receivers {
		r.from.Store(int64(st.publisher.now()))
	}
	return st.measure(ctx, s, srv, name, p)
}

func (st *stream) warmUp(ctx context.Context, d time.Duration, p *progress) error {
	if d == 0 {
		return nil
	}
	p.say("warming up")
	err := st.publish(ctx, d)
	if err == nil && st.publisher.failed > 0 {
		r := Result{Case: "warm-up", Failed: st.publisher.failed, Errors: st.publisher.errors}
		err = r.err()
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return errors.Join(err, st.audience.err())
}

func (st *stream) publish(ctx context.Context, d time.Duration) error {
	defer context.AfterFunc(ctx, func() { st.publisher.stop.Store(true) })()
	err := st.publisher.run(d)
	st.published += st.publisher.succeeded
	return err
}

// settle is how long the messages of an open loop may be on their way after
// the last reply.
const settle = time.Second

func (st *stream) measure(ctx context.Context, s *settings, srv *server, name string, p *progress) (*Result, error) {
	pub, aud := st.publisher, st.audience
	p.unit, p.total, p.duration = "delivered", 0, time.Duration(s.Duration)
	done := aud.delivered
	if s.Subscribers == 0 {
		p.unit, done = "published", pub.done.Load
	}
	var before, got, pushes int64
	w, err := observe(ctx, srv, p, done, func(ctx context.Context) error {
		before, pushes = aud.delivered(), aud.pushes()
		err := st.publish(ctx, time.Duration(s.Duration))
		got, pushes = aud.delivered()-before, aud.pushes()-pushes
		return err
	})
	if err != nil {
		return nil, err
	}
	if s.Rate > 0 && s.Subscribers > 0 {
		st.await(ctx, st.published*int64(s.Subscribers))
	}
	if err := st.quiet(); err != nil {
		return nil, err
	}
	r := newResult(name)
	r.Interrupted = ctx.Err() != nil
	r.Failed, r.Errors = pub.failed, pub.errors
	elapsed := max(w.elapsed.Seconds(), 1e-9)
	r.Figures[keySeconds] = elapsed
	r.Figures["publishedPerSecond"] = float64(pub.succeeded) / elapsed
	r.addLatency("publish", "publish reply", pub.latency)
	if s.Rate > 0 {
		r.addLatency("late", "sent late by", pub.late)
	}
	if s.Subscribers == 0 {
		w.describe(&r, keyServerMessage, keyOwnMessage, pub.succeeded)
		return &r, nil
	}
	r.Figures["subscribers"] = float64(s.Subscribers)
	r.Figures[keyDeliveryRate] = float64(got) / elapsed
	r.Figures["messagesPerPush"] = float64(got) / float64(max(1, pushes))
	st.describeDelivery(&r, s)
	w.describe(&r, keyServerMessage, keyOwnMessage, got)
	return &r, nil
}

// describeDelivery tells of the times of an open loop. A closed one publishes
// as fast as it can, so that the messages' age says nothing but how far the
// subscribers are behind.
func (st *stream) describeDelivery(r *Result, s *settings) {
	missing := st.published*int64(s.Subscribers) - st.audience.delivered()
	if s.Rate == 0 {
		r.Figures["backlogMessages"] = float64(max(0, missing)) / float64(s.Subscribers)
		return
	}
	if missing > 0 && !r.Interrupted {
		r.fail(fmt.Sprintf("messages not delivered %s after the last reply", settle), missing)
	}
	all := newHistogram()
	st.audience.merge(all)
	r.addLatency("endToEnd", "end to end", all)
}

// await waits until n messages have been delivered, for as long as settle.
func (st *stream) await(ctx context.Context, n int64) {
	ctx, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for st.audience.delivered() < n && st.audience.err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// merge adds up what the receivers have recorded, once they have ended.
func (a *audience) merge(into *hdrhistogram.Histogram) {
	for _, r := range a.receivers {
		into.Merge(r.latency)
	}
}
