package reactor

import (
	"bytes"
	"time"

	"smss/codec"
	"smss/engine"
)

// A full copy is a sequence of COPY requests on an ordinary connection, each
// answered by itself. A connection that has sent one takes one of the places
// for copies until it closes: a reader and a few MiB of answers are what each
// of them can cost at once.

// copyPart has a reader make the answer.
func (s *session) copyPart(req *codec.Request) {
	rep := s.loop.r.cfg.Replication()
	if rep == nil || rep.Copy == nil {
		s.fail(codec.TextUnknownCommand)
		return
	}
	if why := rep.Refuses(s.remote); why != "" {
		s.loop.r.cfg.Events.refused(s.remote, why)
		s.fail(why)
		return
	}
	if !s.copies {
		if int(s.loop.r.copies.Add(1)) > rep.MaxReplicas {
			s.loop.r.copies.Add(-1)
			s.fail("too many copies at the same time, see replication.maxSlaves")
			return
		}
		s.copies = true
		setUserTimeout(s.conn.Fd(), s.sendTimeout())
	}
	s.state = copying
	s.startRead(&engine.Read{Kind: engine.CopyPart, Link: &engine.Link{Hello: bytes.Clone(req.Payload)}, Render: rep.Copy})
}

// partRead sends the answer.
func (s *session) partRead(r *engine.Read) {
	s.state = commanding
	if r.Err != nil {
		s.fail(r.Err.Error())
		return
	}
	s.flush()
	if !s.closed {
		s.write(r.Text) // not through out, which would copy it
	}
}

// leaveCopies gives the connection's place for a copy back.
func (s *session) leaveCopies() {
	if s.copies {
		s.copies = false
		s.loop.r.copies.Add(-1)
	}
}

// idleTimeout is how long the peer may ask for nothing, 0 = for ever. A slave
// that has gone in the middle of a copy must not keep its place for long.
func (s *session) idleTimeout() time.Duration {
	idle := s.loop.r.cfg.IdleTimeout
	if s.copies && (idle == 0 || idle > s.sendTimeout()) {
		return s.sendTimeout()
	}
	return idle
}

// idled says why a peer that asks for nothing is dropped.
func (s *session) idled() string {
	if s.copies {
		return "nothing asked in the middle of a copy for replication.sendTimeoutMs"
	}
	return "nothing asked for limits.idleTimeoutMs"
}
