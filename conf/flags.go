package conf

import (
	"errors"
	"flag"
	"io"
)

// commandLine is what the flags say, still as text.
type commandLine struct {
	config      string
	configGiven bool
	values      map[string]string // by flag name; the last one of a repeated flag
	problems    []Problem
}

// parseFlags reads all flags, going on after a bad one so that all are reported.
// Its only error is flag.ErrHelp.
func parseFlags(args []string, entries []entry) (commandLine, error) {
	line := commandLine{values: make(map[string]string)}
	set := flag.NewFlagSet("smss", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.Func("config", "", func(text string) error {
		line.config, line.configGiven = text, true
		return nil
	})
	for _, e := range entries {
		if e.flag == "" {
			continue
		}
		set.Func(e.flag, "", func(text string) error {
			line.values[e.flag] = text // judged later, with the file and the environment
			return nil
		})
	}
	for rest := args; len(rest) > 0; {
		err := set.Parse(rest)
		rest = set.Args()
		switch {
		case errors.Is(err, flag.ErrHelp):
			return line, flag.ErrHelp
		case err != nil:
			line.problems = append(line.problems, Problem{Where: "command line", Text: err.Error() + "; -help lists the flags"})
		case len(rest) > 0:
			line.problems = append(line.problems, Problem{Where: "command line", Value: rest[0], Text: "is not a flag; nothing but flags is expected here"})
			rest = rest[1:]
		}
	}
	return line, nil
}

func (l *loader) readFlags(line commandLine) {
	for _, p := range line.problems {
		l.problems.add(p)
	}
	for i := range l.table {
		e := &l.table[i]
		if text, ok := line.values[e.flag]; ok {
			l.apply(e, text, origin{FromFlag, flagWhere(e.flag)}, true)
		}
	}
}

func flagWhere(name string) string { return "flag -" + name }
