package reactor

import (
	"encoding/binary"
	"errors"
	"net"
	"time"

	"github.com/panjf2000/gnet/v2"

	"smss/codec"
	"smss/engine"
)

// state says what a session's input means.
type state uint8

const (
	// commanding: requests. Those that go through the ring may overlap; one
	// that is answered here waits until they are back.
	commanding state = iota
	// listing: a list is being made; input waits.
	listing
	// attaching, locating: SUB is on its way to becoming a stream; input waits.
	attaching
	locating
	// reading: a push is being read. Input is a breach of the protocol.
	reading
	// parked: nothing to send. Input is a breach of the protocol.
	parked
	// awaitingAck: a push is out, the next two bytes answer it.
	awaitingAck
	// closing: an error reply was sent, input is thrown away until the peer or
	// a timeout closes.
	closing
)

// session is one connection. Everything in it belongs to its event loop.
type session struct {
	conn   gnet.Conn
	loop   *loop
	remote net.Addr
	state  state
	closed bool // gnet has closed the connection, or is about to
	marked bool // in loop.dirty
	choked bool // more than MaxOutbound bytes are unsent: requests wait
	linger int  // descriptor for the last replies after a half-close, else -1

	in   []byte // input that is not consumed yet; empty while nothing waits
	skip int    // bytes of a refused request that are still to come
	need int    // least bytes that the request at the start of in takes
	out  []byte // replies that are not written yet

	window  int             // commands at the engine
	pending *engine.Command // refused by the ring; in loop.stalled

	sub        *engine.Subscription
	read       *engine.Read // the one read under way or waiting
	batch      int
	eventID    int64
	ackTimeout time.Duration

	activeNs int64 // of the last input
	frameNs  int64 // since when a request is incomplete, 0 = none
	ackNs    int64 // when the ack is due, 0 = none
	stuckNs  int64 // when unsent bytes must have become fewer, 0 = none
	unsent   int   // of the last look

	dueNs                int64 // wheel
	slot                 int64
	wheelPrev, wheelNext *session
	beatNs               int64 // beats; 0 = not in it
	beatPrev, beatNext   *session
	queue                *sessionQueue
	queuePrev, queueNext *session
}

// traffic takes new input. data is valid during the call only.
func (s *session) traffic(data []byte) {
	s.activeNs = s.loop.nowNs
	if s.state == closing {
		return
	}
	if s.skip > 0 {
		n := min(s.skip, len(data))
		s.skip -= n
		data = data[n:]
	}
	if len(s.in) == 0 {
		rest := data[s.consume(data):]
		s.keep(rest)
	} else {
		s.keep(data)
		s.advance()
	}
	s.flush()
	s.retime()
}

// keep adds input to what waits, within the limits.
func (s *session) keep(data []byte) {
	if len(data) == 0 || s.gone() || s.state == closing {
		return
	}
	r := s.loop.r
	if total := r.input.Add(int64(len(data))); total > r.cfg.MaxInput {
		r.input.Add(-int64(len(data)))
		s.breach("input of all connections is over limits.maxInputBytes")
		return
	}
	s.in = append(s.in, data...)
	if s.blocked() && len(s.in) > max(r.cfg.MaxUnread, s.need) {
		s.breach("more unread requests than limits.maxUnreadBytes")
	}
}

// drop forgets n bytes of the input that waits.
func (s *session) drop(n int) {
	if n == 0 || len(s.in) == 0 {
		return // refuse and close have dropped it already
	}
	s.loop.r.input.Add(-int64(n))
	if n == len(s.in) {
		s.in = nil
		return
	}
	if n < len(s.in)/2 && cap(s.in) < 4<<10 {
		s.in = s.in[:copy(s.in, s.in[n:])]
		return
	}
	s.in = append([]byte(nil), s.in[n:]...)
}

// advance goes on with input that waited.
func (s *session) advance() {
	if s.gone() || len(s.in) == 0 {
		s.retime()
		return
	}
	if s.skip > 0 {
		n := min(s.skip, len(s.in))
		s.skip -= n
		s.drop(n)
	}
	s.drop(s.consume(s.in))
	s.retime()
}

// blocked reports whether requests must wait for something to come back.
func (s *session) blocked() bool {
	switch s.state {
	case commanding:
		return s.window >= s.loop.r.cfg.Window || s.pending != nil || s.choked || s.loop.r.stopping.Load()
	case listing, attaching, locating:
		return true
	}
	return false
}

// consume handles as much of b as can be handled now and returns how many
// bytes that was.
func (s *session) consume(b []byte) int {
	at := 0
	for at < len(b) && !s.gone() {
		n := 0
		switch s.state {
		case commanding:
			n = s.request(b[at:])
		case awaitingAck:
			n = s.ack(b[at:])
		case reading, parked:
			s.breach("input while no ack is due")
		case closing:
			n = len(b) - at
		}
		if n == 0 {
			break
		}
		at += n
	}
	return min(at, len(b))
}

// request handles the request at the start of b. It returns how many bytes it
// took, 0 where it must wait.
func (s *session) request(b []byte) int {
	if s.blocked() {
		return 0
	}
	var req codec.Request
	n, err := codec.ParseRequest(b, &s.loop.r.cfg.Codec, &req)
	s.need = n
	if err == codec.ErrShort {
		return 0
	}
	s.frameNs = 0
	if err == nil && req.Invalid == nil && throughRing(req.Command) && !s.loop.r.cfg.ReadOnly() {
		if s.mutation(&req) {
			return n
		}
	}
	// Answered here: everything asked before must have been answered.
	if s.window > 0 {
		return 0
	}
	if err == nil {
		s.local(&req)
		return n
	}
	var refused *codec.RequestError
	if errors.As(err, &refused) {
		s.fail(refused.Text)
		if n > len(b) {
			s.skip = n - len(b)
			n = len(b)
		}
		return n
	}
	s.refuse(err.Error())
	return len(b)
}

func throughRing(c codec.Command) bool {
	switch c {
	case codec.Pub, codec.Delay, codec.CreateTopic, codec.DeleteTopic:
		return true
	}
	return false
}

// ack handles a subscriber's answer.
func (s *session) ack(b []byte) int {
	if len(b) < codec.AckSize {
		return 0
	}
	switch codec.Ack(binary.LittleEndian.Uint16(b)) {
	case codec.AckNext:
		if len(b) > codec.AckSize {
			// A second ack would count for a batch that was not sent yet.
			s.breach("more input than one ack")
			return 0
		}
		s.ackNs = 0
		s.pump()
	case codec.AckEnd:
		s.leave()
	default:
		s.breach("unknown ack")
		return 0
	}
	return codec.AckSize
}

// fail appends an error reply.
func (s *session) fail(text string) { s.out = codec.AppendError(s.out, text) }

// refuse answers an error after which the stream cannot be trusted, and closes
// once the peer had a chance to read it.
func (s *session) refuse(text string) {
	s.loop.r.cfg.Events.refused(s.remote, text)
	s.fail(text)
	s.state = closing
	s.loop.r.input.Add(-int64(len(s.in)))
	s.in, s.skip, s.frameNs = nil, 0, 0
}

// breach closes a connection that broke the protocol or a limit.
func (s *session) breach(why string) {
	s.loop.r.cfg.Events.refused(s.remote, why)
	s.close()
}

// close closes the connection now; what was flushed before is sent by gnet as
// far as the socket takes it.
func (s *session) close() {
	if s.closed {
		s.letGo()
		return
	}
	// The error is of the descriptor that goes away.
	_ = s.conn.EventLoop().Close(s.conn)
}

// flush writes the replies.
func (s *session) flush() {
	if len(s.out) == 0 {
		return
	}
	out := s.out
	if cap(out) > outKeep {
		s.out = nil
	} else {
		s.out = out[:0]
	}
	if s.closed {
		s.lastWords(out)
		return
	}
	s.write(out)
}

// outKeep is the largest reply buffer that a session keeps.
const outKeep = 512

// write sends b. gnet closes the connection inside the call where that fails.
func (s *session) write(b []byte) {
	if _, err := s.conn.Write(b); err != nil || s.closed {
		return
	}
	s.watchOutbound()
}

// watchOutbound starts to look after bytes that the socket did not take.
func (s *session) watchOutbound() {
	unsent := s.conn.OutboundBuffered()
	if unsent == 0 {
		s.stuckNs, s.unsent = 0, 0
		return
	}
	s.choked = unsent > s.loop.r.cfg.MaxOutbound
	if s.stuckNs == 0 {
		s.unsent = unsent
		s.stuckNs = s.loop.nowNs + int64(s.loop.r.cfg.WriteTimeout)
	}
	s.retime()
}

// closedNow is called once when gnet closes the connection, possibly inside a
// write or close of this session.
func (s *session) closedNow(halfClosed bool) {
	s.closed = true
	l := s.loop
	l.wheel.unlink(s)
	l.beats.remove(s)
	if s.sub != nil && s.state != attaching { // else attached sees to it
		l.r.engine.Detach(s.sub)
		s.sub = nil
	}
	l.waiting.remove(s)
	if halfClosed && s.expectsReplies() {
		// The peer may have closed its sending side only and still be waiting
		// for replies, but gnet closes both. A second descriptor keeps the
		// socket open until they are sent.
		if fd, err := s.conn.Dup(); err == nil {
			s.linger = fd
			return
		}
	}
	s.forget()
	l.r.leave()
}

// gone reports whether no reply can reach the peer any more.
func (s *session) gone() bool { return s.closed && s.linger < 0 }

// forget drops what a session that is gone still holds.
func (s *session) forget() {
	s.loop.r.input.Add(-int64(len(s.in)))
	s.in = nil
	if s.pending != nil {
		s.loop.stalled.remove(s)
		s.loop.pool.Put(s.pending)
		s.pending = nil
	}
}
