package bench

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"
)

// table prints rows of a label and right-aligned columns.
type table struct {
	w     io.Writer
	width int // of the columns
}

func (t table) row(label string, columns ...string) {
	fmt.Fprintf(t.w, "  %-30s", label)
	for _, c := range columns {
		fmt.Fprintf(t.w, " %*s", t.width, c)
	}
	fmt.Fprintln(t.w)
}

func (m *Machine) print(w io.Writer) {
	fmt.Fprintf(w, "%s, GOMAXPROCS %d, %d cores", m.GoVersion, m.GOMAXPROCS, m.Cores)
	if m.Load != "" {
		fmt.Fprintf(w, ", load at start %s", m.Load)
	}
	fmt.Fprintln(w)
}

func (s *settings) printLoad(w io.Writer, pipeline int) {
	fmt.Fprintf(w, "%s connections, %d in flight each, %d × %s-byte messages a request, ",
		count(int64(s.Threads)), pipeline, s.Batch, count(int64(s.Size)))
	if s.Duration > 0 {
		fmt.Fprintf(w, "%s after %s of warm-up", time.Duration(s.Duration), time.Duration(s.Warmup))
	} else {
		fmt.Fprintf(w, "%s requests each", count(int64(s.Requests)))
	}
	if s.Addr == "" && (s.Mode == "pub" || s.Compare) {
		fmt.Fprintf(w, ", flush level %d", s.Flush)
	}
	fmt.Fprintln(w)
}

func (r *Result) print(w io.Writer) {
	t := table{w, 14}
	if r.Interrupted {
		fmt.Fprintln(w, "  interrupted: figures up to then")
	}
	t.row("server", r.Server)
	t.row("requests", count(r.Requests), fmt.Sprintf("in %.2f s", r.Seconds))
	t.row("requests/s", count(int64(r.RequestsPerSecond)))
	t.row("messages/s", count(int64(r.MessagesPerSecond)))
	t.row("MB/s (bodies)", decimal(r.MegabytesPerSecond))
	t.row("replies per read", decimal(r.RepliesPerRead))
	t.row("latency p50", micros(r.Latency.P50))
	t.row("latency p99", micros(r.Latency.P99))
	t.row("latency p99.9", micros(r.Latency.P999))
	t.row("latency max", micros(r.Latency.Max))
	if c := r.ServerCPU; c != nil {
		t.row("server CPU µs/request", decimal(c.MicrosPerRequest), percent(c.Seconds, r.Seconds))
	}
	t.row("generator CPU µs/request", decimal(r.GeneratorCPU.MicrosPerRequest), percent(r.GeneratorCPU.Seconds, r.Seconds))
	if m := r.ServerMemory; m != nil {
		t.row("server memory before", mebibytes(m.Before))
		t.row("server memory peak", mebibytes(m.Peak), "VmHWM "+mebibytes(m.HighWaterMark))
	}
	t.row("errors", count(r.Failed))
	for _, text := range slices.Sorted(maps.Keys(r.Errors)) {
		fmt.Fprintf(w, "    %s × %s\n", count(r.Errors[text]), text)
	}
}

func percent(part, whole float64) string {
	if whole <= 0 {
		return ""
	}
	return fmt.Sprintf("%.0f %% of a core", 100*part/whole)
}

func micros(v int64) string {
	switch {
	case v < 10_000:
		return count(v) + " µs"
	case v < 10_000_000:
		return fmt.Sprintf("%.1f ms", float64(v)/1e3)
	}
	return fmt.Sprintf("%.1f s", float64(v)/1e6)
}

func mebibytes(v int64) string { return fmt.Sprintf("%.1f MiB", float64(v)/(1<<20)) }

// decimal prints three digits or so.
func decimal(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1000:
		return count(int64(math.Round(v)))
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// count groups digits by three.
func count(v int64) string {
	s := strconv.FormatInt(v, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
