package client

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"smss/codec"
)

// Limits and defaults of Options.
const (
	DefaultTimeout       = 5 * time.Second
	DefaultMaxReplyBytes = 64 << 20
)

// Options are what all connections have in common. The zero value is good.
type Options struct {
	// Timeout bounds connecting, and each request from the first byte sent to
	// the last byte of the reply. 0 and less = DefaultTimeout.
	Timeout time.Duration
	// MaxReplyBytes bounds the JSON of a reply. 0 and less =
	// DefaultMaxReplyBytes.
	MaxReplyBytes int
	// Dial connects; nil = a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

func (o Options) withDefaults() Options {
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	if o.MaxReplyBytes <= 0 {
		o.MaxReplyBytes = DefaultMaxReplyBytes
	}
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
	}
	return o
}

func (o *Options) dial(ctx context.Context, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	return o.Dial(ctx, "tcp", addr)
}

// keptBytes is the largest buffer that a connection keeps between requests.
const keptBytes = 1 << 20

// Conn is a connection in command mode. One goroutine uses it at a time; Close
// may be called from any.
type Conn struct {
	nc      net.Conn
	options Options
	in      *bufio.Reader
	out     []byte // requests built and not yet sent
	payload []byte // scratch for the messages of one request
	broken  error  // why no more requests can be made
	closed  atomic.Bool
	// outstanding are the sizes of the requests of a pipeline that have no
	// reply yet, oldest first.
	outstanding      []int
	outstandingBytes int

	lender   *Pool     // who lent this connection, while it is lent
	lastUsed time.Time // when it was given back
	refused  bool      // the last reply was a refusal, which the server may have closed after
}

// Dial connects to a server, "host:port", within ctx and o.Timeout. It sends
// nothing: use Alive to know that a server answers.
func Dial(ctx context.Context, addr string, o Options) (*Conn, error) {
	o = o.withDefaults()
	nc, err := o.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &Conn{nc: nc, options: o, in: bufio.NewReader(nc)}, nil
}

// Close closes the connection; a call that is waiting fails. Any goroutine may
// call it, more than once.
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	return c.nc.Close()
}

// Err returns nil while the connection can be used, and an error that wraps
// ErrBroken once it cannot.
func (c *Conn) Err() error {
	if c.broken == nil && c.closed.Load() {
		c.broken = broken(ErrClosed)
	}
	return c.broken
}

// fail marks the connection as broken, for the first cause alone.
func (c *Conn) fail(cause error) error {
	if c.broken == nil {
		if c.closed.Load() {
			cause = ErrClosed
		}
		c.broken = broken(cause)
	}
	_ = c.Close()
	return c.broken
}

// CallOption is an option of one request.
type CallOption func(*call)

type call struct{ trace string }

// Trace puts a trace id of up to 255 bytes on a request, for the server's log.
func Trace(id string) CallOption { return func(c *call) { c.trace = id } }

// prepare applies the options of a request about topic and checks what it is
// about to say.
func prepare(topic string, options []CallOption) (call, error) {
	var k call
	for _, o := range options {
		o(&k)
	}
	return k, checkNames(topic, k.trace)
}

// reply says what a request is answered with when it is not refused.
type reply int

const (
	replyDone reply = iota
	replyAlive
	replyJSON
)

// exchange sends the one request in c.out and receives its reply.
func (c *Conn) exchange(want reply) ([]byte, error) {
	c.extend()
	if err := c.send(); err != nil {
		return nil, err
	}
	return c.receive(want)
}

// ready reports whether a request may be built into c.out.
func (c *Conn) ready() error {
	if err := c.Err(); err != nil {
		return err
	}
	if len(c.outstanding) > 0 {
		return ErrOutstanding
	}
	c.out = c.out[:0]
	return nil
}

// extend gives the next exchange its full time.
func (c *Conn) extend() {
	// The error of a closed connection comes again from what follows.
	_ = c.nc.SetDeadline(time.Now().Add(c.options.Timeout))
}

func (c *Conn) send() error {
	_, err := c.nc.Write(c.out)
	if cap(c.out) > keptBytes {
		c.out = nil
	}
	c.out = c.out[:0]
	if err == nil {
		return nil
	}
	if refusal := c.lastWords(); refusal != nil {
		_ = c.fail(err)
		return refusal
	}
	return c.fail(err)
}

// lastWords returns the refusal that a server sent before it closed in the
// middle of a request, which is what it does with one that is too large. With
// more requests on their way it is not known whose refusal it would be.
func (c *Conn) lastWords() error {
	if len(c.outstanding) > 1 {
		return nil
	}
	_ = c.nc.SetReadDeadline(time.Now().Add(c.options.Timeout / 10))
	var b [codec.ReplyHeaderSize]byte
	if _, err := io.ReadFull(c.in, b[:]); err != nil {
		return nil
	}
	h := codec.ParseReplyHeader(b[:])
	if h.Code != codec.CodeError {
		return nil
	}
	text := make([]byte, h.TextSize)
	if _, err := io.ReadFull(c.in, text); err != nil {
		return nil
	}
	return serverError(text)
}

// receive reads one reply and returns its JSON.
func (c *Conn) receive(want reply) ([]byte, error) {
	var b [codec.ReplyHeaderSize]byte
	if _, err := io.ReadFull(c.in, b[:]); err != nil {
		return nil, c.fail(err)
	}
	h := codec.ParseReplyHeader(b[:])
	c.refused = h.Code == codec.CodeError
	switch {
	case c.refused:
		text, err := c.take(h.TextSize)
		if err != nil {
			return nil, err
		}
		return nil, serverError(text)
	case h.Code == codec.CodeOK && want == replyJSON:
		if int64(h.JSONSize) > int64(c.options.MaxReplyBytes) {
			return nil, c.fail(fmt.Errorf("reply of %d bytes: %w", h.JSONSize, ErrTooLarge))
		}
		return c.take(int(h.JSONSize))
	case h.Code == codec.CodeOK && want == replyDone, h.Code == codec.CodeAlive && want == replyAlive:
		return nil, nil
	}
	return nil, c.fail(fmt.Errorf("%w: reply code %d", ErrProtocol, h.Code))
}

// take reads n bytes, which the caller has compared with a limit.
func (c *Conn) take(n int) ([]byte, error) {
	b := make([]byte, n)
	if _, err := io.ReadFull(c.in, b); err != nil {
		return nil, c.fail(err)
	}
	return b, nil
}

// Alive asks the server whether it answers.
func (c *Conn) Alive(options ...CallOption) error {
	k, err := prepare("", options)
	if err != nil {
		return err
	}
	if err := c.ready(); err != nil {
		return err
	}
	c.out = codec.AppendPlain(c.out, codec.Alive, "", k.trace)
	_, err = c.exchange(replyAlive)
	return err
}
