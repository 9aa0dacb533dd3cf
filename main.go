// Command smss is the small message server, and the tools that talk to it.
//
//	smss [-config FILE] [-role master]     runs the server
//	smss ping | topic | pub | sub          small clients
//	smss status | promote | demote |
//	     switchover | reseed               asks for and changes roles
//	smss verify | dump                     looks into a data directory
//	smss bench                             load generator
//	smss help                              what there is
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"smss/bench"
	"smss/cli"
	"smss/conf"
)

func main() {
	os.Exit(run(os.Args[1:]))
}

// run dispatches on the first argument. Without a subcommand it is the server.
func run(args []string) int {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		return serve(args)
	}
	switch name := args[0]; {
	case name == "bench":
		return bench.Run(args[1:], os.Stdout, os.Stderr, os.Getenv)
	case name == "version":
		fmt.Println("smss", version())
		return 0
	case name == "help" && len(args) == 1:
		fmt.Print(usage())
		return 0
	case name == "help" && args[1] == "server":
		fmt.Print(conf.Help())
		return 0
	case name == "help" || slices.Contains(cli.Names(), name):
		return cli.Run(args, os.Stdin, os.Stdout, os.Stderr, os.Getenv)
	default:
		fmt.Fprintf(os.Stderr, "smss: there is no subcommand %q\n\n%s", name, usage())
		return 2
	}
}

func usage() string {
	return `smss, the small message server

  smss [flags]            run the server; smss help server lists flags and settings
  smss ping               ask a server whether it is alive
  smss topic              create, delete, list and describe topics
  smss pub TOPIC MESSAGE  publish
  smss sub TOPIC          subscribe
  smss status             role, lag and health of a server
  smss promote            make a slave the master
  smss demote MASTER      make a server follow a master
  smss switchover [TO]    hand a master's role over to a slave
  smss reseed             copy a slave's master anew
  smss verify DATA_DIR    check a data directory, without changing anything
  smss dump DATA_DIR      print the records of a data directory
  smss bench              measure a server
  smss version            print the version
  smss help NAME          more about one of them, with examples
`
}

// release is set by the build of an image, which has no repository to read.
var release string

// version is the release, the module's version, or the commit that the binary was built
// from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	if release != "" {
		return release
	}
	if v == "" {
		v = "(devel)"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && !strings.Contains(v, s.Value[:min(12, len(s.Value))]) {
			v += " " + s.Value[:min(12, len(s.Value))]
		}
	}
	return v
}

// serve runs the server until it is told to stop.
func serve(args []string) int {
	cfg, err := conf.Load(args, os.Environ(), nil)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Print(conf.Help())
		return 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	log, closer, err := newLogger(cfg, os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "smss:", err)
		return 1
	}
	defer closer.Close()
	s := newServer(cfg, log)
	err = s.run()
	if errors.Is(err, errAgain) {
		err = startAgain()
	}
	if err != nil {
		log.Error().Err(err).Msg("smss ends")
		if cfg.Log.Path != "stdout" && cfg.Log.Path != "stderr" {
			fmt.Fprintln(os.Stderr, "smss:", err)
		}
		return 1
	}
	return 0
}
