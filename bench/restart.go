package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"smss/codec"
)

// runStore is restart and seek: one topic of so many gigabytes, subscriptions
// at random places in it, and kills in the middle of a load.
func runStore(ctx context.Context, s *settings, out output) error {
	return runPlan(ctx, s, out, scenario{s.storeTitle(), func(ctx context.Context, srv *server, p *progress) ([]Result, error) {
		return measureStore(ctx, s, srv, p)
	}})
}

// measureStore returns what was measured until ctx ended.
func measureStore(ctx context.Context, s *settings, srv *server, p *progress) ([]Result, error) {
	topic, drop, err := freshTopic(ctx, s, srv)
	if err != nil {
		return nil, err
	}
	defer drop()
	n, elapsed, err := fill(ctx, s, srv, topic, int64(s.Gigabytes*1e9)/int64(s.Size), s.Size, s.Batch, p)
	if err != nil {
		return nil, err
	}
	seek := newResult("seek-" + s.storeTitle())
	seek.Figures["fillSeconds"] = elapsed.Seconds()
	seek.Figures["fillPerSecond"] = float64(n) / max(elapsed.Seconds(), 1e-9)
	if srv.dir != "" {
		seek.Figures["storedBytes"] = float64(directorySize(srv.dir))
	}
	if err := measureSeeks(ctx, s, srv, topic, n, p, &seek); err != nil {
		return nil, err
	}
	all := []Result{seek}
	for kill := range s.Kills {
		p.say(fmt.Sprintf("kill %d of %d", kill+1, s.Kills))
		r := newResult("ready-" + s.storeTitle())
		r.Round = kill + 1
		if err := killUnderLoad(ctx, s, srv, topic); err != nil {
			return all, err
		}
		if err := measureStart(ctx, s, srv, topic, &r); err != nil {
			return all, err
		}
		r.Figures["storedBytes"] = float64(directorySize(srv.dir))
		all = append(all, r)
	}
	return all, nil
}

// killUnderLoad kills the server in the middle of publishes.
func killUnderLoad(ctx context.Context, s *settings, srv *server, topic string) error {
	work := newWorkload(topic, 1, s.Size, 1, 1)
	g, err := dialGenerator(ctx, &load{addr: srv.addr, connections: s.Threads, loops: 1, pipeline: 1, work: work, timeout: time.Duration(s.Timeout)})
	if err != nil {
		return err
	}
	defer g.close()
	var wg sync.WaitGroup
	var failed error
	wg.Go(func() { _, failed = g.run(ctx, target{duration: time.Duration(s.Duration)}) })
	paused := pause(ctx, time.Duration(s.Duration)/2)
	if paused == nil {
		srv.kill()
	}
	wg.Wait() // requests that the kill has failed are what was wanted
	return errors.Join(paused, failed)
}

// measureStart starts the server again on its directory, and tells how long
// it took from then until the first answers.
func measureStart(ctx context.Context, s *settings, srv *server, topic string, r *Result) error {
	start := time.Now()
	if err := srv.launch(); err != nil {
		return err
	}
	if err := srv.awaitReady(ctx, time.Millisecond, startTimeout); err != nil {
		return fmt.Errorf("start after a kill: %w%s", err, srv.logTail())
	}
	r.Figures["aliveMillis"] = time.Since(start).Seconds() * 1000
	c, err := dialControl(ctx, srv.addr, time.Duration(s.Timeout))
	if err != nil {
		return err
	}
	defer c.close()
	code, text, err := c.exchange(codec.AppendPub(nil, topic, "", newPayload(s.Size, 1)))
	if err == nil && code != codec.CodeOK {
		err = fmt.Errorf("code %d %s", code, text)
	}
	if err != nil {
		return fmt.Errorf("first publish after a kill: %w", err)
	}
	r.Figures["firstPublishMillis"] = time.Since(start).Seconds() * 1000
	m, err := srv.memory()
	if err != nil {
		return err
	}
	r.Figures[keyResidentPeak], r.Figures[keyResidentEnd] = float64(m.peak), float64(m.resident)
	return nil
}

// directorySize counts the disk space of files: the metadata's are large and
// nearly all holes.
func directorySize(dir string) int64 {
	var n int64
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // gone meanwhile
		}
		if info, err := d.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				n += st.Blocks * 512
			}
		}
		return nil
	})
	return n
}

// runTopics measures many topics with a message each: memory, descriptors and
// the time to start again.
func runTopics(ctx context.Context, s *settings, out output) error {
	name := s.title()
	return runPlan(ctx, s, out, scenario{name, func(ctx context.Context, srv *server, p *progress) ([]Result, error) {
		r := newResult(name)
		if err := measureTopics(ctx, s, srv, p, &r); err != nil {
			return nil, err
		}
		return []Result{r}, nil
	}})
}

func measureTopics(ctx context.Context, s *settings, srv *server, p *progress, r *Result) error {
	p.say("making " + count(int64(s.Topics)) + " topics")
	p.unit = ""
	w, err := observe(ctx, srv, p, func() int64 { return 0 }, func(ctx context.Context) error {
		start := time.Now()
		if err := fillTopics(ctx, srv.addr, time.Duration(s.Timeout), s.Topic, s.Topics, s.Size); err != nil {
			return err
		}
		r.Figures["fillSeconds"] = time.Since(start).Seconds()
		return pause(ctx, time.Duration(s.Settle))
	})
	if err != nil {
		return err
	}
	open, err := descriptors(srv.pid)
	if err != nil {
		return err
	}
	srv.kill()
	p.say("starting again")
	if err := measureStart(ctx, s, srv, topicName(s.Topic, s.Topics, 0), r); err != nil {
		return err
	}
	r.Series = w.series
	r.Figures["topics"] = float64(s.Topics)
	r.Figures["bytesPerTopic"] = float64(w.end.resident-w.before.resident) / float64(s.Topics)
	again, err := descriptors(srv.pid)
	if err != nil {
		return err
	}
	r.Figures["descriptors"] = float64(max(open, again))
	r.Figures[keyResidentBefore] = float64(w.before.resident)
	r.Figures[keyResidentPeak] = max(r.Figures[keyResidentPeak], float64(w.peak.resident))
	return nil
}

// descriptors is how many a process has open.
func descriptors(pid int) (int, error) {
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return len(all), err
}
