package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Comparison is one point of load on both servers. Ratios are real to bare,
// of medians; the spread is that of the rounds' own ratios, whose two halves
// ran one after the other.
type Comparison struct {
	Pipeline int           `json:"pipeline"`
	Server   string        `json:"server"` // the real one
	Rounds   int           `json:"rounds"`
	Bare     Medians       `json:"bare"`
	Real     Medians       `json:"real"`
	Rate     Ratio         `json:"requestsPerSecondRatio"`
	CPU      *Ratio        `json:"serverCPURatio,omitempty"`
	Verdict  *TargetResult `json:"target,omitempty"`
}

// Medians are those of the rounds.
type Medians struct {
	RequestsPerSecond  float64 `json:"requestsPerSecond"`
	ServerCPUMicros    float64 `json:"serverCPUMicrosPerRequest"`
	GeneratorCPUMicros float64 `json:"generatorCPUMicrosPerRequest"`
	RepliesPerRead     float64 `json:"repliesPerRead"`
	P50                float64 `json:"latencyMicrosP50"`
	P99                float64 `json:"latencyMicrosP99"`
	ResidentPeak       float64 `json:"residentPeak"`
}

// Ratio of real to bare.
type Ratio struct {
	OfMedians float64 `json:"ofMedians"`
	Lowest    float64 `json:"lowest"`
	Highest   float64 `json:"highest"`
}

// TargetResult says how a point did against the project's target for it.
type TargetResult struct {
	Text string `json:"text"`
	Met  bool   `json:"met"`
}

// runComparison measures bare and real alternately. Each measurement has a
// new process and an empty data directory: no round inherits the heap, the
// files or the unwritten pages of the one before.
func runComparison(ctx context.Context, s *settings, out output) error {
	if err := checkFile(s.json); err != nil {
		return err
	}
	report := newReport(s)
	var failed error
	for _, pipeline := range s.Pipelines {
		if failed = compareAt(ctx, s, out, pipeline, report); failed != nil || ctx.Err() != nil {
			break
		}
	}
	for _, pipeline := range s.Pipelines {
		if c := compareResults(report.Results, pipeline, s.Threads); c != nil {
			report.Comparison = append(report.Comparison, *c)
		}
	}
	if err := report.writeFile(s.json); err != nil {
		return errors.Join(failed, err)
	}
	if len(report.Comparison) == 0 {
		return cmp.Or(failed, errInterrupted)
	}
	report.Machine.print(out.stdout)
	if ctx.Err() != nil {
		fmt.Fprintln(out.stdout, "interrupted: figures of the rounds that were complete")
	}
	for i := range report.Comparison {
		c := &report.Comparison[i]
		fmt.Fprintln(out.stdout)
		s.printLoad(out.stdout, c.Pipeline)
		c.print(out.stdout)
	}
	return failed
}

// compareAt runs all rounds of one point and adds their results to report.
func compareAt(ctx context.Context, s *settings, out output, pipeline int, report *Report) error {
	for round := 1; round <= s.Rounds; round++ {
		for _, side := range []struct {
			name string
			open opener
		}{{"bare", openBare}, {"smss", openServer}} {
			label := fmt.Sprintf("%d in flight, round %d of %d, %s", pipeline, round, s.Rounds, side.name)
			r, err := measureOnce(ctx, s, side.open, pipeline, newProgress(out, s, label))
			if ctx.Err() != nil {
				return nil
			}
			if err == nil {
				err = r.err()
			}
			if err != nil {
				return err
			}
			r.Round, r.Series = round, nil
			report.Results = append(report.Results, *r)
		}
	}
	return nil
}

// compareResults pairs the results of one point, bare and real of the same
// round, or returns nil where there is no pair.
func compareResults(all []Result, pipeline, connections int) *Comparison {
	var bare, real []Result
	for _, r := range all {
		switch {
		case r.Pipeline != pipeline:
		case r.Server == "bare":
			bare = append(bare, r)
		default:
			real = append(real, r)
		}
	}
	n := min(len(bare), len(real))
	if n == 0 {
		return nil
	}
	bare, real = bare[:n], real[:n]
	c := &Comparison{Pipeline: pipeline, Server: real[0].Server, Rounds: n, Bare: mediansOf(bare), Real: mediansOf(real)}
	c.Rate = ratioOf(bare, real, rate)
	if real[0].ServerCPU != nil {
		cpu := ratioOf(bare, real, serverMicros)
		c.CPU = &cpu
	}
	c.Verdict = c.judge(connections)
	return c
}

// judge holds a point against the targets, which are for 256 connections: at
// most 1.5 times the bare server's CPU with one request in flight, at least
// half of its requests/s with 16.
func (c *Comparison) judge(connections int) *TargetResult {
	switch {
	case connections == 256 && c.Pipeline == 1 && c.CPU != nil:
		return &TargetResult{"server CPU per request at most 1.50 times the bare server's", c.CPU.OfMedians <= 1.5}
	case connections == 256 && c.Pipeline == 16:
		return &TargetResult{"requests/s at least 0.50 of the bare server's", c.Rate.OfMedians >= 0.5}
	}
	return nil
}

func rate(r *Result) float64 { return r.RequestsPerSecond }

func serverMicros(r *Result) float64 {
	if r.ServerCPU == nil {
		return 0
	}
	return r.ServerCPU.MicrosPerRequest
}

func residentPeak(r *Result) float64 {
	if r.ServerMemory == nil {
		return 0
	}
	return float64(r.ServerMemory.Peak)
}

func mediansOf(rs []Result) Medians {
	return Medians{
		RequestsPerSecond:  median(rs, rate),
		ServerCPUMicros:    median(rs, serverMicros),
		GeneratorCPUMicros: median(rs, func(r *Result) float64 { return r.GeneratorCPU.MicrosPerRequest }),
		RepliesPerRead:     median(rs, func(r *Result) float64 { return r.RepliesPerRead }),
		P50:                median(rs, func(r *Result) float64 { return float64(r.Latency.P50) }),
		P99:                median(rs, func(r *Result) float64 { return float64(r.Latency.P99) }),
		ResidentPeak:       median(rs, residentPeak),
	}
}

// median is the mean of the middle two where their number is even.
func median(rs []Result, of func(*Result) float64) float64 {
	var v []float64
	for i := range rs {
		v = append(v, of(&rs[i]))
	}
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

func ratioOf(bare, real []Result, of func(*Result) float64) Ratio {
	var each []float64
	for i := range bare {
		each = append(each, divide(of(&real[i]), of(&bare[i])))
	}
	return Ratio{divide(median(real, of), median(bare, of)), slices.Min(each), slices.Max(each)}
}

func divide(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func (c *Comparison) print(w io.Writer) {
	t := table{w, max(12, len(c.Server))}
	t.row(fmt.Sprintf("medians of %d rounds", c.Rounds), "bare", c.Server, "ratio", "low", "high")
	ratio := func(r *Ratio) []string {
		if r == nil {
			return nil
		}
		return []string{decimal(r.OfMedians), decimal(r.Lowest), decimal(r.Highest)}
	}
	both := func(label string, format func(float64) string, bare, real float64, r *Ratio) {
		t.row(label, append([]string{format(bare), format(real)}, ratio(r)...)...)
	}
	whole := func(v float64) string { return count(int64(v)) }
	latency := func(v float64) string { return micros(int64(v)) }
	size := func(v float64) string { return mebibytes(int64(v)) }
	both("requests/s", whole, c.Bare.RequestsPerSecond, c.Real.RequestsPerSecond, &c.Rate)
	if c.CPU != nil {
		both("server CPU µs/request", decimal, c.Bare.ServerCPUMicros, c.Real.ServerCPUMicros, c.CPU)
	}
	both("generator CPU µs/request", decimal, c.Bare.GeneratorCPUMicros, c.Real.GeneratorCPUMicros, nil)
	both("replies per read", decimal, c.Bare.RepliesPerRead, c.Real.RepliesPerRead, nil)
	both("latency p50", latency, c.Bare.P50, c.Real.P50, nil)
	both("latency p99", latency, c.Bare.P99, c.Real.P99, nil)
	if c.Real.ResidentPeak > 0 {
		both("server memory peak", size, c.Bare.ResidentPeak, c.Real.ResidentPeak, nil)
	}
	if v := c.Verdict; v != nil {
		word := "missed"
		if v.Met {
			word = "met"
		}
		fmt.Fprintf(w, "  target: %s: %s\n", v.Text, word)
	}
}
