package engine

import "smss/storage"

// Lag is how far a slave is behind. SinceMs is when the first event was
// written that it does not have, by the second, 0 where that is not known.
type Lag struct{ Events, Bytes, SinceMs int64 }

// mark says that at a time events up to lastID were written.
type mark struct{ atMs, lastID int64 }

// marksMax is how many marks are kept, one a second: what lies further back
// counts as old as the oldest.
const marksMax = 3600

// markTime keeps up with the clock, for the lags of slaves; janitor.
func (e *Engine) markTime() {
	if len(e.Replicas()) == 0 {
		return
	}
	var old []mark
	if p := e.marks.Load(); p != nil {
		old = *p
	}
	last := e.LastEventID()
	if n := len(old); n > 0 && old[n-1].lastID == last {
		return
	}
	if len(old) == marksMax {
		old = old[marksMax/2:]
	}
	// Whoever has the old list may go on reading it: what is appended lies
	// behind its end.
	marks := append(old, mark{e.clock.NowMs(), last})
	e.marks.Store(&marks)
}

// LagOf returns how far a slave is behind: what it has not acknowledged, or,
// where it does not do that, what was not sent. Any goroutine.
func (e *Engine) LagOf(r *Replica) Lag {
	held := r.Sent()
	if r.Extended {
		held = r.AckedID()
	}
	end, at := e.binlog.End(), storage.UnpackPos(r.at.Load())
	l := Lag{Events: max(0, e.LastEventID()-held), Bytes: end.Off - at.Off}
	l.Bytes += (end.File - at.File) * e.store.MaxLogSize()
	if l.Events == 0 {
		return Lag{}
	}
	if p := e.marks.Load(); p != nil {
		for _, m := range *p {
			if m.lastID > held {
				l.SinceMs = m.atMs
				break
			}
		}
	}
	return l
}

// MasterMs returns the latest time that a master has put into a record, Unix
// ms, 0 before there was one. Any goroutine.
func (e *Engine) MasterMs() int64 { return e.masterMs.Load() }
