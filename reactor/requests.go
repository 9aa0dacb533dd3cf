package reactor

import (
	"encoding/json"
	"fmt"

	"golang.org/x/sys/unix"

	"smss/codec"
	"smss/engine"
	"smss/storage"
)

// mutation sends a valid request through the ring. It reports false where the
// request is refused here, which local then does in its turn.
func (s *session) mutation(req *codec.Request) bool {
	if s.refusal(req) != "" {
		return false
	}
	cmd := s.command(kindOf[req.Command])
	cmd.Messages, cmd.ExpireAtMs = req.Messages, req.ExpireAtMs
	cmd.TriggerAtMs = cmd.ReceivedAtMs + req.DelayMs
	cmd.SetText(req.Topic, req.Trace, req.Payload)
	s.push(cmd)
	return true
}

var kindOf = map[codec.Command]engine.Kind{
	codec.Pub: engine.Publish, codec.Delay: engine.Delay,
	codec.CreateTopic: engine.Create, codec.DeleteTopic: engine.Delete,
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
	if l.stalled.head == nil {
		if l.r.engine.Push(cmd) {
			s.sent()
			return
		}
		l.r.engine.AwaitRoom(l.id)
		// The writer may have made room before it could see the request.
		if l.r.engine.Push(cmd) {
			s.sent()
			return
		}
	}
	s.pending = cmd
	l.stalled.push(s)
}

// sent notes that a command is at the engine.
func (s *session) sent() {
	s.window++
	s.loop.outstanding.Add(1)
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
	case len(req.Payload)+delayPrefix > storage.MaxDelayPayload:
		return fmt.Sprintf("a delayed message must be smaller than %d bytes", storage.MaxDelayPayload)
	}
	return ""
}

// delayPrefix is what is stored in front of a delayed message.
const delayPrefix = 16

// local answers a request that does not go through the ring, or whose refusal
// does not.
func (s *session) local(req *codec.Request) {
	switch req.Command {
	case codec.Pub, codec.Delay, codec.CreateTopic, codec.DeleteTopic:
		s.fail(s.refusal(req))
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
	default:
		s.fail(codec.TextUnknownCommand)
	}
}

// topicJSON is a topic as replies show it.
type topicJSON struct {
	Name               string `json:"name"`
	CreateTimeStamp    int64  `json:"createTimeStamp"`
	ExpireAt           int64  `json:"expireAt"`
	CreateEventID      int64  `json:"createEventId"`
	StateChangeTime    int64  `json:"stateChangeTime"`
	StateChangeEventID int64  `json:"stateChangeEventId"`
	State              int    `json:"state"`
	TopicRoot          string `json:"topicRoot"`
}

func describe(t *engine.Topic) topicJSON {
	m := &t.Meta
	return topicJSON{m.Name, m.CreatedAtMs, m.ExpireAtMs, m.CreateEventID, m.StateChangedAtMs, m.StateChangeEventID, int(m.State), t.Root}
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
	s.startRead(&engine.Read{Kind: k, EventID: eventID, Render: renderList})
}

func renderList(r *engine.Read) {
	if len(r.List) == 0 {
		return
	}
	out := make([]topicJSON, len(r.List))
	for i, t := range r.List {
		out[i] = describe(t)
	}
	r.Text, r.Err = json.Marshal(out)
}

func (s *session) listed(r *engine.Read) {
	s.state = commanding
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
	case r.Kind == engine.Locate:
		s.located(r)
	default:
		s.pushRead(r)
	}
}

// lastWords sends replies to a peer that has closed its sending side, as far
// as the socket takes them at once, and lets go of it after the last one.
func (s *session) lastWords(out []byte) {
	if s.linger < 0 {
		return
	}
	// The peer may be gone altogether: the error is what that looks like.
	if _, err := unix.Write(s.linger, out); err != nil {
		s.letGo()
	}
}

// expectsReplies reports whether something is under way that ends in a reply.
func (s *session) expectsReplies() bool {
	return s.window > 0 || s.pending != nil || (s.state == listing && s.read != nil)
}

// finishLinger lets go of a half-closed connection once everything that it
// asked for is answered.
func (s *session) finishLinger() {
	if s.linger >= 0 && !s.expectsReplies() {
		s.letGo()
	}
}

// letGo closes the second descriptor of a half-closed connection.
func (s *session) letGo() {
	if s.linger < 0 {
		return
	}
	_ = unix.Close(s.linger)
	s.linger = -1
	s.forget()
	s.loop.r.leave()
}
