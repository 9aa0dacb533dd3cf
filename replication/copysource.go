package replication

import (
	"errors"

	"smss/codec"
	"smss/engine"
	"smss/storage"
)

// Copy answers one request of a slave that copies this server; see
// reactor.Replication. A reader runs it.
func (n *Node) Copy(r *engine.Read) {
	q, err := codec.ParseCopy(r.Link.Hello)
	if err != nil {
		r.Err = refusal(err)
		return
	}
	var head any
	var data []byte
	switch q.Ask {
	case codec.AskTopics:
		head, err = n.copyTopics(&q)
	case codec.AskPiece:
		head, data, err = n.copyPiece(&q)
	case codec.AskDelays:
		head, data, err = n.copyDelays(&q)
	default:
		head, err = n.copyStart()
	}
	if err == nil {
		r.Text, err = codec.AppendCopyAnswer(make([]byte, 0, len(data)+answerRoom), head, data)
	}
	if err != nil {
		r.Err = refusal(err)
	}
}

// answerRoom is what an answer takes beside the bytes of a file.
const answerRoom = 128

func (n *Node) copyStart() (*codec.CopyStart, error) {
	// The history before the place: a promotion in between gives the events
	// before it no other name.
	h := n.History()
	p, err := n.cfg.Engine.CopyPlace()
	if err != nil {
		return nil, err
	}
	return &codec.CopyStart{
		Node: h.Node, Epochs: h.Epochs, EventID: p.EventID, File: p.End.File, Off: p.End.Off, OldestFile: p.OldestFile,
		IncompleteFrom: h.IncompleteFrom,
	}, nil
}

func (n *Node) copyTopics(q *codec.CopyRequest) (*codec.CopyTopics, error) {
	topics, done, err := n.cfg.Engine.CopyTopics(q.EventID, string(q.Topic), q.File)
	if err != nil {
		return nil, err
	}
	out := &codec.CopyTopics{Done: done}
	for i := range topics {
		m := &topics[i].Topic.Meta
		t := codec.CopyTopic{
			Name: []byte(m.Name), CreatedAtMs: m.CreatedAtMs, ExpireAtMs: m.ExpireAtMs, CreateEventID: m.CreateEventID,
			StateChangedAtMs: m.StateChangedAtMs, StateChangeEventID: m.StateChangeEventID, More: topics[i].More,
		}
		for _, f := range topics[i].Files {
			t.Files = append(t.Files, codec.CopyFile{File: f.File, Size: f.Size})
		}
		out.Topics = append(out.Topics, t)
	}
	return out, nil
}

func (n *Node) copyPiece(q *codec.CopyRequest) (*codec.CopyPiece, []byte, error) {
	buf := make([]byte, q.Max)
	got, err := n.cfg.Engine.CopyPiece(q.Topic, q.EventID, q.File, q.Off, buf)
	var gone *storage.FileGoneError
	switch {
	case errors.Is(err, engine.ErrCopyGone):
		return &codec.CopyPiece{Gone: true}, nil, nil
	case errors.As(err, &gone):
		return &codec.CopyPiece{Gone: true, Oldest: gone.Oldest}, nil, nil
	}
	return new(codec.CopyPiece), buf[:got], err
}

func (n *Node) copyDelays(q *codec.CopyRequest) (*codec.CopyDelays, []byte, error) {
	var after *storage.DelayKey
	if q.After != nil {
		k := delayKey(q.After)
		after = &k
	}
	delays, skipped, next, err := n.cfg.Engine.CopyDelays(q.EventID, after)
	if err != nil {
		return nil, nil, err
	}
	out := &codec.CopyDelays{Skipped: skipped}
	var data []byte
	for i := range delays {
		d := &delays[i]
		c := copyDelay(&d.DelayKey)
		c.Size = len(d.Payload)
		out.Delays = append(out.Delays, *c)
		data = append(data, d.Payload...)
	}
	if next != nil {
		out.Next = copyDelay(next)
	}
	return out, data, nil
}

func delayKey(d *codec.CopyDelay) storage.DelayKey {
	return storage.DelayKey{TriggerAtMs: d.TriggerAtMs, EventID: d.EventID, Topic: string(d.Topic)}
}

func copyDelay(k *storage.DelayKey) *codec.CopyDelay {
	return &codec.CopyDelay{TriggerAtMs: k.TriggerAtMs, EventID: k.EventID, Topic: []byte(k.Topic)}
}
