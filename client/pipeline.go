package client

import (
	"time"

	"smss/codec"
)

const (
	// DefaultWindow is how many requests of a pipeline are on their way at
	// once; the server works on that many of one connection.
	DefaultWindow = 64
	// windowBytes bounds the requests on their way, apart from one that is
	// larger by itself, since the server closes connections that have several
	// times as much unread.
	windowBytes = 2 << 20
	// flushBytes is how much is gathered before it is sent unasked.
	flushBytes = 64 << 10
)

// Pipeline publishes on a connection without waiting for each reply: Publish
// until ErrWindowFull, Receive one reply for each request, in order. It
// belongs to the goroutine that uses its connection. While replies are
// outstanding the connection's other requests fail with ErrOutstanding.
type Pipeline struct {
	c      *Conn
	window int
}

// Pipeline returns a pipeline with up to window requests on their way, 0 and
// less = DefaultWindow.
func (c *Conn) Pipeline(window int) *Pipeline {
	if window <= 0 {
		window = DefaultWindow
	}
	return &Pipeline{c, window}
}

// Outstanding returns how many requests have no reply yet.
func (p *Pipeline) Outstanding() int { return len(p.c.outstanding) }

// Publish sends like Conn.Publish, now or with the next Flush or Receive, and
// does not wait. ErrWindowFull means that nothing was sent: Receive first.
func (p *Pipeline) Publish(topic string, m *codec.Message, options ...CallOption) error {
	return p.publish(topic, -1, []*codec.Message{m}, options)
}

// PublishBatch sends like Conn.PublishBatch, see Publish.
func (p *Pipeline) PublishBatch(topic string, messages []*codec.Message, options ...CallOption) error {
	return p.publish(topic, -1, messages, options)
}

// PublishDelay sends like Conn.PublishDelay, see Publish.
func (p *Pipeline) PublishDelay(topic string, delay time.Duration, messages []*codec.Message, options ...CallOption) error {
	return p.publish(topic, max(0, delay), messages, options)
}

func (p *Pipeline) publish(topic string, delay time.Duration, messages []*codec.Message, options []CallOption) error {
	c := p.c
	k, err := prepare(topic, options)
	if err != nil {
		return err
	}
	if err := checkMessages(messages); err != nil {
		return err
	}
	if err := c.Err(); err != nil {
		return err
	}
	if len(c.outstanding) >= p.window {
		return ErrWindowFull
	}
	if len(c.outstanding) == 0 {
		c.out = c.out[:0]
	}
	before := len(c.out)
	c.appendPublish(topic, k.trace, delay, messages)
	size := len(c.out) - before
	if c.outstandingBytes+size > windowBytes && len(c.outstanding) > 0 {
		c.out = c.out[:before]
		return ErrWindowFull
	}
	c.outstanding = append(c.outstanding, size)
	c.outstandingBytes += size
	if len(c.out) >= flushBytes {
		return p.Flush()
	}
	return nil
}

// Flush sends what has been gathered.
func (p *Pipeline) Flush() error {
	c := p.c
	if err := c.Err(); err != nil {
		return err
	}
	if len(c.out) == 0 || len(c.outstanding) == 0 {
		return nil
	}
	c.extend()
	return c.send()
}

// Receive flushes and waits for the reply to the oldest request without one.
// Nil and *ServerError are that request's outcome; after any other error the
// outcomes of all outstanding requests are unknown.
func (p *Pipeline) Receive() error {
	c := p.c
	if len(c.outstanding) == 0 {
		if err := c.Err(); err != nil {
			return err
		}
		return ErrNothingOutstanding
	}
	if err := p.Flush(); err != nil {
		return err
	}
	c.extend()
	_, err := c.receive(replyDone)
	if c.broken != nil {
		return err
	}
	c.outstandingBytes -= c.outstanding[0]
	c.outstanding = append(c.outstanding[:0], c.outstanding[1:]...)
	return err
}
