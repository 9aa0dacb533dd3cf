package bench

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// measure puts the load of s on srv and returns what came of it. After ctx
// has ended in the middle of the measured window the result is of what was
// done till then.
func measure(ctx context.Context, s *settings, srv *server, pipeline int, p *progress) (*Result, error) {
	defer p.end()
	timeout := time.Duration(s.Timeout)
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
			r := &Result{Server: srv.name, Requests: warm.requests, Failed: warm.failed, Errors: warm.errors}
			return nil, fmt.Errorf("warm-up: %w", r.err())
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return measureWindow(ctx, s, srv, g, p)
}

// measureWindow is the part that counts.
func measureWindow(ctx context.Context, s *settings, srv *server, g *generator, p *progress) (*Result, error) {
	runCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &watcher{server: srv, progress: p, done: g.done, tooFull: cancel}
	var serverStart cpuTime
	var err error
	if srv.pid != 0 {
		if serverStart, err = processCPU(srv.pid); err != nil {
			return nil, srv.lost(err)
		}
	}
	stopWatching := w.start()
	ownStart := ownCPU()
	f, err := g.run(runCtx, target{requests: s.Requests, duration: time.Duration(s.Duration)})
	own := ownCPU().since(ownStart)
	stopWatching()
	if err != nil {
		return nil, err
	}
	if cause := context.Cause(runCtx); cause != nil && ctx.Err() == nil {
		return nil, cause
	}
	r := newResult(srv.name, g.loops[0].load, f)
	r.Interrupted = ctx.Err() != nil
	r.GeneratorCPU = cpuOf(own, f.requests)
	r.Series = w.series
	if srv.pid != 0 {
		serverEnd, err := processCPU(srv.pid)
		if err != nil {
			return nil, srv.lost(err)
		}
		c := cpuOf(serverEnd.since(serverStart), f.requests)
		r.ServerCPU, r.ServerMemory = &c, w.memory()
	}
	return r, nil
}

func newResult(name string, l *load, f *figures) *Result {
	seconds := max(f.elapsed.Seconds(), 1e-9)
	perSecond := float64(f.requests) / seconds
	return &Result{
		Server: name, Pipeline: l.pipeline, Seconds: f.elapsed.Seconds(),
		Requests: f.requests, Messages: f.requests * int64(l.work.batch), Failed: f.failed, Errors: f.errors,
		RequestsPerSecond:  perSecond,
		MessagesPerSecond:  perSecond * float64(l.work.batch),
		MegabytesPerSecond: perSecond * float64(l.work.body) / 1e6,
		RepliesPerRead:     float64(f.requests) / float64(max(1, f.reads)),
		Latency:            latencyOf(f.latency),
	}
}

// lost explains why a server's process cannot be read any more.
func (srv *server) lost(err error) error {
	if srv.ended != nil {
		select {
		case <-srv.ended:
			return fmt.Errorf("%s server ended during the run: %w%s", srv.name, exitError(srv.exit), srv.logTail())
		case <-time.After(100 * time.Millisecond):
		}
	}
	return fmt.Errorf("server process: %w", err)
}

// watcher looks at server and generator while they run: ten times a second at
// the server's memory and the disk, once a second at the rate.
type watcher struct {
	server   *server
	progress *progress
	done     func() int64
	tooFull  context.CancelCauseFunc

	before, peak memory
	series       []Second
}

const (
	watchInterval = 100 * time.Millisecond
	// minFreeDisk is what a run leaves free, on a disk that is not ours to fill.
	minFreeDisk = 1 << 30
)

// start watches until the function that it returns is called, which waits for
// the last look.
func (w *watcher) start() (stop func()) {
	if w.server.pid != 0 {
		w.before, _ = processMemory(w.server.pid)
		w.peak = w.before
	}
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		w.watch(quit)
	}()
	return func() {
		close(quit)
		<-ended
	}
}

func (w *watcher) watch(quit <-chan struct{}) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	start := time.Now()
	last, lastDone := time.Duration(0), int64(0)
	for {
		resident := w.look()
		select {
		case <-quit:
			w.look()
			return
		case <-tick.C:
		}
		elapsed := time.Since(start)
		if elapsed-last < time.Second-watchInterval/2 {
			continue
		}
		done := w.done()
		w.progress.show(elapsed, done, float64(done-lastDone)/(elapsed-last).Seconds())
		w.series = append(w.series, Second{Seconds: elapsed.Seconds(), Requests: done, Resident: resident})
		last, lastDone = elapsed, done
	}
}

// look reads the server's memory and stops the run when the disk is nearly
// full.
func (w *watcher) look() (resident int64) {
	if w.server.dir != "" {
		if free, err := freeDisk(w.server.dir); err == nil && free < minFreeDisk {
			w.tooFull(fmt.Errorf("stopped: less than %s free where the server stores; use -dir or a shorter run", mebibytes(minFreeDisk)))
		}
	}
	if w.server.pid == 0 {
		return 0
	}
	m, err := processMemory(w.server.pid)
	if err != nil {
		return 0
	}
	w.peak.resident = max(w.peak.resident, m.resident)
	w.peak.peak = max(w.peak.peak, m.peak)
	return m.resident
}

func (w *watcher) memory() *Memory {
	return &Memory{Before: w.before.resident, Peak: w.peak.resident, HighWaterMark: w.peak.peak}
}

func freeDisk(dir string) (int64, error) {
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	return int64(st.Bavail) * int64(st.Bsize), err
}
