package engine

import (
	"slices"

	"smss/codec"
	"smss/storage"
)

// Kind says what a command does.
type Kind uint8

// The kinds of commands.
const (
	Publish Kind = iota
	Delay
	Create
	Delete
	Attach    // make a subscription known under its name
	Replicate // apply a record of the master, see NewReplicate
	Adopt     // make a topic of the master known, without a record
	Turn      // become Command.Role; everything pushed before is done in the old one
	Settle    // is done when everything pushed before is durable, at every flush level
	fire      // publish a delayed message that is due; scheduler only
	expire    // delete a topic whose life is over; scheduler only
	drop      // forget delayed messages of topics that are gone; janitor only
)

// Command is one mutation on its way through the ring and back. Between Push
// and the note that it is done it belongs to the engine; before and after to
// whoever pushed it.
type Command struct {
	note Note

	Kind Kind
	// Session is the pusher's own; the engine does not look at it.
	Session any
	// Mailbox takes the note that the command is done.
	Mailbox *Mailbox

	ReceivedAtMs int64
	ExpireAtMs   int64 // Create
	TriggerAtMs  int64 // Delay: absolute
	Messages     int   // Publish, Delay: how many messages the payload holds
	Sub          *Subscription
	Meta         *storage.TopicMeta // Adopt
	Role         Role               // Turn

	// buf holds topic, trace id and payload back to back, so that one copy
	// takes a request out of the loop's read buffer. A Delay's payload has
	// room for its prefix in front.
	buf      []byte
	topicLen int
	traceLen int

	key     storage.DelayKey   // fire
	victim  *Topic             // expire
	orphans []storage.DelayKey // drop
	dropped bool               // fire: the topic is gone, the message with it

	record *codec.BinlogRecord // Replicate: what the payload holds, aliasing it
	stream uint64              // Replicate: the connection that it came by

	// Err is nil or why the command was refused; valid once it is done.
	Err error
	// EventID is the first event id that it was given, of a Replicate the last
	// one of its record, of a Turn the last one before it; valid once it is
	// done.
	EventID int64

	staged bool   // writer: it is part of the batch being written
	target *Topic // writer: the topic that a staged command writes to
}

// delayRoom is the prefix of a delayed message's payload.
const delayRoom = 16

// SetText fills the command's topic, trace id and payload with copies.
func (c *Command) SetText(topic, trace, payload []byte) {
	c.topicLen, c.traceLen = len(topic), len(trace)
	room := 0
	if c.Kind == Delay {
		room = delayRoom
	}
	c.buf = slices.Grow(c.buf[:0], len(topic)+len(trace)+room+len(payload))
	c.buf = append(c.buf, topic...)
	c.buf = append(c.buf, trace...)
	c.buf = c.buf[:len(c.buf)+room] // the writer fills it
	c.buf = append(c.buf, payload...)
}

// Size returns the bytes of memory that the command is charged for.
func (c *Command) Size() int64 { return int64(len(c.buf)) + commandCharge }

// commandCharge is what a command takes beside its text, roughly.
const commandCharge = 256

// Topic returns the topic's name; it is valid as long as the command is.
func (c *Command) Topic() []byte { return c.buf[:c.topicLen] }

// Trace returns the trace id.
func (c *Command) Trace() []byte { return c.buf[c.topicLen : c.topicLen+c.traceLen] }

// payload returns what is stored: for a Delay with its prefix.
func (c *Command) payload() []byte { return c.buf[c.topicLen+c.traceLen:] }

// CommandPool keeps commands of one goroutine for reuse.
type CommandPool struct {
	free []*Command
	size int // capacity of their buffers together
}

// The pool keeps at most poolMax commands with poolBytes of buffers: as many
// as the ring holds by default, with small messages.
const (
	poolMax   = 4096
	poolBytes = 2 << 20
)

// Get returns an empty command.
func (p *CommandPool) Get() *Command {
	n := len(p.free)
	if n == 0 {
		c := new(Command)
		c.note.Subject = c
		return c
	}
	c := p.free[n-1]
	p.free = p.free[:n-1]
	p.size -= cap(c.buf)
	return c
}

// Put takes back a command that is done.
func (p *CommandPool) Put(c *Command) {
	if len(p.free) >= poolMax {
		return
	}
	buf := c.buf[:0]
	if p.size+cap(buf) > poolBytes {
		buf = nil
	}
	*c = Command{buf: buf, record: c.record}
	c.note.Subject = c
	p.size += cap(buf)
	p.free = append(p.free, c)
}

// Refusal is a client error: its text is the answer.
type Refusal struct{ Text string }

func (e *Refusal) Error() string { return e.Text }

// The refusals of the protocol.
var (
	ErrTopicNotExist = &Refusal{codec.TextTopicNotExist}
	ErrTopicExist    = &Refusal{codec.TextTopicExist}
	errExpire        = &Refusal{codec.TextExpire}
	errEventNotFound = &Refusal{codec.TextEventNotFound}
	errTooManyTopics = &Refusal{"too many topics, see limits.maxTopics"}
	errDiskLow       = &Refusal{"disk nearly full, nothing is stored until space is free, see store.minFreeBytes"}
	errDiskFull      = &Refusal{"disk full, not stored"}
	errStorage       = &Refusal{"storage error, not stored; the server's log says more"}
	errBroken        = &Refusal{"the server has stopped writing after a storage error; its log says more"}
	errDamaged       = &Refusal{"stored data is damaged here; the server's log says where"}
	errReading       = &Refusal{"stored data cannot be read now; the server's log says more"}
)
