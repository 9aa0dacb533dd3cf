package bench

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestReplica(t *testing.T) {
	t.Parallel()
	r := runMode(t, "replica -threads 4 -duration 300ms -warmup 50ms -gigabytes 0.002 -rounds 1")
	wantCases(t, r, "load-4c-1p-200b", "catch-up-0.002g-200b", "load-4c-1p-200b")
	for i, server := range []string{"min-acks 0", "min-acks 0", "min-acks 1"} {
		one := r.Results[i]
		if one.Server != server {
			t.Errorf("case %d on %s, want %s", i, one.Server, server)
		}
		wantPositive(t, one.Figures, "binlogBytes", keyServerCores, keySlaveCores, keyOwnCores, keyResidentEnd, "slaveResidentEndBytes")
		for key := range one.Figures {
			if !slices.ContainsFunc(quantities, func(q quantity) bool { return q.key == key }) {
				t.Errorf("nothing is known about %s", key)
			}
		}
	}
	for _, load := range []Result{r.Results[0], r.Results[2]} {
		f := load.Figures
		wantPositive(t, f, keyRequestRate, keySlaveCPU, "equalMillis")
		// Counts of the histogram are exact to three digits.
		if f["lagMedianBytes"] > f[keyLagMax] || f["lagEndBytes"] > 1.01*f[keyLagMax] || f["lagMaxEvents"] > f[keyLagMax] {
			t.Errorf("%v", f)
		}
	}
	// Filling takes what the load has left for granted, and no more.
	f := r.Results[1].Figures
	if b := f["binlogBytes"]; b < 2e6 || b > 3e6+2*r.Results[0].Figures["binlogBytes"] {
		t.Errorf("a new slave copied %g bytes", b)
	}
	if mb, events := f["copiedMegabytesPerSecond"]*f[keySeconds]*1e6, f["copiedEventsPerSecond"]*f[keySeconds]; mb < 2e6 || events < 2000 || mb/events < 200 || mb/events > 400 {
		t.Errorf("%g bytes are %g events: %v", mb, events, f)
	}
	if _, ok := f[keyLagMax]; ok {
		t.Error("the lag of a slave that has just been started says nothing")
	}
	if c := r.Comparison; r.Base != "min-acks 0" || len(c) != 1 || c[0].Server != "min-acks 1" || c[0].Ratios[keyRequestRate].Median <= 0 {
		t.Errorf("%+v", c)
	}
}

// Replies wait for a slave in truth: without one the master accepts nothing.
func TestReplicaSides(t *testing.T) {
	t.Parallel()
	s := &settings{Mode: "replica", MinAcks: []int{0, 1}, Server: program{"real", smssForTest(t)}, Timeout: duration(10 * time.Second), dir: t.TempDir()}
	for i, sd := range s.sides() {
		srv, err := sd.open(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		err = createTopics(testContext(t), srv.addr, 10*time.Second, "t", 1)
		if refused := err != nil && strings.Contains(err.Error(), "fewer slaves are connected"); refused != (s.MinAcks[i] == 1) {
			t.Errorf("%s: %v", sd.name, err)
		}
		err = withFollower(testContext(t), s, srv, func(f *follower) error {
			if err := f.begin(testContext(t), "t"); err != nil {
				return err
			}
			if f.lag() != 0 || srv.follower != f {
				t.Errorf("%s: lag %d", sd.name, f.lag())
			}
			return nil
		})
		if stopped := srv.stop(); err != nil || stopped != nil || srv.follower != nil {
			t.Error(sd.name, err, stopped)
		}
	}
	mustBeEmpty(t, s.dir)
}

// storeBinlog makes a file of a server's binlog, of n bytes.
func storeBinlog(t *testing.T, srv *server, name string, n int) {
	t.Helper()
	file := filepath.Join(srv.dir, "data", "binlog", name)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, make([]byte, n), 0o600); err != nil {
		t.Fatal(err)
	}
}

func followerForTest(t *testing.T) (*server, *follower) {
	master := &server{name: "m", dir: t.TempDir(), ended: make(chan struct{})}
	return master, &follower{&server{name: "s", dir: t.TempDir(), ended: make(chan struct{})}, master, 20 * time.Millisecond}
}

func TestLag(t *testing.T) {
	t.Parallel()
	master, f := followerForTest(t)
	if err := f.catchUp(testContext(t)); err == nil || !strings.Contains(err.Error(), "no binlog") {
		t.Errorf("nothing has been caught up with: %v", err)
	}
	storeBinlog(t, master, "0.log", 1000)
	storeBinlog(t, master, "1.log", 500)
	storeBinlog(t, master, "1.log.cut", 7)
	if got := f.lag(); got != 1500 {
		t.Errorf("lag %d of a slave without files", got)
	}
	storeBinlog(t, f.server, "0.log", 1200)
	if got := f.lag(); got != 300 {
		t.Errorf("lag %d", got)
	}
	if err := f.catchUp(testContext(t)); err == nil || !strings.Contains(err.Error(), "stays at 1,200 bytes, the master's has 1,500") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	if err := f.catchUp(ctx); err != context.Canceled {
		t.Error(err)
	}
	storeBinlog(t, f.server, "1.log", 300)
	if err := f.catchUp(testContext(t)); err != nil {
		t.Error(err)
	}
	storeBinlog(t, f.server, "1.log", 200)
	close(f.ended)
	if err := f.catchUp(testContext(t)); err == nil || !strings.Contains(err.Error(), "s server ended during the run") {
		t.Error(err)
	}
	storeBinlog(t, f.server, "1.log", 900) // more than the master
	if got := f.lag(); got != 0 {
		t.Errorf("lag %d", got)
	}
}

// A window counts the lag while what it is about runs, and the end of it; what
// the slave still does afterwards it waits for and does not count.
func TestLagWindow(t *testing.T) {
	t.Parallel()
	master, f := followerForTest(t)
	f.timeout = 30 * time.Second
	w := &window{server: master}
	r := newResult("x")
	if w.beginSlave() != nil || w.slave.look(nil) != 0 || w.settleSlave(testContext(t)) != nil || w.endSlave() != nil {
		t.Error("a server without a slave")
	}
	if w.describeLag(&r); len(r.Figures) != 0 {
		t.Errorf("%v", r.Figures)
	}
	master.follower = f
	storeBinlog(t, master, "0.log", 100)
	if err := w.beginSlave(); err != nil {
		t.Fatal(err)
	}
	storeBinlog(t, f.server, "0.log", 90)
	for range 3 {
		if got := w.slave.look(f); got != 10 {
			t.Errorf("lag %d", got)
		}
	}
	storeBinlog(t, f.server, "0.log", 70)
	late := time.AfterFunc(20*time.Millisecond, func() {
		_ = os.Truncate(filepath.Join(f.dir, "data", "binlog", "0.log"), 100)
	})
	defer late.Stop()
	if err := w.settleSlave(testContext(t)); err != nil {
		t.Fatal(err)
	}
	storeBinlog(t, master, "0.log", 900)
	if got := w.slave.look(f); got != 800 {
		t.Errorf("lag %d", got)
	}
	if err := w.endSlave(); err != nil {
		t.Fatal(err)
	}
	w.describeLag(&r)
	if g := r.Figures; g["lagMedianBytes"] != 10 || g[keyLagMax] != 30 || g["lagEndBytes"] != 30 || g["equalMillis"] <= 0 {
		t.Errorf("%v", g)
	}
}

// The lag has a plot where there was any, and the document counts the slave
// among those that use the cores.
func TestLagIsShown(t *testing.T) {
	t.Parallel()
	results := []Result{
		{Case: "c", Server: "min-acks 0", Series: []Sample{{0, 0, 1, 0}, {1, 5, 1, 3 << 20}, {2, 9, 1, 0}}},
		{Case: "c", Server: "min-acks 1", Series: []Sample{{0, 0, 1, 0}, {1, 5, 1, 0}}},
	}
	charts := courseCharts("c", results)
	lag := charts[len(charts)-1]
	if svg := lag.svg(); !strings.Contains(svg, "slave&#39;s lag") || len(lag.lines[0].points) != 3 || len(lag.lines[1].points) != 0 {
		t.Errorf("%+v", lag.lines)
	}
	r := &Report{Parameters: &settings{Mode: "replica"}, Machine: Machine{GOMAXPROCS: 2}, Results: []Result{
		{Case: "c", Server: "min-acks 0", Figures: Figures{keyServerCores: 0.6, keySlaveCores: 0.7, keyOwnCores: 0.6}}}}
	r.seal()
	if got := limitOf(r); !strings.Contains(got, "server 0.60 cores, slave 0.70, generator 0.60 of 2; the cores are full") {
		t.Error(got)
	}
}
