package storage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"smss/codec"
)

// DamageError says where stored data is not what was written. Nothing at or
// behind Pos in that file was handed out.
type DamageError struct {
	Dir string
	Pos Pos
	// After is the event id of the last good record before the damage that
	// was seen by this read, 0 if none.
	After int64
	Err   error
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("%s: %v at offset %d", fileName(e.Dir, e.Pos.File), e.Err, e.Pos.Off)
}
func (e *DamageError) Unwrap() error { return e.Err }

// readChunk is what a scan reads at once; a record that is longer is read
// whole.
const readChunk = 64 << 10

// scanner walks the records of one file, from an offset up to an end.
type scanner struct {
	file  File
	kind  recordKind
	off   int64 // of buf[0] in the file
	end   int64 // nothing at or behind it is read
	buf   []byte
	rest  []byte // not yet parsed part of buf
	chunk int
}

func newScanner(f File, kind recordKind, from, end int64, buf []byte, chunk int) scanner {
	return scanner{file: f, kind: kind, off: from, end: end, buf: buf[:0], chunk: chunk}
}

// pos returns the offset of the next record.
func (s *scanner) pos() int64 { return s.off + int64(len(s.buf)-len(s.rest)) }

// fill makes rest at least want bytes long, or as long as the file allows.
func (s *scanner) fill(want int) error {
	at := s.pos()
	n := int64(max(want, s.chunk))
	if n > s.end-at {
		n = max(s.end-at, int64(len(s.rest)))
	}
	if int64(cap(s.buf)) < n {
		grown := make([]byte, 0, n)
		s.buf, s.rest = append(grown, s.rest...), nil
	} else {
		s.buf = append(s.buf[:0], s.rest...)
	}
	have := len(s.buf)
	s.off = at
	s.buf = s.buf[:n]
	got, err := s.file.ReadAt(s.buf[have:], at+int64(have))
	s.buf = s.buf[:have+got]
	s.rest = s.buf
	if err != nil && !(errors.Is(err, io.EOF) && got > 0) {
		return err
	}
	return nil
}

// next returns the bytes of the next record, parsed by parse, which has the
// contract of ParseTopicRecord. io.EOF is the end; errTorn is an end inside a
// record.
func (s *scanner) next(parse func([]byte) (int, error)) ([]byte, error) {
	for {
		size, err := parse(s.rest)
		if err == nil {
			rec := s.rest[:size]
			s.rest = s.rest[size:]
			return rec, nil
		}
		if !errors.Is(err, codec.ErrRecordShort) {
			return nil, err
		}
		if left := s.end - s.pos(); left == 0 {
			return nil, io.EOF
		} else if int64(size) > left {
			return nil, errTorn
		}
		have := len(s.rest)
		if size > provedAbove && size > have {
			if err := s.prove(); err != nil {
				return nil, err
			}
		}
		if err := s.fill(size); err != nil {
			if errors.Is(err, io.EOF) {
				return nil, errTorn // the file is shorter than its end
			}
			return nil, err
		}
		if len(s.rest) <= have {
			return nil, errTorn
		}
	}
}

// pastDamage moves to the next whole record, or returns false where there is
// none. It is for when next has returned codec.ErrRecordDamaged.
func (s *scanner) pastDamage(parse func([]byte) (int, error)) (found bool, err error) {
	at, found, err := resync(s.file, s.kind, s.pos(), s.end, parse)
	if found && err == nil {
		*s = newScanner(s.file, s.kind, at, s.end, s.buf, s.chunk)
	}
	return found, err
}

// provedAbove is the size of a record above which no memory is taken for it
// before its checksum was found right: a damaged length can claim the rest of a
// file. Records that long were written when the limit for messages allowed it,
// so that the limit of today says nothing about them.
const provedAbove = 1 << 20

// prove returns an error where what the line of the next record says is not
// true.
func (s *scanner) prove() error {
	c, err := claimAt(s.file, s.kind, s.pos(), s.end)
	if err != nil {
		return err
	}
	if !c.known {
		return errLength
	}
	if ok, err := c.proved(s.file); err != nil || !ok {
		if err == nil || errors.Is(err, io.EOF) {
			err = errLength
		}
		return err
	}
	return nil
}

type lengthError struct{}

func (lengthError) Error() string { return "damaged record: it is not as long as it says" }
func (lengthError) Unwrap() error { return codec.ErrRecordDamaged }

var errLength error = lengthError{}

type tornError struct{}

func (tornError) Error() string { return "damaged record: the file ends inside it" }
func (tornError) Unwrap() error { return codec.ErrRecordDamaged }

var errTorn error = tornError{}

// TopicReader reads one topic's log. It is immutable and may be used by any
// goroutine; what it reads is bounded by the published end that is passed in.
type TopicReader struct {
	fsys FS
	dir  string
}

// PushLimits bounds one push.
type PushLimits struct {
	Messages int // 1 to codec.MaxBatch
	Bytes    int // a push holds at least one message whatever its size
	// Ahead makes Push the messages of several pushes: further ones, each of
	// Messages messages, are read while there are fewer bytes than this. 0 = one.
	Ahead int
}

// full reports whether p needs no more messages.
func (lim *PushLimits) full(p *Push) bool {
	return p.Messages > 0 && p.Messages%lim.Messages == 0 && len(p.Frame) >= lim.Ahead
}

// Push is the result of ReadPush.
type Push struct {
	Frame    []byte // wire form behind a header, in the buffer that was passed in if it fits
	Messages int
	Next     Pos   // where the next read goes on
	LastID   int64 // event id of the last message
	// Skipped says that retention removed files between the position asked
	// for and the first message.
	Skipped bool
}

// ReadPush reads the messages from from on, up to end, into a push frame; with
// PushLimits.Ahead the frame's header has no counts, and who sends it cuts the
// pushes himself.
// Messages is 0 where there are none. A damaged record ends the push before
// it; if nothing precedes it, the error is a *DamageError.
func (r *TopicReader) ReadPush(from, end Pos, lim PushLimits, frame, scratch []byte) (Push, []byte, error) {
	p := Push{Frame: codec.AppendPushHeader(frame[:0]), Next: from}
	for p.Messages == 0 && p.Next.Before(end) {
		var err error
		if scratch, err = r.readFile(&p, end, lim, scratch); err != nil {
			return p, scratch, err
		}
	}
	if p.Messages > 0 && p.Messages <= lim.Messages {
		codec.FinishPush(p.Frame, p.Messages)
	}
	return p, scratch, nil
}

// readFile reads from the file of p.Next. At the end of it p.Next moves to
// the next file that exists.
func (r *TopicReader) readFile(p *Push, end Pos, lim PushLimits, scratch []byte) ([]byte, error) {
	f, err := r.fsys.Open(fileName(r.dir, p.Next.File))
	if errors.Is(err, fs.ErrNotExist) {
		return scratch, r.skipTo(p, p.Next.File, end)
	}
	if err != nil {
		return scratch, err
	}
	defer f.Close()
	stop := end.Off
	sealed := p.Next.File < end.File
	if sealed {
		if stop, err = f.Size(); err != nil {
			return scratch, err
		}
	}
	s := newScanner(f, topicKind, p.Next.Off, stop, scratch, readChunk)
	err = r.collect(p, &s, lim, sealed)
	if errors.Is(err, io.EOF) && sealed && p.Messages == 0 {
		err = r.skipTo(p, p.Next.File+1, end)
	} else if errors.Is(err, io.EOF) {
		err = nil
	}
	return s.buf, err
}

// collect appends messages to the push until a limit or the file's end.
func (r *TopicReader) collect(p *Push, s *scanner, lim PushLimits, sealed bool) error {
	var rec TopicRecord
	parse := func(b []byte) (int, error) { return ParseTopicRecord(b, maxStoredPayload, &rec) }
	for !lim.full(p) {
		at := s.pos()
		if _, err := s.next(parse); err != nil {
			if p.Messages > 0 && errors.Is(err, codec.ErrRecordDamaged) {
				return nil // deliver what is good; the next read meets the damage
			}
			if errors.Is(err, codec.ErrRecordDamaged) {
				return &DamageError{Dir: r.dir, Pos: Pos{p.Next.File, at}, After: p.LastID, Err: err}
			}
			return err
		}
		if p.Messages > 0 && len(p.Frame)+codec.PushedMessageOverhead+len(rec.Message) > lim.Bytes {
			return nil
		}
		next := Pos{p.Next.File, s.pos()}
		last := sealed && next.Off == s.end
		if last {
			next = Pos{next.File + 1, 0}
		}
		p.Frame = codec.AppendPushed(p.Frame, codec.Pushed{
			StoredAtMs: rec.StoredAtMs, EventID: rec.EventID, NextFile: next.File, NextPos: next.Off,
		}, rec.Message)
		p.Messages++
		p.LastID, p.Next = rec.EventID, next
		if last {
			return nil
		}
	}
	return nil
}

// skipTo moves p.Next to the oldest file with a number of at least id.
func (r *TopicReader) skipTo(p *Push, id int64, end Pos) error {
	ids, err := listFiles(r.fsys, r.dir)
	if err != nil {
		return err
	}
	for _, have := range ids {
		if have >= id && have <= end.File {
			p.Skipped = p.Skipped || have > id
			p.Next = Pos{have, 0}
			return nil
		}
	}
	// Nothing is left to read. The file of an end (n, 0) need not exist yet;
	// any other that is missing held messages.
	if end.Off > 0 || id < end.File {
		p.Skipped = true
	}
	p.Next = end
	return nil
}
