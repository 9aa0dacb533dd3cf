package bench

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// binaryForTest builds the real server, once for all tests.
var binaryForTest = sync.OnceValues(func() (string, error) {
	path := filepath.Join(buildDirectory, "smss")
	text, err := exec.Command("go", "build", "-o", path, "smss").CombinedOutput()
	if err != nil {
		return "", &usageError{string(text)}
	}
	return path, nil
})

func smssForTest(t *testing.T) string {
	t.Helper()
	path, err := binaryForTest()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// runMode runs a mode on the real server and returns its report.
func runMode(t *testing.T, line string) *Report {
	t.Helper()
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "r.json")
	args := append(strings.Fields(line), "-server", "real="+smssForTest(t), "-dir", dir, "-json", file, "-quiet")
	status, stdout, stderr := runForTest(t, args...)
	if status != 0 || stderr != "" {
		t.Fatalf("%s: %d %q %q", line, status, stdout, stderr)
	}
	mustBeEmpty(t, dir)
	r := mustRead(t, file)
	for _, one := range r.Results {
		if !strings.Contains(stdout, one.Case) {
			t.Errorf("no table of %s in\n%s", one.Case, stdout)
		}
		if one.Failed != 0 || one.Interrupted {
			t.Errorf("%+v", one)
		}
	}
	return r
}

// wantCases compares the names of the results, in order.
func wantCases(t *testing.T, r *Report, want ...string) {
	t.Helper()
	var got []string
	for _, one := range r.Results {
		got = append(got, one.Case)
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Fatalf("cases %q, want %q", got, want)
	}
}

func TestSub(t *testing.T) {
	t.Parallel()
	r := runMode(t, "sub -messages 5000 -size 50 -batch 7,255 -subscribers 3 -loops 2")
	wantCases(t, r, "drain-3s-7batch-50b", "drain-3s-255batch-50b")
	for i, batch := range []float64{7, 255} {
		f := r.Results[i].Figures
		wantPositive(t, f, keyMessageRate, keyServerMessage, keyOwnMessage, keyResidentPeak)
		// Filling rounds up to whole requests of all its connections.
		if f["messages"] < 3*5000 || f["messages"] > 3*5400 || f["messagesPerPush"] > batch || f["messagesPerPush"] < batch/2 {
			t.Errorf("batch %g: %v", batch, f)
		}
	}
}

func TestLatency(t *testing.T) {
	t.Parallel()
	r := runMode(t, "latency -rate 500 -threads 3 -subscribers 2 -duration 400ms -warmup 50ms -size 20")
	wantCases(t, r, "500ps-3c-2s-16batch-20b")
	f := r.Results[0].Figures
	wantPositive(t, f, "endToEndP50Micros", "endToEndMaxMicros", "publishP50Micros", "lateMaxMicros", keyServerMessage)
	if rate := f["publishedPerSecond"]; rate < 250 || rate > 520 {
		t.Errorf("published %g/s, asked for 500", rate)
	}
	if len(r.Results[0].Latencies) != 3 {
		t.Errorf("%+v", r.Results[0].Latencies)
	}
	// A message cannot arrive before its publisher could have the reply by
	// more than the wire takes, nor twice.
	if f["endToEndMaxMicros"] < f["endToEndP50Micros"] {
		t.Error(f)
	}
}

func TestFanout(t *testing.T) {
	t.Parallel()
	r := runMode(t, "fanout -subscribers 10 -duration 300ms -warmup 50ms -batch 16 -with-topics 5 -with-subscribers 4 -pipeline 4")
	wantCases(t, r, "1c-4p-10s-16batch-200b-with-4-subscribers-with-5-topics")
	f := r.Results[0].Figures
	wantPositive(t, f, keyDeliveryRate, "publishP99Micros", "messagesPerPush", "publishedPerSecond")
	if _, ok := f["endToEndP50Micros"]; ok {
		t.Error("a closed loop says nothing about the age of messages")
	}
	if behind, ok := f["backlogMessages"]; !ok || behind < 0 {
		t.Error(f)
	}
}

func TestDelay(t *testing.T) {
	t.Parallel()
	r := runMode(t, "delay -delays 400 -rate 1000 -lead 1200ms -duration 0s -threads 2 -size 50")
	wantCases(t, r, "spread-400-1000ps-50b", "at-once-400-50b")
	for _, one := range r.Results {
		f := one.Figures
		wantPositive(t, f, keyDeliveryRate, "fillPerSecond", "latenessMaxMicros", "residentPendingBytes", keySeconds)
		if f["latenessMaxMicros"] > 5e6 || len(one.Latencies) != 1 {
			t.Errorf("%+v", one)
		}
	}
	// The last of 400 messages at 1,000 a second is due 0.4 s after the first,
	// and does not come before.
	if s := r.Results[0].Figures[keySeconds]; s < 0.39 {
		t.Errorf("spread over 0.4 s came within %g s", s)
	}
}

func TestRestart(t *testing.T) {
	t.Parallel()
	r := runMode(t, "restart -gigabytes 0.002 -size 500 -kills 2 -seeks 10 -duration 100ms -threads 4")
	wantCases(t, r, "seek-0.002g-500b", "ready-0.002g-500b", "ready-0.002g-500b")
	seek := r.Results[0].Figures
	wantPositive(t, seek, "seekP50Micros", "fillSeconds", keyResidentPeak)
	if seek["storedBytes"] < 4e6 {
		t.Errorf("2 MB in binlog and topic are %g bytes", seek["storedBytes"])
	}
	for i, one := range r.Results[1:] {
		wantPositive(t, one.Figures, "aliveMillis", keyResidentEnd)
		if one.Round != i+1 || one.Figures["firstPublishMillis"] < one.Figures["aliveMillis"] {
			t.Errorf("%+v", one)
		}
	}
}

func TestTopics(t *testing.T) {
	t.Parallel()
	r := runMode(t, "topics -topics 30 -settle 10ms")
	wantCases(t, r, "30t")
	f := r.Results[0].Figures
	wantPositive(t, f, "aliveMillis", "descriptors", keyResidentPeak, "fillSeconds")
	if f["topics"] != 30 {
		t.Error(f)
	}
}

func TestLevels(t *testing.T) {
	t.Parallel()
	r := runMode(t, "levels -levels 0,2 -rounds 1 -threads 4 -requests 20")
	if r.Base != "level 0" || len(r.Results) != 2 || r.Results[1].Server != "level 2" || len(r.Comparison) != 1 {
		t.Fatalf("%+v", r)
	}
	s := &settings{Mode: "levels", Levels: []int{0, 2}, Server: program{"real", smssForTest(t)}, dir: t.TempDir()}
	for i, sd := range s.sides() {
		srv, err := sd.open(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		config, err := os.ReadFile(filepath.Join(srv.dir, "config", "config.yaml"))
		if stopped := srv.stop(); err != nil || stopped != nil {
			t.Fatal(err, stopped)
		}
		if want := "flushLevel: " + strconv.Itoa(s.Levels[i]) + "\n"; !strings.Contains(string(config), want) {
			t.Errorf("no %q in %s", want, config)
		}
	}
}

func TestInterference(t *testing.T) {
	t.Parallel()
	r := runMode(t, "interference -rate 300 -threads 2 -duration 300ms -warmup 20ms -large-size 100000 -gigabytes 0.002")
	wantCases(t, r, "none-300ps-2c-200b", "large-100000b-300ps-2c-200b", "delete-0.002g-300ps-2c-200b")
	for _, one := range r.Results {
		wantPositive(t, one.Figures, "publishP99Micros")
	}
	wantPositive(t, r.Results[1].Figures, "largePerSecond")
	wantPositive(t, r.Results[2].Figures, "deleteMillis")
}

func TestInterferenceByRetention(t *testing.T) {
	t.Parallel()
	r := runMode(t, "interference -by retention -rate 100 -threads 2 -duration 3500ms -warmup 0s -gigabytes 0.01")
	wantCases(t, r, "retention-0.01g-100ps-2c-200b")
	f := r.Results[0].Figures
	wantPositive(t, f, "publishP99Micros")
	// 15 of 16 files of the binlog and of the topic.
	if removed := f["removedBytes"]; removed < 15e6 || removed > 25e6 {
		t.Errorf("%g bytes of 20 MB were removed", removed)
	}
}

func TestAgainst(t *testing.T) {
	t.Parallel()
	r := runMode(t, "pub -threads 4 -requests 50 -rounds 1 -against other="+smssForTest(t)+" -with-subscribers 3 -with-topics 4")
	const name = "4c-1p-200b-with-3-subscribers-with-4-topics"
	wantCases(t, r, name, name)
	if r.Base != "other" || r.Results[0].Server != "other" || r.Results[1].Server != "real" || r.Results[1].Figures[keyRequests] != 200 {
		t.Fatalf("%+v", r)
	}
	if c := r.Comparison; len(c) != 1 || c[0].Server != "real" || c[0].Ratios[keyServerCPU].Median <= 0 {
		t.Fatalf("%+v", c)
	}
}

// The real server, started by somebody else: topics that a mode makes are
// gone afterwards.
func TestForeignServerIsLeftAsItWas(t *testing.T) {
	t.Parallel()
	s := &settings{Mode: "pub", Flush: 1, dir: t.TempDir()}
	srv, err := startServer(testContext(t), s, program{"real", smssForTest(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.stop(); err != nil {
			t.Error(err)
		}
	})
	for _, line := range []string{
		"sub -messages 500 -batch 255", "latency -rate 200 -duration 100ms -warmup 0s", "fanout -subscribers 2 -duration 100ms -batch 16",
		"seek -gigabytes 0.001 -seeks 3",
	} {
		args := append(strings.Fields(line), "-addr", srv.addr, "-pid", strconv.Itoa(srv.pid), "-quiet")
		if status, stdout, stderr := runForTest(t, args...); status != 0 || !strings.Contains(stdout, "server memory") {
			t.Fatalf("%s: %d %q %q", line, status, stdout, stderr)
		}
	}
	c, err := dialControl(testContext(t), srv.addr, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if left := c.listLength(t); left != 0 {
		t.Fatalf("topics left: %d bytes of JSON", left)
	}
}

// A server that dies in the middle is told of, with what it said last.
func TestServerThatDies(t *testing.T) {
	t.Parallel()
	s := &settings{Mode: "pub", Flush: 1, dir: t.TempDir()}
	srv, err := startServer(testContext(t), s, program{"real", smssForTest(t)})
	if err != nil {
		t.Fatal(err)
	}
	_ = syscall.Kill(srv.pid, syscall.SIGKILL)
	<-srv.ended
	defer func() {
		// Only an end that we asked for is none to tell of.
		if err := srv.stop(); err == nil || !strings.Contains(err.Error(), "signal: killed") {
			t.Errorf("stop: %v", err)
		}
	}()
	if _, err := srv.memory(); err == nil || !strings.Contains(err.Error(), "real server ended during the run: signal: killed") {
		t.Fatal(err)
	}
}
