package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"
)

// Report is what the JSON file holds: everything that is needed to repeat a
// run and to judge it.
type Report struct {
	Tool       string       `json:"tool"`
	Date       time.Time    `json:"date"`
	Machine    Machine      `json:"machine"`
	Parameters *settings    `json:"parameters"`
	Results    []Result     `json:"results,omitempty"` // in the order in which they ran
	Comparison []Comparison `json:"comparison,omitempty"`
	Idle       *IdleResult  `json:"idle,omitempty"`
}

// Machine is where a run took place. A load that is not near 0 when a run
// begins says that its absolute figures are shared with somebody.
type Machine struct {
	GoVersion  string `json:"goVersion"`
	GOMAXPROCS int    `json:"gomaxprocs"`
	Cores      int    `json:"cores"`
	CPU        string `json:"cpu,omitempty"`
	Kernel     string `json:"kernel,omitempty"`
	Load       string `json:"loadAverageAtStart,omitempty"`
}

// Result is one measured window on one server.
type Result struct {
	Server      string           `json:"server"` // smss, bare, or an address
	Round       int              `json:"round,omitempty"`
	Pipeline    int              `json:"pipeline"`
	Seconds     float64          `json:"seconds"`
	Requests    int64            `json:"requests"` // answered with success
	Messages    int64            `json:"messages"`
	Failed      int64            `json:"failed"`
	Errors      map[string]int64 `json:"errors,omitempty"`
	Interrupted bool             `json:"interrupted,omitempty"`

	RequestsPerSecond  float64 `json:"requestsPerSecond"`
	MessagesPerSecond  float64 `json:"messagesPerSecond"`
	MegabytesPerSecond float64 `json:"megabytesPerSecond"` // of message bodies, 10^6 bytes

	// RepliesPerRead shows how many replies the server gathers into one write.
	RepliesPerRead float64 `json:"repliesPerRead"`

	Latency      Latency  `json:"latencyMicros"`
	GeneratorCPU CPU      `json:"generatorCPU"`
	ServerCPU    *CPU     `json:"serverCPU,omitempty"`
	ServerMemory *Memory  `json:"serverMemory,omitempty"`
	Series       []Second `json:"series,omitempty"`
}

// Latency is in microseconds.
type Latency struct {
	Mean float64 `json:"mean"`
	P50  int64   `json:"p50"`
	P99  int64   `json:"p99"`
	P999 int64   `json:"p99.9"`
	Max  int64   `json:"max"`
}

// CPU is what a process used over the window.
type CPU struct {
	Seconds          float64 `json:"seconds"`
	UserSeconds      float64 `json:"userSeconds"`
	SystemSeconds    float64 `json:"systemSeconds"`
	MicrosPerRequest float64 `json:"microsPerRequest"`
}

// Memory is resident memory in bytes: as the window began, the highest seen
// in it, and the process's own high-water mark since its start.
type Memory struct {
	Before        int64 `json:"before"`
	Peak          int64 `json:"peak"`
	HighWaterMark int64 `json:"highWaterMark"`
}

// Second is one point of a run's course.
type Second struct {
	Seconds  float64 `json:"seconds"`
	Requests int64   `json:"requests"` // so far
	Resident int64   `json:"resident,omitempty"`
}

func newReport(s *settings) *Report {
	return &Report{Tool: "smss bench " + s.Mode, Date: time.Now().UTC().Truncate(time.Second), Parameters: s, Machine: thisMachine()}
}

func thisMachine() Machine {
	m := Machine{GoVersion: runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH,
		GOMAXPROCS: runtime.GOMAXPROCS(0), Cores: runtime.NumCPU()}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load = strings.Join(strings.Fields(string(b))[:3], " ")
	}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		_, rest, _ := strings.Cut(string(b), "model name")
		line, _, _ := strings.Cut(rest, "\n")
		m.CPU = strings.Trim(line, "\t :")
	}
	return m
}

// writeFile is called before the table is printed, so that figures which took
// long are not lost to a broken pipe.
func (r *Report) writeFile(name string) error {
	if name == "" {
		return nil
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(b, '\n'), 0o644)
}

// checkFile finds out before the run whether its result can be written.
func checkFile(name string) error {
	if name == "" {
		return nil
	}
	_, err := os.Stat(name)
	missing := os.IsNotExist(err)
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if missing {
		os.Remove(name) // nothing to leave behind should the run fail
	}
	return f.Close()
}

func latencyOf(h *hdrhistogram.Histogram) Latency {
	return Latency{Mean: h.Mean(), P50: h.ValueAtQuantile(50), P99: h.ValueAtQuantile(99), P999: h.ValueAtQuantile(99.9), Max: h.Max()}
}

func cpuOf(c cpuTime, requests int64) CPU {
	return CPU{Seconds: c.total.Seconds(), UserSeconds: c.user.Seconds(), SystemSeconds: c.system.Seconds(),
		MicrosPerRequest: float64(c.total.Nanoseconds()) / 1000 / float64(max(1, requests))}
}

// err is what a run with failed requests ends with, so that a script notices.
func (r *Result) err() error {
	if r.Failed == 0 {
		return nil
	}
	text, most := "", int64(0)
	for t, n := range r.Errors {
		if n > most || n == most && t < text {
			text, most = t, n
		}
	}
	return fmt.Errorf("%s: %d of %d requests failed, most often with: %s", r.Server, r.Failed, r.Requests+r.Failed, text)
}
