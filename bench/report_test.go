package bench

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestMerge(t *testing.T) {
	var loops []*loop
	for i := range 3 {
		l := &loop{latency: newHistogram(), errors: map[string]int64{}}
		for v := range int64(100) {
			if err := l.latency.RecordValue(int64(i)*100 + v + 1); err != nil {
				t.Fatal(err)
			}
		}
		l.succeeded, l.last = 100, time.Duration(i)*time.Second
		l.errors["both"] = 2
		loops = append(loops, l)
	}
	loops[2].errors["one"] = 1
	f := merge(loops)
	if f.requests != 300 || f.failed != 7 || f.errors["both"] != 6 || f.errors["one"] != 1 || f.elapsed != 2*time.Second {
		t.Fatalf("%+v", f)
	}
	got := latencyOf(f.latency)
	if got.P50 != 150 || got.P99 != 297 || got.P999 != 300 || got.Max != 300 || f.latency.TotalCount() != 300 {
		t.Fatalf("%+v", got)
	}
}

func TestHistogramRange(t *testing.T) {
	h := newHistogram()
	for _, v := range []int64{0, 1, 60_000_000, h.HighestTrackableValue()} {
		if err := h.RecordValue(v); err != nil {
			t.Errorf("%d: %v", v, err)
		}
	}
}

func TestReportReadsBack(t *testing.T) {
	s := &settings{Mode: "pub", Threads: 3, Pipelines: []int{1, 16}, Duration: duration(2 * time.Second), Set: setFlag{"a.b=c"}}
	r := newReport(s)
	r.Results = []Result{{Server: "bare", Round: 1, Pipeline: 16, Requests: 10, Failed: 2, Errors: map[string]int64{"x": 2},
		Latency: Latency{P50: 1, P99: 2, P999: 3, Max: 4}, ServerCPU: &CPU{Seconds: 1}, Series: []Second{{1, 10, 5}}}}
	r.Comparison = []Comparison{{Pipeline: 16, CPU: &Ratio{1, 2, 3}, Verdict: &TargetResult{"t", true}}}
	file := filepath.Join(t.TempDir(), "r.json")
	if err := r.writeFile(file); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&back); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(&back, r) {
		t.Fatalf("wrote %+v\nread %+v", r, &back)
	}
	if back.Machine.Cores < 1 || back.Machine.GOMAXPROCS < 1 || back.Machine.GoVersion == "" || back.Date.IsZero() {
		t.Fatalf("machine: %+v", back.Machine)
	}
}

func TestCompareResults(t *testing.T) {
	result := func(server string, round int, rate, micros float64) Result {
		return Result{Server: server, Round: round, Pipeline: 1, RequestsPerSecond: rate, ServerCPU: &CPU{MicrosPerRequest: micros}}
	}
	all := []Result{
		result("bare", 1, 100, 10), result("smss", 1, 80, 14),
		result("bare", 2, 200, 8), result("smss", 2, 90, 16),
		result("bare", 3, 120, 9), result("smss", 3, 60, 13),
		result("bare", 4, 999, 1), // its other half was interrupted
	}
	c := compareResults(all, 1, 256)
	if c.Rounds != 3 || c.Bare.RequestsPerSecond != 120 || c.Real.RequestsPerSecond != 80 ||
		c.Bare.ServerCPUMicros != 9 || c.Real.ServerCPUMicros != 14 {
		t.Fatalf("%+v", c)
	}
	if c.Rate != (Ratio{80. / 120, 0.45, 0.8}) || *c.CPU != (Ratio{14. / 9, 1.4, 2}) {
		t.Fatalf("ratios %+v %+v", c.Rate, *c.CPU)
	}
	if c.Verdict == nil || c.Verdict.Met {
		t.Fatalf("verdict %+v", c.Verdict)
	}
	if compareResults(all, 16, 256) != nil {
		t.Fatal("a point without results was compared")
	}
	if c := compareResults(all, 1, 10); c.Verdict != nil {
		t.Fatal("the target is for 256 connections")
	}
	var out bytes.Buffer
	c.print(&out)
	if !strings.Contains(out.String(), "1.56") || !strings.Contains(out.String(), "missed") {
		t.Fatal(out.String())
	}
}

func TestFormats(t *testing.T) {
	for got, want := range map[string]string{
		count(0): "0", count(999): "999", count(1000): "1,000", count(1234567): "1,234,567", count(-1000): "-1,000", count(-100): "-100",
		decimal(0.123): "0.12", decimal(12.34): "12.3", decimal(123.4): "123", decimal(1234): "1,234",
		micros(9999): "9,999 µs", micros(10_000): "10.0 ms", micros(12_000_000): "12.0 s", mebibytes(3 << 19): "1.5 MiB",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
