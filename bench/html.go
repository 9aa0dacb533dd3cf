package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"strings"
)

// The page of a report stands alone: figures, plots as inline SVG, and the
// parameters, without anything from elsewhere. It is written with package fmt
// because templates call methods by name, with which the linker can drop no
// method from the whole binary any more.

const pageHead = `<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>%[1]s</title>
<style>
body { font: 14px/1.45 sans-serif; margin: 24px auto; max-width: 1320px; padding: 0 16px; color: #222 }
pre { background: #f6f6f6; padding: 12px; overflow-x: auto; font-size: 12.5px }
.plots { display: flex; flex-wrap: wrap; gap: 12px } .plots svg { width: 640px; max-width: 100%% }
</style></head><body>
<h1>%[1]s</h1>
<p>%[2]s</p>
`

// pageOf writes a report as HTML.
func pageOf(r *Report) ([]byte, error) {
	var b bytes.Buffer
	title := r.Tool
	if r.Parameters != nil {
		title += " " + r.Parameters.title()
	}
	fmt.Fprintf(&b, pageHead, html.EscapeString(title), html.EscapeString(strings.Join(r.Machine.lines(), " · ")+" · "+r.Date.Format("2006-01-02 15:04 MST")))
	var text bytes.Buffer
	r.print(&text)
	fmt.Fprintf(&b, "<pre>%s</pre>\n", html.EscapeString(text.String()))
	var names []string
	byCase := map[string][]Result{}
	for _, one := range r.Results {
		if byCase[one.Case] == nil {
			names = append(names, one.Case)
		}
		byCase[one.Case] = append(byCase[one.Case], one)
	}
	for _, name := range names {
		fmt.Fprintf(&b, "<h2>%s</h2>\n<div class=\"plots\">\n", html.EscapeString(name))
		for _, c := range append(courseCharts(name, byCase[name]), latencyCharts(name, byCase[name])...) {
			b.WriteString(c.svg())
		}
		b.WriteString("</div>\n")
	}
	parameters, err := json.MarshalIndent(r.Parameters, "", "  ")
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(&b, "<h2>Parameters</h2>\n<pre>%s</pre>\n</body></html>\n", html.EscapeString(string(parameters)))
	return b.Bytes(), nil
}

// lines says what a run ran on.
func (m *Machine) lines() []string {
	var all []string
	for _, part := range []string{m.CPU, fmt.Sprintf("%d cores, GOMAXPROCS %d", m.Cores, m.GOMAXPROCS), m.Kernel, m.FileSystem, m.GoVersion} {
		if part != "" {
			all = append(all, part)
		}
	}
	return all
}
