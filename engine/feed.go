package engine

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"smss/codec"
	"smss/storage"
)

// Replica is the connection of one slave, on the master's side. Its event loop
// owns it, apart from what is marked otherwise.
type Replica struct {
	Waiter
	// All immutable:
	Remote   string
	Since    time.Time // when it asked
	Extended bool      // it is one of this project: it reports what it has applied
	Node     string    // what it calls itself, "" if it does not say
	Port     int       // where it takes connections itself, 0 if it does not say

	sent  atomic.Int64  // last event id that was handed to the socket
	acked atomic.Int64  // last event id that it has applied durably
	at    atomic.Uint64 // Pos, packed, for others than the loop

	order     Note         // to its loop: see Orders
	posted    atomic.Bool  // the note is in the loop's mailbox
	ordered   atomic.Bool  // it is to take over
	takeOver  atomic.Int64 // the event id that goes with it
	dismissed atomic.Bool  // its connection is to end
	told      atomic.Bool  // the order to take over has been handed to the socket; loop
	promoted  atomic.Bool  // it has answered that it is the master now
}

// ReplicasMax is how many slaves a server feeds at once at most.
const ReplicasMax = 64

// AddReplica makes a slave known that goes on behind the event id after, at
// r.Pos, or returns false where there are limit of them. Loop only.
func (e *Engine) AddReplica(r *Replica, after int64, limit int) bool {
	r.sent.Store(after)
	r.acked.Store(after)
	r.tail, r.order.Subject = &e.binlog, r
	r.at.Store(r.Pos.Pack())
	for i := range min(limit, ReplicasMax) {
		if e.replicas[i].CompareAndSwap(nil, r) {
			e.newsForReplies() // it may hold already what they wait for
			return true
		}
	}
	return false
}

// RemoveReplica forgets a slave. Loop only.
func (e *Engine) RemoveReplica(r *Replica) {
	r.Unpark()
	for i := range e.replicas {
		e.replicas[i].CompareAndSwap(r, nil)
	}
}

// newsForReplies wakes the writer if replies wait for slaves.
func (e *Engine) newsForReplies() {
	if e.cfg.MinAcks > 0 {
		e.ring.signal()
	}
}

// Replicas returns the slaves that are connected. Any goroutine.
func (e *Engine) Replicas() (out []*Replica) {
	for i := range e.replicas {
		if r := e.replicas[i].Load(); r != nil {
			out = append(out, r)
		}
	}
	return out
}

// More reports whether there are records that the slave does not have. Loop
// only.
func (r *Replica) More() bool { return r.Pos.Before(r.tail.End()) }

// Moved notes what was handed to the socket. Loop only.
func (r *Replica) Moved(p *storage.Push) {
	r.Pos = p.Next
	r.at.Store(p.Next.Pack())
	if p.LastID != 0 {
		r.sent.Store(p.LastID)
	}
}

// Acked notes that the slave has applied everything up to an event id, and
// lets replies go that waited for it. What it was not sent it cannot have: such
// a report is not believed. Loop only.
func (e *Engine) Acked(r *Replica, eventID int64) {
	if eventID > r.acked.Load() && eventID <= r.sent.Load() {
		r.acked.Store(eventID)
		e.newsForReplies()
	}
}

// Sent and AckedID return the last event id that was handed to the socket, and
// that the slave has applied durably. Any goroutine.
func (r *Replica) Sent() int64    { return r.sent.Load() }
func (r *Replica) AckedID() int64 { return r.acked.Load() }

// TakeOver tells the slave to become the master, after eventID, which it has
// acknowledged. Any goroutine.
func (r *Replica) TakeOver(eventID int64) {
	r.takeOver.Store(eventID)
	r.ordered.Store(true)
	r.post()
}

// Dismiss ends the slave's connection: it may come back, and is judged anew.
// Nothing that is written after the call reaches it, because both news of it and
// this come by the loop's mailbox. Any goroutine.
func (r *Replica) Dismiss() {
	r.dismissed.Store(true)
	r.post()
}

func (r *Replica) post() {
	if !r.posted.Swap(true) {
		r.Mailbox.Post(&r.order)
	}
}

// Orders returns what there is to do: end the connection, or tell the slave to
// take over behind eventID, once. Loop only.
func (r *Replica) Orders() (eventID int64, takeOver, dismissed bool) {
	r.posted.Store(false) // before the looks: what comes behind them posts again
	if takeOver = r.ordered.Swap(false); takeOver {
		r.told.Store(true)
	}
	return r.takeOver.Load(), takeOver, r.dismissed.Load()
}

// Told reports whether the slave may know that it is to take over. It is firm
// once the slave is not among Replicas any more. Any goroutine.
func (r *Replica) Told() bool { return r.told.Load() }

// Promoted notes that the slave has taken over; loop.
func (r *Replica) Promoted() { r.promoted.Store(true) }

// HasPromoted reports whether the slave has taken over. Any goroutine.
func (r *Replica) HasPromoted() bool { return r.promoted.Load() }

// oldestFed returns the first binlog file that a slave still reads, or file if
// none reads an earlier one.
func (e *Engine) oldestFed(file int64) int64 {
	for _, r := range e.Replicas() {
		file = min(file, storage.UnpackPos(r.at.Load()).File)
	}
	return file
}

// feedBytes is how much is read for a slave at once; one larger record comes
// alone. A slave gets that much for each round of its event loop, which under
// load serves hundreds of publishers in one: with 128 KiB a slave fell behind
// without end where masters write more than that.
const feedBytes = 512 << 10

// feedFrames are buffers for what was read for a slave.
var feedFrames = sync.Pool{New: func() any { b := make([]byte, 0, feedBytes+feedBytes/4); return &b }}

// feedFrameKeep is the largest of them that is kept.
const feedFrameKeep = 2 * feedBytes

func (e *Engine) readRecords(r *Read, scratch []byte) []byte {
	r.frame = feedFrames.Get().(*[]byte)
	out, scratch, err := e.records.ReadRecords(r.From, e.binlog.End(), feedBytes, *r.frame, scratch)
	r.Push = storage.Push{Frame: out.Frame, Messages: out.Count, Next: out.Next, LastID: out.LastID}
	r.Err = e.explainFeed(err)
	return scratch
}

// LastRecord returns the first and the last event id of the last record in the
// binlog, 0 for none. It reads a file: for goroutines of one's own.
func (e *Engine) LastRecord() (first, last int64, err error) {
	return e.records.LastRecord(e.binlog.End())
}

// LocateRecord does again what a read of that kind has done, for an event id
// that was found out since. For readers.
func (e *Engine) LocateRecord(r *Read, eventID int64) {
	r.EventID = eventID
	r.Pos, r.Err = e.locateRecord(eventID)
}

func (e *Engine) locateRecord(eventID int64) (storage.Pos, error) {
	if eventID < 0 {
		return storage.Pos{}, errReplicaEventID
	}
	pos, err := e.records.Locate(eventID, e.binlog.End())
	return pos, e.explainFeed(err)
}

var errReplicaEventID = &Refusal{codec.TextReplicaEventID}

// explainFeed turns an error of reading the binlog into the answer for a slave.
func (e *Engine) explainFeed(err error) error {
	if err == nil {
		return nil
	}
	var removed *storage.RemovedError
	var damage *storage.DamageError
	switch {
	case errors.Is(err, storage.ErrNotHeld):
		return errEventNotFound
	case errors.As(err, &removed):
		return &GoneError{Oldest: removed.Oldest}
	case errors.As(err, &damage):
		e.events.Damage("", damage)
		return &Refusal{"the binlog is damaged behind event " + fmt.Sprint(damage.After) + "; the server's log says where"}
	}
	e.events.ReadFailed("", err)
	return errReading
}

// GoneError says that retention has removed what a slave asks for; Oldest is
// the first event id still kept. The slave needs a full copy.
type GoneError struct{ Oldest int64 }

func (e *GoneError) Error() string { return textGone + strconv.FormatInt(e.Oldest, 10) }

const textGone = "can't find event id: removed by retention, the oldest event kept is "

// ParseGone reads the error from its text, as a slave gets it.
func ParseGone(text string) (*GoneError, bool) {
	digits, ok := strings.CutPrefix(text, textGone)
	oldest, err := strconv.ParseInt(digits, 10, 64)
	return &GoneError{oldest}, ok && err == nil
}

// OldestEvent returns the first event id that the binlog holds, 0 for none, and
// whether nothing was removed before it. It reads a file: for readers and
// goroutines of one's own.
func (e *Engine) OldestEvent() (eventID int64, complete bool, err error) {
	return e.records.Oldest(e.binlog.End())
}
