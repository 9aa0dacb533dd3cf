package client

import (
	"encoding/json"
	"fmt"
	"time"

	"smss/codec"
)

// Topic is what the server tells about a topic.
type Topic struct {
	Name string
	// CreatedAt is when it was created, to the millisecond, by CreateEventID.
	CreatedAt     time.Time
	CreateEventID int64
	// ExpireAt is the end of its life; zero = it lives until it is deleted.
	ExpireAt time.Time
	// Deleted says that it is about to go; StateChangedAt and
	// StateChangeEventID tell since when.
	Deleted            bool
	StateChangedAt     time.Time
	StateChangeEventID int64
	// Root is its directory below the server's topic directory.
	Root string
}

// UnmarshalJSON reads the server's form of a topic.
func (t *Topic) UnmarshalJSON(b []byte) error {
	var wire codec.TopicJSON
	if err := json.Unmarshal(b, &wire); err != nil {
		return err
	}
	*t = Topic{
		Name:               wire.Name,
		CreatedAt:          time.UnixMilli(wire.CreateTimeStamp),
		CreateEventID:      wire.CreateEventID,
		Deleted:            wire.State != 0,
		StateChangedAt:     time.UnixMilli(wire.StateChangeTime),
		StateChangeEventID: wire.StateChangeEventID,
		Root:               wire.TopicRoot,
	}
	if wire.ExpireAt != 0 {
		t.ExpireAt = time.UnixMilli(wire.ExpireAt)
	}
	return nil
}

// CreateTopic creates a topic. The zero expireAt lets it live until it is
// deleted; another is at least 10 s ahead by the server's clock, to the
// millisecond.
func (c *Conn) CreateTopic(name string, expireAt time.Time, options ...CallOption) error {
	k, err := prepare(name, options)
	if err != nil {
		return err
	}
	if err := c.ready(); err != nil {
		return err
	}
	ms := int64(0)
	if !expireAt.IsZero() {
		if ms = expireAt.UnixMilli(); ms == 0 {
			ms = 1 // the first moment of 1970 is past, not for ever
		}
	}
	c.out = codec.AppendCreateTopic(c.out, name, k.trace, ms)
	_, err = c.exchange(replyDone)
	return err
}

// DeleteTopic deletes a topic with all that it holds; its subscriptions end.
func (c *Conn) DeleteTopic(name string, options ...CallOption) error {
	_, err := c.ask(codec.DeleteTopic, name, replyDone, options)
	return err
}

// TopicInfo describes one topic.
func (c *Conn) TopicInfo(name string, options ...CallOption) (Topic, error) {
	b, err := c.ask(codec.TopicInfo, name, replyJSON, options)
	if err != nil {
		return Topic{}, err
	}
	var t Topic
	if err := c.decode(b, &t); err != nil {
		return Topic{}, err
	}
	return t, nil
}

// Topics lists every topic, also those about to go, in the order of their
// names' bytes.
func (c *Conn) Topics(options ...CallOption) ([]Topic, error) {
	b, err := c.ask(codec.List, "", replyJSON, options)
	if err != nil {
		return nil, err
	}
	return c.decodeList(b)
}

// ValidTopics lists the topics that live; with an event id that is not 0,
// those among them that were created by it or earlier.
func (c *Conn) ValidTopics(eventID int64, options ...CallOption) ([]Topic, error) {
	k, err := prepare("", options)
	if err != nil {
		return nil, err
	}
	if err := c.ready(); err != nil {
		return nil, err
	}
	c.out = codec.AppendEventRequest(c.out, codec.ValidList, k.trace, eventID)
	b, err := c.exchange(replyJSON)
	if err != nil {
		return nil, err
	}
	return c.decodeList(b)
}

// ask makes a request that is a command and a topic name.
func (c *Conn) ask(command codec.Command, topic string, want reply, options []CallOption) ([]byte, error) {
	k, err := prepare(topic, options)
	if err != nil {
		return nil, err
	}
	if err := c.ready(); err != nil {
		return nil, err
	}
	c.out = codec.AppendPlain(c.out, command, topic, k.trace)
	return c.exchange(want)
}

func (c *Conn) decodeList(b []byte) ([]Topic, error) {
	if len(b) == 0 {
		return nil, nil // how the protocol says that there are none
	}
	var list []Topic
	if err := c.decode(b, &list); err != nil {
		return nil, err
	}
	return list, nil
}

func (c *Conn) decode(b []byte, into any) error {
	if err := json.Unmarshal(b, into); err != nil {
		return c.fail(fmt.Errorf("%w: %w", ErrProtocol, err))
	}
	return nil
}
