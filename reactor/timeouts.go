package reactor

import "time"

// retime sets the session's due time from everything that it waits for. What
// waits for the engine has none: the engine always answers.
func (s *session) retime() {
	if s.closed {
		return
	}
	if s.state == commanding && s.blocked() {
		s.frameNs = 0 // its sender is not what it waits for
	}
	due := earliest(s.late(), s.stuckNs)
	if s.choked {
		due = earliest(due, s.loop.nowNs+slotNs) // gnet does not say when it has sent
	}
	s.loop.wheel.set(s, due)
}

// late returns when the peer is late with what its session waits for, 0 =
// never.
func (s *session) late() int64 {
	cfg := &s.loop.r.cfg
	switch s.state {
	case closing:
		if s.frameNs == 0 {
			s.frameNs = s.loop.nowNs
		}
		return s.frameNs + int64(lingerTimeout)
	case awaitingAck:
		return s.ackNs
	case commanding:
		switch n := s.waits(); {
		case n > 0 && !s.blocked():
			if s.frameNs == 0 {
				s.frameNs = s.loop.nowNs
			}
			return s.frameNs + int64(cfg.FrameTimeout) + int64(n/frameBytesPerMs)*int64(time.Millisecond)
		case n == 0 && s.window == 0 && s.pending == nil && s.idleTimeout() > 0:
			return s.activeNs + int64(s.idleTimeout())
		}
	}
	return 0
}

// expired is called when the due time has come: something may be late.
func (s *session) expired() {
	if s.closed {
		return // settle sees to its last replies
	}
	now := s.loop.nowNs
	if (s.stuckNs != 0 || s.choked) && !s.progressed(now) {
		s.breach(s.stuck())
		return
	}
	if due := s.late(); due == 0 || now < due {
		s.retime()
		return
	}
	switch s.state {
	case closing:
		s.close()
	case awaitingAck:
		// The time for an ack counts from when the push has left.
		if s.stuckNs != 0 {
			s.retime()
			return
		}
		s.breach("no ack in time")
	case commanding:
		if s.waits() > 0 {
			s.breach("request not complete within limits.frameTimeoutMs")
		} else {
			s.breach(s.idled())
		}
	}
}

// progressed looks at unsent bytes: fewer than at the last look is progress.
func (s *session) progressed(now int64) bool {
	unsent := s.conn.OutboundBuffered()
	s.choked = unsent > s.loop.r.cfg.MaxOutbound
	switch {
	case unsent == 0:
		s.stuckNs = 0
		if s.state == awaitingAck {
			s.ackNs = now + int64(s.ackTimeout)
		}
	case unsent < s.unsent:
		s.unsent = unsent
		s.stuckNs = now + int64(s.sendTimeout())
	case now >= s.stuckNs:
		return false
	}
	return true
}
