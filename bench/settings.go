package bench

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"smss/codec"
)

// settings are the parameters of a run. They are part of the JSON, so that a
// file says by itself how to repeat it; places on the machine are not, so that
// a file says nothing about where it was made.
type settings struct {
	Mode        string   `json:"mode"`
	Addr        string   `json:"addr,omitempty"` // empty: start the server
	PID         int      `json:"pid,omitempty"`
	Server      program  `json:"server,omitzero"`  // empty: this binary
	Against     program  `json:"against,omitzero"` // the yardstick; empty: none
	Threads     int      `json:"threads,omitempty"`
	Requests    int      `json:"requestsPerConnection,omitempty"`
	Duration    duration `json:"duration,omitempty"`
	Warmup      duration `json:"warmup,omitempty"`
	Timeout     duration `json:"timeout,omitempty"`
	Size        int      `json:"size,omitempty"`
	Pipelines   []int    `json:"pipelines,omitempty"`
	Batch       int      `json:"batch,omitempty"`   // messages a request
	Batches     []int    `json:"batches,omitempty"` // of subscribers
	Topic       string   `json:"topic,omitempty"`
	Topics      int      `json:"topics,omitempty"`
	Loops       int      `json:"loops,omitempty"`
	BareLoops   int      `json:"bareLoops,omitempty"`
	Flush       int      `json:"flushLevel"`
	Levels      []int    `json:"levels,omitempty"`
	Set         setFlag  `json:"set,omitempty"`
	Rounds      int      `json:"rounds,omitempty"`
	Subscribers int      `json:"subscribers,omitempty"`
	Settle      duration `json:"settle,omitempty"`
	Rate        int      `json:"ratePerSecond,omitempty"`
	Messages    int      `json:"messages,omitempty"`
	Delays      int      `json:"delays,omitempty"`
	Forms       []string `json:"forms,omitempty"`
	Lead        duration `json:"lead,omitempty"`
	Gigabytes   float64  `json:"gigabytes,omitempty"`
	Seeks       int      `json:"seeks,omitempty"`
	Kills       int      `json:"kills,omitempty"`
	By          []string `json:"by,omitempty"`
	LargeSize   int      `json:"largeSize,omitempty"`
	MinAcks     []int    `json:"minAcks,omitempty"`
	// Ballast is what a server carries beside the load.
	BallastSubscribers int `json:"ballastSubscribers,omitempty"`
	BallastTopics      int `json:"ballastTopics,omitempty"`

	dir, json, html, out, host string
	command                    string // that repeats the run
	port                       int
	quiet, compare             bool
}

// duration is a time.Duration whose JSON is "2s" rather than nanoseconds.
type duration time.Duration

func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

func (d *duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = duration(v)
	return err
}

// program is a server's binary under a name for reports. Its text, which is
// what a report keeps, is the name alone.
type program struct{ name, path string }

// bareName is the program that stands for the bare server.
const bareName = "bare"

func (p program) MarshalText() ([]byte, error) { return []byte(p.name), nil }

// UnmarshalText reads NAME=PATH, or PATH, whose name is its last part.
func (p *program) UnmarshalText(b []byte) error {
	name, path, named := strings.Cut(string(b), "=")
	if !named {
		name, path = filepath.Base(name), name
	}
	if string(b) == "" {
		*p = program{}
		return nil
	}
	if name == "" || path == "" || strings.ContainsAny(name, "/ \t\n") {
		return errors.New("want PATH or NAME=PATH, the name without slashes and spaces")
	}
	*p = program{name, path}
	return nil
}

// usageError is a mistake in the command line: exit status 2.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, a ...any) error { return &usageError{fmt.Sprintf(format, a...)} }

// parse reads the flags of mode. It returns flag.ErrHelp after having written
// the mode's help to stdout.
func parse(m *mode, args []string, stdout io.Writer, env func(string) string) (*settings, error) {
	s := &settings{Mode: m.name}
	fs := flag.NewFlagSet("smss bench "+m.name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	m.flags(s, fs, env)
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		writeModeHelp(stdout, m, fs)
		return nil, err
	}
	if err != nil {
		return nil, usagef("%s", err)
	}
	if fs.NArg() > 0 {
		return nil, usagef("unexpected argument %q", fs.Arg(0))
	}
	s.command = s.repetition(fs)
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	s.defaults(given)
	all := map[string]bool{}
	fs.VisitAll(func(f *flag.Flag) { all[f.Name] = true })
	return s, s.check(given, all)
}

// repetition is the command line again, without what says where the run took
// place and where its results went.
func (s *settings) repetition(fs *flag.FlagSet) string {
	words := []string{"smss", "bench", s.Mode}
	fs.Visit(func(f *flag.Flag) {
		value := f.Value.String()
		switch f.Name {
		case "dir", "json", "html", "out", "quiet", "pid":
			return
		case "addr":
			value = "ADDRESS"
		case "server", "against":
			if value != bareName && value != "" {
				value += "=PATH"
			}
		case "set":
			for _, kv := range s.Set {
				words = append(words, "-set", kv)
			}
			return
		}
		if value == "true" {
			words = append(words, "-"+f.Name)
			return
		}
		words = append(words, "-"+f.Name, value)
	})
	return strings.Join(words, " ")
}

// defaults fills what depends on other flags.
func (s *settings) defaults(given map[string]bool) {
	if s.compare {
		s.Against = program{bareName, bareName}
	}
	if !given["by"] && s.retentionProblem() != "" {
		s.By = slices.DeleteFunc(slices.Clone(s.By), func(by string) bool { return by == byRetention })
	}
	several := s.Against.name != "" || s.Mode == "levels" || len(s.MinAcks) > 1
	if s.Rounds == 0 {
		s.Rounds = 1
		if several {
			s.Rounds = 5
		}
	}
	if s.Mode == "replica" && len(s.Pipelines) == 0 {
		s.Pipelines = []int{1}
	}
	if s.Mode != "pub" && s.Mode != "limit" && s.Mode != "levels" {
		return
	}
	if len(s.Pipelines) == 0 {
		s.Pipelines = []int{1}
		if s.compare {
			s.Pipelines = []int{1, 16}
		}
	}
	// A count that lasts long enough for one server is over at once for the
	// other, so that a comparison goes by time.
	if several && !given["requests"] && !given["duration"] {
		s.Duration = duration(2 * time.Second)
	}
	if s.Duration > 0 {
		s.Requests = 0
		if !given["warmup"] {
			s.Warmup = duration(500 * time.Millisecond)
		}
	}
}

// check looks at what was given, and at the ranges of all flags that the mode
// has.
func (s *settings) check(given, has map[string]bool) error {
	if given["requests"] && given["duration"] {
		return usagef("-requests and -duration exclude each other")
	}
	if err := s.checkServer(given); err != nil {
		return err
	}
	if has["topic"] && !codec.ValidTopicName([]byte(s.Topic)) {
		return usagef("-topic %q is no valid topic name: 1 to %d bytes without space, control characters and slashes", s.Topic, codec.MaxTopicName)
	}
	if s.Duration < 0 || s.Warmup < 0 || s.Settle < 0 || s.Lead < 0 || has["timeout"] && s.Timeout <= 0 {
		return usagef("times must not be negative, and -timeout not 0s")
	}
	if err := checkRanges(s.bounds(), has); err != nil {
		return err
	}
	for _, check := range []func() error{s.checkMemory, s.checkNames, s.checkMode} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (s *settings) checkServer(given map[string]bool) error {
	if s.PID != 0 && s.Addr == "" {
		return usagef("-pid belongs to -addr: a server that bench starts is measured anyway")
	}
	if s.Addr != "" {
		for _, name := range []string{"flush", "set", "dir", "server", "levels"} {
			if given[name] {
				return usagef("-%s configures a started server; with -addr (or SMSS_ADDR) none is started", name)
			}
		}
		if s.Against.name != "" && s.Against.name != bareName {
			return usagef("-against starts a second server; beside -addr (or SMSS_ADDR) it can be the bare one alone")
		}
		if s.Mode == "limit" && !s.compare {
			return usagef("limit measures the bare server, which it starts itself: -addr (or SMSS_ADDR) belongs to -compare or to pub; -addr \"\" overrides SMSS_ADDR")
		}
		if needsProcess[s.Mode] {
			return usagef("%s has to start and stop the server: it does not go with -addr; -addr \"\" overrides SMSS_ADDR", s.Mode)
		}
	}
	if s.Against.name == bareName && !bareCan[s.Mode] {
		return usagef("-against bare: the bare server only answers publishes")
	}
	if s.Against.name != "" && s.Against.name == s.serverName() {
		return usagef("-against: both servers are called %q; name one of them with NAME=PATH", s.Against.name)
	}
	_, err := serverConfig(s, "data", 1)
	return err
}

var (
	// needsProcess are the modes that stop and start what they measure.
	needsProcess = map[string]bool{"levels": true, "restart": true, "topics": true, "replica": true}
	// bareCan are the modes that need no more than replies to publishes.
	bareCan = map[string]bool{"pub": true, "limit": true}
)

// serverName is what reports call the server that is measured.
func (s *settings) serverName() string {
	switch {
	case s.Addr != "":
		return s.Addr
	case s.Server.name != "":
		return s.Server.name
	}
	return "smss"
}

type bounds struct {
	name         string
	v, low, high int
}

// bounds are the ranges of all flags that hold numbers.
func (s *settings) bounds() []bounds {
	all := []bounds{
		{"flush", s.Flush, 0, 2}, {"pid", s.PID, 0, 1 << 30}, {"port", s.port, 1, 65535},
		{"rounds", s.Rounds, 1, 1000}, {"threads", s.Threads, 1, 100_000}, {"size", s.Size, 1, 1 << 29},
		{"topics", s.Topics, 1, 1_000_000}, {"loops", s.Loops, 1, 256}, {"bare-loops", s.BareLoops, 1, 256},
		{"with-subscribers", s.BallastSubscribers, 0, 1_000_000}, {"with-topics", s.BallastTopics, 0, 1_000_000},
		{"rate", s.Rate, 0, 10_000_000}, {"messages", s.Messages, 1, 1_000_000_000}, {"delays", s.Delays, 1, 100_000_000},
		{"seeks", s.Seeks, 1, 1_000_000}, {"kills", s.Kills, 1, 1000}, {"subscribers", s.Subscribers, 0, 1_000_000}, {"large-size", s.LargeSize, 1, 1 << 29},
	}
	if s.Duration == 0 {
		all = append(all, bounds{"requests", s.Requests, 1, 1_000_000_000})
	}
	for _, k := range s.Pipelines {
		all = append(all, bounds{"pipeline", k, 1, 4096})
	}
	for _, n := range s.Batches {
		all = append(all, bounds{"batch", n, 1, codec.MaxBatch})
	}
	if s.Batches == nil {
		all = append(all, bounds{"batch", s.Batch, 1, 1_000_000}, bounds{"fill-batch", s.Batch, 1, 1_000_000})
	}
	for _, l := range s.Levels {
		all = append(all, bounds{"levels", l, 0, 2})
	}
	for _, n := range s.MinAcks {
		all = append(all, bounds{"min-acks", n, 0, 1})
	}
	return all
}

func checkRanges(all []bounds, has map[string]bool) error {
	for _, b := range all {
		if has[b.name] && (b.v < b.low || b.v > b.high) {
			return usagef("-%s %d is out of range: %d to %d", b.name, b.v, b.low, b.high)
		}
	}
	return nil
}

// maxRequestMemory bounds the prebuilt requests.
const maxRequestMemory = 1 << 30

func (s *settings) checkMemory() error {
	if need := int64(max(s.Size, s.LargeSize)) * int64(max(1, s.Batch)) * int64(max(1, s.Topics)+1); s.Mode != "topics" && need > maxRequestMemory {
		return usagef("-size times -batch times -topics is %d MiB of requests, at most %d are prebuilt", need>>20, maxRequestMemory>>20)
	}
	return nil
}

// checkNames makes sure that the names made from -topic are names as well.
func (s *settings) checkNames() error {
	const madeOf = 24 // what names get appended at most
	longest := topicName(s.Topic, max(1, s.Topics), max(1, s.Topics)-1)
	if len(s.Topic) > 0 && (len(longest) > codec.MaxTopicName || s.Mode != "pub" && len(longest) > codec.MaxTopicName-madeOf) {
		return usagef("-topic is too long to be a prefix: names have at most %d bytes", codec.MaxTopicName)
	}
	return nil
}

// checkMode is what a mode asks for beside ranges.
func (s *settings) checkMode() error {
	timed := s.Mode == "latency" || s.Mode == "fanout" || s.Mode == "delay" || s.Mode == "interference"
	switch {
	case timed && s.Size < stampSize:
		return usagef("-size %d is too small: messages carry a time of %d bytes", s.Size, stampSize)
	case (s.Mode == "latency" || s.Mode == "interference") && s.Rate == 0, s.Mode == "delay" && s.Rate == 0:
		return usagef("-rate 0 is out of range: 1 to 10000000")
	case (s.Mode == "sub" || s.Mode == "fanout" || s.Mode == "idle") && s.Subscribers == 0:
		return usagef("-subscribers 0 is out of range: 1 to 1000000")
	case (s.Mode == "latency" || s.Mode == "fanout" || s.Mode == "interference" || s.Mode == "replica") && s.Duration == 0:
		return usagef("-duration must not be 0s")
	case (s.Mode == "restart" || s.Mode == "seek" || s.Mode == "interference" || s.Mode == "replica") && (s.Gigabytes < 0.001 || s.Gigabytes > 10_000):
		return usagef("-gigabytes %g is out of range: 0.001 to 10000", s.Gigabytes)
	case len(s.MinAcks) > 1 && s.Against.name != "":
		return usagef("-against belongs to one -min-acks: several are measured alternately themselves")
	case slices.Contains(s.By, byRetention) && s.retentionProblem() != "":
		return usagef("-by retention: %s", s.retentionProblem())
	case (s.Mode == "fanout" || s.Mode == "replica") && len(s.Pipelines) > 1:
		return usagef("-pipeline takes one number in this mode")
	case s.Mode == "delay" && s.Lead > 0 && time.Duration(s.Lead) < time.Second:
		return usagef("-lead %s is out of range: the protocol has no delays under 1s", time.Duration(s.Lead))
	}
	if err := checkWords("-form", s.Forms, forms); err != nil {
		return err
	}
	return checkWords("-by", s.By, disturbances)
}

func checkWords(name string, given, allowed []string) error {
	for _, w := range given {
		found := false
		for _, a := range allowed {
			found = found || a == w
		}
		if !found {
			return usagef("%s %q is none of: %s", name, w, strings.Join(allowed, ", "))
		}
	}
	return nil
}
