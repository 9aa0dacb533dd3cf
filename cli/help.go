package cli

import (
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// usage is the command with its arguments.
func (c *command) usage() string {
	return strings.TrimSpace(c.name + " [flags] " + c.args)
}

// help prints the overview, or the help of the command or group that words
// name.
func help(words []string, stdout, stderr io.Writer) int {
	if len(words) == 0 {
		writeOverview(stdout)
		return exitDone
	}
	var found []*command
	for _, c := range commands() {
		if name := strings.Join(words, " "); c.name == name || strings.HasPrefix(c.name, name+" ") {
			found = append(found, c)
		}
	}
	if len(found) == 0 && words[0] == "help" {
		writeOverview(stdout)
		return exitDone
	}
	if len(found) == 0 {
		fmt.Fprintf(stderr, "smss help: unknown subcommand %q\n\n", strings.Join(words, " "))
		writeOverview(stderr)
		return exitUsage
	}
	for i, c := range found {
		if i > 0 {
			fmt.Fprintln(stdout)
		}
		c.writeHelp(stdout)
	}
	return exitDone
}

func writeOverview(w io.Writer) {
	fmt.Fprint(w, "usage: smss SUBCOMMAND [flags] [arguments]\n\nSubcommands:\n")
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, c := range commands() {
		fmt.Fprintf(table, "  %s\t%s\n", c.name, c.summary)
	}
	fmt.Fprintf(table, "  help SUBCOMMAND\t%s\n", "flags and examples of one of them")
	_ = table.Flush()
	fmt.Fprintf(w, "\nThose that talk to a server take -addr HOST:PORT (default SMSS_ADDR or %s) and -timeout TIME,\nthose about its role -admin HOST:PORT (default SMSS_ADMIN or %s).\nsmss without a subcommand starts the server.\n", defaultAddr, defaultAdminAddr)
}

func (c *command) writeHelp(w io.Writer) {
	fmt.Fprintf(w, "usage: smss %s\n\n%s\n", c.usage(), c.text)
	s := new(session)
	flags, _ := s.flags(c, func(string) string { return "" })
	fmt.Fprint(w, "\nFlags:\n")
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	flags.VisitAll(func(f *flag.Flag) {
		argument, usage := flag.UnquoteUsage(f)
		if f.DefValue != "" && f.DefValue != "0" && f.DefValue != "0s" {
			usage += fmt.Sprintf(" (default %s)", f.DefValue)
		}
		fmt.Fprintf(table, "  -%s\t%s\n", strings.TrimSpace(f.Name+" "+argument), usage)
	})
	_ = table.Flush()
	fmt.Fprint(w, "\nExamples:\n")
	for _, e := range c.examples {
		fmt.Fprintf(w, "  %s\n", e)
	}
}
