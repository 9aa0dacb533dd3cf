package bench

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// A chart is lines over two axes, as SVG. Plot libraries were weighed: those
// in Go bring fonts and image codecs into a server's binary, the others load
// scripts from elsewhere; three plots of lines need neither.
type chart struct {
	title, yLabel string
	lines         []line
	xTicks        []tick // nil: round numbers of seconds
	yFormat       func(float64) string
	yUnit         float64 // of which the y axis has round numbers; 0: 1
	logarithmic   bool    // the y axis
}

// line is one course. Lines of the same group have the same colour, and one
// entry in the legend.
type line struct {
	group  string
	points []point
}

type point struct{ x, y float64 }

// tick is a mark on an axis.
type tick struct {
	at   float64
	text string
}

const (
	chartWidth, chartHeight          = 640.0, 260.0
	marginLeft, marginRight          = 84.0, 28.0
	marginTop, marginBottom          = 34.0, 34.0
	plotWidth, plotHeight            = chartWidth - marginLeft - marginRight, chartHeight - marginTop - marginBottom
	legendStep, legendSwatch, ticksY = 150.0, 10.0, 5
)

var colours = []string{"#1f6fb4", "#d9641c", "#2e8b57", "#8a4fbf", "#b3342e", "#6b6b6b"}

// scale maps values of one axis to the unit interval.
type scale struct {
	low, high   float64
	logarithmic bool
}

func (s scale) of(v float64) float64 {
	if s.logarithmic {
		return (math.Log10(max(v, s.low)) - math.Log10(s.low)) / (math.Log10(s.high) - math.Log10(s.low))
	}
	return (v - s.low) / (s.high - s.low)
}

// svg draws the chart, or returns "" where no line has two points.
func (c *chart) svg() string {
	xs, ys, ok := c.scales()
	if !ok {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" role="img" font-family="sans-serif" font-size="11">`, chartWidth, chartHeight)
	fmt.Fprintf(&b, "\n<title>%s</title>\n", html.EscapeString(c.title))
	fmt.Fprintf(&b, `<text x="%g" y="14" font-size="13">%s</text>`+"\n", marginLeft, html.EscapeString(c.title+", "+c.yLabel))
	c.drawAxes(&b, xs, ys)
	groups := c.drawLines(&b, xs, ys)
	for i, g := range groups {
		x := marginLeft + float64(i)*legendStep
		fmt.Fprintf(&b, `<rect x="%g" y="20" width="%g" height="4" fill="%s"/><text x="%g" y="26">%s</text>`+"\n",
			x, legendSwatch, colours[i%len(colours)], x+legendSwatch+4, html.EscapeString(g))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (c *chart) scales() (xs, ys scale, ok bool) {
	xs, ys = scale{math.Inf(1), math.Inf(-1), false}, scale{math.Inf(1), math.Inf(-1), c.logarithmic}
	for _, l := range c.lines {
		ok = ok || len(l.points) > 1
		for _, p := range l.points {
			xs.low, xs.high = min(xs.low, p.x), max(xs.high, p.x)
			ys.low, ys.high = min(ys.low, p.y), max(ys.high, p.y)
		}
	}
	if !ok {
		return xs, ys, false
	}
	if c.logarithmic {
		ys.low = math.Pow(10, math.Floor(math.Log10(max(ys.low, 1))))
		ys.high = math.Pow(10, math.Ceil(math.Log10(max(ys.high, ys.low*10))))
	} else {
		unit := cmp.Or(c.yUnit, 1)
		ys.low, ys.high = 0, roundUp(max(ys.high/unit, 1e-9))*unit
	}
	if xs.high <= xs.low {
		xs.high = xs.low + 1
	}
	return xs, ys, true
}

// roundUp returns the next of 1, 2, 2.5, 5, 10 times a power of ten, so that
// five steps have short numbers.
func roundUp(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 2.5, 5} {
		if v <= m*power {
			return m * power
		}
	}
	return 10 * power
}

func (c *chart) drawAxes(b *strings.Builder, xs, ys scale) {
	for _, t := range c.yTicks(ys) {
		y := marginTop + plotHeight*(1-ys.of(t.at))
		fmt.Fprintf(b, `<path d="M%g %.1fh%g" stroke="#ddd"/><text x="%g" y="%.1f" text-anchor="end">%s</text>`+"\n",
			marginLeft, y, plotWidth, marginLeft-6, y+4, html.EscapeString(t.text))
	}
	ticks := c.xTicks
	if ticks == nil {
		step := roundUp((xs.high - xs.low) / 8)
		for v := math.Ceil(xs.low/step) * step; v <= xs.high+step/1e6; v += step {
			ticks = append(ticks, tick{v, fmt.Sprintf("%g s", math.Round(v*1e6)/1e6)})
		}
	}
	for _, t := range ticks {
		if t.at < xs.low || t.at > xs.high+1e-9 {
			continue
		}
		fmt.Fprintf(b, `<text x="%.1f" y="%g" text-anchor="middle">%s</text>`+"\n",
			marginLeft+plotWidth*xs.of(t.at), chartHeight-marginBottom+16, html.EscapeString(t.text))
	}
	fmt.Fprintf(b, `<path d="M%g %gv%gh%g" fill="none" stroke="#333"/>`+"\n", marginLeft, marginTop, plotHeight, plotWidth)
}

func (c *chart) yTicks(ys scale) []tick {
	var all []tick
	if c.logarithmic {
		for v := ys.low; v <= ys.high*1.001; v *= 10 {
			all = append(all, tick{v, c.yFormat(v)})
		}
		return all
	}
	for i := range ticksY + 1 {
		v := ys.high * float64(i) / ticksY
		all = append(all, tick{v, c.yFormat(v)})
	}
	return all
}

// drawLines returns the groups in the order of their colours.
func (c *chart) drawLines(b *strings.Builder, xs, ys scale) []string {
	var groups []string
	colour := map[string]string{}
	for _, l := range c.lines {
		if colour[l.group] == "" {
			colour[l.group] = colours[len(groups)%len(colours)]
			groups = append(groups, l.group)
		}
		var path strings.Builder
		for i, p := range l.points {
			command := "L"
			if i == 0 {
				command = "M"
			}
			fmt.Fprintf(&path, "%s%.1f %.1f", command, marginLeft+plotWidth*xs.of(p.x), marginTop+plotHeight*(1-ys.of(p.y)))
		}
		fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="1.3"/>`+"\n", path.String(), colour[l.group])
	}
	return groups
}

// courseCharts are the plots of one case over time: throughput, memory, and
// the lag of a slave where one had any.
func courseCharts(name string, results []Result) []chart {
	rate := chart{title: name, yLabel: "done per second", yFormat: short}
	memory := chart{title: name, yLabel: "server memory", yFormat: size, yUnit: mebibyte}
	lag := chart{title: name, yLabel: "slave's lag", yFormat: size, yUnit: 1 << 10}
	for _, r := range results {
		var rates, resident, behind []point
		lags := slices.ContainsFunc(r.Series, func(s Sample) bool { return s.Lag > 0 })
		for i, s := range r.Series {
			if i > 0 && s.Seconds > r.Series[i-1].Seconds {
				before := r.Series[i-1]
				rates = append(rates, point{s.Seconds, float64(s.Done-before.Done) / (s.Seconds - before.Seconds)})
			}
			if s.Resident > 0 {
				resident = append(resident, point{s.Seconds, float64(s.Resident)})
			}
			if lags {
				behind = append(behind, point{s.Seconds, float64(s.Lag)})
			}
		}
		rate.lines = append(rate.lines, line{r.Server, rates})
		memory.lines = append(memory.lines, line{r.Server, resident})
		lag.lines = append(lag.lines, line{r.Server, behind})
	}
	return []chart{rate, memory, lag}
}

// latencyCharts are the plots of one case's distributions. Their x axis grows
// with the number of nines, so that the tail has room.
func latencyCharts(name string, results []Result) []chart {
	nines := func(percentile float64) float64 { return -math.Log10(1 - min(percentile, 99.9995)/100) }
	var ticks []tick
	for _, p := range []float64{0, 50, 90, 99, 99.9, 99.99, 99.999} {
		ticks = append(ticks, tick{nines(p), fmt.Sprintf("%g %%", p)})
	}
	var all []chart
	at := map[string]int{}
	for _, r := range results {
		for _, d := range r.Latencies {
			i, ok := at[d.Name]
			if !ok {
				i = len(all)
				at[d.Name] = i
				all = append(all, chart{title: name, yLabel: d.Name + " latency by percentile", xTicks: ticks, yFormat: micros, logarithmic: true})
			}
			var points []point
			for _, q := range d.Values {
				points = append(points, point{nines(q.Percentile), float64(max(1, q.Micros))})
			}
			all[i].lines = append(all[i].lines, line{r.Server, points})
		}
	}
	return all
}

// short prints a large number in few characters.
func short(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%gM", math.Round(v/1e4)/100)
	case v >= 1e4:
		return fmt.Sprintf("%gk", math.Round(v/10)/100)
	}
	return fmt.Sprintf("%g", math.Round(v*100)/100)
}
