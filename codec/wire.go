package codec

import (
	"errors"
	"strconv"
)

// Command is the first byte of a request.
type Command byte

// The commands of the protocol. DelayApply is internal: it stands in the
// binlog and is never accepted from a client.
const (
	Sub         Command = 0
	Pub         Command = 1
	CreateTopic Command = 2
	DeleteTopic Command = 3
	Delay       Command = 16
	Alive       Command = 17
	Replica     Command = 64
	TopicInfo   Command = 65
	Copy        Command = 70 // an extension, see CopyRequest
	ValidList   Command = 99
	List        Command = 100
	DelayApply  Command = 101
)

var commandNames = map[Command]string{
	Sub: "SUB", Pub: "PUB", CreateTopic: "CREATE_TOPIC", DeleteTopic: "DELETE_TOPIC",
	Delay: "DELAY", Alive: "ALIVE", Replica: "REPLICA", TopicInfo: "TOPIC_INFO",
	Copy: "COPY", ValidList: "VALID_LIST", List: "LIST", DelayApply: "DELAY_APPLY",
}

// String returns the protocol's name of the command, for logs.
func (c Command) String() string {
	if name, ok := commandNames[c]; ok {
		return name
	}
	return "COMMAND_" + strconv.Itoa(int(c))
}

// Code is the first field of a reply.
type Code uint16

// The reply codes of the protocol.
const (
	CodeOK    Code = 200 // done, or a push, or JSON follows
	CodeAlive Code = 201 // reply to ALIVE; heartbeat in stream mode
	CodeEnd   Code = 255 // the subscription is over
	CodeError Code = 400 // a text follows
)

// Ack is the 2-byte answer of a subscriber to a push.
type Ack uint16

// The acks that a server accepts; any other value closes the connection.
const (
	AckNext Ack = 0 // consumed, go on
	AckEnd  Ack = 1 // consumed, leave stream mode
)

// Sizes in bytes that the grammar fixes.
const (
	RequestHeaderSize = 20
	ReplyHeaderSize   = 10
	AckSize           = 2
	// MessageOverhead is what a message takes beside its content: content
	// length and header count.
	MessageOverhead = 8
	// PushedMessageOverhead is what a pushed message takes beside the message
	// as published: ts, event id, next file id, next position.
	PushedMessageOverhead = 32
	// MaxErrorText is the longest text of an error reply. Existing Java
	// clients read its length as a signed 16-bit number.
	MaxErrorText = 32767
	// MaxTopicName is the longest topic name that can be created.
	MaxTopicName = 128
	// MaxBatch is the most messages that one push carries.
	MaxBatch = 255
	// MaxTrace is the longest trace id.
	MaxTrace = 255
)

// Error texts that existing clients may compare; they stand in PROTOCOL as
// they are, spelling included.
const (
	TextTopicNotExist    = "topic not exist"
	TextTopicExist       = "topic exist"
	TextTopicName        = "topic name MUST be less than 128 char and NOT contains space/enter/tab"
	TextExpire           = "expire MUST more than 10s"
	TextMasterManages    = "just master can manage topic"
	TextMasterPublishes  = "just master can pub message"
	TextPayloadSize      = "invalid request, payload size must be more than 8"
	TextPubPayload       = "invalid pub payload"
	TextDelayRequest     = "invalid delay request"
	TextDelayTime        = "delay time must be more than 1 second"
	TextTopicRequired    = "topic name is required"
	TextEventNotFound    = "can't find event id"
	TextUnknownCommand   = "don't support action"
	TextReplicaEventID   = "invalid replica eventId"
	TextSubscriberExists = " regiester exist" // behind the subscriber's name
)

// ErrShort says that the input is a strict prefix of a request.
var ErrShort = errors.New("codec: request is not complete yet")

// RequestError refuses one request: the connection answers Text and stays in
// step by skipping the request's bytes.
type RequestError struct{ Text string }

func (e *RequestError) Error() string { return e.Text }

// FrameError refuses the connection: it answers Text and closes, because
// where the next request begins is not known or not worth waiting for.
type FrameError struct{ Text string }

func (e *FrameError) Error() string { return e.Text }

// ValidTopicName reports whether name may be created: 1 to MaxTopicName bytes
// of valid UTF-8 without spaces, control characters and path separators, and
// neither "." nor "..". The name becomes a directory, a field of a
// tab-separated line and a JSON string, and must be harmless in all three.
func ValidTopicName(name []byte) bool {
	if len(name) == 0 || len(name) > MaxTopicName {
		return false
	}
	if string(name) == "." || string(name) == ".." {
		return false
	}
	return validText(name, func(r rune) bool { return r == ' ' || r == '/' || r == '\\' })
}

// ValidSubscriberName reports whether who may name a subscriber: valid UTF-8
// without control characters, so that it can stand in a log line and in an
// error text. The empty name is a name like any other, as it always was.
func ValidSubscriberName(who []byte) bool {
	return validText(who, func(rune) bool { return false })
}
