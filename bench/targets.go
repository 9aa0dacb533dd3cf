package bench

import (
	"slices"
	"strings"
)

// Verdict says how a figure did against one of the project's targets.
type Verdict struct {
	Text     string  `json:"text"`
	Measured float64 `json:"measured"`
	Shown    string  `json:"shown"`
	Met      bool    `json:"met"`
}

func (v *Verdict) outcome() string {
	if v.Met {
		return v.Shown + ", met"
	}
	return v.Shown + ", missed"
}

// bar is one target: a figure of a case, or its ratio to another server.
type bar struct {
	text   string
	mode   []string
	name   string // of the case
	server string // "": any that is not the base
	base   string // "": the figure itself; otherwise its ratio to this server, or to the case named behind ofCase
	key    string
	limit  float64
	least  bool // the limit is the lowest that meets it, not the highest
}

// existingName is what a run calls the existing server, for the targets that
// are ratios to it.
const existingName = "existing"

// ofCase begins the base of a target that is a ratio to another case on the
// same server, from whichever run has it.
const ofCase = "case:"

const (
	mebibyte    = 1 << 20
	millisecond = 1000 // in microseconds
)

// bars are the project's targets. They are for two cores that server and
// generator share; ratios hold elsewhere too.
var bars = []bar{
	{"publish, 256 connections: requests/s at least 0.85 of the bare server's", loads, "256c-1p-200b", "", bareName, keyRequestRate, 0.85, true},
	{"publish, 256 connections: server CPU a request at most 1.5 times the bare server's", loads, "256c-1p-200b", "", bareName, keyServerCPU, 1.5, false},
	{"publish, 256 connections, 16 in flight: requests/s at least 0.60 of the bare server's", loads, "256c-16p-200b", "", bareName, keyRequestRate, 0.6, true},
	{"publish at flush level 2: at least 0.5 of level 0", []string{"levels"}, "256c-1p-200b", "level 2", "level 0", keyRequestRate, 0.5, true},
	{"publish, one connection: p50 no worse than the existing server's", loads, "1c-1p-200b", "", existingName, "latencyP50Micros", 1, false},
	{"publish, one connection: p99 at most half of the existing server's", loads, "1c-1p-200b", "", existingName, "latencyP99Micros", 0.5, false},
	{"publish, 16 connections, 100 messages a request: 3 times the existing server's messages/s", loads, "16c-1p-100m-200b", "", existingName, keyMessageRate, 3, true},
	{"drain, batch 255: 3 times the existing server", []string{"sub"}, "drain-1s-255batch-200b", "", existingName, keyMessageRate, 3, true},
	{"drain, batch 16: 8 times the existing server", []string{"sub"}, "drain-1s-16batch-200b", "", existingName, keyMessageRate, 8, true},
	{"drain, batch 1: 8 times the existing server", []string{"sub"}, "drain-1s-1batch-200b", "", existingName, keyMessageRate, 8, true},
	{"fan-out to 100, batch 1: 10 times the existing server", []string{"fanout"}, "100s-1batch-200b", "", existingName, keyDeliveryRate, 10, true},
	{"fan-out to 100, batch 16: 10 times the existing server", []string{"fanout"}, "100s-16batch-200b", "", existingName, keyDeliveryRate, 10, true},
	{"fan-out to 100, batch 255: 10 times the existing server", []string{"fanout"}, "100s-255batch-200b", "", existingName, keyDeliveryRate, 10, true},
	{"fan-out to 100, batch 1: publisher's p99 under 3 ms", []string{"fanout"}, "100s-1batch-200b", "", "", "publishP99Micros", 3 * millisecond, false},
	{"fan-out to 100, batch 16: publisher's p99 under 3 ms", []string{"fanout"}, "100s-16batch-200b", "", "", "publishP99Micros", 3 * millisecond, false},
	{"fan-out to 100, batch 255: publisher's p99 under 3 ms", []string{"fanout"}, "100s-255batch-200b", "", "", "publishP99Micros", 3 * millisecond, false},
	{"end to end at 1,000/s: p50 at most half of the existing server's", []string{"latency"}, "1000ps-1c-1s-16batch-200b", "", existingName, "endToEndP50Micros", 0.5, false},
	{"end to end at 1,000/s: p99 at most half of the existing server's", []string{"latency"}, "1000ps-1c-1s-16batch-200b", "", existingName, "endToEndP99Micros", 0.5, false},
	{"10,000 idle subscribers: at most 2 KiB each", []string{"idle"}, "10000s", "", "", "bytesPerSubscriber", 2048, false},
	{"10,000 idle subscribers: 45 MiB in all", []string{"idle"}, "10000s", "", "", keyResidentEnd, 45 * mebibyte, false},
	{"10,000 idle subscribers: 1 % of a core", []string{"idle"}, "10000s", "", "", keyServerCores, 0.01, false},
	{"resident memory, idle: 20 MiB", []string{"idle"}, "10000s", "", "", keyResidentBefore, 20 * mebibyte, false},
	{"resident memory at 3,000 publishes/s: 35 MiB", []string{"latency"}, "3000ps-16c-0s-16batch-200b", "", "", keyResidentPeak, 35 * mebibyte, false},
	{"resident memory, 256 connections at full speed: 60 MiB", loads, "256c-1p-200b", "", "", keyResidentPeak, 60 * mebibyte, false},
	{"publish with 10,000 idle subscribers: at least 0.90 of the requests/s without", loads, "256c-1p-200b-with-10000-subscribers", "", ofCase + "256c-1p-200b", keyRequestRate, 0.9, true},
	{"publish with 2,000 other topics: at least 0.90 of the requests/s without", loads, "256c-1p-200b-with-2000-topics", "", ofCase + "256c-1p-200b", keyRequestRate, 0.9, true},
	{"subscribe at any event id of 10 GB: p99 under 5 ms", stores, "seek-10g-1000b", "", "", "seekP99Micros", 5 * millisecond, false},
	{"ready after a kill with 10 GB: under 2 s", stores, "ready-10g-1000b", "", "", "aliveMillis", 2000, false},
	{"1,000,000 pending delays: under 100 MiB", []string{"delay"}, "spread-1000000-1000ps-200b", "", "", keyResidentPeak, 100 * mebibyte, false},
	{"1,000 delays due a second: p99 lateness under 50 ms", []string{"delay"}, "spread-1000000-1000ps-200b", "", "", "latenessP99Micros", 50 * millisecond, false},
	{"1,000,000 delays due at once: 20,000/s", []string{"delay"}, "at-once-1000000-200b", "", "", keyDeliveryRate, 20_000, true},
	{"20,000 topics: under 100 MiB", []string{"topics"}, "20000t", "", "", keyResidentPeak, 100 * mebibyte, false},
	{"20,000 topics: ready in 3 s", []string{"topics"}, "20000t", "", "", "aliveMillis", 3000, false},
	{"20,000 topics: under 1,000 descriptors", []string{"topics"}, "20000t", "", "", "descriptors", 1000, false},
	{"with 8 MB messages beside: p99 of a small publish under 20 ms", []string{"interference"}, "large-8000000b-1000ps-16c-200b", "", "", "publishP99Micros", 20 * millisecond, false},
	{"with a topic of 1 GB deleted: p99 of a small publish under 20 ms", []string{"interference"}, "delete-1g-1000ps-16c-200b", "", "", "publishP99Micros", 20 * millisecond, false},
}

var (
	loads  = []string{"pub", "limit"}
	stores = []string{"restart", "seek"}
)

// judge holds reports against the targets that they have figures for. The
// latest report that has one decides.
func judge(reports []*Report) []Verdict {
	var all []Verdict
	for i := range bars {
		b := &bars[i]
		measured, ok := b.latest(reports)
		if !ok {
			continue
		}
		shown := decimal(measured)
		if b.base == "" {
			shown = known(b.key).format(measured)
		}
		met := measured <= b.limit
		if b.least {
			met = measured >= b.limit
		}
		all = append(all, Verdict{b.text, measured, shown, met})
	}
	return all
}

func (b *bar) latest(reports []*Report) (float64, bool) {
	name, cross := strings.CutPrefix(b.base, ofCase)
	if !cross {
		return b.find(reports, func(r *Report) (float64, bool) { return b.measured(r) })
	}
	v, ok := b.find(reports, func(r *Report) (float64, bool) { return b.median(r, b.name) })
	plain, ok2 := b.find(reports, func(r *Report) (float64, bool) { return b.median(r, name) })
	return v / max(plain, 1e-9), ok && ok2
}

func (b *bar) find(reports []*Report, in func(*Report) (float64, bool)) (float64, bool) {
	for _, r := range slices.Backward(reports) {
		if r.Parameters == nil || !slices.Contains(b.mode, r.Parameters.Mode) {
			continue
		}
		if v, ok := in(r); ok {
			return v, true
		}
	}
	return 0, false
}

// measured is the median, or the ratio of medians.
func (b *bar) measured(r *Report) (float64, bool) {
	if b.base == "" {
		return b.median(r, b.name)
	}
	for _, c := range r.Comparison {
		if v, ok := c.Ratios[b.key]; ok && c.Base == b.base && c.Case == b.name && b.fits(c.Server) {
			return v.Median, true
		}
	}
	return 0, false
}

func (b *bar) median(r *Report, name string) (float64, bool) {
	for _, s := range r.Summaries {
		if v, ok := s.Figures[b.key]; ok && s.Case == name && b.fits(s.Server) {
			return v.Median, true
		}
	}
	return 0, false
}

// fits leaves out the yardsticks.
func (b *bar) fits(server string) bool {
	return b.server == server || b.server == "" && server != bareName && server != existingName
}
