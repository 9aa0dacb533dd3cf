package reactor

import (
	"bytes"
	"net"
	"time"

	"smss/codec"
	"smss/engine"
)

// Replication is what a server does for those who copy it. Its functions are
// called on event loops and must not block, but for Greet.
type Replication struct {
	// Refuses returns why an address may not copy this server, or "".
	Refuses func(remote net.Addr) string
	// Greet runs on a reader, once the place in the binlog is known or not
	// (r.Err). It judges what a slave says of itself (r.Link.Hello) and leaves
	// the whole answer frame in r.Link.Answer, or a refusal in r.Err. It is not
	// called for existing slaves, which say nothing.
	Greet func(r *engine.Read)
	// Copy runs on a reader. It reads the part of a full copy that r.Link.Hello
	// asks for and leaves the whole answer in r.Text, or an error in r.Err. Nil:
	// COPY is no command.
	Copy func(r *engine.Read)
	// MaxReplicas is how many slaves may be connected at once, and as many
	// connections may be used for copies.
	MaxReplicas int
	// Current reports, once a slave is connected, whether what Greet has judged by
	// is still so; if not, the slave has to come again. Nil = always.
	Current func(*engine.Link) bool
	// SendTimeout is how long a slave may take nothing at all.
	SendTimeout time.Duration
	// Connected and Left are told of slaves that come and go.
	Connected func(*engine.Replica)
	Left      func(r *engine.Replica, why string)
}

// follow begins the way into a feed: a reader finds the place in the binlog.
func (s *session) follow(req *codec.Request) {
	rep := s.loop.r.cfg.Replication()
	if rep == nil {
		s.fail(noFeed(req.Extended))
		return
	}
	if why := rep.Refuses(s.remote); why != "" {
		s.loop.r.cfg.Events.refused(s.remote, why)
		s.fail(why)
		return
	}
	r := &engine.Read{Kind: engine.LocateRecord, EventID: req.EventID, Link: new(engine.Link)}
	if req.Extended {
		r.Link.Extended, r.Link.Hello = true, bytes.Clone(req.Greeting)
		r.Render = rep.Greet
	}
	s.state = seeking
	s.startRead(r)
}

// noFeed is what a slave answers to one that wants to follow it: to an existing
// server as those do.
func noFeed(extended bool) string {
	if extended {
		return "this server is a slave and feeds none, see replication.chain"
	}
	return codec.TextUnknownCommand
}

// sought begins the feed.
func (s *session) sought(r *engine.Read) {
	s.state = commanding
	rep := s.loop.r.cfg.Replication()
	if r.Err == nil && rep == nil {
		r.Err = &engine.Refusal{Text: noFeed(r.Link.Extended)} // the role has changed meanwhile
	}
	if r.Err != nil {
		s.fail(r.Err.Error())
		return
	}
	f := &engine.Replica{
		Waiter: s.waiter(), Remote: s.remote.String(), Since: time.UnixMilli(s.loop.nowMs),
		Extended: r.Link.Extended, Node: r.Link.Node, Port: r.Link.Port,
	}
	f.Pos = r.Pos
	if !s.loop.r.engine.AddReplica(f, r.EventID, rep.MaxReplicas) {
		s.fail("too many slaves, see replication.maxSlaves")
		return
	}
	// Behind AddReplica: who changes the history dismisses the slaves that are
	// connected then, so that either this one is, or this look finds the change.
	if rep.Current != nil && f.Extended && !rep.Current(r.Link) {
		s.loop.r.engine.RemoveReplica(f)
		s.close()
		return
	}
	if rep.Connected != nil {
		rep.Connected(f)
	}
	s.feed, s.state = f, feeding
	setUserTimeout(s.conn.Fd(), s.sendTimeout())
	s.out = append(s.out, r.Link.Answer...)
	s.flush()
	s.pumpFeed()
}

// pumpFeed reads what the slave does not have, or waits for it. While the
// socket is full nothing is read: a slow slave costs limits.maxOutboundBytes.
func (s *session) pumpFeed() {
	for !s.closed && s.state == feeding && !s.choked && s.read == nil && s.beatNs == 0 {
		switch {
		case s.feed.More():
			r := s.feed.ReadOf()
			*r = engine.Read{Kind: engine.ReadRecords, From: s.feed.Pos}
			s.startRead(r)
		case s.feed.Park():
			s.loop.beats.push(s, s.loop.nowNs+int64(s.loop.r.cfg.Heartbeat))
		}
	}
}

// recordsRead sends the records that were read.
func (s *session) recordsRead(r *engine.Read) {
	if r.Err != nil {
		why := r.Err.Error()
		r.Release()
		extended := s.feed.Extended
		s.leaveFeed(why)
		if extended {
			s.refuse(why) // reports that are on their way must not be taken for requests
			return
		}
		s.fail(why)
		s.state = commanding
		return
	}
	s.feed.Moved(&r.Push)
	if r.Push.Messages > 0 {
		if s.feed.Extended {
			r.Push.Frame = codec.AppendProgress(r.Push.Frame, s.loop.r.engine.LastEventID())
		}
		s.write(r.Push.Frame)
	}
	r.Release()
	s.pumpFeed()
}

// leaveFeed ends the feed.
func (s *session) leaveFeed(why string) {
	f := s.feed
	s.feed = nil
	s.loop.beats.remove(s)
	s.activeNs = s.loop.nowNs
	s.loop.r.engine.RemoveReplica(f)
	if rep := s.loop.r.cfg.Replication(); rep != nil && rep.Left != nil {
		rep.Left(f, why)
	}
}

// reports handles what a slave sends. Existing slaves send nothing that means
// anything.
func (s *session) reports(b []byte) int {
	if !s.feed.Extended {
		return len(b)
	}
	if len(b) < codec.ReportSize {
		return 0
	}
	id, promoted := codec.ParseReport(b)
	if promoted {
		s.feed.Promoted()
	}
	s.loop.r.engine.Acked(s.feed, id)
	if s.choked {
		// It has taken something, so that there is room in the socket.
		s.choked = s.conn.OutboundBuffered() > s.loop.r.cfg.MaxOutbound
		s.pumpFeed()
	}
	return codec.ReportSize
}

// ordered does with a slave what the replication has decided.
func (s *session) ordered(f *engine.Replica) {
	if s.closed || s.feed != f {
		return
	}
	eventID, takeOver, dismissed := f.Orders()
	switch {
	case dismissed:
		s.close()
	case takeOver:
		s.out = codec.AppendTakeOver(s.out, eventID)
	}
}

// heartbeat returns what tells the peer that nothing is new.
func (s *session) heartbeat(dst []byte) []byte {
	if s.state == feeding && s.feed.Extended {
		return codec.AppendProgress(dst, s.loop.r.engine.LastEventID())
	}
	return codec.AppendCode(dst, codec.CodeAlive)
}

// stuck says why a peer that takes nothing is dropped.
func (s *session) stuck() string {
	if s.state == feeding || s.copies {
		return "no progress in sending for replication.sendTimeoutMs"
	}
	return "no progress in sending for timeout.net.write"
}

// sendTimeout is how long the peer may take nothing at all.
func (s *session) sendTimeout() time.Duration {
	cfg := &s.loop.r.cfg
	if s.state == feeding || s.copies {
		if rep := cfg.Replication(); rep != nil {
			return max(rep.SendTimeout, cfg.WriteTimeout)
		}
	}
	return cfg.WriteTimeout
}
