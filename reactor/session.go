package reactor

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"time"

	"github.com/panjf2000/gnet/v2"
	"golang.org/x/sys/unix"

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
	// seeking: REPLICA is on its way to becoming a feed; input waits.
	seeking
	// feeding: the binlog is being sent. Input is reports of a slave.
	feeding
	// copying: a part of a full copy is being read; input waits.
	copying
	// closing: an error reply was sent, input is thrown away until the peer or
	// a timeout closes.
	closing
)

// session is one connection. Everything in it belongs to its event loop, apart
// from what the accepting goroutine does before OnOpen.
type session struct {
	conn   gnet.Conn
	loop   *loop
	remote net.Addr

	state   state
	closed  bool  // gnet has closed the connection, or is about to
	marked  bool  // in loop.dirty
	choked  bool  // more than MaxOutbound bytes are unsent: requests wait
	copies  bool  // it has one of the places for copies
	barrier bool  // the request at the start of the input waits until window is 0
	batch   uint8 // of a subscriber
	linger  int32 // descriptor for the last replies after a half-close, else -1
	window  int32 // commands at the engine
	skip    int32 // bytes of a refused request that are still to come
	need    int32 // least bytes that the request at the start of the input takes

	in  []byte // input that waits, behind the first at bytes; nil while nothing does
	at  int    // bytes of in that are consumed
	out []byte // replies that are not written yet

	pending *engine.Command // refused by the ring; in loop.stalled
	read    *engine.Read    // the one read under way or waiting
	sub     *engine.Subscription
	feed    *engine.Replica

	eventID    int64 // of the last message consumed, as SUB says
	ackTimeout time.Duration

	activeNs int64 // of the last input
	frameNs  int64 // since when a request is incomplete, 0 = none
	ackNs    int64 // when the ack is due, 0 = none
	stuckNs  int64 // when unsent bytes must have become fewer, 0 = none
	unsent   int   // bytes that would be unsent had none left since the last look

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
		n := min(int(s.skip), len(data))
		s.skip -= int32(n)
		data = data[n:]
	}
	if s.waits() == 0 {
		rest := data[s.consume(data):]
		s.keep(rest)
		s.retime()
	} else {
		s.keep(data)
		s.advance()
	}
	s.flush()
}

// waits returns how many bytes of input wait.
func (s *session) waits() int { return len(s.in) - s.at }

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
	s.grow(len(data))
	s.in = append(s.in, data...)
	if s.blocked() && s.waits() > max(r.cfg.MaxUnread, int(s.need)) {
		s.breach("more unread requests than limits.maxUnreadBytes")
	}
}

// grow makes room for n more bytes of a request whose size is known: twice what
// has arrived, and never more than the request takes.
func (s *session) grow(n int) {
	have := s.waits() + n
	if s.at+have > cap(s.in) && have < int(s.need) {
		s.in = append(make([]byte, 0, min(max(2*have, 64), int(s.need))), s.in[s.at:]...)
		s.at = 0
	}
}

// inKeep is the size up to which an input buffer is not worth making smaller.
const inKeep = 4 << 10

// drop forgets n bytes of the input that waits. What is behind them is moved
// only when it is less than what was dropped since the last move, so that a
// long queue of small requests is not copied for each of them.
func (s *session) drop(n int) {
	if n == 0 || s.waits() == 0 {
		return // refuse and close have dropped it already
	}
	s.loop.r.input.Add(-int64(n))
	s.at += n
	switch left := s.waits(); {
	case left == 0:
		s.in, s.at = nil, 0
	case left > s.at:
	case cap(s.in) > inKeep && left < cap(s.in)/4:
		s.in, s.at = append([]byte(nil), s.in[s.at:]...), 0
	default:
		s.in, s.at = s.in[:copy(s.in, s.in[s.at:])], 0
	}
}

// dropAll forgets all input.
func (s *session) dropAll() {
	s.loop.r.input.Add(-int64(s.waits()))
	s.in, s.at = nil, 0
}

// advance goes on with input that waited.
func (s *session) advance() {
	if s.waits() > 0 && !s.gone() {
		s.drop(s.consume(s.in[s.at:]))
	}
	s.pumpFeed()
	s.retime()
}

// blocked reports whether requests must wait for something to come back.
func (s *session) blocked() bool {
	switch s.state {
	case commanding:
		return s.barrier || int(s.window) >= s.loop.r.cfg.Window || s.pending != nil || s.choked || s.loop.r.stopping.Load()
	case listing, attaching, locating, seeking, copying:
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
		case feeding:
			n = s.reports(b[at:])
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
	s.need = int32(n)
	if err == codec.ErrShort {
		return 0
	}
	s.frameNs = 0
	refusal := ""
	if err == nil && throughRing(req.Command) {
		if refusal = s.refusal(&req); refusal == "" {
			s.mutation(&req)
			return n
		}
	}
	// Answered here: everything asked before must have been answered.
	if s.window > 0 {
		s.barrier = true
		return 0
	}
	switch e := err.(type) {
	case nil:
		if refusal != "" {
			s.fail(refusal)
		} else {
			s.local(&req)
		}
		return n
	case *codec.RequestError:
		s.fail(e.Text)
		if n > len(b) {
			s.skip = int32(n - len(b))
			n = len(b)
		}
		return n
	}
	s.refuse(err.Error())
	return len(b)
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
	s.dropAll()
	s.skip, s.frameNs = 0, 0
}

// breach closes a connection that broke the protocol or a limit.
func (s *session) breach(why string) {
	s.loop.r.cfg.Events.refused(s.remote, why)
	s.close()
}

// close closes the connection now. The replies that there are go out before, as
// far as the socket takes them.
func (s *session) close() {
	s.flush()
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
	if s.closed {
		s.sendLast()
		return
	}
	out := s.out
	if cap(out) > outKeep {
		s.out = nil
	} else {
		s.out = out[:0]
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
	s.watchOutbound(len(b))
}

// writePush sends a push in two pieces. gnet has written or copied both when it
// returns.
func (s *session) writePush(head, messages []byte) {
	s.loop.pieces = [2][]byte{head, messages}
	_, err := s.conn.Writev(s.loop.pieces[:])
	s.loop.pieces = [2][]byte{}
	if err == nil && !s.closed {
		s.watchOutbound(len(head) + len(messages))
	}
}

// watchOutbound looks after the bytes that the socket did not take, written
// bytes after the last look. It may find that a session is choked, but not
// that it no longer is: that is for progressed, behind which the session goes
// on with its input.
func (s *session) watchOutbound(written int) {
	unsent := s.conn.OutboundBuffered()
	if unsent == 0 {
		s.stuckNs = 0
		return
	}
	if s.stuckNs == 0 {
		s.unsent = unsent
		s.stuckNs = s.loop.nowNs + int64(s.sendTimeout())
	} else {
		s.unsent += written
	}
	s.choked = s.choked || unsent > s.loop.r.cfg.MaxOutbound
	s.retime()
}

// closedNow is called once when gnet closes the connection, possibly inside a
// write or close of this session. err is what gnet gives as the reason.
func (s *session) closedNow(err error) {
	s.closed = true
	l := s.loop
	l.wheel.unlink(s)
	l.beats.remove(s)
	if s.sub != nil && s.state != attaching { // else attached sees to it
		s.letAhead()
		l.r.engine.Detach(s.sub)
		s.sub = nil
	}
	if s.feed != nil {
		why := "the connection is closed"
		if errors.Is(err, unix.ETIMEDOUT) {
			why = s.stuck() // the kernel, which was given the same time, was first
		}
		s.leaveFeed(why)
	}
	s.leaveCopies()
	if errors.Is(err, io.EOF) && s.expectsReplies() && s.outlive() {
		return
	}
	s.forget()
	l.r.leave()
}

// gone reports whether no reply can reach the peer any more.
func (s *session) gone() bool { return s.closed && s.linger < 0 }

// forget drops what a session that is gone still holds.
func (s *session) forget() {
	l := s.loop
	s.dropAll()
	l.wheel.unlink(s)
	if s.pending != nil {
		l.stalled.remove(s)
		l.pool.Put(s.pending)
		s.pending = nil
		l.outstanding.Add(-1)
	}
	if l.waiting.remove(s) {
		s.read = nil
		if s.state == listing {
			l.outstanding.Add(-1)
		}
	}
}
