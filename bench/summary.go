package bench

import (
	"cmp"
	"slices"
)

// Summary is what all rounds of one case gave on one server.
type Summary struct {
	Case    string            `json:"case"`
	Server  string            `json:"server"`
	Rounds  int               `json:"rounds"`
	Figures map[string]Spread `json:"figures"`
}

// Spread is a median with the lowest and the highest of what it is of.
type Spread struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// Comparison is one case on two servers: ratios of Server to Base. The ratio
// is of medians; low and high are of the rounds' own ratios, whose two halves
// ran one after the other.
type Comparison struct {
	Case   string            `json:"case"`
	Base   string            `json:"base"`
	Server string            `json:"server"`
	Rounds int               `json:"rounds"`
	Ratios map[string]Spread `json:"ratios"`
}

// spreadOf takes the mean of the middle two where their number is even.
func spreadOf(values []float64) Spread {
	v := slices.Sorted(slices.Values(values))
	if len(v) == 0 {
		return Spread{}
	}
	return Spread{(v[(len(v)-1)/2] + v[len(v)/2]) / 2, v[0], v[len(v)-1]}
}

// group is the results of one case on one server, in the order of rounds.
type group struct {
	name, server string
	results      []Result
}

// grouped sorts results by case and server, in the order of their first
// appearance. Interrupted ones count only where there is nothing else.
func grouped(all []Result) []group {
	var groups []group
	for _, r := range all {
		i := slices.IndexFunc(groups, func(g group) bool { return g.name == r.Case && g.server == r.Server })
		if i < 0 {
			i = len(groups)
			groups = append(groups, group{name: r.Case, server: r.Server})
		}
		groups[i].results = append(groups[i].results, r)
	}
	for i := range groups {
		g := &groups[i]
		if complete := slices.DeleteFunc(slices.Clone(g.results), func(r Result) bool { return r.Interrupted }); len(complete) > 0 {
			g.results = complete
		}
	}
	slices.SortStableFunc(groups, func(a, b group) int {
		return cmp.Compare(firstOf(all, a.name), firstOf(all, b.name))
	})
	return groups
}

func firstOf(all []Result, name string) int {
	return slices.IndexFunc(all, func(r Result) bool { return r.Case == name })
}

func (g *group) values(key string) []float64 {
	var v []float64
	for i := range g.results {
		if x, ok := g.results[i].Figures[key]; ok {
			v = append(v, x)
		}
	}
	return v
}

func (g *group) keys() []string {
	var all []Figures
	for i := range g.results {
		all = append(all, g.results[i].Figures)
	}
	return keysOf(all...)
}

func (g *group) summary() Summary {
	s := Summary{g.name, g.server, len(g.results), map[string]Spread{}}
	for _, key := range g.keys() {
		s.Figures[key] = spreadOf(g.values(key))
	}
	return s
}

func summarize(all []Result) []Summary {
	var list []Summary
	for _, g := range grouped(all) {
		list = append(list, g.summary())
	}
	return list
}

// compareServers holds each case of every other server against base.
func compareServers(all []Result, base string) []Comparison {
	var list []Comparison
	groups := grouped(all)
	for _, g := range groups {
		for _, b := range groups {
			if b.server == base && g.server != base && b.name == g.name {
				list = append(list, compareGroups(&b, &g))
			}
		}
	}
	return list
}

// compareGroups pairs rounds as far as both sides have them.
func compareGroups(base, other *group) Comparison {
	c := Comparison{Case: other.name, Base: base.server, Server: other.server,
		Rounds: min(len(base.results), len(other.results)), Ratios: map[string]Spread{}}
	for _, key := range other.keys() {
		a, b := base.values(key), other.values(key)
		n := min(len(a), len(b))
		if n == 0 {
			continue
		}
		var each []float64
		for i := range n {
			if a[i] != 0 {
				each = append(each, b[i]/a[i])
			}
		}
		median := spreadOf(a[:n]).Median
		if median == 0 || len(each) == 0 {
			continue // there is no ratio to nothing
		}
		spread := spreadOf(each)
		spread.Median = spreadOf(b[:n]).Median / median
		c.Ratios[key] = spread
	}
	return c
}
