package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"
)

// mode is one way to load a server.
type mode struct {
	name, summary string
	flags         func(*settings, *flag.FlagSet, func(string) string)
	run           func(ctx context.Context, s *settings, out output) error
	examples      string
}

// output is where a mode writes.
type output struct {
	stdout, stderr io.Writer
}

func modes() []mode {
	return []mode{
		{"pub", "publish over N connections and wait for each reply (default mode)", (*settings).loadFlags, runPub, `
  smss bench                                         start a server, 256 connections, 400 requests each
  smss bench -threads 256 -requests 100000 -size 200 the canonical run
  smss bench pub -duration 10s -pipeline 16          16 requests in flight on each connection
  smss bench pub -set limits.pipelineWindow=128      other settings of the started server
  smss bench pub -addr 127.0.0.1:12301 -pid 4711     a server that runs already, with its CPU and memory
  smss bench pub -against old=./smss-old             this server and another binary alternately, and the ratios
  smss bench pub -compare-limit -out results         against the bare server; JSON and a page with plots
`},
		{"limit", "the same load on the bare server: the ceiling of this machine", (*settings).loadFlags, runPub, `
  smss bench limit -duration 5s                      what the bare server does
  smss bench limit -compare                          bare and real alternately: 5 rounds at 1 and at 16 in flight
  smss bench limit -compare -pipeline 16 -rounds 9   one point, more rounds
`},
		{"levels", "the same load at flush levels 0, 1 and 2, alternately", (*settings).loadFlags, runPub, `
  smss bench levels                                  5 rounds, medians, ratios to level 0
  smss bench levels -levels 0,2 -rounds 9 -duration 5s
`},
		{"sub", "drain a full topic, at several batch sizes", (*settings).subFlags, runSub, `
  smss bench sub                                     1,000,000 messages, batch 1, 16 and 255, 5s each at most
  smss bench sub -batch 255 -subscribers 4 -duration 0s
`},
		{"latency", "publish at a fixed rate to waiting subscribers: times end to end", (*settings).latencyFlags, runStream, `
  smss bench latency -rate 1000 -duration 30s        an open loop: a stalled server shows as latency
  smss bench latency -rate 3000 -threads 16 -subscribers 0
`},
		{"fanout", "one publisher, many subscribers", (*settings).fanoutFlags, runStream, `
  smss bench fanout                                  100 subscribers, batch 1, 16 and 255
  smss bench fanout -batch 16 -rate 200              at a rate: also times end to end
`},
		{"idle", "quiet subscribers: memory per connection, CPU of doing nothing", (*settings).idleFlags, runIdle, `
  smss bench idle -subscribers 10000
  smss bench idle -subscribers 1000 -duration 35s    long enough for a heartbeat to each
`},
		{"delay", "pending delays: memory, firing rate, lateness", (*settings).delayFlags, runDelay, `
  smss bench delay -delays 1000000                   1,000 due a second, then all at once
  smss bench delay -delays 20000 -form at-once -lead 5s
`},
		{"restart", "kill a server with so many gigabytes under load; time until it answers again", (*settings).storeFlags, runStore, `
  smss bench restart -gigabytes 10                   also subscribes at random event ids
`},
		{"seek", "subscribe at random event ids of a large topic: time to the first message", (*settings).storeFlags, runStore, `
  smss bench seek -gigabytes 10 -seeks 1000
`},
		{"topics", "many topics: memory, descriptors, time to start", (*settings).topicsFlags, runTopics, `
  smss bench topics -topics 20000
`},
		{"interference", "small publishes while something large goes on", (*settings).interferenceFlags, runInterference, `
  smss bench interference                            alone, beside 8 MB messages, while a topic of 1 GB is deleted, while retention takes one
  smss bench interference -by none,large -rate 5000
`},
		{"replica", "a slave: its cost to a master under load, its lag, and how fast a new one catches up", (*settings).replicaFlags, runReplica, `
  smss bench replica                                 replies that wait for no slave and for one, alternately, and the ratios
  smss bench replica -min-acks 0 -gigabytes 10       one case; a new slave copies 10 GB
  smss bench replica -pipeline 16 -duration 30s -rounds 1 -html lag.html
  smss bench replica -min-acks 0 -against old=./smss-old
`},
	}
}

// Run is `smss bench ARGS`. It returns the exit status: 0 done (also after
// Ctrl-C), 1 something failed, 2 the command line is wrong.
func Run(args []string, stdout, stderr io.Writer, env func(string) string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// From the first signal on the default is back: a second one ends the
	// process where the first has to wait for something that hangs.
	context.AfterFunc(ctx, stop)
	return run(ctx, args, output{stdout, stderr}, env)
}

func run(ctx context.Context, args []string, out output, env func(string) string) int {
	name := "pub"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	} else if len(args) > 0 && isHelp(args[0]) {
		name = "help"
	}
	if name == "help" {
		writeHelp(out.stdout)
		return 0
	}
	for _, m := range append(modes(), bareMode) {
		if m.name == name {
			return m.status(m.execute(ctx, args, out, env), out)
		}
	}
	for _, t := range tools() {
		if t.name == name {
			return t.status(t.execute(ctx, args, out), out)
		}
	}
	fmt.Fprintf(out.stderr, "smss bench: no mode %q; smss bench -h lists them\n", name)
	return 2
}

// bareMode is for limit, which starts it: it is not in the help.
var bareMode = mode{"bare-server", "internal: the bare server that limit starts, in the foreground", (*settings).bareFlags, runBareServer, `
  smss bench bare-server -port 12399
`}

func (m *mode) execute(ctx context.Context, args []string, out output, env func(string) string) error {
	s, err := parse(m, args, out.stdout, env)
	if err != nil {
		return err
	}
	return m.run(ctx, s, out)
}

func (m *mode) status(err error, out output) int { return status(m.name, err, out) }

// status tells of an error and returns the exit status.
func status(name string, err error, out output) int {
	var usage *usageError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(out.stderr, "smss bench %s: %s; see smss bench %s -h\n", name, err, name)
		return 2
	}
	fmt.Fprintf(out.stderr, "smss bench %s: %s\n", name, err)
	return 1
}

func isHelp(arg string) bool { return arg == "-h" || arg == "-help" || arg == "--help" }

// tool is a subcommand that measures nothing itself, or runs other modes.
type tool struct {
	name, usage, summary, examples string
	run                            func(ctx context.Context, args []string, out output) error
}

func tools() []tool {
	return []tool{
		{"compare", "A.json B.json", "ratios between two results", `
  smss bench compare before.json after.json
`, runCompare},
		{"suite", "-out DIRECTORY [flags]", "the table of the project's targets, step by step", `
  smss bench suite -out results                      short: minutes
  smss bench suite -out results -full -existing ./smss-old
  smss bench suite -out results -only publish,drain -rounds 3
  smss bench suite -list                             what it would run
`, runSuite},
		{"report", "[-o FILE] FILE-OR-DIRECTORY...", "BENCHMARKS.md from JSON files", `
  smss bench report results                          writes BENCHMARKS.md
  smss bench report -o - results/*.json
`, runDocument},
	}
}

func toolNamed(name string) *tool {
	for _, t := range tools() {
		if t.name == name {
			return &t
		}
	}
	return nil
}

func (t *tool) execute(ctx context.Context, args []string, out output) error {
	return t.run(ctx, args, out)
}

func (t *tool) writeHelp(w io.Writer) {
	fmt.Fprintf(w, "smss bench %s %s: %s\n\nExamples:%s", t.name, t.usage, t.summary, t.examples)
}

func (t *tool) status(err error, out output) int { return status(t.name, err, out) }

func writeHelp(w io.Writer) {
	fmt.Fprint(w, "smss bench [MODE] [flags] measures a server of the smss protocol.\n\nModes:\n")
	for _, m := range modes() {
		fmt.Fprintf(w, "  %-12s %s\n", m.name, m.summary)
	}
	fmt.Fprint(w, "\nOn results:\n")
	for _, t := range tools() {
		fmt.Fprintf(w, "  %-12s %s\n", t.name, t.summary)
	}
	fmt.Fprint(w, "\nWithout -addr it starts the server itself: this binary, on a free port of\n"+
		"127.0.0.1, in a temporary directory that is removed afterwards.\n"+
		"Ctrl-C ends a run early and still prints what was measured.\n\nExamples:")
	for _, m := range modes() {
		fmt.Fprint(w, strings.TrimSuffix(m.examples, "\n"))
	}
	for _, t := range tools() {
		fmt.Fprint(w, strings.TrimSuffix(t.examples, "\n"))
	}
	fmt.Fprint(w, "\n\nsmss bench MODE -h tells a mode's flags.\n")
}

func writeModeHelp(w io.Writer, m *mode, fs *flag.FlagSet) {
	fmt.Fprintf(w, "smss bench %s: %s\n\nExamples:%s\nFlags:\n", m.name, m.summary, m.examples)
	fs.SetOutput(w)
	fs.PrintDefaults()
}
