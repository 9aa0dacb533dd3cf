package engine

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"smss/storage"
)

// ReadKind says what a read is for.
type ReadKind uint8

// The kinds of reads.
const (
	ReadPush     ReadKind = iota // the next push of a subscription
	Locate                       // the position behind an event id
	ListAll                      // the topics, for LIST
	ListValid                    // the topics, for VALID_LIST
	ReadRecords                  // the next records for a slave, as Push
	LocateRecord                 // the position behind an event id in the binlog
	CopyPart                     // a part of a full copy, as Text, by Render
)

// Read is one job for the readers: whatever needs a file or takes long. Between
// Engine.Read and the note that it is done it belongs to the reader.
type Read struct {
	note Note

	Kind    ReadKind
	Session any
	Mailbox *Mailbox
	Topic   *Topic
	EventID int64       // Locate, ListValid, LocateRecord
	From    storage.Pos // ReadPush, ReadRecords
	Batch   int         // ReadPush: messages at most
	Link    *Link       // LocateRecord, CopyPart
	// Render, if set, is called on the reader once the list or the position is
	// there, for work that is too long for an event loop.
	Render func(*Read)

	// Valid once it is done:
	Err   error
	Pos   storage.Pos  // Locate: where reading begins
	Push  storage.Push // ReadPush, ReadRecords; Frame is valid until Release
	List  []*Topic     // lists, in the order of names
	Text  []byte       // what Render made of it
	frame *[]byte      // ReadRecords: the buffer of Push
	slab  *slab        // ReadPush: what Push is of
}

// Link is what the two ends of a replication link tell each other.
type Link struct {
	Extended bool   // the slave is one of this project
	Hello    []byte // what it says of itself, or which part of a copy it asks for
	// What Read.Render makes of it:
	Answer []byte // the frame that goes back
	Reign  uint64 // number of the state of the history that the slave was judged by
	Node   string // what the slave calls itself
	Port   int    // where it takes connections, 0 if it does not say
}

// frames are buffers for pushes on their way from a reader to a socket.
var frames = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// frameKeep is the largest buffer that is kept for another push.
const frameKeep = 256 << 10

// Release gives the buffer of Push back. The loop calls it when all of it is
// written.
func (r *Read) Release() {
	if r.slab != nil {
		r.slab.letGo()
		r.slab, r.Push.Frame = nil, nil
	}
	if r.frame == nil {
		return
	}
	pool, keep := &frames, frameKeep
	if r.Kind == ReadRecords {
		pool, keep = &feedFrames, feedFrameKeep
	}
	if b := r.Push.Frame; cap(b) <= keep {
		*r.frame = b[:0]
		pool.Put(r.frame)
	}
	r.frame, r.Push.Frame = nil, nil
}

// Read hands r to the readers, or returns false where too many wait already:
// try again later. Event loops only.
func (e *Engine) Read(r *Read) bool {
	r.note.Subject = r
	r.Err = nil
	select {
	case e.reads <- r:
		return true
	default:
		return false
	}
}

// readQueue is how many reads can wait for a reader. A session that finds it
// full waits in its loop's list.
const readQueue = 4096

func (e *Engine) runReader() {
	defer e.readers.Done()
	var scratch []byte
	for r := range e.reads {
		scratch = e.read(r, scratch)
		for e.unsettled(r) {
			time.Sleep(unsettledPause)
			if r.Kind == ReadPush {
				break // the loop asks again, so that others get a turn
			}
			scratch = e.read(r, scratch)
		}
		if cap(scratch) > 1<<20 {
			scratch = nil
		}
		r.Mailbox.Post(&r.note)
	}
}

// unsettledPause is how long a reader waits for a deletion to be published.
const unsettledPause = time.Millisecond

// unsettled reports whether the files that were read may not have been the
// topic's: its deletion is being written, which moves its directory, and at
// flush level 2 is published only after the sync, when another life of the
// topic may have files under the same names. The deletion either is published,
// and then the topic has ended, or is undone.
//
// It is asked after the files were read, and the writer sets the mark before
// it moves them: a read that finds no mark was done before that.
func (e *Engine) unsettled(r *Read) bool {
	return r.Topic != nil && r.Topic.leaving.Load() && !r.Topic.Ended()
}

func (e *Engine) read(r *Read, scratch []byte) []byte {
	if r.Topic != nil && r.Topic.astray.Load() {
		r.Err, r.Push.Next = errReading, r.From
		return scratch
	}
	switch r.Kind {
	case ReadPush:
		return e.readPush(r, scratch)
	case Locate:
		if r.EventID < 0 {
			r.Err = errEventNotFound
			return scratch
		}
		r.Pos, r.Err = r.Topic.reader.Locate(r.EventID, r.Topic.End())
		if e.unsettled(r) {
			return scratch
		}
		r.Err = e.explainRead(r.Topic, r.Err)
	case ReadRecords:
		return e.readRecords(r, scratch)
	case LocateRecord:
		r.Pos, r.Err = e.locateRecord(r.EventID)
	case ListAll:
		r.List = e.topics(func(*Topic) bool { return true })
	case ListValid:
		now := e.clock.NowMs()
		if e.Role() == Slave {
			now = 0 // lives end when the master says so
		}
		r.List = e.topics(func(t *Topic) bool {
			return !t.Ended() && !t.Expired(now) && (r.EventID == 0 || t.Meta.CreateEventID <= r.EventID)
		})
	}
	if r.Render != nil {
		r.Render(r)
	}
	return scratch
}

func (e *Engine) readPush(r *Read, scratch []byte) []byte {
	if r.slab = e.shared(r); r.slab != nil {
		r.Push = r.slab.push
	} else {
		buf := frames.Get().(*[]byte)
		lim := storage.PushLimits{Messages: r.Batch, Bytes: e.cfg.MaxPushBytes, Ahead: e.cfg.ReadAhead}
		if e.ahead.Load() > readAheadMax {
			lim.Ahead = 0
		}
		r.Push, scratch, r.Err = r.Topic.reader.ReadPush(r.From, r.Topic.End(), lim, *buf, scratch)
		r.slab = e.newSlab(r, buf)
	}
	if e.unsettled(r) {
		r.Release()
		r.Push, r.Err = storage.Push{Next: r.From}, nil
		return scratch
	}
	if r.Push.Skipped && !r.Topic.Ended() {
		e.events.Skipped(r.Topic.Meta.Name, r.From, r.Push.Next)
	}
	if r.Err == nil && r.Push.Messages > 0 && e.cfg.ReadAhead > 0 {
		e.share(r.slab)
	}
	r.Err = e.explainRead(r.Topic, r.Err)
	return scratch
}

// explainRead turns an error of a read into the answer for the client. What
// the answer leaves out goes to the log.
func (e *Engine) explainRead(t *Topic, err error) error {
	if err == nil {
		return nil
	}
	var removed *storage.RemovedError
	var damage *storage.DamageError
	switch {
	case t.Ended():
		return ErrTopicNotExist // its files went away under the read
	case errors.Is(err, storage.ErrNotHeld):
		return errEventNotFound
	case errors.As(err, &removed):
		return &Refusal{removed.Error()}
	case errors.As(err, &damage):
		e.events.Damage(t.Meta.Name, damage)
		return errDamaged
	}
	e.events.ReadFailed(t.Meta.Name, err)
	return errReading
}

// topics returns those of the catalog for which want holds, in byte order of
// their names.
func (e *Engine) topics(want func(*Topic) bool) []*Topic {
	var out []*Topic
	e.catalog.Range(func(_, v any) bool {
		if t := v.(*Topic); want(t) {
			out = append(out, t)
		}
		return true
	})
	slices.SortFunc(out, func(a, b *Topic) int { return strings.Compare(a.Meta.Name, b.Meta.Name) })
	return out
}

// Lookup returns the topic of a name, or nil. Any goroutine.
func (e *Engine) Lookup(name []byte) *Topic {
	v, ok := e.catalog.Load(string(name))
	if !ok {
		return nil
	}
	return v.(*Topic)
}
