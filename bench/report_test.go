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
	got := newResult("x")
	got.addLatency("latency", "publish", f.latency)
	if g := got.Figures; g["latencyP50Micros"] != 150 || g["latencyP99Micros"] != 297 || g["latencyP999Micros"] != 300 || g["latencyMaxMicros"] != 300 || f.latency.TotalCount() != 300 {
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
	r.Results = []Result{{Case: "c", Server: "bare", Round: 1, Failed: 2, Errors: map[string]int64{"x": 2},
		Figures: Figures{keyRequests: 10}, Latencies: []Distribution{{"l", []Quantile{{50, 1}}}}, Series: []Sample{{1, 10, 5, 3}}}}
	r.Comparison = []Comparison{{Case: "c", Base: "bare", Server: "smss", Rounds: 1, Ratios: map[string]Spread{keyRequests: {1, 2, 3}}}}
	r.Targets = []Verdict{{Text: "t", Met: true}}
	file := filepath.Join(t.TempDir(), "r.json")
	s.json = file
	if err := r.write(s); err != nil {
		t.Fatal(err)
	}
	s.json = ""
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

func resultForTest(server string, round int, rate, cpu float64) Result {
	return Result{Case: "256c-1p-200b", Server: server, Round: round, Figures: Figures{keyRequestRate: rate, keyServerCPU: cpu}}
}

func TestComparisonOfServers(t *testing.T) {
	all := []Result{
		resultForTest("bare", 1, 100, 10), resultForTest("smss", 1, 80, 14),
		resultForTest("bare", 2, 200, 8), resultForTest("smss", 2, 90, 16),
		resultForTest("bare", 3, 120, 9), resultForTest("smss", 3, 60, 13),
		resultForTest("bare", 4, 999, 1), // its other half was interrupted
	}
	interrupted := resultForTest("smss", 4, 1, 1)
	interrupted.Interrupted = true
	r := &Report{Base: "bare", Parameters: &settings{Mode: "pub"}, Results: append(all, interrupted)}
	r.seal()
	if len(r.Summaries) != 2 || r.Summaries[1].Rounds != 3 || r.Summaries[1].Figures[keyRequestRate] != (Spread{80, 60, 90}) {
		t.Fatalf("%+v", r.Summaries)
	}
	if len(r.Comparison) != 1 {
		t.Fatalf("%+v", r.Comparison)
	}
	c := r.Comparison[0]
	if c.Rounds != 3 || c.Ratios[keyRequestRate] != (Spread{80. / 120, 0.45, 0.8}) || c.Ratios[keyServerCPU] != (Spread{14. / 9, 1.4, 2}) {
		t.Fatalf("%+v", c)
	}
	if len(r.Targets) != 2 || r.Targets[0].Met || r.Targets[1].Met || r.Targets[1].Shown != "1.56" {
		t.Fatalf("%+v", r.Targets)
	}
	var out bytes.Buffer
	r.print(&out)
	for _, want := range []string{"1.56", "missed", "medians of"} {
		if !strings.Contains(out.String(), want) {
			t.Fatalf("no %q in\n%s", want, out.String())
		}
	}
}

func TestFormats(t *testing.T) {
	for got, want := range map[string]string{
		count(0): "0", count(999): "999", count(1000): "1,000", count(1234567): "1,234,567", count(-1000): "-1,000", count(-100): "-100",
		decimal(0.123): "0.12", decimal(12.34): "12.3", decimal(123.4): "123", decimal(1234): "1,234",
		micros(9999): "9,999 µs", micros(10_000): "10.0 ms", micros(12_000_000): "12.0 s", size(3 << 19): "1.5 MiB", size(2048): "2.00 KiB", size(3 << 29): "1.50 GiB", millis(1.5): "1,500 µs",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
