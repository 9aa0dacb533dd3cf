package reactor

import "golang.org/x/sys/unix"

// A peer that closes its sending side only may still wait for replies, but
// gnet closes both sides. What such a connection has asked for is answered
// through a second descriptor of its socket, which is closed after the last
// reply.

// outlive keeps the socket of a connection that gnet is closing. It reports
// false where that is not possible, or where replies that gnet could not send
// will be missing, after which no other may follow.
func (s *session) outlive() bool {
	if s.conn.OutboundBuffered() > 0 {
		// An error leaves the bytes where they are.
		_ = s.conn.Flush()
		if s.conn.OutboundBuffered() > 0 {
			return false
		}
	}
	fd, err := s.conn.Dup()
	if err != nil {
		return false
	}
	s.linger, s.choked, s.stuckNs = int32(fd), false, 0
	return true
}

// sendLast sends replies to a peer that has closed its sending side, as far as
// the socket takes them; the rest is tried again each slot of the wheel, as
// long as there is progress.
func (s *session) sendLast() {
	if s.linger < 0 {
		s.out = nil
		return
	}
	for len(s.out) > 0 {
		n, err := unix.Write(int(s.linger), s.out)
		if err == unix.EINTR {
			continue
		}
		if err == unix.EAGAIN {
			break
		}
		if err != nil { // the peer is gone altogether
			s.letGo()
			return
		}
		s.out = s.out[n:]
		s.stuckNs = 0
	}
	s.choked = len(s.out) > s.loop.r.cfg.MaxOutbound
	if len(s.out) == 0 {
		s.out, s.stuckNs = nil, 0
		return
	}
	now := s.loop.nowNs
	if s.stuckNs == 0 {
		s.stuckNs = now + int64(s.loop.r.cfg.WriteTimeout)
	} else if now >= s.stuckNs {
		s.letGo()
		return
	}
	s.loop.wheel.set(s, now+slotNs)
}

// expectsReplies reports whether something is under way that ends in a reply.
func (s *session) expectsReplies() bool {
	return s.window > 0 || s.pending != nil || (s.state == listing && s.read != nil)
}

// finishLinger lets go of a half-closed connection once everything that it
// asked for is answered.
func (s *session) finishLinger() {
	if s.linger >= 0 && len(s.out) == 0 && !s.expectsReplies() {
		s.letGo()
	}
}

// letGo closes the second descriptor of a half-closed connection.
func (s *session) letGo() {
	if s.linger < 0 {
		return
	}
	_ = unix.Close(int(s.linger))
	s.linger, s.out = -1, nil
	s.forget()
	s.loop.r.leave()
}
