package reactor

import (
	"net"
	"time"

	"smss/codec"
)

// Config bounds what connections may do. All values are positive unless said
// otherwise.
type Config struct {
	Loops          int // event loops, 1 to 64
	MaxConnections int
	Codec          codec.Limits
	MaxDelayMs     int64
	// MaxDelayPayload is how many bytes the messages of one delayed publish may
	// take, which the metadata store limits.
	MaxDelayPayload int
	// Window is how many requests of a connection may wait for the engine.
	Window int
	// MaxUnread is how many bytes of requests beyond the window are kept of a
	// connection; one that sends more is closed, because reading cannot be
	// paused.
	MaxUnread int
	// MaxInput is how many bytes of requests that are not complete or not
	// begun are kept of all connections together; one that exceeds it is
	// closed.
	MaxInput int64
	// MaxOutbound is how many unsent bytes of replies a connection may have
	// before its next requests wait.
	MaxOutbound  int
	FrameTimeout time.Duration // for a request to become complete, plus its size at frameBytesPerMs
	IdleTimeout  time.Duration // 0 = never: a connection that sends nothing and does not subscribe
	WriteTimeout time.Duration // without progress
	Heartbeat    time.Duration // for a subscriber that nothing is sent to; up to a 32nd part of it early
	// ReadOnly reports whether this server refuses mutations, as a slave does.
	// It is called on event loops.
	ReadOnly func() bool
	// Replication returns what the server does for slaves, or nil where it has
	// none, in which case REPLICA is no command. It is called on event loops.
	Replication func() *Replication
	Events      Events
}

// frameBytesPerMs is the slowest rate at which a large request may arrive.
const frameBytesPerMs = 16

// defaultAckTimeout applies to a subscriber that asks for none.
const defaultAckTimeout = 3 * time.Second

// maxAckTimeout stands for every longer one, so that adding it to a time does
// not overflow.
const maxAckTimeout = 100 * 365 * 24 * time.Hour

// lingerTimeout is how long a refused connection is read from after its error
// reply, so that the reply is not destroyed by a reset.
const lingerTimeout = time.Second

// Events receives notable moments, on the goroutine that meets them. Nil
// functions are not called.
type Events struct {
	// Refused is a connection that was refused or closed by the server's
	// decision, and why.
	Refused func(remote net.Addr, why string)
	// AcceptFailed is an error of accept; accepting goes on.
	AcceptFailed func(err error)
}

func (e *Events) refused(remote net.Addr, why string) {
	if e.Refused != nil {
		e.Refused(remote, why)
	}
}
