package engine

import (
	"errors"
	"time"

	"smss/storage"
)

// A full copy of this server is read by its slave piece by piece, while writing
// goes on. All parts are as of one event, S, the last one that was published
// when the copy began:
//
//   - the binlog up to the place behind S does not change any more;
//   - of each topic that was created up to S, the records of events up to S. A
//     topic's end is published before the last event id is, so that whoever has
//     read S finds all of them, at any later time;
//   - the delayed messages of events up to S that are still pending. One that
//     was pending at S and is not any more has fired since, or its topic is
//     gone: both are events behind S, which hold all that the slave needs;
//   - a topic that was deleted since is left out. The slave passes over the
//     events of a topic that it does not have, and its deletion is among them.
//
// Nothing is kept here between two requests of a slave, and the writer has no
// part in it.

// Limits of one answer.
const (
	copyTopics     = 256
	copyFiles      = 1024
	copyDelayKeys  = 64 << 10 // looked at
	copyDelayBytes = 1 << 20  // of payload; one larger message comes alone
)

// CopyPlace is where a copy begins: behind EventID, whose record ends at End.
// OldestFile is the first one that the binlog has.
type CopyPlace struct {
	EventID    int64
	End        storage.Pos
	OldestFile int64
}

// ErrNothingToCopy says that this server holds no event.
var ErrNothingToCopy = &Refusal{"this server holds no event that could be copied"}

// CopyPlace returns where a copy that is begun now begins. It reads files: for
// readers and goroutines of one's own.
func (e *Engine) CopyPlace() (p CopyPlace, err error) {
	p.EventID = e.LastEventID()
	oldest, any, err := e.records.OldestFile()
	if err != nil {
		return p, e.explainFeed(err)
	}
	if p.EventID == 0 || !any {
		return p, ErrNothingToCopy
	}
	p.OldestFile = oldest
	p.End, err = e.locateRecord(p.EventID)
	return p, err
}

// CopiedTopic is a topic and files of it. More says that there are further ones.
type CopiedTopic struct {
	Topic *Topic
	Files []storage.CopiedFile
	More  bool
}

// CopyTopics returns topics as of eventID, in the order of their names, that
// come behind the name after; or, from a file number other than 0 on, the rest
// of the files of after first. done says that there are no others.
func (e *Engine) CopyTopics(eventID int64, after string, from int64) (out []CopiedTopic, done bool, err error) {
	all := e.topics(func(t *Topic) bool {
		name := t.Meta.Name
		return t.Meta.CreateEventID <= eventID && (name > after || from > 0 && name == after)
	})
	files := 0
	for _, t := range all {
		if len(out) == copyTopics || files >= copyFiles {
			return out, false, nil
		}
		c := CopiedTopic{Topic: t}
		first := int64(0)
		if t.Meta.Name == after {
			first = from
		}
		there, err := e.whole(t, func() (err error) {
			c.Files, c.More, err = t.reader.FilesAsOf(eventID, t.End(), first, copyFiles-files)
			return err
		})
		if err != nil {
			e.events.ReadFailed(t.Meta.Name, err)
			return nil, false, errReading
		}
		if !there {
			continue
		}
		files += len(c.Files)
		out = append(out, c)
		if c.More {
			return out, false, nil
		}
	}
	return out, true, nil
}

// whole reads a topic's files by read. It waits out a deletion that is being
// written, under which they may not be the topic's own (see unsettled), and
// returns false where the topic has ended.
func (e *Engine) whole(t *Topic, read func() error) (there bool, err error) {
	for {
		if t.Ended() {
			return false, nil
		}
		if !t.leaving.Load() {
			err = read()
			if !t.leaving.Load() {
				if t.astray.Load() {
					err = errAstray
				}
				return !t.Ended(), err
			}
		}
		time.Sleep(unsettledPause)
	}
}

var errAstray = errors.New("its deletion was not finished: whether it is deleted the next start decides")

// ErrCopyGone says that a topic of a copy is gone.
var ErrCopyGone = errors.New("the topic is gone")

// CopyPiece reads a piece of a file of the topic that createID has created, or
// of the binlog where the name is empty, into buf. The error is ErrCopyGone,
// a *storage.FileGoneError, or one for the slave to read.
func (e *Engine) CopyPiece(topic []byte, createID, file, off int64, buf []byte) (n int, err error) {
	if len(topic) == 0 {
		n, err = e.records.Piece(file, off, e.binlog.End(), buf)
		return n, e.explainPiece("", err)
	}
	t := e.Lookup(topic)
	if t == nil || t.Meta.CreateEventID != createID {
		return 0, ErrCopyGone
	}
	there, err := e.whole(t, func() (err error) {
		n, err = t.reader.Piece(file, off, t.End(), buf)
		return err
	})
	if !there {
		return 0, ErrCopyGone
	}
	return n, e.explainPiece(t.Meta.Name, err)
}

func (e *Engine) explainPiece(topic string, err error) error {
	var gone *storage.FileGoneError
	if err == nil || errors.As(err, &gone) {
		return err
	}
	e.events.ReadFailed(topic, err)
	return errReading
}

// CopiedDelay is a pending delayed message.
type CopiedDelay struct {
	storage.DelayKey
	Payload []byte
}

// CopyDelays returns pending delayed messages of events up to eventID behind
// the key after, and the key behind which to go on, nil at the end. skipped is
// how many of them were left out because they are larger than what this
// server takes.
func (e *Engine) CopyDelays(eventID int64, after *storage.DelayKey) (out []CopiedDelay, skipped int, next *storage.DelayKey, err error) {
	var from int64
	if after != nil {
		from = after.TriggerAtMs
	}
	meta := e.store.Meta()
	var last storage.DelayKey
	var failed error
	looked, size, more := 0, 0, false
	err = meta.DelayKeys(from, func(k storage.DelayKey) bool {
		if after != nil && !after.StoredBefore(&k) {
			return true
		}
		if looked == copyDelayKeys || size >= copyDelayBytes {
			more = true
			return false
		}
		if k.EventID <= eventID {
			payload, there, err := meta.DelayPayload(k)
			switch {
			case err != nil:
				failed = err
				return false
			case !there: // it has fired meanwhile
			case len(payload) > storage.MaxDelayPayload+delayRoom:
				skipped++
			case size > 0 && size+len(payload) > copyDelayBytes:
				more = true
				return false
			default:
				out = append(out, CopiedDelay{k, payload})
				size += len(payload) + commandCharge
			}
		}
		looked++
		last = k
		return true
	})
	if err = errors.Join(err, failed); err != nil {
		e.events.ReadFailed("", err)
		return nil, 0, nil, errReading
	}
	if more {
		next = &last
	}
	return out, skipped, next, nil
}
