package bench

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"smss/codec"
)

// settings are the parameters of a run. They are part of the JSON, so that a
// file says by itself how to repeat it.
type settings struct {
	Mode        string   `json:"mode"`
	Addr        string   `json:"addr,omitempty"` // empty: start the server
	PID         int      `json:"pid,omitempty"`
	Threads     int      `json:"threads,omitempty"`
	Requests    int      `json:"requestsPerConnection,omitempty"`
	Duration    duration `json:"duration,omitempty"`
	Warmup      duration `json:"warmup,omitempty"`
	Timeout     duration `json:"timeout,omitempty"`
	Size        int      `json:"size,omitempty"`
	Pipelines   []int    `json:"pipelines,omitempty"` // more than one only in a comparison
	Batch       int      `json:"batch,omitempty"`
	Topic       string   `json:"topic,omitempty"`
	Topics      int      `json:"topics,omitempty"`
	Loops       int      `json:"loops,omitempty"`
	BareLoops   int      `json:"bareLoops,omitempty"`
	Flush       int      `json:"flushLevel"`
	Set         setFlag  `json:"set,omitempty"`
	Compare     bool     `json:"compare,omitempty"`
	Rounds      int      `json:"rounds,omitempty"`
	Subscribers int      `json:"subscribers,omitempty"`
	Settle      duration `json:"settle,omitempty"`

	dir, json, host string
	port            int
	quiet           bool
}

// duration is a time.Duration whose JSON is "2s" rather than nanoseconds.
type duration time.Duration

func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

func (d *duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = duration(v)
	return err
}

// usageError is a mistake in the command line: exit status 2.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, a ...any) error { return &usageError{fmt.Sprintf(format, a...)} }

// parse reads the flags of mode. It returns flag.ErrHelp after having written
// the mode's help to stdout.
func parse(mode string, args []string, stdout io.Writer, env func(string) string) (*settings, error) {
	s := &settings{Mode: mode}
	fs := flag.NewFlagSet("smss bench "+mode, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	switch mode {
	case "pub", "limit":
		s.loadFlags(fs, env)
	case "idle":
		s.idleFlags(fs, env)
	case "bare-server":
		s.bareFlags(fs)
	}
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		writeModeHelp(stdout, mode, fs)
		return nil, err
	}
	if err != nil {
		return nil, usagef("%s", err)
	}
	if fs.NArg() > 0 {
		return nil, usagef("unexpected argument %q", fs.Arg(0))
	}
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	s.defaults(given)
	return s, s.check(given)
}

func (s *settings) serverFlags(fs *flag.FlagSet, env func(string) string) {
	fs.StringVar(&s.Addr, "addr", env("SMSS_ADDR"), "measure the server at `HOST:PORT` instead of starting one (or SMSS_ADDR)")
	fs.IntVar(&s.PID, "pid", 0, "with -addr: process `ID` of that server, to report its CPU and memory")
	fs.IntVar(&s.Flush, "flush", 1, "store.flushLevel of the started server, `LEVEL` 0, 1 or 2")
	fs.Var(&s.Set, "set", "further configuration of the started server, `KEY=VALUE` with a dotted key; repeatable")
	fs.StringVar(&s.dir, "dir", "", "`DIRECTORY` to make the started server's temporary directory in (default: the system's)")
	fs.TextVar(&s.Timeout, "timeout", duration(30*time.Second), "give up when no reply comes for this `TIME`")
	fs.StringVar(&s.json, "json", "", "also write parameters and figures to `FILE`")
	fs.BoolVar(&s.quiet, "quiet", false, "no progress on stderr")
}

func (s *settings) loadFlags(fs *flag.FlagSet, env func(string) string) {
	s.serverFlags(fs, env)
	fs.IntVar(&s.Threads, "threads", 256, "connections")
	fs.IntVar(&s.Requests, "requests", 400, "requests per connection")
	fs.TextVar(&s.Duration, "duration", duration(0), "send for this `TIME` instead of -requests; a comparison sends for 2s unless told otherwise")
	fs.TextVar(&s.Warmup, "warmup", duration(0), "send unmeasured for this `TIME` first; 500ms with a duration unless told otherwise")
	fs.IntVar(&s.Size, "size", 200, "bytes of a message's body")
	fs.Var((*listFlag)(&s.Pipelines), "pipeline", "requests in flight per connection, `K` (default 1); a comparison takes a list (default 1,16)")
	fs.IntVar(&s.Batch, "batch", 1, "messages per request")
	fs.StringVar(&s.Topic, "topic", "bench", "topic `NAME`; created if missing")
	fs.IntVar(&s.Topics, "topics", 1, "spread over this many topics, -topic being the prefix of their names")
	fs.IntVar(&s.Loops, "loops", max(1, runtime.GOMAXPROCS(0)/2), "event loops of the generator")
	fs.IntVar(&s.BareLoops, "bare-loops", bareLoops(), "event loops of the bare server")
	name := "compare-limit"
	if s.Mode == "limit" {
		name = "compare"
	}
	fs.BoolVar(&s.Compare, name, false, "run bare and real server alternately and print medians and ratios")
	fs.IntVar(&s.Rounds, "rounds", 5, "rounds of a comparison")
}

func (s *settings) idleFlags(fs *flag.FlagSet, env func(string) string) {
	s.serverFlags(fs, env)
	fs.IntVar(&s.Subscribers, "subscribers", 10000, "quiet subscribers")
	fs.StringVar(&s.Topic, "topic", "bench-idle", "topic `NAME`; created if missing, should be empty")
	fs.TextVar(&s.Duration, "duration", duration(10*time.Second), "`TIME` over which the server's CPU is measured")
	fs.TextVar(&s.Settle, "settle", duration(2*time.Second), "`TIME` to wait before memory is read")
}

func (s *settings) bareFlags(fs *flag.FlagSet) {
	fs.StringVar(&s.host, "host", "127.0.0.1", "`ADDRESS` to listen on")
	fs.IntVar(&s.port, "port", 12301, "port to listen on")
	fs.IntVar(&s.BareLoops, "loops", bareLoops(), "event loops")
}

// defaults fills what depends on other flags.
func (s *settings) defaults(given map[string]bool) {
	if s.Mode != "pub" && s.Mode != "limit" {
		return
	}
	if len(s.Pipelines) == 0 {
		s.Pipelines = []int{1}
		if s.Compare {
			s.Pipelines = []int{1, 16}
		}
	}
	// A count that lasts long enough for one server is over at once for the
	// other, so that a comparison goes by time.
	if s.Compare && !given["requests"] && !given["duration"] {
		s.Duration = duration(2 * time.Second)
	}
	if s.Duration > 0 {
		s.Requests = 0
		if !given["warmup"] {
			s.Warmup = duration(500 * time.Millisecond)
		}
	}
}

func (s *settings) check(given map[string]bool) error {
	if given["requests"] && given["duration"] {
		return usagef("-requests and -duration exclude each other")
	}
	if s.Mode == "bare-server" {
		return checkRanges([]bounds{{"port", s.port, 1, 65535}, {"loops", s.BareLoops, 1, 256}})
	}
	if s.PID != 0 && s.Addr == "" {
		return usagef("-pid belongs to -addr: a server that bench starts is measured anyway")
	}
	if s.Addr != "" {
		for _, name := range []string{"flush", "set", "dir"} {
			if given[name] {
				return usagef("-%s configures a started server; with -addr (or SMSS_ADDR) none is started", name)
			}
		}
		if s.Mode == "limit" && !s.Compare {
			return usagef("limit measures the bare server, which it starts itself: -addr (or SMSS_ADDR) belongs to -compare or to pub; -addr \"\" overrides SMSS_ADDR")
		}
	}
	if !codec.ValidTopicName([]byte(s.Topic)) {
		return usagef("-topic %q is no valid topic name: 1 to %d bytes without space, control characters and slashes", s.Topic, codec.MaxTopicName)
	}
	if s.Duration < 0 || s.Warmup < 0 || s.Settle < 0 || s.Timeout <= 0 {
		return usagef("times must not be negative, and -timeout not 0s")
	}
	if _, err := serverConfig(s, "data", 1); err != nil {
		return err
	}
	all := []bounds{{"flush", s.Flush, 0, 2}, {"pid", s.PID, 0, 1 << 30}}
	if s.Mode == "idle" {
		return checkRanges(append(all, bounds{"subscribers", s.Subscribers, 1, 1_000_000}))
	}
	return s.checkLoad(all)
}

// maxRequestMemory bounds the prebuilt requests.
const maxRequestMemory = 1 << 30

func (s *settings) checkLoad(all []bounds) error {
	all = append(all, bounds{"threads", s.Threads, 1, 100_000}, bounds{"size", s.Size, 1, 1 << 29},
		bounds{"batch", s.Batch, 1, 1_000_000}, bounds{"topics", s.Topics, 1, 1_000_000},
		bounds{"loops", s.Loops, 1, 256}, bounds{"bare-loops", s.BareLoops, 1, 256}, bounds{"rounds", s.Rounds, 1, 1000})
	if s.Duration == 0 {
		all = append(all, bounds{"requests", s.Requests, 1, 1_000_000_000})
	}
	for _, k := range s.Pipelines {
		all = append(all, bounds{"pipeline", k, 1, 4096})
	}
	if err := checkRanges(all); err != nil {
		return err
	}
	if len(s.Pipelines) > 1 && !s.Compare {
		return usagef("-pipeline takes a list only in a comparison")
	}
	if need := int64(s.Size) * int64(s.Batch) * int64(s.Topics+1); need > maxRequestMemory {
		return usagef("-size times -batch times -topics is %d MiB of requests, at most %d are prebuilt", need>>20, maxRequestMemory>>20)
	}
	if s.Topics > 1 && len(topicName(s.Topic, s.Topics, s.Topics-1)) > codec.MaxTopicName {
		return usagef("-topic is too long to be a prefix: names have at most %d bytes", codec.MaxTopicName)
	}
	return nil
}

type bounds struct {
	name         string
	v, low, high int
}

func checkRanges(all []bounds) error {
	for _, b := range all {
		if b.v < b.low || b.v > b.high {
			return usagef("-%s %d is out of range: %d to %d", b.name, b.v, b.low, b.high)
		}
	}
	return nil
}

// setFlag collects -set KEY=VALUE in order.
type setFlag []string

func (f *setFlag) String() string { return strings.Join(*f, " ") }

func (f *setFlag) Set(v string) error {
	key, _, ok := strings.Cut(v, "=")
	if !ok || key == "" {
		return errors.New("want KEY=VALUE")
	}
	*f = append(*f, v)
	return nil
}

// listFlag is a list of numbers separated by commas.
type listFlag []int

func (f *listFlag) String() string { return "" }

func (f *listFlag) Set(v string) error {
	*f = nil
	for _, part := range strings.Split(v, ",") {
		var n int
		if _, err := fmt.Sscanf(part+"\n", "%d\n", &n); err != nil {
			return errors.New("want a number, or numbers separated by commas")
		}
		*f = append(*f, n)
	}
	return nil
}
