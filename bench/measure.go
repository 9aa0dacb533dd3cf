package bench

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// window is what was seen of both processes while something ran.
type window struct {
	server  *server
	elapsed time.Duration
	own     cpuTime
	cpu     cpuTime // the server's
	before  memory
	peak    memory
	end     memory
	series  []Sample
	slave   slaveWindow
}

// observe runs do and watches server and generator meanwhile. done is how far
// the run is. The context of do also ends when the disk is nearly full, which
// is an error.
func observe(ctx context.Context, srv *server, p *progress, done func() int64, do func(context.Context) error) (*window, error) {
	runCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &window{server: srv}
	watch := &watcher{window: w, progress: p, done: done, tooFull: cancel}
	start, err := srv.cpu()
	if err != nil {
		return nil, err
	}
	if w.before, err = srv.memory(); err != nil {
		return nil, err
	}
	w.peak = w.before
	if err := w.beginSlave(); err != nil {
		return nil, err
	}
	stop := watch.start()
	ownStart, began := ownCPU(), time.Now()
	err = do(runCtx)
	w.elapsed, w.own = time.Since(began), ownCPU().since(ownStart)
	if err == nil {
		err = w.settleSlave(runCtx)
	}
	stop()
	if err != nil {
		return nil, err
	}
	if cause := context.Cause(runCtx); cause != nil && ctx.Err() == nil {
		return nil, cause
	}
	end, err := srv.cpu()
	if err != nil {
		return nil, err
	}
	w.cpu = end.since(start)
	if w.end, err = srv.memory(); err != nil {
		return nil, err
	}
	w.peak.resident = max(w.peak.resident, w.end.resident)
	w.peak.peak = max(w.peak.peak, w.end.peak)
	return w, w.endSlave()
}

// describe puts CPU and memory into a result. CPU is told per request or per
// message, n of them.
func (w *window) describe(r *Result, perServer, perOwn string, n int64) {
	seconds := max(w.elapsed.Seconds(), 1e-9)
	each := func(c cpuTime) float64 { return float64(c.total.Nanoseconds()) / 1000 / float64(max(1, n)) }
	r.Figures[perOwn], r.Figures[keyOwnCores] = each(w.own), w.own.total.Seconds()/seconds
	r.Series = w.series
	if w.server.pid == 0 {
		return
	}
	r.Figures[perServer] = each(w.cpu)
	seconds += w.slave.tail.Seconds()
	r.Figures[keyServerCores] = w.cpu.total.Seconds() / seconds
	r.Figures[keyResidentBefore] = float64(w.before.resident)
	r.Figures[keyResidentPeak] = float64(w.peak.resident)
	r.Figures[keyResidentEnd] = float64(w.end.resident)
	r.Figures[keyHighWaterMark] = float64(w.peak.peak)
	if w.server.follower == nil {
		return
	}
	perSlave := keySlaveCPU
	if perServer == keyServerMessage {
		perSlave = keySlaveMessage
	}
	r.Figures[perSlave], r.Figures[keySlaveCores] = each(w.slave.cpu), w.slave.cpu.total.Seconds()/seconds
	r.Figures["slaveResidentEndBytes"] = float64(w.slave.end.resident)
	r.Figures["slaveHighWaterMarkBytes"] = float64(w.slave.end.peak)
}

// cpu is zero where the server's process is not known.
func (srv *server) cpu() (cpuTime, error) {
	if srv.pid == 0 {
		return cpuTime{}, nil
	}
	c, err := processCPU(srv.pid)
	if err != nil {
		return c, srv.lost(err)
	}
	return c, nil
}

// memory is zero where the server's process is not known.
func (srv *server) memory() (memory, error) {
	if srv.pid == 0 {
		return memory{}, nil
	}
	m, err := processMemory(srv.pid)
	if err != nil {
		return m, srv.lost(err)
	}
	return m, nil
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
// the server's memory, its slave's lag and the disk, less often at how far they
// are.
type watcher struct {
	window   *window
	progress *progress
	done     func() int64
	tooFull  context.CancelCauseFunc
}

const (
	watchInterval = 100 * time.Millisecond
	// sampleInterval is the distance of a series' points. It doubles, and every
	// other point goes, whenever there are maxSamples of them.
	sampleInterval = 200 * time.Millisecond
	maxSamples     = 600
	// minFreeDisk is what a run leaves free, on a disk that is not ours to fill.
	minFreeDisk = 1 << 30
)

// start watches until the function that it returns is called, which waits for
// the last look.
func (w *watcher) start() (stop func()) {
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
	w.sample(0, w.look())
	interval, sampled := sampleInterval, time.Duration(0)
	shown, shownDone := time.Duration(0), int64(0)
	for {
		select {
		case <-quit:
			return
		case <-tick.C:
		}
		seen, elapsed := w.look(), time.Since(start)
		if elapsed-sampled >= interval-watchInterval/2 {
			w.sample(elapsed, seen)
			sampled = elapsed
			if len(w.window.series) >= maxSamples {
				interval *= 2
				w.window.series = everyOther(w.window.series)
			}
		}
		if elapsed-shown >= time.Second-watchInterval/2 {
			done := w.done()
			w.progress.show(elapsed, done, float64(done-shownDone)/(elapsed-shown).Seconds())
			shown, shownDone = elapsed, done
		}
	}
}

func (w *watcher) sample(elapsed time.Duration, seen Sample) {
	seen.Seconds, seen.Done = elapsed.Seconds(), w.done()
	w.window.series = append(w.window.series, seen)
}

func everyOther(all []Sample) []Sample {
	n := 0
	for i := 0; i < len(all); i += 2 {
		all[n] = all[i]
		n++
	}
	return all[:n]
}

// look reads the server's memory and its slave's lag, and stops the run when
// the disk is nearly full.
func (w *watcher) look() (seen Sample) {
	srv, win := w.window.server, w.window
	if srv.dir != "" {
		if free, err := freeDisk(srv.dir); err == nil && free < minFreeDisk {
			w.tooFull(fmt.Errorf("stopped: less than %s free where the server stores; use -dir or a shorter run", size(minFreeDisk)))
		}
	}
	seen.Lag = win.slave.look(srv.follower)
	if srv.pid == 0 {
		return seen
	}
	m, err := processMemory(srv.pid)
	if err != nil {
		return seen
	}
	win.peak.resident = max(win.peak.resident, m.resident)
	win.peak.peak = max(win.peak.peak, m.peak)
	seen.Resident = m.resident
	return seen
}

func freeDisk(dir string) (int64, error) {
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	return int64(st.Bavail) * int64(st.Bsize), err
}
