package engine

import (
	"sync/atomic"

	"smss/storage"
)

// Topic is one life of a topic: a topic that is deleted and created again is
// another Topic. Its tail ends when it is deleted or its life is over.
type Topic struct {
	Tail
	Meta   storage.TopicMeta    // immutable
	Root   string               // immutable; directory below the topic root
	reader *storage.TopicReader // immutable

	log   *storage.TopicLog        // writer
	names map[string]*Subscription // writer: who subscribes, by name

	// leaving says that the deletion is being written: the topic's directory
	// may be gone, or be another life's, although it has not ended yet.
	leaving atomic.Bool // stored by the writer
	// astray says that writing has stopped in the middle of the deletion: the
	// directory is in the trash, and whether the topic is deleted the next start
	// decides. Until then it cannot be read.
	astray atomic.Bool // stored by the writer
}

func newTopic(meta storage.TopicMeta, root string, reader *storage.TopicReader, log *storage.TopicLog, lanes int) *Topic {
	t := &Topic{Meta: meta, Root: root, reader: reader, log: log}
	t.init(log.End(), lanes)
	return t
}

// Expired reports whether the topic's life is over at nowMs.
func (t *Topic) Expired(nowMs int64) bool {
	return t.Meta.ExpireAtMs != 0 && t.Meta.ExpireAtMs <= nowMs
}

// Subscription is one subscriber of one topic.
type Subscription struct {
	Waiter
	Who string // set before Attach, immutable after

	Topic    *Topic                       // set by the writer before Attach is done, immutable after
	detached atomic.Pointer[Subscription] // next in Engine.detached
}
