package conf

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// Setting is one value in force.
type Setting struct {
	Key    string
	Value  string // in a form the file accepts
	Source Source
}

// Effective lists every value in force, in the order of the reference.
func (c *Config) Effective() []Setting {
	var all []Setting
	for _, e := range table() {
		s := Setting{Key: e.key, Value: e.format(e.current(c)), Source: FromDefault}
		if o, ok := c.origins[e.key]; ok {
			s.Source = o.source
		} else if e.absent != "" && s.Value == "0" {
			s.Value = e.absent
		}
		all = append(all, s)
	}
	return all
}

// Row describes one setting for a person.
type Row struct {
	Key     string   // as in the file; see InFile
	InFile  bool     // false = flag and environment only
	Aliases []string // other spellings of the key
	Env     string   // environment variable
	Flag    string   // "" = none
	Default string   // "" = empty
	Unit    string   // "" = none
	Range   string   // with the unit
	Meaning string
}

// Reference describes every setting, in a fixed order.
func Reference() []Row {
	var rows []Row
	for _, e := range table() {
		def := e.def
		if def == "" {
			def = e.absent
		}
		rows = append(rows, Row{Key: e.key, InFile: !e.noFile, Aliases: e.aliases, Env: envName(e.key), Flag: e.flag,
			Default: def, Unit: e.unit, Range: e.allowed(), Meaning: e.meaning})
	}
	return rows
}

// Markdown is the reference as a table for the README.
func Markdown() string {
	var b strings.Builder
	b.WriteString("| key | environment | default | allowed | meaning |\n|---|---|---|---|---|\n")
	for _, r := range Reference() {
		key := "`" + r.Key + "`"
		if !r.InFile {
			key = "flag `-" + r.Flag + "`"
		}
		for _, alias := range r.Aliases {
			key += ", also `" + alias + "`"
		}
		def := r.Default
		if def == "" {
			def = "empty"
		}
		cells := []string{key, "`" + r.Env + "`", def, r.Range, r.Meaning}
		for i := range cells {
			cells[i] = strings.ReplaceAll(cells[i], "|", `\|`)
		}
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	return b.String()
}

// Help is the text for -help: flags, the search for the file, and every key.
func Help() string {
	var b strings.Builder
	b.WriteString("Usage: smss [flags]\n\nFlags:\n")
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "  -config PATH\tconfiguration file; else %s, else %s if it exists, else defaults only\n", envConfig, DefaultFile)
	for _, r := range Reference() {
		if r.Flag != "" {
			fmt.Fprintf(w, "  -%s\t%s (%s)\n", r.Flag, r.Meaning, withDefault(r))
		}
	}
	fmt.Fprintf(w, "  -help\tthis text\n")
	_ = w.Flush() // into memory: cannot fail
	b.WriteString("\nKeys of the file. A variable overrides its key: store.maxLogSize is " + envName("store.maxLogSize") +
		".\nSizes may be written with KiB, MiB or GiB.\n\n")
	for _, r := range Reference() {
		if r.InFile {
			fmt.Fprintf(w, "  %s\t%s\n  \t  %s\n", r.Key, withDefault(r), r.Meaning)
		}
	}
	_ = w.Flush()
	return b.String()
}

func withDefault(r Row) string {
	def := r.Default
	if def == "" {
		def = "empty"
	}
	return "default " + def + "; " + r.Range
}
