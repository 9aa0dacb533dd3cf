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
//
// What every publish uses comes first and fits into two cache lines: they
// travel to the writer's core and back with each.
type Command struct {
	note Note

	Kind     Kind
	traceLen uint8
	topicLen uint16
	staged   bool // writer: it is part of the batch being written
	dropped  bool // fire: the topic is gone, the message with it

	// Session is the pusher's own; the engine does not look at it.
	Session any
	// Mailbox takes the note that the command is done.
	Mailbox *Mailbox

	ReceivedAtMs int64
	Messages     int // Publish, Delay: how many messages the payload holds

	// buf holds topic, trace id and payload back to back, so that one copy
	// takes a request out of the loop's read buffer. A Delay's payload has
	// room for its prefix in front.
	buf []byte

	// EventID is the first event id that it was given, of a Replicate the last
	// one of its record, of a Turn the last one before it; valid once it is
	// done.
	EventID int64
	target  *Topic // writer: the topic that a staged command writes to
	// Err is nil or why the command was refused; valid once it is done.
	Err error

	ExpireAtMs  int64 // Create
	TriggerAtMs int64 // Delay: absolute
	Sub         *Subscription
	Meta        *storage.TopicMeta // Adopt
	Role        Role               // Turn

	key     storage.DelayKey   // fire
	victim  *Topic             // expire
	orphans []storage.DelayKey // drop

	record *codec.BinlogRecord // Replicate: what the payload holds, aliasing it
	stream uint64              // Replicate: the connection that it came by
}

// delayRoom is the prefix of a delayed message's payload.
const delayRoom = 16

// SetText fills the command's topic, trace id and payload with copies.
func (c *Command) SetText(topic, trace, payload []byte) {
	c.topicLen, c.traceLen = uint16(len(topic)), uint8(len(trace)) // the wire has no more bytes for them
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
func (c *Command) Trace() []byte { return c.buf[c.topicLen : int(c.topicLen)+int(c.traceLen)] }

// payload returns what is stored: for a Delay with its prefix.
func (c *Command) payload() []byte { return c.buf[int(c.topicLen)+int(c.traceLen):] }

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
	c.reset()
	c.buf = buf
	p.size += cap(buf)
	p.free = append(p.free, c)
}

// reset forgets what the command was used for.
func (c *Command) reset() {
	if c.Kind != Publish {
		*c = Command{note: Note{Subject: c}, record: c.record}
		return
	}
	// The rest is as it was: a publish sets nothing of it.
	c.Session, c.Mailbox, c.target, c.Err = nil, nil, nil, nil
	c.ReceivedAtMs, c.Messages, c.EventID = 0, 0, 0
	c.topicLen, c.traceLen, c.staged, c.dropped = 0, 0, false, false
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
