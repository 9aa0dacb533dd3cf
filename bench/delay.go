package bench

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// The forms in which delayed messages fall due.
const (
	formSpread = "spread"  // so many each second
	formAtOnce = "at-once" // all at one moment
)

var forms = []string{formSpread, formAtOnce}

// runDelay measures pending delays: what they take in memory, how fast they
// fire and how late.
func runDelay(ctx context.Context, s *settings, out output) error {
	var all []scenario
	for _, form := range s.Forms {
		name := s.delayTitle(form)
		all = append(all, scenario{name, func(ctx context.Context, srv *server, p *progress) ([]Result, error) {
			r := newResult(name)
			if err := measureDelay(ctx, s, srv, form, p, &r); err != nil {
				return nil, err
			}
			return []Result{r}, nil
		}})
	}
	return runPlan(ctx, s, out, all...)
}

const (
	// delayWindow is how many delays a connection has in flight.
	delayWindow = 16
	// leadRate is how many delays a second -lead counts on by default.
	leadRate = 10_000
	// quietBefore is how long before the first is due memory is read.
	quietBefore = 100 * time.Millisecond
)

// lead is when the first delay is due, from the first publish.
func (s *settings) lead() time.Duration {
	if s.Lead > 0 {
		return time.Duration(s.Lead)
	}
	return 2*time.Second + time.Duration(s.Delays)*time.Second/leadRate
}

// due is when message number is due, from the first publish.
func (s *settings) due(form string, number int64) time.Duration {
	if form == formAtOnce {
		return s.lead()
	}
	return s.lead() + time.Duration(float64(number)*float64(time.Second)/float64(s.Rate))
}

func measureDelay(ctx context.Context, s *settings, srv *server, form string, p *progress, r *Result) error {
	topic, drop, err := freshTopic(ctx, s, srv)
	if err != nil {
		return err
	}
	defer drop()
	at := *s
	at.Subscribers, at.Rate = 1, 0
	st, err := openStream(ctx, &at, srv, topic, 255)
	if err != nil {
		return err
	}
	defer st.close()
	st.listen(context.WithoutCancel(ctx))
	began := st.publisher.now()
	st.publisher.window, st.publisher.count = delayWindow, int64(s.Delays)
	st.publisher.delayed(topic, s.Size, func(number int64) time.Duration { return began + s.due(form, number) })

	filling, err := st.fillDelays(ctx, s, srv, p)
	if err != nil {
		return err
	}
	if late := st.publisher.now() - began - s.lead(); late > 0 {
		return fmt.Errorf("publishing %s delays took %s longer than until the first was due: give a longer -lead than %s",
			count(int64(s.Delays)), late.Round(time.Millisecond), s.lead())
	}
	p.say("waiting for the first to be due")
	if err := pause(ctx, began+s.lead()-quietBefore-st.publisher.now()); err != nil {
		return err
	}
	pending, err := srv.memory()
	if err != nil {
		return err
	}
	firing, err := st.fire(ctx, s, srv, form, p, r)
	if err != nil {
		return err
	}
	firing.describe(r, keyServerMessage, keyOwnMessage, st.audience.delivered())
	r.Series = append(filling.series, shifted(firing.series, filling.elapsed)...)
	r.Figures["delays"] = float64(s.Delays)
	r.Figures["fillSeconds"] = filling.elapsed.Seconds()
	r.Figures["fillPerSecond"] = float64(s.Delays) / max(filling.elapsed.Seconds(), 1e-9)
	if srv.pid != 0 {
		r.Figures[keyResidentBefore] = float64(filling.before.resident)
		r.Figures["residentPendingBytes"] = float64(pending.resident)
		r.Figures[keyResidentPeak] = float64(max(filling.peak.resident, pending.resident, firing.peak.resident))
		r.Figures["bytesPerDelay"] = float64(pending.resident-filling.before.resident) / float64(s.Delays)
	}
	return nil
}

// shifted moves a series behind another that took so long.
func shifted(all []Sample, by time.Duration) []Sample {
	for i := range all {
		all[i].Seconds += by.Seconds()
	}
	return all
}

// fillDelays publishes all of them.
func (st *stream) fillDelays(ctx context.Context, s *settings, srv *server, p *progress) (*window, error) {
	p.unit, p.total, p.duration = "accepted", int64(s.Delays), 0
	w, err := observe(ctx, srv, p, st.publisher.done.Load, func(ctx context.Context) error { return st.publish(ctx, 0) })
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil && st.publisher.failed > 0 {
		r := Result{Case: "publish delays", Server: srv.name, Failed: st.publisher.failed, Errors: st.publisher.errors}
		err = r.err()
	}
	return w, errors.Join(err, st.audience.err())
}

// fire takes what falls due until all have come, or the time for it is over.
func (st *stream) fire(ctx context.Context, s *settings, srv *server, form string, p *progress, r *Result) (*window, error) {
	limit := time.Duration(0)
	if form == formSpread {
		limit = time.Duration(s.Duration)
	}
	p.unit, p.total, p.duration = "fired", int64(s.Delays), limit
	complete := false
	w, err := observe(ctx, srv, p, st.audience.delivered, func(ctx context.Context) error {
		complete = st.awaitAll(ctx, int64(s.Delays), limit, time.Duration(s.Timeout))
		return nil
	})
	err = errors.Join(err, st.quiet())
	if err != nil {
		return nil, err
	}
	r.Interrupted = ctx.Err() != nil
	got := st.audience.delivered()
	if !complete && limit == 0 && !r.Interrupted {
		r.fail(fmt.Sprintf("delays that did not fire within %s of the last one", time.Duration(s.Timeout)), int64(s.Delays)-got)
	}
	// From when the first was due until the last came.
	took := (st.audience.last() - st.publisher.begun - s.lead()).Seconds()
	r.Figures[keySeconds] = took
	r.Figures[keyDeliveryRate] = float64(got) / max(took, 1e-3)
	all := newHistogram()
	st.audience.merge(all)
	r.addLatency("lateness", "lateness", all)
	return w, nil
}

// awaitAll waits for n messages, for limit at most unless it is 0, and not
// through a silence of quiet. It reports whether all have come.
func (st *stream) awaitAll(ctx context.Context, n int64, limit, quiet time.Duration) bool {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	start := time.Now()
	heard, last := start, int64(-1)
	for st.audience.err() == nil {
		got := st.audience.delivered()
		if got >= n {
			return true
		}
		now := time.Now()
		if got != last {
			heard, last = now, got
		}
		if limit > 0 && now.Sub(start) >= limit+quietBefore || now.Sub(heard) > quiet {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return false
}

// last is when the latest message came that was recorded.
func (a *audience) last() time.Duration {
	var at time.Duration
	for _, r := range a.receivers {
		at = max(at, r.last)
	}
	return at
}

// pause waits, and ends early with ctx.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(max(0, d))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
