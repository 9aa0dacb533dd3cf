package bench

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// progress writes how far a run is, once a second: over the same line on a
// terminal, as lines otherwise.
type progress struct {
	w        io.Writer // nil: quiet
	terminal bool
	label    string
	unit     string // of what is done; "": nothing that is counted
	total    int64  // of these, or 0 where time decides
	duration time.Duration
	open     bool // a line on the terminal waits to be ended
}

func newProgress(out output, s *settings, label string) *progress {
	p := &progress{w: out.stderr, terminal: isTerminal(out.stderr), label: label, unit: "requests"}
	if s.quiet {
		p.w = nil
	}
	return p
}

const barWidth = 24

// show prints one line for the time since the run began.
func (p *progress) show(elapsed time.Duration, done int64, perSecond float64) {
	if p.w == nil {
		return
	}
	part := 0.0
	switch {
	case p.duration > 0:
		part = min(1, elapsed.Seconds()/p.duration.Seconds())
	case p.total > 0:
		part = min(1, float64(done)/float64(p.total))
	}
	line := fmt.Sprintf("%s: %3.0f %%  %s", p.label, 100*part, elapsed.Round(time.Second))
	if p.unit != "" {
		line += fmt.Sprintf("  %s %s  %s/s", count(done), p.unit, count(int64(perSecond)))
	}
	if !p.terminal {
		fmt.Fprintln(p.w, line)
		return
	}
	full := int(part * barWidth)
	fmt.Fprintf(p.w, "\r[%s%s] %s\x1b[K", strings.Repeat("#", full), strings.Repeat(".", barWidth-full), line)
	p.open = true
}

// say prints a line of text.
func (p *progress) say(text string) {
	if p.w == nil {
		return
	}
	if p.terminal {
		fmt.Fprintf(p.w, "\r%s: %s\x1b[K", p.label, text)
		p.open = true
		return
	}
	fmt.Fprintf(p.w, "%s: %s\n", p.label, text)
}

// end leaves the terminal's line.
func (p *progress) end() {
	if p.open {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.open = false
	}
}
