package storage

import "fmt"

// LogReport is what Verify found in one log.
type LogReport struct {
	Log         string    `json:"log"`
	Records     int64     `json:"records"`
	Messages    int64     `json:"messages"` // event ids that the records take
	Unchecked   int64     `json:"withoutChecksum"`
	FirstID     int64     `json:"firstEventId"`
	LastID      int64     `json:"lastEventId"`
	FirstAtMs   int64     `json:"firstAtMs"`
	LastAtMs    int64     `json:"lastAtMs"`
	Damages     []Finding `json:"damages,omitempty"`
	TailBytes   int64     `json:"incompleteTailBytes,omitempty"`
	moreDamages int64
}

// Finding is one place that is not as it should be.
type Finding struct {
	Pos  Pos    `json:"position"`
	What string `json:"what"`
	// After and Before are the event ids of the whole records around it; 0
	// where there is none.
	After  int64 `json:"afterEventId,omitempty"`
	Before int64 `json:"beforeEventId,omitempty"`
}

// findingsMax is how many findings of a log are kept; further ones are counted.
const findingsMax = 1000

// More returns how many findings were counted and not kept.
func (r *LogReport) More() int64 { return r.moreDamages }

func (r *LogReport) add(f Finding) {
	if len(r.Damages) >= findingsMax {
		r.moreDamages++
		return
	}
	r.Damages = append(r.Damages, f)
}

// Verify reads every record of a log, checks its checksum, and that event ids
// grow. progress may be nil.
func (o *Offline) Verify(log LogName, progress func(done, total int64)) (*LogReport, error) {
	r := &LogReport{Log: log.String()}
	var damage []Pos
	last := int64(0) // id behind which the next must lie
	err := o.Walk(log, WalkStart{}, WalkSeen{
		Entry: func(e *Entry) error {
			n := e.IDs()
			if r.Records == 0 {
				r.FirstID, r.FirstAtMs = e.EventID, e.AtMs
			} else if e.EventID <= last {
				r.add(Finding{Pos: e.Pos, What: fmt.Sprintf("event id %d follows %d", e.EventID, last), After: last, Before: e.EventID})
			}
			r.Records++
			r.Messages += n
			if !e.Checksummed() {
				r.Unchecked++
			}
			last = max(last, e.EventID+n-1)
			r.LastID, r.LastAtMs = last, e.AtMs
			return nil
		},
		Damage: func(at Pos) { damage = append(damage, at) },
		Tail:   func(_ Pos, bytes int64) { r.TailBytes = bytes },
		File:   progress,
	})
	if err != nil {
		return nil, err
	}
	if len(damage) > 0 {
		err = o.locateDamage(log, damage, r)
	}
	return r, err
}

// locateDamage finds the event ids around each damaged place, by a second
// walk: the first reports a file's damage when it has passed the file.
func (o *Offline) locateDamage(log LogName, damage []Pos, r *LogReport) error {
	next, last := 0, int64(0)
	report := func(before int64) {
		r.add(Finding{Pos: damage[next], What: "damaged record", After: last, Before: before})
		next++
	}
	err := o.Walk(log, WalkStart{}, WalkSeen{Entry: func(e *Entry) error {
		for next < len(damage) && damage[next].Before(e.Pos) {
			report(e.EventID)
		}
		last = e.EventID + e.IDs() - 1
		return nil
	}})
	for next < len(damage) {
		report(0)
	}
	return err
}
