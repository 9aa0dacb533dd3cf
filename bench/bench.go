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
	run           func(ctx context.Context, s *settings, out output) error
	examples      string
}

// output is where a mode writes.
type output struct {
	stdout, stderr io.Writer
}

func modes() []mode {
	return []mode{
		{"pub", "publish over N connections and wait for each reply (default mode)", runPub, `
  smss bench                                         start a server, 256 connections, 400 requests each
  smss bench pub -duration 10s -pipeline 16          16 requests in flight on each connection
  smss bench pub -set limits.pipelineWindow=128      other settings of the started server
  smss bench pub -addr 127.0.0.1:12301 -pid 4711     a server that runs already, with its CPU and memory
  smss bench pub -compare-limit                      this server and the bare one alternately, and the ratios
`},
		{"limit", "the same load on the bare server: the ceiling of this machine", runLimit, `
  smss bench limit -duration 5s                      what the bare server does
  smss bench limit -compare                          bare and real alternately: 5 rounds at 1 and at 16 in flight
  smss bench limit -compare -pipeline 16 -rounds 9   one point, more rounds
`},
		{"idle", "quiet subscribers: memory per connection, CPU of doing nothing", runIdle, `
  smss bench idle -subscribers 10000
  smss bench idle -subscribers 1000 -duration 35s    long enough for a heartbeat to each
`},
		{"bare-server", "internal: the bare server that limit starts, in the foreground", runBareServer, `
  smss bench bare-server -port 12399
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
	for _, m := range modes() {
		if m.name == name {
			return runMode(ctx, m, args, out, env)
		}
	}
	fmt.Fprintf(out.stderr, "smss bench: no mode %q; smss bench -h lists them\n", name)
	return 2
}

func runMode(ctx context.Context, m mode, args []string, out output, env func(string) string) int {
	s, err := parse(m.name, args, out.stdout, env)
	if err == nil {
		err = m.run(ctx, s, out)
	}
	var usage *usageError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(out.stderr, "smss bench %s: %s; see smss bench %s -h\n", m.name, err, m.name)
		return 2
	}
	fmt.Fprintf(out.stderr, "smss bench %s: %s\n", m.name, err)
	return 1
}

func isHelp(arg string) bool { return arg == "-h" || arg == "-help" || arg == "--help" }

func writeHelp(w io.Writer) {
	fmt.Fprint(w, "smss bench [MODE] [flags] measures a server of the smss protocol.\n\nModes:\n")
	for _, m := range modes() {
		fmt.Fprintf(w, "  %-12s %s\n", m.name, m.summary)
	}
	fmt.Fprint(w, "\nWithout -addr it starts the server itself: this binary, on a free port of\n"+
		"127.0.0.1, in a temporary directory that is removed afterwards.\n"+
		"Ctrl-C ends a run early and still prints what was measured.\n\nExamples:")
	for _, m := range modes() {
		fmt.Fprint(w, strings.TrimSuffix(m.examples, "\n"))
	}
	fmt.Fprint(w, "\n\nsmss bench MODE -h tells a mode's flags.\n")
}

func writeModeHelp(w io.Writer, name string, fs *flag.FlagSet) {
	for _, m := range modes() {
		if m.name == name {
			fmt.Fprintf(w, "smss bench %s: %s\n\nExamples:%s\nFlags:\n", name, m.summary, m.examples)
		}
	}
	fs.SetOutput(w)
	fs.PrintDefaults()
}
