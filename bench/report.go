package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"
)

// Report is what a JSON file holds: everything that is needed to repeat a run
// and to judge it.
type Report struct {
	Tool string `json:"tool"`
	// Command repeats the run; what names a place stands as PATH or ADDRESS.
	Command    string    `json:"command,omitempty"`
	Date       time.Time `json:"date"`
	Machine    Machine   `json:"machine"`
	Parameters *settings `json:"parameters"`
	// Interrupted says that the run was ended early; what it holds was
	// complete or is marked itself.
	Interrupted bool `json:"interrupted,omitempty"`
	// Base is the server that the ratios are to, where there are several.
	Base       string       `json:"base,omitempty"`
	Results    []Result     `json:"results"` // in the order in which they ran
	Summaries  []Summary    `json:"summaries,omitempty"`
	Comparison []Comparison `json:"comparison,omitempty"`
	Targets    []Verdict    `json:"targets,omitempty"`
}

// Machine is where a run took place. A load that is not near 0 when a run
// begins says that its absolute figures are shared with somebody.
type Machine struct {
	GoVersion  string `json:"goVersion"`
	Build      string `json:"build,omitempty"` // revision of this binary
	GOMAXPROCS int    `json:"gomaxprocs"`
	Cores      int    `json:"cores"`
	CPU        string `json:"cpu,omitempty"`
	Kernel     string `json:"kernel,omitempty"`
	FileSystem string `json:"fileSystem,omitempty"` // under the servers' data
	Load       string `json:"loadAverageAtStart,omitempty"`
}

// Result is one measured window: one case on one server in one round.
type Result struct {
	Case        string           `json:"case"`
	Server      string           `json:"server"`
	Round       int              `json:"round"`
	Interrupted bool             `json:"interrupted,omitempty"`
	Failed      int64            `json:"failed"`
	Errors      map[string]int64 `json:"errors,omitempty"`
	Figures     Figures          `json:"figures"`
	Latencies   []Distribution   `json:"latencies,omitempty"`
	Series      []Sample         `json:"series,omitempty"`
}

// Distribution is one histogram.
type Distribution struct {
	Name   string     `json:"name"`
	Values []Quantile `json:"values"`
}

// Quantile is the value below which a share of a histogram lies.
type Quantile struct {
	Percentile float64 `json:"percentile"`
	Micros     int64   `json:"micros"`
}

// Sample is one point of a window's course.
type Sample struct {
	Seconds  float64 `json:"seconds"`
	Done     int64   `json:"done"` // so far: requests, or messages delivered
	Resident int64   `json:"residentBytes,omitempty"`
	Lag      int64   `json:"lagBytes,omitempty"` // of the slave's binlog
}

func newReport(s *settings) *Report {
	return &Report{Tool: "smss bench " + s.Mode, Command: s.command, Date: time.Now().UTC().Truncate(time.Second), Parameters: s, Machine: thisMachine(s.dir)}
}

func thisMachine(dir string) Machine {
	m := Machine{GoVersion: runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH,
		GOMAXPROCS: runtime.GOMAXPROCS(0), Cores: runtime.NumCPU(), Build: revision()}
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
	if dir == "" {
		dir = os.TempDir()
	}
	m.FileSystem = fileSystem(dir)
	return m
}

// revision is the commit that this binary was built from, where that is known.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	text := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			text = s.Value[:min(12, len(s.Value))] + text
		case s.Key == "vcs.modified" && s.Value == "true":
			text += "+changes"
		}
	}
	return text
}

// fileSystem names the kind of file system that dir is on.
func fileSystem(dir string) string {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return ""
	}
	names := map[uint32]string{0xef53: "ext4", 0x58465342: "xfs", 0x9123683e: "btrfs", 0x01021994: "tmpfs",
		0x794c7630: "overlayfs", 0x2fc12fc1: "zfs", 0x6969: "nfs", 0xf2f52010: "f2fs", 0x65735546: "fuse"}
	if name := names[uint32(st.Type)]; name != "" {
		return name
	}
	return fmt.Sprintf("type %#x", uint32(st.Type))
}

// seal works out what follows from the results.
func (r *Report) seal() {
	r.Summaries = summarize(r.Results)
	r.Comparison = compareServers(r.Results, r.Base)
	r.Targets = judge([]*Report{r})
}

// write puts the report into every file that was asked for. It is called
// before the table is printed, so that figures which took long are not lost
// to a broken pipe.
func (r *Report) write(s *settings) error {
	for _, f := range s.files(r.Date) {
		var text []byte
		var err error
		if strings.HasSuffix(f, ".html") {
			text, err = pageOf(r)
		} else if text, err = json.MarshalIndent(r, "", "  "); err == nil {
			text = append(text, '\n')
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(f, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// files are the names to write to. Those that -out makes carry the parameters
// and the time.
func (s *settings) files(date time.Time) []string {
	var names []string
	if s.json != "" {
		names = append(names, s.json)
	}
	if s.html != "" {
		names = append(names, s.html)
	}
	if s.out != "" {
		stem := filepath.Join(s.out, strings.Join([]string{"smss", s.Mode, s.title(), date.Format("20060102T150405Z")}, "-"))
		names = append(names, stem+".json", stem+".html")
	}
	return names
}

// checkFiles finds out before the run whether its result can be written.
func (s *settings) checkFiles() error {
	if s.out != "" {
		if err := os.MkdirAll(s.out, 0o755); err != nil {
			return err
		}
	}
	for _, name := range s.files(time.Now()) {
		if err := checkFile(name); err != nil {
			return err
		}
	}
	return nil
}

func checkFile(name string) error {
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

// readReport reads a JSON file back.
func readReport(name string) (*Report, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	r := &Report{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%s is no report of smss bench: %w", name, err)
	}
	if r.Parameters == nil || len(r.Results) == 0 {
		return nil, fmt.Errorf("%s is no report of smss bench: it has no results", name)
	}
	return r, nil
}

// percentiles are the points of a distribution that a report keeps.
var percentiles = []float64{0, 10, 25, 50, 75, 90, 95, 97, 98, 99, 99.5, 99.9, 99.95, 99.99, 99.999, 100}

// addLatency puts a histogram into figures and distributions; an empty one is
// left out.
func (r *Result) addLatency(key, name string, h *hdrhistogram.Histogram) {
	if h.TotalCount() == 0 {
		return
	}
	r.Figures[key+"MeanMicros"] = h.Mean()
	r.Figures[key+"P50Micros"] = float64(h.ValueAtQuantile(50))
	r.Figures[key+"P99Micros"] = float64(h.ValueAtQuantile(99))
	r.Figures[key+"P999Micros"] = float64(h.ValueAtQuantile(99.9))
	r.Figures[key+"MaxMicros"] = float64(h.Max())
	d := Distribution{Name: name}
	for _, p := range percentiles {
		d.Values = append(d.Values, Quantile{p, h.ValueAtQuantile(p)})
	}
	r.Latencies = append(r.Latencies, d)
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
	return fmt.Errorf("%s, %s: %d failed, most often with: %s", r.Server, r.Case, r.Failed, text)
}
