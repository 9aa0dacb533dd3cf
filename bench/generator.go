package bench

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A generator holds the connections of a run, spread over a few event loops.
// It can run several times: first unmeasured, then measured.
type generator struct {
	loops []*loop
	stop  atomic.Bool // set: send nothing more, take what is in flight
}

// load is what the generator does.
type load struct {
	addr        string
	connections int
	loops       int
	pipeline    int // requests in flight per connection
	work        *workload
	timeout     time.Duration
}

// target ends a run, by requests per connection or by time.
type target struct {
	requests int
	duration time.Duration
}

// tally is what a run of the generator gave.
type tally struct {
	requests int64 // answered with success
	failed   int64
	reads    int64
	errors   map[string]int64
	elapsed  time.Duration // from the first request to the last reply
	latency  *hdrhistogram.Histogram
}

// Latencies are recorded in microseconds with 3 digits up to a minute.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, 60_000_000, 3) }

func dialGenerator(ctx context.Context, l *load) (*generator, error) {
	reserveDescriptors(l.connections)
	d, err := newDialer(l.addr)
	if err != nil {
		return nil, err
	}
	g := &generator{}
	for range min(l.loops, l.connections) {
		lp, err := newLoop(l, &g.stop)
		if err != nil {
			g.close()
			return nil, err
		}
		g.loops = append(g.loops, lp)
	}
	for i := range l.connections {
		if ctx.Err() != nil {
			g.close()
			return nil, context.Cause(ctx)
		}
		fd, err := d.dial()
		if err == nil {
			err = g.loops[i%len(g.loops)].add(fd, i)
		}
		if err != nil {
			g.close()
			return nil, err
		}
	}
	return g, nil
}

func (g *generator) close() {
	for _, l := range g.loops {
		l.close()
	}
}

// done is how many requests of the run are over, failed ones included. It may
// be called while the generator runs.
func (g *generator) done() int64 {
	var n int64
	for _, l := range g.loops {
		n += l.done.Load()
	}
	return n
}

// run sends until the target is reached or ctx ends, and then takes the
// replies that are still due. An error means that the generator itself
// failed; failed requests are in the tally.
func (g *generator) run(ctx context.Context, t target) (*tally, error) {
	g.stop.Store(false)
	defer context.AfterFunc(ctx, func() { g.stop.Store(true) })()
	errs := make([]error, len(g.loops))
	start := time.Now()
	var wg sync.WaitGroup
	for i, l := range g.loops {
		wg.Go(func() { errs[i] = l.run(t, start) })
	}
	wg.Wait()
	return merge(g.loops), errors.Join(errs...)
}

// merge adds up what the loops have recorded.
func merge(loops []*loop) *tally {
	f := &tally{errors: map[string]int64{}, latency: newHistogram()}
	for _, l := range loops {
		f.latency.Merge(l.latency)
		f.requests += l.succeeded
		f.reads += l.reads
		f.elapsed = max(f.elapsed, l.last)
		for text, n := range l.errors {
			f.errors[text] += n
			f.failed += n
		}
	}
	return f
}
