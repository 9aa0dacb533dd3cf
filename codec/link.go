package codec

import (
	"encoding/binary"
	"encoding/json"
)

// The extended link between a master and a slave of this project. A slave asks
// for it by bit 0 of byte 3 of the REPLICA header, which existing slaves leave
// 0, and sends its greeting behind the body: uint32 length and JSON. An
// existing master reads neither: it throws away what a slave sends. A master
// of this project answers with a greeting of its own before the first record;
// a stream that begins with anything else is an existing master's. Its
// heartbeats carry its last event id in bytes 2-9, and it sends one behind the
// records that it has sent together.
//
// From then on the slave reports what it has applied durably: uint64 event id,
// whenever that has moved. The master may order it to take over.

// Codes that only a slave that has asked for the extended link gets.
const (
	CodeGreeting Code = 202 // bytes 2-5: length of the JSON that follows
	CodeTakeOver Code = 203 // bytes 2-9: the last event id; become the master
)

// ReportSize is the size of a slave's report.
const ReportSize = 8

// reportPromoted marks the report of a slave that has taken over.
const reportPromoted = 1 << 63

// MaxGreeting is the longest greeting, in bytes.
const MaxGreeting = 64 << 10

// Epoch is one reign over a history of events: it begins with a promotion.
type Epoch struct {
	ID    string `json:"id"`    // random, 16 hexadecimal digits
	First int64  `json:"first"` // the first event id that can belong to it
}

// Greeting is what the two ends of an extended link tell each other first.
type Greeting struct {
	Node   string  `json:"node"` // random, made with the data directory
	Epochs []Epoch `json:"epochs,omitempty"`
	// LastEventID is the last event that the sender holds, OldestEventID the
	// first one in its binlog, 0 for none; Complete says that nothing was
	// removed before that.
	LastEventID   int64 `json:"lastEventId"`
	OldestEventID int64 `json:"oldestEventId,omitempty"`
	Complete      bool  `json:"complete,omitempty"`
	// Port is where the sender takes connections.
	Port int `json:"port,omitempty"`
	// HeartbeatMs is how long the sender is silent at most.
	HeartbeatMs int64 `json:"heartbeatMs,omitempty"`
}

// AppendReplica appends a REPLICA request that asks for the extended link.
func AppendReplica(dst []byte, trace string, eventID int64, g *Greeting) ([]byte, error) {
	text, err := json.Marshal(g)
	if err != nil {
		return dst, err
	}
	if len(text) > MaxGreeting {
		return dst, errGreeting
	}
	dst, at := requestHeader(dst, Replica, "", trace)
	dst[at+3] = 1
	dst = binary.LittleEndian.AppendUint64(dst, uint64(eventID))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(text)))
	return append(dst, text...), nil
}

var errGreeting = &FrameError{"greeting of a slave is too long"}

// replicaRequestSize is the size of a REPLICA request, as far as b tells.
func replicaRequestSize(b []byte, body int) (int, error) {
	if b[3]&1 == 0 {
		return body + 8, nil
	}
	if len(b) < body+12 {
		return body + 12, ErrShort
	}
	n := binary.LittleEndian.Uint32(b[body+8:])
	if n > MaxGreeting {
		return 0, errGreeting
	}
	return body + 12 + int(n), nil
}

// AppendGreeting appends a master's greeting.
func AppendGreeting(dst []byte, g *Greeting) ([]byte, error) {
	text, err := json.Marshal(g)
	if err != nil {
		return dst, err
	}
	if len(text) > MaxGreeting {
		return dst, errGreeting
	}
	return append(appendSized(dst, CodeGreeting, len(text)), text...), nil
}

// ParseGreeting reads the JSON of a greeting.
func ParseGreeting(text []byte) (g Greeting, err error) {
	err = json.Unmarshal(text, &g)
	return g, err
}

// AppendProgress appends a heartbeat that says what the sender's last event is.
func AppendProgress(dst []byte, lastEventID int64) []byte {
	return appendEventFrame(dst, CodeAlive, lastEventID)
}

// AppendTakeOver appends the order to become the master.
func AppendTakeOver(dst []byte, lastEventID int64) []byte {
	return appendEventFrame(dst, CodeTakeOver, lastEventID)
}

func appendEventFrame(dst []byte, code Code, lastEventID int64) []byte {
	dst = append(dst, byte(code), byte(code>>8))
	return binary.LittleEndian.AppendUint64(dst, uint64(lastEventID))
}

// ParseEventFrame reads the event id of such an order, or of a heartbeat, from
// its 10 bytes.
func ParseEventFrame(b []byte) (lastEventID int64) {
	return int64(binary.LittleEndian.Uint64(b[2:]))
}

// AppendReport appends a slave's report: it has applied everything up to
// eventID, and, with promoted, has become the master behind that.
func AppendReport(dst []byte, eventID int64, promoted bool) []byte {
	v := uint64(eventID)
	if promoted {
		v |= reportPromoted
	}
	return binary.LittleEndian.AppendUint64(dst, v)
}

// ParseReport reads the report at the start of b, which has at least
// ReportSize bytes.
func ParseReport(b []byte) (eventID int64, promoted bool) {
	v := binary.LittleEndian.Uint64(b)
	return int64(v &^ reportPromoted), v&reportPromoted != 0
}
