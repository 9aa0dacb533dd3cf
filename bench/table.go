package bench

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// table prints rows of a label and right-aligned columns.
type table struct {
	w     io.Writer
	label int // width of the labels
	width int // of the columns
}

func (t table) row(label string, columns ...string) {
	line := "  " + pad(label, t.label, false)
	for _, c := range columns {
		line += "  " + pad(c, t.width, true)
	}
	fmt.Fprintln(t.w, strings.TrimRight(line, " "))
}

// pad counts characters, where package fmt counts bytes.
func pad(s string, width int, right bool) string {
	fill := strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s)))
	if right {
		return fill + s
	}
	return s + fill
}

func (m *Machine) print(w io.Writer) {
	fmt.Fprintf(w, "%s, GOMAXPROCS %d, %d cores", m.GoVersion, m.GOMAXPROCS, m.Cores)
	if m.FileSystem != "" {
		fmt.Fprintf(w, ", %s", m.FileSystem)
	}
	if m.Load != "" {
		fmt.Fprintf(w, ", load at start %s", m.Load)
	}
	fmt.Fprintln(w)
}

// print writes the tables of all cases.
func (r *Report) print(w io.Writer) {
	r.Machine.print(w)
	if r.Parameters.Addr == "" && r.Parameters.Mode != "levels" && r.Parameters.Mode != "limit" {
		fmt.Fprintf(w, "flush level %d\n", r.Parameters.Flush)
	}
	if r.Interrupted {
		fmt.Fprintln(w, "interrupted: figures up to then")
	}
	for _, name := range r.cases() {
		fmt.Fprintln(w)
		r.printCase(w, name)
	}
	r.printErrors(w)
	if len(r.Targets) > 0 {
		fmt.Fprintln(w)
		for _, v := range r.Targets {
			fmt.Fprintf(w, "  target %s: %s\n", v.Text, v.outcome())
		}
	}
}

// cases are the names of the cases that have summaries, in their order.
func (r *Report) cases() []string {
	var names []string
	for i := range r.Summaries {
		if name := r.Summaries[i].Case; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// ofCase returns what one table shows: a summary for each server, and the
// ratios between them.
func (r *Report) ofCase(name string) (sides []Summary, ratios []Comparison) {
	for _, s := range r.Summaries {
		if s.Case == name {
			sides = append(sides, s)
		}
	}
	for _, c := range r.Comparison {
		if c.Case == name {
			ratios = append(ratios, c)
		}
	}
	return sides, ratios
}

// printCase writes one table: a column for each server, and one for each
// ratio. Where there is one server and several rounds their spread is shown.
func (r *Report) printCase(w io.Writer, name string) {
	sides, ratios := r.ofCase(name)
	t := table{w, 34, 14}
	title := name
	if sides[0].Rounds > 1 {
		title = fmt.Sprintf("%s, medians of %d rounds", name, sides[0].Rounds)
	}
	var head []string
	var figures []Figures
	for _, s := range sides {
		head = append(head, s.Server)
		figures = append(figures, s.medians())
	}
	spread := len(sides) == 1 && sides[0].Rounds > 1
	if spread {
		head = append(head, "low", "high")
	}
	for _, c := range ratios {
		if len(ratios) > 1 {
			head = append(head, "÷ "+c.Base)
		} else {
			head = append(head, "ratio", "low", "high")
		}
	}
	t.row(title, head...)
	for _, key := range keysOf(figures...) {
		t.row(known(key).label, rowOf(key, sides, ratios, spread)...)
	}
}

func rowOf(key string, sides []Summary, ratios []Comparison, spread bool) []string {
	format := known(key).format
	var columns []string
	for _, s := range sides {
		v, ok := s.Figures[key]
		if !ok {
			columns = append(columns, "")
			continue
		}
		columns = append(columns, format(v.Median))
		if spread {
			columns = append(columns, format(v.Low), format(v.High))
		}
	}
	if known(key).better == neither {
		return columns
	}
	for _, c := range ratios {
		v, ok := c.Ratios[key]
		switch {
		case !ok:
			columns = append(columns, "")
		case len(ratios) > 1:
			columns = append(columns, decimal(v.Median))
		default:
			columns = append(columns, decimal(v.Median), decimal(v.Low), decimal(v.High))
		}
	}
	return columns
}

func (s *Summary) medians() Figures {
	f := Figures{}
	for key, v := range s.Figures {
		f[key] = v.Median
	}
	return f
}

// printErrors writes what failed, and where.
func (r *Report) printErrors(w io.Writer) {
	for _, one := range r.Results {
		for _, text := range slices.Sorted(maps.Keys(one.Errors)) {
			fmt.Fprintf(w, "  failed: %s, %s: %s × %s\n", one.Server, one.Case, count(one.Errors[text]), text)
		}
	}
}

// decimal prints three digits or so.
func decimal(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1000:
		return count(int64(math.Round(v)))
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// count groups digits by three.
func count(v int64) string {
	s := strconv.FormatInt(v, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
