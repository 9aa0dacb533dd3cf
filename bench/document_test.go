package bench

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files of this package")

// golden compares text with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Fatalf("%s differs (go test ./bench -update writes it); got\n%s", name, got)
	}
}

// reportForTest is a comparison of three rounds with the bare server.
func reportForTest(factor float64) *Report {
	r := &Report{Tool: "smss bench limit", Command: "smss bench limit -compare", Date: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Base: bareName,
		Machine:    Machine{GoVersion: "go1.26 linux/amd64", GOMAXPROCS: 2, Cores: 2, CPU: "A processor", Kernel: "6.1", FileSystem: "ext4", Build: "abc"},
		Parameters: &settings{Mode: "limit", Pipelines: []int{1}, Threads: 256, Size: 200, Batch: 1, Flush: 1}}
	for round, rate := range []float64{1000, 1100, 900} {
		for _, server := range []string{bareName, "smss"} {
			part := 1.0
			if server == "smss" {
				part = 0.8 * factor
			}
			r.Results = append(r.Results, Result{Case: "256c-1p-200b", Server: server, Round: round + 1,
				Figures: Figures{keyRequestRate: rate * part, keyServerCPU: 10 / part, keyServerCores: 0.5, keyOwnCores: 0.6, "latencyP99Micros": 12_000,
					keyResidentPeak: 30 << 20, "fromTheFuture": 7},
				Latencies: []Distribution{{"publish", []Quantile{{0, 10}, {50, 100}, {99, 12_000}, {100, 40_000}}}},
				Series:    []Sample{{0, 0, 20 << 20, 0}, {0.5, 400, 25 << 20, 0}, {1, 1000, 30 << 20, 0}}})
		}
	}
	r.seal()
	return r
}

func TestDocument(t *testing.T) {
	t.Parallel()
	earlier := reportForTest(0.5) // the same command, so that it does not count
	earlier.Date = earlier.Date.Add(-time.Hour)
	golden(t, "report.md", documentOf([]*Report{earlier, reportForTest(1)}))
}

func TestCompareReports(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	b := reportForTest(1.5)
	b.Machine.FileSystem = "xfs"
	if err := compareReports(&out, reportForTest(1), b, "dir/before.json", "dir/after.json"); err != nil {
		t.Fatal(err)
	}
	golden(t, "compare.txt", out.String())
	b.Results[0].Case = "another"
	b.Results = b.Results[:1]
	if err := compareReports(&out, reportForTest(1), b, "a", "b"); err == nil || !strings.Contains(err.Error(), "no case in common") {
		t.Fatal(err)
	}
}

func TestChange(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		d    direction
		a, b Spread
		want string
	}{
		{higher, Spread{2, 1, 3}, Spread{5, 4, 6}, "better"},
		{lower, Spread{2, 1, 3}, Spread{5, 4, 6}, "worse"},
		{lower, Spread{5, 4, 6}, Spread{2, 1, 3}, "better"},
		{higher, Spread{5, 4, 6}, Spread{2, 1, 3}, "worse"},
		{higher, Spread{2, 1, 4}, Spread{5, 4, 6}, ""}, // they overlap
		{higher, Spread{2, 2, 2}, Spread{5, 5, 5}, ""}, // one round each
	} {
		if got := change(tt.d, tt.a, tt.b); got != tt.want {
			t.Errorf("%+v: %q", tt, got)
		}
	}
}

// The page shows every plot and refers to nothing outside of it.
func TestPage(t *testing.T) {
	t.Parallel()
	r := reportForTest(1)
	r.Results[0].Case = "256c <script>"
	r.seal()
	b, err := pageOf(r)
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	if n := strings.Count(page, "<svg "); n != 6 { // two cases of three plots
		t.Errorf("%d plots", n)
	}
	for _, bad := range []string{"<script", "src=", "href=", "url(", "@import", "NaN", "Inf"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page contains %s", bad)
		}
	}
	if strings.Count(strings.ReplaceAll(page, "http://www.w3.org/2000/svg", ""), "http") > 0 {
		t.Error("the page refers to something outside")
	}
}

func TestChart(t *testing.T) {
	t.Parallel()
	c := chart{title: "t", yLabel: "y", yFormat: short, lines: []line{{"a", []point{{0, 0}, {1, 50}, {2, 100}}}, {"a", []point{{0, 10}, {2, 20}}}, {"b", nil}}}
	golden(t, "chart.svg", c.svg())
	for _, empty := range []chart{{yFormat: short}, {yFormat: short, lines: []line{{"a", []point{{1, 1}}}}}} {
		if got := empty.svg(); got != "" {
			t.Errorf("a plot of nothing: %s", got)
		}
	}
	flat := chart{yFormat: micros, logarithmic: true, lines: []line{{"a", []point{{1, 0}, {1, 0}}}}}
	if got := flat.svg(); strings.Contains(got, "NaN") || strings.Contains(got, "Inf") {
		t.Error(got)
	}
	for v, want := range map[float64]float64{1: 1, 1.1: 2, 2.2: 2.5, 3: 5, 70: 100, 0.3: 0.5} {
		if got := roundUp(v); got < want*0.999 || got > want*1.001 {
			t.Errorf("roundUp(%g) = %g", v, got)
		}
	}
}

func TestTargetAcrossRuns(t *testing.T) {
	t.Parallel()
	run := func(name string, rate float64) *Report {
		r := &Report{Parameters: &settings{Mode: "pub"}, Results: []Result{{Case: name, Server: "smss", Figures: Figures{keyRequestRate: rate}}}}
		r.seal()
		return r
	}
	with := run("256c-1p-200b-with-2000-topics", 80)
	if got := judge([]*Report{with}); len(got) != 0 {
		t.Fatalf("half of a ratio: %+v", got)
	}
	got := judge([]*Report{run("256c-1p-200b", 50), run("256c-1p-200b", 100), with})
	if len(got) != 1 || got[0].Measured != 0.8 || got[0].Met {
		t.Fatalf("%+v", got)
	}
}

// Samples thin out instead of growing without end.
func TestEveryOther(t *testing.T) {
	t.Parallel()
	got := everyOther([]Sample{{Done: 0}, {Done: 1}, {Done: 2}, {Done: 3}, {Done: 4}})
	if len(got) != 3 || got[1].Done != 2 || got[2].Done != 4 {
		t.Fatal(got)
	}
}
