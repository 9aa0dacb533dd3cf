package reactor

import (
	"time"

	"smss/codec"
	"smss/engine"
)

// subscribe begins the way into stream mode: the writer makes the name known,
// a reader finds the position, then pushes begin.
func (s *session) subscribe(req *codec.Request) {
	if req.Invalid != nil {
		s.fail(req.Invalid.Text)
		return
	}
	s.batch, s.eventID, s.ackTimeout = uint8(req.Batch), req.EventID, time.Duration(req.AckTimeoutNs)
	if s.ackTimeout <= 0 {
		s.ackTimeout = defaultAckTimeout
	}
	s.ackTimeout = min(s.ackTimeout, maxAckTimeout)
	s.sub = &engine.Subscription{Who: string(req.Who), Waiter: s.waiter()}
	cmd := s.command(engine.Attach)
	cmd.Sub = s.sub
	cmd.SetText(req.Topic, req.Trace, nil)
	s.state = attaching
	s.push(cmd)
}

// attached goes on once the name is known, or refused.
func (s *session) attached(cmd *engine.Command) {
	sub := cmd.Sub
	if s.closed {
		// A peer that has closed its sending side cannot acknowledge, but may
		// be told why it was refused.
		if cmd.Err == nil {
			s.loop.r.engine.Detach(sub)
		} else if !s.gone() {
			s.fail(cmd.Err.Error())
		}
		s.sub, s.state = nil, closing
		return
	}
	if cmd.Err != nil {
		s.sub, s.state = nil, commanding
		s.fail(cmd.Err.Error())
		return
	}
	s.state = locating
	r := sub.ReadOf()
	*r = engine.Read{Kind: engine.Locate, Topic: sub.Topic, EventID: s.eventID}
	s.startRead(r)
}

// located begins the stream.
func (s *session) located(r *engine.Read) {
	if r.Err != nil {
		s.endWith(r.Err)
		return
	}
	s.sub.Pos = r.Pos
	if s.waits() > 0 {
		s.breach("input while no ack is due")
		return
	}
	s.pump()
}

// pump sends what is there, or waits for it.
func (s *session) pump() {
	for {
		switch {
		case s.sub.Topic.Ended():
			s.end()
			return
		case s.sub.Ahead > 0:
			s.pushNext()
			return
		case s.sub.Pos.Before(s.sub.Topic.End()):
			s.startPush()
			return
		case s.sub.Park():
			s.state = parked
			s.loop.beats.push(s, s.loop.nowNs+int64(s.loop.r.cfg.Heartbeat))
			return
		}
	}
}

// resume is called when the topic of a parked session has moved or ended.
func (s *session) resume() {
	switch {
	case s.closed:
	case s.state == parked:
		s.loop.beats.remove(s)
		s.pump()
	case s.state == feeding:
		s.loop.beats.remove(s)
		s.pumpFeed()
	}
}

func (s *session) startPush() {
	s.state = reading
	r := s.sub.ReadOf()
	*r = engine.Read{Kind: engine.ReadPush, Topic: s.sub.Topic, From: s.sub.Pos, Batch: int(s.batch)}
	s.startRead(r)
}

// pushRead sends the push that was read.
func (s *session) pushRead(r *engine.Read) {
	switch {
	case s.sub.Topic.Ended():
		r.Release()
		s.end()
	case r.Err != nil:
		r.Release()
		s.endWith(r.Err)
	case r.Push.Messages == 0:
		s.sub.Pos = r.Push.Next
		r.Release()
		s.pump()
	default:
		s.sub.Ahead = codec.ReplyHeaderSize
		s.pushNext()
	}
}

// pushNext sends the next push of what was read.
func (s *session) pushNext() {
	r := s.sub.ReadOf()
	rest := r.Push.Frame[s.sub.Ahead:]
	size, n, last := codec.CutPushed(rest, int(s.batch))
	s.sub.Pos.File, s.sub.Pos.Off = last.NextFile, last.NextPos
	s.state = awaitingAck
	s.ackNs = s.loop.nowNs + int64(s.ackTimeout)
	s.sub.Ahead += int32(size)
	s.writePush(codec.AppendPushHead(s.loop.head[:0], n, size), rest[:size])
	if s.sub != nil && size == len(rest) {
		s.letAhead()
	}
}

// letAhead gives back what was read and is not needed any more.
func (s *session) letAhead() {
	if s.sub.Ahead > 0 {
		s.sub.Ahead = 0
		s.sub.ReadOf().Release()
	}
}

// end tells the subscriber that the topic is gone.
func (s *session) end() {
	s.out = codec.AppendCode(s.out, codec.CodeEnd)
	s.leave()
}

// endWith tells the subscriber why its stream ends.
func (s *session) endWith(err error) {
	s.fail(err.Error())
	s.leave()
}

// leave returns to command mode and frees the name.
func (s *session) leave() {
	s.letAhead()
	s.loop.r.engine.Detach(s.sub)
	s.sub, s.state, s.ackNs = nil, commanding, 0
	s.activeNs = s.loop.nowNs
}

// waiter returns how the session waits for a log to move.
func (s *session) waiter() engine.Waiter {
	return engine.Waiter{Session: s, Loop: s.loop.id, Mailbox: s.loop.mailbox}
}
