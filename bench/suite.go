package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// step is one run of the suite: a mode with its flags, the short form and
// what the long form has instead.
type step struct {
	name, line, full string
	existing         bool // measured against the existing server where there is one
	rounds           bool // takes -rounds; otherwise it has rounds of its own
}

// steps is the table of targets as runs. The long form has the sizes that the
// targets are for.
var steps = []step{
	{"publish", "limit -compare -pipeline 1,16 -duration 2s", "limit -compare -pipeline 1,16 -duration 5s", false, true},
	{"levels", "levels -duration 2s", "levels -duration 5s", false, true},
	{"one", "pub -threads 1 -duration 2s", "pub -threads 1 -duration 10s", true, true},
	{"batches", "pub -threads 16 -batch 100 -duration 2s", "pub -threads 16 -batch 100 -duration 5s", true, true},
	{"full-speed", "pub -threads 256 -duration 2s", "pub -threads 256 -duration 10s", true, true},
	{"drain", "sub -messages 200000 -duration 2s", "sub -messages 2000000 -duration 5s", true, true},
	{"fanout", "fanout -duration 2s", "fanout -duration 10s", true, true},
	{"latency", "latency -rate 1000 -duration 3s", "latency -rate 1000 -duration 30s", true, true},
	{"memory", "latency -rate 3000 -threads 16 -subscribers 0 -duration 3s", "latency -rate 3000 -threads 16 -subscribers 0 -duration 60s", true, true},
	{"idle", "idle -subscribers 10000 -duration 5s", "idle -subscribers 10000 -duration 35s", true, true},
	{"with-subscribers", "pub -with-subscribers 10000 -duration 2s", "pub -with-subscribers 10000 -duration 5s", false, true},
	{"with-topics", "pub -with-topics 2000 -duration 2s", "pub -with-topics 2000 -duration 5s", false, true},
	{"store", "restart -gigabytes 1", "restart -gigabytes 10 -seeks 1000", false, false},
	{"delay", "delay -delays 50000 -duration 5s", "delay -delays 1000000 -duration 30s", false, true},
	{"topics", "topics -topics 2000", "topics -topics 20000", false, true},
	{"interference", "interference -duration 4s", "interference -duration 10s", false, true},
	{"replica", "replica -duration 2s -gigabytes 0.2", "replica -duration 10s -gigabytes 5", false, true},
}

// suiteSettings are the flags of the suite.
type suiteSettings struct {
	out, dir, only, skip string
	existing, server     program
	full, list, quiet    bool
	rounds               int
}

func parseSuite(args []string, stdout io.Writer) (*suiteSettings, error) {
	s := &suiteSettings{}
	fs := flag.NewFlagSet("smss bench suite", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	fs.StringVar(&s.out, "out", "", "`DIRECTORY` for a JSON file and a page of each run; must be given")
	fs.BoolVar(&s.full, "full", false, "the sizes that the targets are for: hours and 30 GB, instead of minutes and 4 GB")
	fs.TextVar(&s.existing, "existing", program{}, "binary `PATH` of the existing server, for the targets that are ratios to it")
	fs.TextVar(&s.server, "server", program{}, "measure the server `[NAME=]PATH` instead of this binary")
	fs.IntVar(&s.rounds, "rounds", 5, "rounds of each run, whose medians count")
	fs.StringVar(&s.only, "only", "", "run these steps alone, a `LIST` of names")
	fs.StringVar(&s.skip, "skip", "", "leave these steps out, a `LIST` of names")
	fs.BoolVar(&s.list, "list", false, "print the commands and run nothing")
	fs.StringVar(&s.dir, "dir", "", "`DIRECTORY` to make the servers' temporary directories in (default: the system's)")
	fs.BoolVar(&s.quiet, "quiet", false, "no progress on stderr")
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		t := toolNamed("suite")
		t.writeHelp(stdout)
		fmt.Fprintf(stdout, "\nSteps: %s\n\nFlags:\n", strings.Join(stepNames(), ", "))
		fs.SetOutput(stdout)
		fs.PrintDefaults()
		return nil, err
	}
	if err != nil {
		return nil, usagef("%s", err)
	}
	if s.existing.name != "" {
		s.existing.name = existingName
	}
	switch {
	case fs.NArg() > 0:
		return nil, usagef("unexpected argument %q", fs.Arg(0))
	case s.out == "" && !s.list:
		return nil, usagef("-out DIRECTORY must be given")
	case s.rounds < 1 || s.rounds > 1000:
		return nil, usagef("-rounds %d is out of range: 1 to 1000", s.rounds)
	case s.only != "" && s.skip != "":
		return nil, usagef("-only and -skip exclude each other")
	}
	for flagName, list := range map[string]string{"-only": s.only, "-skip": s.skip} {
		if list != "" {
			if err := checkWords(flagName, strings.Split(list, ","), stepNames()); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

func stepNames() []string {
	var all []string
	for _, st := range steps {
		all = append(all, st.name)
	}
	return all
}

func (s *suiteSettings) selected() []step {
	in := func(list, name string) bool { return strings.Contains(","+list+",", ","+name+",") }
	var all []step
	for _, st := range steps {
		if s.only != "" && !in(s.only, st.name) || in(s.skip, st.name) {
			continue
		}
		all = append(all, st)
	}
	return all
}

// arguments are the command line of one step.
func (s *suiteSettings) arguments(st step) []string {
	line := st.line
	if s.full {
		line = st.full
	}
	args := strings.Fields(line)
	if st.rounds {
		args = append(args, "-rounds", strconv.Itoa(s.rounds))
	} else {
		args = append(args, "-kills", strconv.Itoa(s.rounds))
	}
	if s.server.name != "" {
		args = append(args, "-server", s.server.name+"="+s.server.path)
	}
	if st.existing && s.existing.name != "" {
		args = append(args, "-against", s.existing.name+"="+s.existing.path)
	}
	if s.dir != "" {
		args = append(args, "-dir", s.dir)
	}
	return args
}

// runSuite runs the steps one after the other. One that fails does not keep
// the others from running.
func runSuite(ctx context.Context, args []string, out output) error {
	s, err := parseSuite(args, out.stdout)
	if err != nil {
		return err
	}
	return s.run(ctx, s.selected(), out)
}

func (s *suiteSettings) run(ctx context.Context, all []step, out output) error {
	if s.list {
		for _, st := range all {
			fmt.Fprintf(out.stdout, "smss bench %s\n", strings.Join(s.arguments(st), " "))
		}
		return nil
	}
	if err := os.MkdirAll(s.out, 0o755); err != nil {
		return err
	}
	var failed []string
	for i, st := range all {
		line := s.arguments(st)
		fmt.Fprintf(out.stdout, "\n%d of %d, %s: smss bench %s\n", i+1, len(all), st.name, strings.Join(line, " "))
		line = append(line, "-out", s.out)
		if s.quiet {
			line = append(line, "-quiet")
		}
		// What SMSS_ADDR names is not what the suite measures.
		if run(ctx, line, out, func(string) string { return "" }) != 0 {
			failed = append(failed, st.name)
		}
		if ctx.Err() != nil {
			fmt.Fprintf(out.stdout, "\ninterrupted after %d of %d steps; smss bench report takes what there is\n", i+1, len(all))
			return nil
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d of %d steps failed: %s; what they measured is in their files", len(failed), len(all), strings.Join(failed, ", "))
	}
	return nil
}
