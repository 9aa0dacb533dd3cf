package codec

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
)

// A full copy. A slave that cannot go on from its master's binlog asks for the
// files behind it, piece by piece: COPY requests on an ordinary connection,
// each answered by itself, so that the master keeps nothing of the slave and
// the slave goes on where it was, on another connection or after a restart.
//
// The first request has no body: an existing server, which answers any unknown
// command with 400 and leaves a body unread, then stays in step.

// CopyAsk is what a COPY request asks for.
type CopyAsk string

// What can be asked for.
const (
	// AskStart: where a copy begins, answered by CopyStart. It has no body.
	AskStart CopyAsk = ""
	// AskTopics: the topics as of EventID and their files, by name, behind
	// Topic, or the files of Topic from File on where that is not 0.
	AskTopics CopyAsk = "topics"
	// AskPiece: Max bytes of File at Off, of the topic that EventID created, or
	// of the binlog where Topic is empty.
	AskPiece CopyAsk = "piece"
	// AskDelays: the delayed messages that are pending and not younger than
	// EventID, behind After.
	AskDelays CopyAsk = "delays"
)

// Limits of a copy, in bytes.
const (
	// MaxCopyRequest is the longest body of a COPY request.
	MaxCopyRequest = 4 << 10
	// MaxCopyPiece is the most that one answer carries of a file.
	MaxCopyPiece = 1 << 20
	// MaxCopyAnswer is the longest answer: a delayed message of the largest
	// size comes alone.
	MaxCopyAnswer = 24 << 20
)

// CopyRequest is the body of a COPY request. Names are bytes, because an
// existing server takes some that are no UTF-8.
type CopyRequest struct {
	Ask     CopyAsk    `json:"ask"`
	EventID int64      `json:"event,omitempty"`
	Topic   []byte     `json:"topic,omitempty"`
	File    int64      `json:"file,omitempty"`
	Off     int64      `json:"off,omitempty"`
	Max     int64      `json:"max,omitempty"`
	After   *CopyDelay `json:"after,omitempty"`
}

// CopyStart is where a copy begins: behind EventID, whose record ends at Off of
// the binlog's file File. OldestFile is the first one that the binlog has.
type CopyStart struct {
	Node           string  `json:"node"`
	Epochs         []Epoch `json:"epochs,omitempty"`
	EventID        int64   `json:"event"`
	File           int64   `json:"file"`
	Off            int64   `json:"off"`
	OldestFile     int64   `json:"oldestFile"`
	IncompleteFrom int64   `json:"incompleteFrom,omitempty"`
}

// CopyFile is a file of a log, as far as it belongs to the copy.
type CopyFile struct {
	File int64 `json:"n"`
	Size int64 `json:"size"`
}

// CopyTopic is a topic and its files, oldest first. More says that they go on:
// the next page begins with the same topic.
type CopyTopic struct {
	Name               []byte     `json:"name"`
	CreatedAtMs        int64      `json:"created"`
	ExpireAtMs         int64      `json:"expire,omitempty"`
	CreateEventID      int64      `json:"create"`
	StateChangedAtMs   int64      `json:"changed"`
	StateChangeEventID int64      `json:"change"`
	Files              []CopyFile `json:"files,omitempty"`
	More               bool       `json:"more,omitempty"`
}

// CopyTopics answers AskTopics.
type CopyTopics struct {
	Topics []CopyTopic `json:"topics,omitempty"`
	Done   bool        `json:"done,omitempty"` // these were the last ones
}

// CopyPiece answers AskPiece. The bytes follow it.
type CopyPiece struct {
	// Gone says that there is no such topic any more, or that retention has
	// removed the file and those before it; Oldest is then the first one left,
	// 0 where the topic itself is gone.
	Gone   bool  `json:"gone,omitempty"`
	Oldest int64 `json:"oldest,omitempty"`
}

// CopyDelay is a pending delayed message. Its payload, Size bytes, follows the
// answer, behind those of the ones before it.
type CopyDelay struct {
	TriggerAtMs int64  `json:"trigger"`
	EventID     int64  `json:"event"`
	Topic       []byte `json:"topic"`
	Size        int    `json:"size,omitempty"`
}

// CopyDelays answers AskDelays. Next is behind what to ask on, nil at the end.
type CopyDelays struct {
	Delays  []CopyDelay `json:"delays,omitempty"`
	Skipped int         `json:"skipped,omitempty"` // too large to be copied
	Next    *CopyDelay  `json:"next,omitempty"`
}

// AppendCopy appends a COPY request.
func AppendCopy(dst []byte, trace string, q *CopyRequest) ([]byte, error) {
	var text []byte
	if q.Ask != AskStart {
		var err error
		if text, err = json.Marshal(q); err != nil {
			return dst, err
		}
	}
	if len(text) > MaxCopyRequest {
		return dst, errCopySize
	}
	dst, at := requestHeader(dst, Copy, "", trace)
	binary.LittleEndian.PutUint32(dst[at+3:], uint32(len(text)))
	return append(dst, text...), nil
}

var errCopySize = &FrameError{"request for a copy is too long"}

var errCopyRequest = errors.New("the request for a copy cannot be read")

// ParseCopy reads the body of a COPY request.
func ParseCopy(body []byte) (q CopyRequest, err error) {
	if len(body) == 0 {
		return q, nil
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return q, fmt.Errorf("%w: %w", errCopyRequest, err)
	}
	if len(q.Topic) == 0 {
		q.Topic = nil
	}
	bad := q.EventID < 0 || q.File < 0 || q.Off < 0 || q.Max < 0 || q.Max > MaxCopyPiece
	switch q.Ask {
	case AskTopics, AskDelays:
	case AskPiece:
		bad = bad || q.Max == 0
	default:
		bad = true
	}
	if bad {
		return q, errCopyRequest
	}
	return q, nil
}

// copyRequestSize is the size of a COPY request.
func copyRequestSize(b []byte, body int) (int, error) {
	n := binary.LittleEndian.Uint32(b[3:7])
	if n > MaxCopyRequest {
		return 0, errCopySize
	}
	return body + int(n), nil
}

// copyPrefix is what stands between the reply header and an answer's head: the
// checksum of all that follows it, and the head's size.
const copyPrefix = 8

// AppendCopyAnswer appends the answer to a COPY request: head as JSON, and the
// bytes that it tells of.
func AppendCopyAnswer(dst []byte, head any, data []byte) ([]byte, error) {
	text, err := json.Marshal(head)
	if err != nil {
		return dst, err
	}
	dst = appendSized(dst, CodeOK, copyPrefix+len(text)+len(data))
	dst = append(dst, 0, 0, 0, 0) // the checksum
	from := len(dst)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(text)))
	dst = append(dst, text...)
	dst = append(dst, data...)
	binary.LittleEndian.PutUint32(dst[from-4:], crc32.Checksum(dst[from:], castagnoli))
	return dst, nil
}

// ErrCopyDamaged says that an answer is not what was sent.
var ErrCopyDamaged = errors.New("codec: an answer of a copy has a wrong checksum")

// ParseCopyAnswer reads an answer, what follows the reply header, into head and
// returns the bytes behind it, which alias b.
func ParseCopyAnswer(b []byte, head any) (data []byte, err error) {
	if len(b) < copyPrefix || binary.LittleEndian.Uint32(b) != crc32.Checksum(b[4:], castagnoli) {
		return nil, ErrCopyDamaged
	}
	n := binary.LittleEndian.Uint32(b[4:])
	b = b[copyPrefix:]
	if uint64(n) > uint64(len(b)) {
		return nil, ErrCopyDamaged
	}
	if err := json.Unmarshal(b[:n], head); err != nil {
		return nil, fmt.Errorf("codec: an answer of a copy: %w", err)
	}
	return b[n:], nil
}
