package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"smss/codec"
)

// control is one blocking connection for what happens beside the load.
type control struct {
	conn    net.Conn
	timeout time.Duration
}

func dialControl(ctx context.Context, addr string, timeout time.Duration) (*control, error) {
	d := net.Dialer{Timeout: min(timeout, connectTimeout)}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", addr, withoutAddress(err))
	}
	return &control{conn: conn, timeout: timeout}, nil
}

func (c *control) close() { c.conn.Close() }

// withoutAddress unwraps the error in which package net repeats both
// addresses.
func withoutAddress(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// exchange sends one request and returns its reply: the code, and the text of
// an error.
func (c *control) exchange(request []byte) (codec.Code, string, error) {
	_ = c.conn.SetDeadline(time.Now().Add(c.timeout))
	if _, err := c.conn.Write(request); err != nil {
		return 0, "", withoutAddress(err)
	}
	var header [codec.ReplyHeaderSize]byte
	if _, err := io.ReadFull(c.conn, header[:]); err != nil {
		return 0, "", withoutAddress(err)
	}
	h := codec.ParseReplyHeader(header[:])
	if h.Code != codec.CodeError {
		return h.Code, "", nil
	}
	text := make([]byte, h.TextSize)
	_, err := io.ReadFull(c.conn, text)
	return h.Code, string(text), err
}

// ping asks whether the server is there.
func ping(ctx context.Context, addr string, timeout time.Duration) error {
	c, err := dialControl(ctx, addr, timeout)
	if err != nil {
		return err
	}
	defer c.close()
	code, text, err := c.exchange(codec.AppendPlain(nil, codec.Alive, "", ""))
	if err == nil && code != codec.CodeAlive {
		err = fmt.Errorf("no smss server: ALIVE answered with code %d %s", code, text)
	}
	return err
}

// createTopics makes sure that the topics exist.
func createTopics(ctx context.Context, addr string, timeout time.Duration, prefix string, n int) error {
	c, err := dialControl(ctx, addr, timeout)
	if err != nil {
		return err
	}
	defer c.close()
	var request []byte
	for i := range n {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		name := topicName(prefix, n, i)
		request = codec.AppendCreateTopic(request[:0], name, "", 0)
		code, text, err := c.exchange(request)
		if err == nil && code != codec.CodeOK && text != codec.TextTopicExist {
			err = fmt.Errorf("code %d %s", code, text)
		}
		if err != nil {
			return fmt.Errorf("create topic %s: %w", name, err)
		}
	}
	return nil
}
