package reactor

import (
	"encoding/json"
	"fmt"

	"smss/codec"
	"smss/engine"
)

// mutation sends a request that is not refused here through the ring.
func (s *session) mutation(req *codec.Request) {
	cmd := s.command(kindOf(req.Command))
	cmd.Messages = req.Messages
	switch cmd.Kind { // not a publish: see engine.Command
	case engine.Create:
		cmd.ExpireAtMs = req.ExpireAtMs
	case engine.Delay:
		cmd.TriggerAtMs = cmd.ReceivedAtMs + req.DelayMs
	}
	cmd.SetText(req.Topic, req.Trace, req.Payload)
	s.push(cmd)
}

func throughRing(c codec.Command) bool {
	switch c {
	case codec.Pub, codec.Delay, codec.CreateTopic, codec.DeleteTopic:
		return true
	}
	return false
}

func kindOf(c codec.Command) engine.Kind {
	switch c {
	case codec.Delay:
		return engine.Delay
	case codec.CreateTopic:
		return engine.Create
	case codec.DeleteTopic:
		return engine.Delete
	}
	return engine.Publish
}

func (s *session) command(k engine.Kind) *engine.Command {
	cmd := s.loop.pool.Get()
	cmd.Kind, cmd.Session, cmd.Mailbox = k, s, s.loop.mailbox
	cmd.ReceivedAtMs = s.loop.nowMs
	return cmd
}

// push sends cmd through the ring; where that is full the session waits in
// line, behind those that found it full before.
func (s *session) push(cmd *engine.Command) {
	l := s.loop
	l.outstanding.Add(1)
	if l.stalled.head == nil && l.tryPush(cmd) {
		s.window++
		return
	}
	s.pending = cmd
	l.stalled.push(s)
}

// refusal returns why a mutation is refused before it reaches the writer, in
// the order in which the existing server checks, or "".
func (s *session) refusal(req *codec.Request) string {
	cfg := &s.loop.r.cfg
	switch req.Command {
	case codec.Pub:
		switch {
		case req.Invalid != nil:
			return req.Invalid.Text
		case cfg.ReadOnly():
			return codec.TextMasterPublishes
		}
	case codec.CreateTopic:
		switch {
		case !codec.ValidTopicName(req.Topic):
			return codec.TextTopicName
		case cfg.ReadOnly():
			return codec.TextMasterManages
		}
	case codec.DeleteTopic:
		if cfg.ReadOnly() {
			return codec.TextMasterManages
		}
	case codec.Delay:
		return s.delayRefusal(req)
	}
	return ""
}

const minDelayMs = 1000

func (s *session) delayRefusal(req *codec.Request) string {
	cfg := &s.loop.r.cfg
	switch {
	case cfg.ReadOnly():
		return codec.TextMasterPublishes
	case len(req.Payload) <= codec.MessageOverhead:
		return codec.TextDelayRequest
	case req.DelayMs < minDelayMs:
		return codec.TextDelayTime
	case req.DelayMs > cfg.MaxDelayMs:
		return fmt.Sprintf("delay time must be at most %d ms, see limits.maxDelayMs", cfg.MaxDelayMs)
	case req.Invalid != nil:
		return req.Invalid.Text
	case len(req.Payload) > cfg.MaxDelayPayload:
		return fmt.Sprintf("delayed messages may take %d bytes in one request", cfg.MaxDelayPayload)
	}
	return ""
}

// local answers a request that does not go through the ring.
func (s *session) local(req *codec.Request) {
	switch req.Command {
	case codec.Alive:
		s.out = codec.AppendCode(s.out, codec.CodeAlive)
	case codec.TopicInfo:
		s.topicInfo(req)
	case codec.List:
		s.list(engine.ListAll, 0)
	case codec.ValidList:
		s.list(engine.ListValid, req.EventID)
	case codec.Sub:
		s.subscribe(req)
	case codec.Replica:
		s.follow(req)
	case codec.Copy:
		s.copyPart(req)
	default:
		s.fail(codec.TextUnknownCommand)
	}
}

func describe(t *engine.Topic) codec.TopicJSON {
	m := &t.Meta
	return codec.TopicJSON{
		Name: m.Name, CreateTimeStamp: m.CreatedAtMs, ExpireAt: m.ExpireAtMs, CreateEventID: m.CreateEventID,
		StateChangeTime: m.StateChangedAtMs, StateChangeEventID: m.StateChangeEventID, State: int(m.State), TopicRoot: t.Root,
	}
}

func (s *session) topicInfo(req *codec.Request) {
	if len(req.Topic) == 0 {
		s.fail(codec.TextTopicRequired)
		return
	}
	t := s.loop.r.engine.Lookup(req.Topic)
	if t == nil {
		s.fail(codec.TextTopicNotExist)
		return
	}
	text, err := json.Marshal(describe(t))
	if err != nil {
		s.fail(err.Error())
		return
	}
	s.out = codec.AppendJSON(s.out, text)
}

// list has a reader make the list: with many topics that takes too long for a
// loop.
func (s *session) list(k engine.ReadKind, eventID int64) {
	s.state = listing
	s.loop.outstanding.Add(1)
	s.startRead(&engine.Read{Kind: k, EventID: eventID, Render: renderList})
}

func renderList(r *engine.Read) {
	if len(r.List) == 0 {
		return
	}
	out := make([]codec.TopicJSON, len(r.List))
	for i, t := range r.List {
		out[i] = describe(t)
	}
	r.Text, r.Err = json.Marshal(out)
}

func (s *session) listed(r *engine.Read) {
	s.state = commanding
	s.loop.outstanding.Add(-1)
	if r.Err != nil {
		s.fail(r.Err.Error())
		return
	}
	s.out = codec.AppendJSON(s.out, r.Text)
}

// startRead hands r to the readers; where they have too much to do the session
// waits in line.
func (s *session) startRead(r *engine.Read) {
	l := s.loop
	r.Session, r.Mailbox = s, l.mailbox
	s.read = r
	if l.waiting.head != nil || !l.r.engine.Read(r) {
		l.waiting.push(s)
	}
}

// done takes a command back from the engine.
func (s *session) done(cmd *engine.Command) {
	s.window--
	s.barrier = s.barrier && s.window > 0
	s.loop.outstanding.Add(-1)
	if cmd.Kind == engine.Attach {
		s.attached(cmd)
		s.loop.pool.Put(cmd)
		return
	}
	if cmd.Err != nil {
		s.fail(cmd.Err.Error())
	} else {
		s.out = codec.AppendCode(s.out, codec.CodeOK)
	}
	s.loop.pool.Put(cmd)
}

// readDone takes a read back from the engine. The read may be used again by
// what follows, so its buffer is given back before that.
func (s *session) readDone(r *engine.Read) {
	s.read = nil
	switch {
	case r.Kind == engine.ListAll || r.Kind == engine.ListValid:
		s.listed(r)
	case s.closed:
		r.Release()
	case r.Kind == engine.LocateRecord:
		s.sought(r)
	case r.Kind == engine.CopyPart:
		s.partRead(r)
	case r.Kind == engine.ReadRecords:
		s.recordsRead(r)
	case r.Kind == engine.Locate:
		s.located(r)
	default:
		s.pushRead(r)
	}
}
