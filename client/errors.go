package client

import (
	"errors"
	"fmt"

	"smss/codec"
)

// ServerError is a refusal by the server, in its own words. The request had no
// effect. The connection stays usable, unless the server closes it, which the
// next call finds out.
type ServerError struct{ Text string }

func (e *ServerError) Error() string { return "server refused: " + e.Text }

// Errors of connections.
var (
	// ErrBroken marks every error after which a connection is of no more use.
	// It wraps what happened.
	ErrBroken = errors.New("connection is broken")
	// ErrClosed is what broke a connection that was closed on this side.
	ErrClosed = errors.New("closed by this client")
	// ErrProtocol is what broke a connection whose other side does not speak
	// the protocol.
	ErrProtocol = errors.New("unexpected bytes from the server")
	// ErrTooLarge says that a frame is larger than this client accepts, or a
	// payload larger than the protocol can say.
	ErrTooLarge = errors.New("too large")
	// ErrOutstanding says that replies of a Pipeline have yet to be received
	// before the connection can be used otherwise.
	ErrOutstanding = errors.New("replies of a pipeline are outstanding")
)

// Errors of requests that are refused before anything is sent.
var (
	// ErrTraceTooLong: a trace id has at most codec.MaxTrace bytes.
	ErrTraceTooLong = errors.New("trace id is longer than 255 bytes")
	// ErrTopicTooLong: no topic name has more than 65,535 bytes.
	ErrTopicTooLong = errors.New("topic name is longer than 65535 bytes")
	// ErrEmptyMessage: a message has a body or at least one header.
	ErrEmptyMessage = errors.New("message has neither headers nor a body")
	// ErrEmptyKey: some clients cannot read a header with an empty key.
	ErrEmptyKey = errors.New("message header has an empty key")
	// ErrNoMessages: a publish carries at least one message.
	ErrNoMessages = errors.New("no messages to publish")
	// ErrWindowFull: Receive a reply before the next request is sent.
	ErrWindowFull = errors.New("pipeline is full")
	// ErrNothingOutstanding: there is no reply to receive.
	ErrNothingOutstanding = errors.New("no reply is outstanding")
)

// Errors of subscriptions.
var (
	// ErrEnded: the server ended the subscription, because the topic was
	// deleted or its life is over.
	ErrEnded = errors.New("subscription is over: the topic was deleted or its life ended")
	// ErrSilent: nothing came, not even a heartbeat, for too long.
	ErrSilent = errors.New("server is silent")
	// ErrNotAcked: the last batch is acknowledged before the next is taken.
	ErrNotAcked = errors.New("last batch is not acknowledged")
	// ErrNothingToAck: there is no batch to acknowledge.
	ErrNothingToAck = errors.New("no batch to acknowledge")
	// ErrStop, returned by a handler of Consume, acknowledges the batch and
	// ends the subscription without an error.
	ErrStop = errors.New("stop consuming")
)

// Errors of pools.
var (
	// ErrPoolClosed: the pool lends no more.
	ErrPoolClosed = errors.New("connection pool is closed")
	// ErrPoolBusy: all connections were lent for as long as Get waits.
	ErrPoolBusy = errors.New("all connections of the pool are in use")
)

func broken(cause error) error { return fmt.Errorf("%w: %w", ErrBroken, cause) }

func serverError(text []byte) *ServerError {
	if len(text) == 0 {
		return &ServerError{"no reason given"}
	}
	return &ServerError{string(text)}
}

func checkNames(topic, trace string) error {
	if len(trace) > codec.MaxTrace {
		return ErrTraceTooLong
	}
	if len(topic) > 1<<16-1 {
		return ErrTopicTooLong
	}
	return nil
}
