package bench

import (
	"context"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
)

// runCompare prints what has changed from one JSON file to another.
func runCompare(_ context.Context, args []string, out output) error {
	if len(args) > 0 && isHelp(args[0]) {
		toolNamed("compare").writeHelp(out.stdout)
		return flag.ErrHelp
	}
	if len(args) != 2 {
		return usagef("want two JSON files that smss bench wrote, the earlier first")
	}
	var reports [2]*Report
	for i, name := range args {
		r, err := readReport(name)
		if err != nil {
			return err
		}
		reports[i] = r
	}
	return compareReports(out.stdout, reports[0], reports[1], args[0], args[1])
}

// compareReports prints the ratios of b to a for each case and server that
// both have. Where both have one server alone, these are compared whatever
// they are called.
func compareReports(w io.Writer, a, b *Report, nameA, nameB string) error {
	before, after := grouped(a.Results), grouped(b.Results)
	single := len(serversOf(before)) == 1 && len(serversOf(after)) == 1
	fmt.Fprintf(w, "A %s, %s\nB %s, %s\n", filepath.Base(nameA), a.Date.Format("2006-01-02 15:04"), filepath.Base(nameB), b.Date.Format("2006-01-02 15:04"))
	if different := machineDifferences(&a.Machine, &b.Machine); different != "" {
		fmt.Fprintf(w, "not the same machine: %s; ratios of absolute figures say little\n", different)
	}
	found := false
	for _, g := range after {
		for _, f := range before {
			if f.name != g.name || f.server != g.server && !single {
				continue
			}
			found = true
			fmt.Fprintln(w)
			printChange(w, &f, &g)
		}
	}
	if !found {
		return fmt.Errorf("the files have no case in common: %s has %s; %s has %s", nameA, casesOf(before), nameB, casesOf(after))
	}
	return nil
}

func printChange(w io.Writer, a, b *group) {
	server := b.server
	if a.server != b.server {
		server = a.server + " → " + b.server
	}
	t := table{w, 34, 14}
	t.row(fmt.Sprintf("%s, %s", b.name, server), "A", "B", "ratio", "low", "high", "")
	before, after := a.summary(), b.summary()
	ratios := compareGroups(a, b).Ratios
	for _, key := range keysOf(before.medians(), after.medians()) {
		q := known(key)
		columns := []string{"", "", "", "", "", ""}
		if v, ok := before.Figures[key]; ok {
			columns[0] = q.format(v.Median)
		}
		if v, ok := after.Figures[key]; ok {
			columns[1] = q.format(v.Median)
		}
		if v, ok := ratios[key]; ok && q.better != neither {
			columns[2], columns[3], columns[4] = decimal(v.Median), decimal(v.Low), decimal(v.High)
			columns[5] = change(q.better, before.Figures[key], after.Figures[key])
		}
		t.row(q.label, columns...)
	}
	t.row("rounds", count(int64(before.Rounds)), count(int64(after.Rounds)))
}

// change says better or worse only where the rounds of A and of B do not
// overlap: anything else may be noise. One round has no spread to tell by.
func change(d direction, a, b Spread) string {
	if a.Low == a.High && b.Low == b.High {
		return ""
	}
	switch {
	case b.Low > a.High:
		return [...]string{"", "better", "worse"}[d]
	case b.High < a.Low:
		return [...]string{"", "worse", "better"}[d]
	}
	return ""
}

func machineDifferences(a, b *Machine) string {
	var all []string
	for _, d := range []struct{ what, a, b string }{
		{"CPU", a.CPU, b.CPU}, {"cores", fmt.Sprint(a.Cores), fmt.Sprint(b.Cores)},
		{"file system", a.FileSystem, b.FileSystem},
	} {
		if d.a != d.b {
			all = append(all, fmt.Sprintf("%s %q and %q", d.what, d.a, d.b))
		}
	}
	return strings.Join(all, ", ")
}

func serversOf(groups []group) []string {
	var all []string
	for _, g := range groups {
		if !slices.Contains(all, g.server) {
			all = append(all, g.server)
		}
	}
	return all
}

func casesOf(groups []group) string {
	var all []string
	for _, g := range groups {
		if text := g.name + " of " + g.server; !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return strings.Join(all, ", ")
}
