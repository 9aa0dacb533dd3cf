package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// follower is a slave that copies a server which is measured. How far it is
// shows in the files of both binlogs, which hold the same bytes: that costs
// neither of the two anything, and works with every server of the format.
type follower struct {
	*server
	master  *server
	timeout time.Duration // that it may go without getting on
}

// How often the binlogs are compared while the slave is waited for: the longer
// that takes the more seldom, so that a long wait is not slowed by its being
// watched and its length is still exact to a hundredth.
const shortestLook, longestLook = time.Millisecond, 50 * time.Millisecond

// withFollower starts a slave of srv on an empty directory, has srv watched
// together with it while do runs, and stops it and removes its directory.
func withFollower(ctx context.Context, s *settings, srv *server, do func(*follower) error) error {
	host, port, err := net.SplitHostPort(srv.addr)
	if err != nil {
		return err
	}
	at := *s
	at.MinAcks = nil // they are the master's
	p := program{name: srv.name + " slave"}
	if srv.foreign {
		p.path = srv.binary
	}
	slave, err := startServer(ctx, &at, p, "-role", "slave", "-host", host, "-port", port)
	if err != nil {
		return err
	}
	srv.follower = &follower{slave, srv, time.Duration(s.Timeout)}
	err = do(srv.follower)
	srv.follower = nil
	return errors.Join(err, slave.stop())
}

// begin waits until the slave copies: a topic that the master creates arrives.
// A master whose replies wait for slaves refuses while there is none.
func (f *follower) begin(ctx context.Context, topic string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("the slave copies nothing within %s", startTimeout))
	defer cancel()
	for {
		err := createTopics(ctx, f.master.addr, f.timeout, topic, 1)
		if err == nil {
			return f.catchUp(ctx)
		}
		if waited := f.wait(ctx, longestLook); waited != nil {
			return errors.Join(waited, err)
		}
	}
}

// lag is how many bytes of the master's binlog the slave's does not have. The
// slave is looked at first, so that what is written meanwhile counts as lag
// rather than hides it.
func (f *follower) lag() int64 {
	has := binlogSize(f.dir)
	return max(0, binlogSize(f.master.dir)-has)
}

// catchUp waits until the slave has all that the master, which is at rest, has.
func (f *follower) catchUp(ctx context.Context) error {
	began := time.Now()
	want, has, since := binlogSize(f.master.dir), int64(-1), began
	if want == 0 {
		return errors.New("the master has no binlog in data/binlog: the place of its directory must not be changed")
	}
	for {
		switch now := binlogSize(f.dir); {
		case now == want:
			return nil
		case now != has:
			has, since = now, time.Now()
		case time.Since(since) >= f.timeout:
			return fmt.Errorf("the slave's binlog stays at %s bytes, the master's has %s%s", count(has), count(want), f.logTail())
		}
		if err := f.wait(ctx, min(max(time.Since(began)/100, shortestLook), longestLook)); err != nil {
			return err
		}
	}
}

// wait passes some time, or tells why there is nothing to wait for any more.
func (f *follower) wait(ctx context.Context, d time.Duration) error {
	select {
	case <-f.ended:
		return f.lost(nil)
	case <-f.master.ended:
		return f.master.lost(nil)
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// binlogSize adds up the files of the binlog of a server that bench started.
func binlogSize(dir string) int64 {
	files, _ := os.ReadDir(filepath.Join(dir, "data", "binlog")) // none yet
	var n int64
	for _, file := range files {
		if info, err := file.Info(); err == nil && strings.HasSuffix(file.Name(), ".log") {
			n += info.Size()
		}
	}
	return n
}

// slaveWindow is what was seen of the slave of a window's server.
type slaveWindow struct {
	start   cpuTime
	cpu     cpuTime       // until it has everything
	tail    time.Duration // from the end of what was run until then
	equal   bool          // it has everything
	end     memory
	lagEnd  int64
	lags    *hdrhistogram.Histogram // the watcher's, until it has stopped
	settles atomic.Bool             // what was run is over: lags are not counted any more
}

func (w *window) beginSlave() (err error) {
	if w.server.follower == nil {
		return nil
	}
	const largest = 1 << 44 // bytes
	w.slave.lags = hdrhistogram.New(1, largest, 3)
	w.slave.start, err = w.server.follower.cpu()
	return err
}

// look is called by the watcher.
func (v *slaveWindow) look(f *follower) int64 {
	if f == nil {
		return 0
	}
	lag := f.lag()
	if !v.settles.Load() {
		v.count(lag)
	}
	return lag
}

func (v *slaveWindow) count(lag int64) {
	_ = v.lags.RecordValue(min(lag, v.lags.HighestTrackableValue()))
}

// settleSlave waits until the slave has everything. What it still has to do is
// work of the requests that were, so that the CPU of both servers is counted
// until then. An interruption ends the wait.
func (w *window) settleSlave(ctx context.Context) error {
	f := w.server.follower
	if f == nil {
		return nil
	}
	began := time.Now()
	w.slave.lagEnd = f.lag()
	w.slave.settles.Store(true)
	err := f.catchUp(ctx)
	w.slave.tail, w.slave.equal = time.Since(began), err == nil
	if ctx.Err() != nil {
		return nil // observe knows whether that was an interruption
	}
	return err
}

// endSlave is called after the watcher's last look.
func (w *window) endSlave() error {
	f := w.server.follower
	if f == nil {
		return nil
	}
	w.slave.count(w.slave.lagEnd)
	cpu, err := f.cpu()
	if err != nil {
		return err
	}
	w.slave.cpu = cpu.since(w.slave.start)
	w.slave.end, err = f.memory()
	return err
}

// describeLag puts the lag under a load into its result.
func (w *window) describeLag(r *Result) {
	if w.server.follower == nil {
		return
	}
	r.Figures["lagMedianBytes"] = float64(w.slave.lags.ValueAtQuantile(50))
	r.Figures[keyLagMax] = float64(w.slave.lags.Max())
	r.Figures["lagEndBytes"] = float64(w.slave.lagEnd)
	if w.slave.equal {
		r.Figures["equalMillis"] = w.slave.tail.Seconds() * 1000
	}
}
