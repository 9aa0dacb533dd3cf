package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

const (
	defaultAddr    = "127.0.0.1:12301"
	defaultPort    = "12301"
	defaultTimeout = 5 * time.Second

	defaultAdminAddr = "127.0.0.1:12302"
	defaultAdminPort = "12302"

	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// command is one subcommand. Its name has two words where it belongs to a
// group.
type command struct {
	name     string
	args     string // how the usage line names its arguments
	summary  string // one line
	text     string // what the summary leaves open
	examples []string
	// define declares the command's own flags and returns what runs it.
	define func(*flag.FlagSet) runFunc
	// offline commands read a data directory and take no address.
	offline bool
	// admin commands talk to the admin listener.
	admin bool
	// patience is the default of -timeout, 0 = defaultTimeout.
	patience time.Duration
	// interruptible commands end by themselves at Ctrl-C and SIGTERM.
	interruptible bool
}

type runFunc func(s *session, args []string) error

// session is one run of one command.
type session struct {
	ctx     context.Context
	in      io.Reader
	out     io.Writer
	errOut  io.Writer
	addr    string
	timeout time.Duration
}

// commands lists what there is, in the order of the overview.
func commands() []*command {
	return []*command{pingCommand, topicCreateCommand, topicDeleteCommand, topicListCommand, topicInfoCommand, pubCommand, subCommand,
		statusCommand, promoteCommand, demoteCommand, switchoverCommand, reseedCommand, verifyCommand, dumpCommand}
}

// Names returns the first words that Run understands.
func Names() []string {
	return []string{"ping", "topic", "pub", "sub", "status", "promote", "demote", "switchover", "reseed", "verify", "dump", "help"}
}

// Run runs one command line, without the program's name, and returns the exit
// code. env looks up environment variables. It may be called from any
// goroutine; subscribing takes over SIGINT and SIGTERM while it runs.
func Run(args []string, stdin io.Reader, stdout, stderr io.Writer, env func(string) string) int {
	return run(context.Background(), args, stdin, stdout, stderr, env)
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, env func(string) string) int {
	if len(args) == 0 {
		writeOverview(stderr)
		return exitUsage
	}
	if args[0] == "help" || args[0] == "-h" || args[0] == "-help" || args[0] == "--help" {
		return help(args[1:], stdout, stderr)
	}
	c, rest, problem := find(args)
	if c == nil {
		if helpAsked(rest) {
			return help(args[:1], stdout, stderr)
		}
		fmt.Fprintf(stderr, "smss: %s\n\n", problem)
		writeOverview(stderr)
		return exitUsage
	}
	s := &session{ctx: ctx, in: stdin, out: stdout, errOut: stderr}
	err := s.start(c, rest, env)
	return s.report(c, err)
}

// find returns the command that args begin with and the rest of args, or what
// is wrong.
func find(args []string) (c *command, rest []string, problem string) {
	group := false
	for _, c := range commands() {
		words := strings.Fields(c.name)
		if args[0] != words[0] {
			continue
		}
		if len(words) == 1 {
			return c, args[1:], ""
		}
		if len(args) > 1 && args[1] == words[1] {
			return c, args[2:], ""
		}
		group = true
	}
	switch {
	case !group:
		return nil, args, fmt.Sprintf("unknown subcommand %q", args[0])
	case len(args) == 1:
		return nil, nil, fmt.Sprintf("%s needs a subcommand", args[0])
	}
	return nil, args[1:], fmt.Sprintf("unknown subcommand %q of %s", args[1], args[0])
}

func helpAsked(args []string) bool {
	return len(args) > 0 && (args[0] == "-h" || args[0] == "-help" || args[0] == "--help")
}

// start reads the flags of c and runs it.
func (s *session) start(c *command, args []string, env func(string) string) error {
	flags, runCommand := s.flags(c, env)
	positional, err := parse(flags, args)
	if err != nil {
		return err
	}
	if s.timeout <= 0 {
		return usagef("-timeout %v: it has to be more than 0", s.timeout)
	}
	option, port := "-addr", defaultPort
	if c.admin {
		option, port = "-admin", defaultAdminPort
	}
	if s.addr, err = withPort(option, s.addr, port); err != nil {
		return err
	}
	if c.interruptible {
		var stop context.CancelFunc
		s.ctx, stop = signal.NotifyContext(s.ctx, os.Interrupt, syscall.SIGTERM)
		defer stop()
		// A second signal ends the process in the usual way.
		defer context.AfterFunc(s.ctx, stop)()
	}
	return runCommand(s, positional)
}

// flags declares the flags of c, with those that all commands share.
func (s *session) flags(c *command, env func(string) string) (*flag.FlagSet, runFunc) {
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	if c.offline {
		s.addr, s.timeout = defaultAddr, defaultTimeout // not used
		return flags, c.define(flags)
	}
	patience := defaultTimeout
	if c.patience > 0 {
		patience = c.patience
	}
	if c.admin {
		addr := env("SMSS_ADMIN")
		if addr == "" {
			addr = defaultAdminAddr
		}
		flags.StringVar(&s.addr, "admin", addr, "`HOST:PORT` of the server's admin listener, before SMSS_ADMIN")
		flags.DurationVar(&s.timeout, "timeout", patience, "`TIME` to wait for the answer")
		return flags, c.define(flags)
	}
	addr := env("SMSS_ADDR")
	if addr == "" {
		addr = defaultAddr
	}
	flags.StringVar(&s.addr, "addr", addr, "`HOST:PORT` of the server, before SMSS_ADDR")
	flags.DurationVar(&s.timeout, "timeout", patience, "`TIME` to wait for connecting, and for each reply")
	return flags, c.define(flags)
}

// parse reads flags, which may stand before, between and behind the other
// arguments, and returns those. Nothing behind -- is a flag.
func parse(flags *flag.FlagSet, args []string) (positional []string, err error) {
	for {
		if err := flags.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, err
			}
			return nil, usageError(err.Error())
		}
		rest := flags.Args()
		if n := len(args) - len(rest); n > 0 && args[n-1] == "--" {
			return append(positional, rest...), nil
		}
		if len(rest) == 0 {
			return positional, nil
		}
		positional, args = append(positional, rest[0]), rest[1:]
	}
}

// withPort adds a port to the address of an option if it has none.
func withPort(option, addr, defaultPort string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
		if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
			host = host[1 : len(host)-1]
		}
		if _, err := netip.ParseAddr(host); err != nil && (host == "" || strings.ContainsAny(host, "[]:")) {
			return "", usagef("%s %q is not HOST:PORT", option, addr)
		}
	}
	if port == "" {
		port = defaultPort
	}
	return net.JoinHostPort(host, port), nil
}

// report tells how the command ended and returns the exit code.
func (s *session) report(c *command, err error) int {
	var usage usageError
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, flag.ErrHelp):
		return help(strings.Fields(c.name), s.out, s.errOut)
	case refusedHere(err):
		usage = usageError(s.reason(err))
		fallthrough
	case errors.As(err, &usage):
		fmt.Fprintf(s.errOut, "smss %s: %s\nusage: smss %s\nSee smss help %s.\n", c.name, printable(string(usage)), c.usage(), c.name)
		return exitUsage
	}
	fmt.Fprintf(s.errOut, "smss %s: %s\n", c.name, printable(s.reason(err)))
	return exitFailed
}
