package client

import (
	"fmt"
	"math"
	"time"

	"smss/codec"
)

// Publish publishes m to a topic and returns once the server has stored it,
// as safely as its flush level says.
func (c *Conn) Publish(topic string, m *codec.Message, options ...CallOption) error {
	return c.PublishBatch(topic, []*codec.Message{m}, options...)
}

// PublishBatch publishes messages to a topic in one request: all of them, in
// order and with consecutive event ids, or none. The server limits how many
// and how large they may be.
func (c *Conn) PublishBatch(topic string, messages []*codec.Message, options ...CallOption) error {
	return c.publish(topic, -1, messages, options)
}

// PublishDelay has messages published to a topic after a delay, counted by the
// server from when it reads the request; at least 1 s, to the millisecond,
// rounded up. Their event ids are given out then.
func (c *Conn) PublishDelay(topic string, delay time.Duration, messages []*codec.Message, options ...CallOption) error {
	return c.publish(topic, max(0, delay), messages, options)
}

// publish publishes at once where delay is negative.
func (c *Conn) publish(topic string, delay time.Duration, messages []*codec.Message, options []CallOption) error {
	k, err := prepare(topic, options)
	if err != nil {
		return err
	}
	if err := checkMessages(messages); err != nil {
		return err
	}
	if err := c.ready(); err != nil {
		return err
	}
	c.appendPublish(topic, k.trace, delay, messages)
	_, err = c.exchange(replyDone)
	return err
}

// appendPublish builds the request behind what c.out holds.
func (c *Conn) appendPublish(topic, trace string, delay time.Duration, messages []*codec.Message) {
	c.payload = c.payload[:0]
	for _, m := range messages {
		c.payload = codec.AppendMessage(c.payload, m)
	}
	if delay < 0 {
		c.out = codec.AppendPub(c.out, topic, trace, c.payload)
	} else {
		c.out = codec.AppendDelay(c.out, topic, trace, wholeMs(delay), c.payload)
	}
	if cap(c.payload) > keptBytes {
		c.payload = nil
	}
}

func wholeMs(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d > time.Duration(ms)*time.Millisecond {
		ms++
	}
	return ms
}

func checkMessages(messages []*codec.Message) error {
	if len(messages) == 0 {
		return ErrNoMessages
	}
	total := uint64(0)
	for i, m := range messages {
		if m == nil || len(m.Headers) == 0 && len(m.Body) == 0 {
			return fmt.Errorf("message %d: %w", i, ErrEmptyMessage)
		}
		total += codec.MessageOverhead + uint64(len(m.Body))
		for _, h := range m.Headers {
			if h.Key == "" {
				return fmt.Errorf("message %d: %w", i, ErrEmptyKey)
			}
			total += 8 + uint64(len(h.Key)) + uint64(len(h.Value))
		}
	}
	if total > math.MaxUint32 {
		return fmt.Errorf("payload of %d bytes: %w", total, ErrTooLarge)
	}
	return nil
}
