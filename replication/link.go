package replication

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"smss/codec"
)

// The limits of a link.
const (
	connectTimeout = 5 * time.Second
	// sendTimeout is for what a slave sends, which is little.
	sendTimeout = 10 * time.Second
	// slabBytes is how much of the stream is handed over at once; one larger
	// record comes alone. slabs is how many of them wait for the follower.
	slabBytes = 256 << 10
	slabs     = 4
	// recordMax is the longest record that is taken. The longest that any
	// server writes is a little over the 1 GiB that a message may have.
	recordMax = 1<<30 + 64<<10
	// growBytes is how much memory is taken at once for a record that has been
	// announced and has not arrived.
	growBytes = 1 << 20
	// heartbeatMaxMs is the longest interval that a master may ask this server
	// to bear with: the longest that one can be configured with.
	heartbeatMaxMs = 3600_000
	// listMax is the longest list of topics that is taken, as JSON.
	listMax = 1 << 30
)

// RefusedError is the master's word that it does not send.
type RefusedError struct{ Text string }

func (e *RefusedError) Error() string { return "the master refuses: " + e.Text }

// SilentError says that nothing came from the master for so long.
type SilentError struct{ For time.Duration }

func (e *SilentError) Error() string { return fmt.Sprintf("the master was silent for %v", e.For) }

// frame is one frame of the stream. body is a record, a greeting or the text
// of an error.
type frame struct {
	code codec.Code
	head [codec.ReplyHeaderSize]byte
	from int // of the body in the slab
	size int
}

// slab is a piece of the stream: whole frames.
type slab struct {
	buf    []byte
	frames []frame
}

func (s *slab) body(f *frame) []byte { return s.buf[f.from : f.from+f.size] }

// link is a connection to a master.
type link struct {
	conn    net.Conn
	in      *bufio.Reader
	patient *patient
	full    chan *slab
	empty   chan *slab
	err     error // why reading has ended; valid once full is closed
}

// patient reads with a deadline that each byte moves on: what counts is
// silence, not how long a record takes.
type patient struct {
	conn net.Conn
	wait atomic.Int64 // nanoseconds of silence that are borne
}

func (p *patient) Read(b []byte) (int, error) {
	wait := time.Duration(p.wait.Load())
	if err := p.conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return 0, err
	}
	n, err := p.conn.Read(b)
	if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		err = &SilentError{wait}
	}
	return n, err
}

// slower takes the master's own interval where it is longer than this
// server's.
func (p *patient) slower(wait time.Duration) {
	if int64(wait) > p.wait.Load() {
		p.wait.Store(int64(wait))
	}
}

type dialer func(ctx context.Context, address string) (net.Conn, error)

func dialTCP(ctx context.Context, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: connectTimeout}
	return d.DialContext(ctx, "tcp", address)
}

func newLink(conn net.Conn, silence time.Duration) *link {
	p := &patient{conn: conn}
	p.wait.Store(int64(silence))
	return &link{
		conn: conn, patient: p, in: bufio.NewReaderSize(p, slabBytes),
		full: make(chan *slab, slabs), empty: make(chan *slab, slabs+1),
	}
}

func (l *link) send(b []byte) error {
	if err := l.conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	_, err := l.conn.Write(b)
	return err
}

// stream reads frames until the connection ends, on a goroutine of its own.
// The follower closes the connection and empties full to end it.
func (l *link) stream() {
	defer close(l.full)
	for {
		s := l.take()
		err := l.fill(s)
		if len(s.frames) > 0 {
			l.full <- s
		}
		if err != nil {
			l.err = err
			return
		}
	}
}

func (l *link) take() *slab {
	select {
	case s := <-l.empty:
		return s
	default:
		return new(slab)
	}
}

// give returns a slab that was worked off.
func (l *link) give(s *slab) {
	if cap(s.buf) > 2*slabBytes {
		s.buf = nil
	}
	s.buf, s.frames = s.buf[:0], s.frames[:0]
	select {
	case l.empty <- s:
	default:
	}
}

// fill reads one frame, and further ones as far as they have arrived.
func (l *link) fill(s *slab) error {
	for len(s.frames) == 0 || (len(s.buf) < slabBytes && l.arrived()) {
		if err := l.frame(s); err != nil {
			return err
		}
	}
	return nil
}

// arrived reports whether a whole record or heartbeat can be read without
// waiting.
func (l *link) arrived() bool {
	have := l.in.Buffered()
	if have < codec.ReplyHeaderSize {
		return false
	}
	head, err := l.in.Peek(min(have, codec.ReplyHeaderSize+4))
	if err != nil {
		return false
	}
	switch codec.ParseReplyHeader(head).Code {
	case codec.CodeAlive:
		return true
	case codec.CodeOK:
		return len(head) == codec.ReplyHeaderSize+4 &&
			uint64(have) >= uint64(len(head))+uint64(binary.LittleEndian.Uint32(head[codec.ReplyHeaderSize:]))
	}
	return false
}

func (l *link) frame(s *slab) error {
	var f frame
	if _, err := io.ReadFull(l.in, f.head[:]); err != nil {
		return explainEnd(err)
	}
	h := codec.ParseReplyHeader(f.head[:])
	f.code = h.Code
	size := 0
	switch h.Code {
	case codec.CodeAlive, codec.CodeTakeOver:
	case codec.CodeError:
		size = h.TextSize
	case codec.CodeGreeting:
		if h.JSONSize > codec.MaxGreeting {
			return fmt.Errorf("the master announces a greeting of %d bytes", h.JSONSize)
		}
		size = int(h.JSONSize)
	case codec.CodeOK:
		var b [4]byte
		if _, err := io.ReadFull(l.in, b[:]); err != nil {
			return explainEnd(err)
		}
		n := binary.LittleEndian.Uint32(b[:])
		if n > recordMax {
			return fmt.Errorf("the master announces a record of %d bytes", n)
		}
		size = int(n)
	default:
		return fmt.Errorf("the master sends a frame of code %d, which has no meaning here", h.Code)
	}
	f.from, f.size = len(s.buf), size
	var err error
	if s.buf, err = readInto(l.in, s.buf, size); err != nil {
		return explainEnd(err)
	}
	s.frames = append(s.frames, f)
	if f.code == codec.CodeGreeting {
		l.heed(s.body(&f))
	}
	return nil
}

// heed bears with a master that is silent for longer than this server would
// be. It is done here and not where the greeting is judged, because the next
// read may begin before that, and keeps its deadline.
func (l *link) heed(greeting []byte) {
	g, err := codec.ParseGreeting(greeting)
	if err != nil {
		return // the follower says so
	}
	interval := min(max(g.HeartbeatMs, 0), heartbeatMaxMs)
	l.patient.slower(time.Duration(interval) * time.Millisecond * 2)
}

// readInto appends n bytes, taking memory as they arrive.
func readInto(in io.Reader, buf []byte, n int) ([]byte, error) {
	for n > 0 {
		step := min(n, growBytes)
		at := len(buf)
		buf = slices.Grow(buf, step)[:at+step]
		if _, err := io.ReadFull(in, buf[at:]); err != nil {
			return buf[:at], err
		}
		n -= step
	}
	return buf, nil
}

// explainEnd says what the end of a stream means.
func explainEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the master has closed the connection")
	}
	return err
}

// validList asks for the topics that exist as of an event id.
func (l *link) validList(eventID int64) ([]byte, error) {
	if err := l.send(codec.AppendEventRequest(nil, codec.ValidList, traceID, eventID)); err != nil {
		return nil, err
	}
	return l.answer(codec.ValidList, nil, listMax)
}

// answer reads the reply to a command into buf: what is behind its header, at
// most max bytes.
func (l *link) answer(to codec.Command, buf []byte, max uint32) ([]byte, error) {
	var head [codec.ReplyHeaderSize]byte
	if _, err := io.ReadFull(l.in, head[:]); err != nil {
		return nil, explainEnd(err)
	}
	h := codec.ParseReplyHeader(head[:])
	size := int(h.JSONSize)
	switch {
	case h.Code == codec.CodeError:
		size = h.TextSize
	case h.Code != codec.CodeOK:
		return nil, fmt.Errorf("the master answers %v with code %d", to, h.Code)
	case h.JSONSize > max:
		return nil, fmt.Errorf("the master announces an answer of %d bytes to %v", h.JSONSize, to)
	}
	buf, err := readInto(l.in, buf, size)
	if err != nil {
		return nil, explainEnd(err)
	}
	if h.Code == codec.CodeError {
		return nil, &RefusedError{string(buf)}
	}
	return buf, nil
}

// traceID marks a follower's requests in the master's log.
const traceID = "replica"
