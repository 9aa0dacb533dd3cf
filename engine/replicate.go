package engine

import (
	"fmt"

	"smss/codec"
	"smss/storage"
)

// A slave takes its master's records through the same writer as a master takes
// its clients' commands. Three things differ: the ids and times are given, an
// event whose topic is missing is written to the binlog and not applied, and
// nothing is armed.
//
// A follower has many records under way. When one fails, those behind it must
// not be applied: the follower would have a hole that nobody sees. They belong
// to one stream, and a stream ends with its first failure.

// errStreamFailed refuses what comes behind a record that has failed.
var errStreamFailed = &Refusal{"a record before this one was not applied"}

// NewReplicate returns a command that applies a record of the master. raw is
// one whole record, as codec.ParseBinlogRecord accepts it, and is copied.
// stream is not 0 and names the connection that it came by: a number that was
// not used before.
func (p *CommandPool) NewReplicate(raw []byte, stream uint64) (*Command, error) {
	cmd := p.Get()
	cmd.Kind, cmd.stream = Replicate, stream
	cmd.SetText(nil, nil, raw)
	if cmd.record == nil {
		cmd.record = new(codec.BinlogRecord)
	}
	n, err := codec.ParseBinlogRecord(cmd.payload(), len(raw), cmd.record)
	if err == nil && n != len(raw) {
		err = codec.ErrFields
	}
	if err != nil {
		p.Put(cmd)
		return nil, err
	}
	return cmd, nil
}

// Record returns the record that a Replicate command carries; valid as long as
// the command is.
func (c *Command) Record() *codec.BinlogRecord { return c.record }

// stageReplicate stages a record of the master.
func (w *writer) stageReplicate(cmd *Command) error {
	if cmd.stream == w.failedStream {
		return errStreamFailed
	}
	err := w.replicate(cmd)
	if err != nil {
		w.failedStream = cmd.stream
	}
	return err
}

func (w *writer) replicate(cmd *Command) error {
	rec := cmd.record
	if rec.EventID <= w.lastID {
		return &Refusal{fmt.Sprintf("the master sends event %d, which does not come after %d", rec.EventID, w.lastID)}
	}
	if w.e.lowDisk.Load() && rec.Command != codec.DeleteTopic {
		return errDiskLow
	}
	t := w.topics[string(rec.Topic)]
	if t != nil && t.Meta.CreateEventID >= rec.EventID {
		t = nil // the event is of a former life of that name
	}
	cmd.Messages = 0
	if rec.Command == codec.Pub || rec.Command == codec.DelayApply {
		n, ok := codec.CountStored(rec.Messages())
		if !ok {
			return &Refusal{fmt.Sprintf("event %d of the master does not hold whole messages", rec.EventID)}
		}
		cmd.Messages = n
	}
	creates := rec.Command == codec.CreateTopic && w.topics[string(rec.Topic)] == nil
	if creates && len(w.topics) >= w.e.cfg.MaxTopics {
		return errTooManyTopics
	}
	at := w.e.store.Batch().BinlogRecord(cmd.payload(), rec)
	cmd.staged, cmd.EventID = true, rec.EventID+max(1, int64(cmd.Messages))-1
	w.lastID = cmd.EventID
	w.nextID = max(w.nextID, w.lastID+1)
	if creates {
		w.replicateCreate(cmd)
	} else {
		w.apply(cmd, t, at)
	}
	return nil
}

// apply stages what a record does to a topic, nil = missing, beside standing
// in the binlog.
func (w *writer) apply(cmd *Command, t *Topic, at storage.Pos) {
	rec, batch := cmd.record, w.e.store.Batch()
	var key storage.DelayKey
	if rec.Command == codec.Delay || rec.Command == codec.DelayApply {
		trigger, id := rec.DelayKey()
		key = storage.DelayKey{TriggerAtMs: trigger, EventID: id, Topic: string(rec.Topic)}
	}
	if rec.Command == codec.DelayApply {
		batch.Meta().DeleteDelay(key)
	}
	if t == nil {
		cmd.Messages = 0
		return
	}
	switch rec.Command {
	case codec.Pub, codec.DelayApply:
		cmd.target = t
		batch.Messages(t.log, rec.WrittenAtMs, rec.WrittenAtMs, rec.EventID, at, rec.Messages())
	case codec.Delay:
		if len(rec.Payload) > storage.MaxDelayPayload+delayRoom {
			// Only an existing server takes so large a one. When it fires the
			// whole message comes, so that it is missing only if this slave is
			// promoted before.
			w.e.events.Note(fmt.Sprintf("delayed message %d of topic %s is too large to be kept for a promotion", rec.EventID, rec.Topic), nil)
			return
		}
		batch.Meta().PutDelay(key, rec.Payload)
	case codec.DeleteTopic:
		w.remove(cmd, t)
	}
}

// replicateCreate creates a topic as the master did. The end of its life is
// not looked at: the master's delete comes when it is over there.
func (w *writer) replicateCreate(cmd *Command) {
	rec := cmd.record
	if !codec.ValidTopicName(rec.Topic) {
		// An existing server lets names through that leave their directory.
		w.e.events.Note(fmt.Sprintf("topic %q of the master is left out: its name is not one that a directory can have", rec.Topic), nil)
		return
	}
	w.create(cmd, storage.TopicMeta{
		Name: string(rec.Topic), CreatedAtMs: rec.WrittenAtMs, ExpireAtMs: rec.ExpireAtMs(), CreateEventID: rec.EventID,
		StateChangedAtMs: rec.WrittenAtMs, StateChangeEventID: rec.EventID,
	})
}

// refuse takes a staged command out of the batch. A record of the master takes
// those behind it along, see endStream.
func (w *writer) refuse(cmd *Command, err error) {
	cmd.Err, cmd.staged = err, false
	if cmd.Kind == Replicate {
		w.failedStream = cmd.stream
	}
}

// endStream refuses what the batch holds of a stream that has failed: all of
// it, because what came before the failure is taken back with the batch.
func (w *writer) endStream() {
	for _, cmd := range w.cmds {
		if cmd.staged && cmd.Kind == Replicate && cmd.stream == w.failedStream {
			w.refuse(cmd, errStreamFailed)
		}
	}
}
