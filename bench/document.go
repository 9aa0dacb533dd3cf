package bench

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// runDocument writes BENCHMARKS.md from JSON files.
func runDocument(_ context.Context, args []string, out output) error {
	fs := flag.NewFlagSet("smss bench report", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	target := fs.String("o", "BENCHMARKS.md", "`FILE` to write; - is the standard output")
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		t := toolNamed("report")
		t.writeHelp(out.stdout)
		fmt.Fprint(out.stdout, "\nFlags:\n")
		fs.SetOutput(out.stdout)
		fs.PrintDefaults()
		return err
	}
	if err != nil {
		return usagef("%s", err)
	}
	if fs.NArg() == 0 {
		return usagef("want JSON files that smss bench wrote, or directories of them; flags come first")
	}
	reports, err := readReports(fs.Args())
	if err != nil {
		return err
	}
	text := documentOf(reports)
	if *target == "-" {
		_, err = io.WriteString(out.stdout, text)
		return err
	}
	if err := os.WriteFile(*target, []byte(text), 0o644); err != nil {
		return err
	}
	fmt.Fprintf(out.stdout, "%s: %d runs\n", *target, len(reports))
	return nil
}

// readReports reads files, and the JSON files of directories, oldest first.
func readReports(names []string) ([]*Report, error) {
	var files []string
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			files = append(files, name)
			continue
		}
		inside, err := filepath.Glob(filepath.Join(name, "*.json"))
		if err != nil || len(inside) == 0 {
			return nil, errors.Join(err, fmt.Errorf("%s holds no JSON file", name))
		}
		files = append(files, inside...)
	}
	var all []*Report
	for _, name := range files {
		r, err := readReport(name)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	slices.SortStableFunc(all, func(a, b *Report) int { return a.Date.Compare(b.Date) })
	return all, nil
}

const documentHead = `# Benchmarks

Written by ` + "`smss bench report`" + ` from the JSON files of runs; not by hand. Ratios are what counts: both sides were
measured alternately in one run, each time in a new process on an empty data directory, so that whatever else the
machine did hit both. Absolute figures are this machine's. Figures are medians of the rounds, with the lowest and the
highest in brackets; the spread of a ratio is that of the rounds' own ratios.

To repeat all of it: ` + "`smss bench suite -full -existing PATH -out results && smss bench report results`" + `. Each section
names its own command; PATH stands for a binary.
`

// documentOf writes the document of the reports, oldest first. Of runs of the
// same command the latest counts.
func documentOf(reports []*Report) string {
	reports = latestOf(reports)
	var b strings.Builder
	b.WriteString(documentHead)
	writeMachines(&b, reports)
	writeTargets(&b, reports)
	for _, r := range reports {
		writeSection(&b, r)
	}
	return b.String()
}

func latestOf(reports []*Report) []*Report {
	var all []*Report
	for i, r := range reports {
		same := func(o *Report) bool { return o.Command == r.Command && r.Command != "" }
		if !slices.ContainsFunc(reports[i+1:], same) {
			all = append(all, r)
		}
	}
	return all
}

func writeMachines(b *strings.Builder, reports []*Report) {
	b.WriteString("\n## Machine\n\n")
	type key struct{ lines, build string }
	var order []key
	dates := map[key][]string{}
	for _, r := range reports {
		k := key{strings.Join(r.Machine.lines(), ", "), cmp.Or(r.Machine.Build, "unknown")}
		if dates[k] == nil {
			order = append(order, k)
		}
		if day := r.Date.Format("2006-01-02"); !slices.Contains(dates[k], day) {
			dates[k] = append(dates[k], day)
		}
	}
	for _, k := range order {
		fmt.Fprintf(b, "* %s; generator built from %s; %s. Server and generator share the cores.\n", k.lines, k.build, strings.Join(dates[k], ", "))
	}
}

func writeTargets(b *strings.Builder, reports []*Report) {
	b.WriteString("\n## Targets\n\n| target | measured | |\n|---|---|---|\n")
	verdicts := judge(reports)
	for _, v := range verdicts {
		word := "missed"
		if v.Met {
			word = "met"
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", v.Text, v.Shown, word)
	}
	for i := range bars {
		if !slices.ContainsFunc(verdicts, func(v Verdict) bool { return v.Text == bars[i].text }) {
			fmt.Fprintf(b, "| %s | | not measured |\n", bars[i].text)
		}
	}
}

// writeSection tells of one run.
func writeSection(b *strings.Builder, r *Report) {
	fmt.Fprintf(b, "\n## %s\n\n", heading(r))
	if r.Command != "" {
		fmt.Fprintf(b, "    %s\n\n", r.Command)
	}
	if r.Interrupted {
		b.WriteString("The run was interrupted; what is here was complete.\n\n")
	}
	for _, name := range r.cases() {
		writeCase(b, r, name)
	}
	writeBars(b, r)
	for _, one := range r.Results {
		if err := one.err(); err != nil {
			fmt.Fprintf(b, "Round %d failed in part: %s.\n\n", one.Round, strings.ReplaceAll(firstLine(err.Error()), "|", "/"))
		}
	}
	fmt.Fprintf(b, "What limits it: %s\n", limitOf(r))
}

func heading(r *Report) string {
	for _, m := range modes() {
		if m.name == r.Parameters.Mode {
			return strings.ToUpper(m.summary[:1]) + m.summary[1:]
		}
	}
	return r.Parameters.Mode
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// shownServer is what the document calls a server: an address says where it
// was, which is nobody's business.
func shownServer(r *Report, name string) string {
	if r.Parameters.Addr != "" && name == r.Parameters.Addr {
		return "server"
	}
	return name
}

func writeCase(b *strings.Builder, r *Report, name string) {
	sides, ratios := r.ofCase(name)
	fmt.Fprintf(b, "| %s, %s |", name, rounds(sides[0].Rounds))
	var figures []Figures
	for _, s := range sides {
		fmt.Fprintf(b, " %s |", shownServer(r, s.Server))
		figures = append(figures, s.medians())
	}
	for _, c := range ratios {
		fmt.Fprintf(b, " %s ÷ %s |", shownServer(r, c.Server), c.Base)
	}
	fmt.Fprintf(b, "\n|%s\n", strings.Repeat("---|", 1+len(sides)+len(ratios)))
	for _, key := range keysOf(figures...) {
		q := known(key)
		fmt.Fprintf(b, "| %s |", q.label)
		for _, s := range sides {
			v, ok := s.Figures[key]
			fmt.Fprintf(b, " %s |", spreadText(v, ok, q.format))
		}
		for _, c := range ratios {
			v, ok := c.Ratios[key]
			fmt.Fprintf(b, " %s |", spreadText(v, ok && q.better != neither, decimal))
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
}

func rounds(n int) string {
	if n == 1 {
		return "1 round"
	}
	return fmt.Sprintf("medians of %d", n)
}

func spreadText(v Spread, ok bool, format func(float64) string) string {
	switch {
	case !ok:
		return ""
	case format(v.Low) == format(v.High):
		return format(v.Median)
	}
	return fmt.Sprintf("%s (%s – %s)", format(v.Median), format(v.Low), format(v.High))
}

// headlines are the figures that stand for a run, the first that it has.
var headlines = []string{"endToEndP99Micros", keyDeliveryRate, "seekP99Micros", "aliveMillis", "bytesPerSubscriber", keyRequestRate, keyMessageRate, "publishP99Micros"}

const barLength = 40

// writeBars draws the headline of each case and server as text.
func writeBars(b *strings.Builder, r *Report) {
	key := headlineOf(r)
	if key == "" {
		return
	}
	q, most, width := known(key), 0.0, 0
	label := func(s *Summary) string { return s.Case + ", " + shownServer(r, s.Server) }
	for i := range r.Summaries {
		if v, ok := r.Summaries[i].Figures[key]; ok {
			most, width = max(most, v.Median), max(width, len([]rune(label(&r.Summaries[i]))))
		}
	}
	fmt.Fprintf(b, "```\n%s\n", q.label)
	for i := range r.Summaries {
		s := &r.Summaries[i]
		v, ok := s.Figures[key]
		if !ok {
			continue
		}
		n := 0
		if most > 0 {
			n = max(0, int(v.Median/most*barLength+0.5))
		}
		fmt.Fprintf(b, "%s %s %s\n", pad(label(s), width, false), pad(strings.Repeat("█", n), barLength, false), q.format(v.Median))
	}
	b.WriteString("```\n\n")
}

func headlineOf(r *Report) string {
	for _, key := range headlines {
		for _, s := range r.Summaries {
			if _, ok := s.Figures[key]; ok {
				return key
			}
		}
	}
	return ""
}

// limits says for each mode what its figures are made of.
var limits = map[string]string{
	"pub":          "a request costs one read, its share of a batch's writes and one write of replies; the kernel's part in sockets is most of it.",
	"limit":        "the bare server does the reads and writes of the sockets and nothing else; what smss adds is the copy into the batch, the writer's part and the files.",
	"levels":       "at level 2 a batch waits for one sync of the binlog: the disk's sync time, shared by all connections that wait.",
	"sub":          "one push is outstanding: with small batches the round trip, with large ones copying to the socket.",
	"latency":      "the wake-ups on the way (generator, event loop, writer, event loop, generator) and whatever else runs on the cores; the generator's own lateness is told apart as \"sent late by\".",
	"fanout":       "each delivery is a write and an ack of its own; batches share them. The publisher waits its turn behind the pushes.",
	"idle":         "what a session keeps, and the timer's tick.",
	"delay":        "a pending delay is in the store; what is in memory are the store's tables and the window that fires. Lateness is half a tick and the way of a message.",
	"restart":      "reading and checking what lies behind the last checkpoint, and opening the store.",
	"seek":         "a search in the index, one read of the topic and one push.",
	"topics":       "the catalog's entries, and at the start the reading of each topic's end.",
	"interference": "the writer's batch that holds the large message, and the time the disk takes for it; retention reads a file's end, or all of a binlog's, before it goes, and syncs first.",
	"replica":      "the slave writes all that the master writes once more, on the same cores and the same disk; elsewhere it has its own. A reply that waits for a slave takes a way there and back and the slave's batch longer: at few requests in flight that is what limits. A new slave is limited by its own writer, and by the disk once the master's binlog is larger than the system's cache.",
}

// limitOf adds what the run itself shows: how much of the cores was used.
func limitOf(r *Report) string {
	text := limits[r.Parameters.Mode]
	var used []string
	cores := float64(r.Machine.GOMAXPROCS)
	for _, s := range r.Summaries {
		server, ok := s.Figures[keyServerCores]
		own, ok2 := s.Figures[keyOwnCores]
		if !ok || !ok2 {
			continue
		}
		slave, followed := s.Figures[keySlaveCores]
		state := "neither is at its limit: time goes into waiting"
		if followed {
			state = "none is at its limit: time goes into waiting"
		}
		switch {
		case server.Median+own.Median+slave.Median >= 0.9*cores:
			state = "the cores are full"
		case own.Median >= 0.9:
			state = "the generator may be the limit"
		case server.Median >= 0.9:
			state = "the server keeps about one core busy"
		case slave.Median >= 0.9:
			state = "the slave keeps about one core busy"
		}
		beside := ""
		if followed {
			beside = fmt.Sprintf("slave %s, ", decimal(slave.Median))
		}
		used = append(used, fmt.Sprintf("\n* %s, %s: server %s cores, %sgenerator %s of %g; %s",
			s.Case, shownServer(r, s.Server), decimal(server.Median), beside, decimal(own.Median), cores, state))
	}
	if len(used) > 0 {
		text += "\n" + strings.Join(used, "")
	}
	return strings.TrimSpace(text)
}
