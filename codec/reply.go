package codec

import (
	"encoding/binary"
	"unicode/utf8"
)

// AppendCode appends a reply that is its code alone: OK, alive or end.
func AppendCode(dst []byte, code Code) []byte {
	return append(dst, byte(code), byte(code>>8), 0, 0, 0, 0, 0, 0, 0, 0)
}

// AppendError appends an error reply. A text longer than MaxErrorText is cut,
// between two characters.
func AppendError(dst []byte, text string) []byte {
	n := min(len(text), MaxErrorText)
	for n < len(text) && n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	text = text[:n]
	dst = append(dst, byte(CodeError&0xff), byte(CodeError>>8), byte(n), byte(n>>8), 0, 0, 0, 0, 0, 0)
	return append(dst, text...)
}

// AppendJSON appends a reply that carries JSON. An empty list is a reply of
// length 0 without JSON: pass nil.
func AppendJSON(dst, json []byte) []byte {
	return append(appendSized(dst, CodeOK, len(json)), json...)
}

// appendSized appends the header of a reply that size bytes follow; of pushes
// and errors it is another one.
func appendSized(dst []byte, code Code, size int) []byte {
	dst = append(dst, byte(code), byte(code>>8))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(size))
	return append(dst, 0, 0, 0, 0)
}

// Pushed is what the server adds to a message that it pushes.
type Pushed struct {
	StoredAtMs int64
	EventID    int64
	NextFile   int64 // where the topic's data goes on after this message
	NextPos    int64
}

// AppendPushHeader appends a push header with room for its counts, to be
// filled by FinishPush once the messages behind it are known.
func AppendPushHeader(dst []byte) []byte { return AppendCode(dst, CodeOK) }

// AppendPushed appends one message to a push; message is in wire form.
func AppendPushed(dst []byte, p Pushed, message []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(p.StoredAtMs))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(p.EventID))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(p.NextFile))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(p.NextPos))
	return append(dst, message...)
}

// FinishPush writes the counts into push, one whole push of n messages (1 to
// MaxBatch) that AppendPushHeader began.
func FinishPush(push []byte, n int) {
	push[2] = byte(n)
	binary.LittleEndian.PutUint32(push[4:], uint32(len(push)-ReplyHeaderSize))
}

// ReplyHeader is the parsed first 10 bytes of a reply.
type ReplyHeader struct {
	Code     Code
	Messages int    // of a push
	PushSize uint32 // of a push: bytes that follow the header
	JSONSize uint32 // of a JSON reply: bytes that follow the header
	TextSize int    // of an error reply: bytes that follow the header
}

// ParseReplyHeader reads a reply header; b has at least ReplyHeaderSize bytes.
// Which of the sizes counts depends on what was asked.
func ParseReplyHeader(b []byte) ReplyHeader {
	return ReplyHeader{
		Code:     Code(binary.LittleEndian.Uint16(b)),
		Messages: int(b[2]),
		PushSize: binary.LittleEndian.Uint32(b[4:]),
		JSONSize: binary.LittleEndian.Uint32(b[2:]),
		TextSize: int(binary.LittleEndian.Uint16(b[2:])),
	}
}

// CutPushed returns how many bytes the first max pushed messages of b take, or
// all of them where there are fewer, how many that are, and what was added to
// the last of them. b holds whole messages as AppendPushed wrote them.
func CutPushed(b []byte, max int) (size, n int, last Pushed) {
	at := 0
	for n < max && size < len(b) {
		m, ok := MessageSize(b[size+PushedMessageOverhead:])
		if !ok {
			panic("codec: CutPushed takes what AppendPushed wrote")
		}
		at, size, n = size, size+PushedMessageOverhead+m, n+1
	}
	if n > 0 {
		last, _, _, _ = ParsePushed(b[at:])
	}
	return size, n, last
}

// AppendPushHead appends the header of a push of n messages (1 to MaxBatch) of
// size bytes.
func AppendPushHead(dst []byte, n, size int) []byte {
	dst = append(dst, byte(CodeOK), 0, byte(n), 0)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(size))
	return append(dst, 0, 0)
}

// ParsePushed reads the pushed message at the start of b and returns the
// message in wire form and how many bytes both take.
func ParsePushed(b []byte) (p Pushed, message []byte, size int, ok bool) {
	if len(b) <= PushedMessageOverhead {
		return Pushed{}, nil, 0, false
	}
	n, ok := MessageSize(b[PushedMessageOverhead:])
	if !ok {
		return Pushed{}, nil, 0, false
	}
	p = Pushed{
		StoredAtMs: int64(binary.LittleEndian.Uint64(b)),
		EventID:    int64(binary.LittleEndian.Uint64(b[8:])),
		NextFile:   int64(binary.LittleEndian.Uint64(b[16:])),
		NextPos:    int64(binary.LittleEndian.Uint64(b[24:])),
	}
	size = PushedMessageOverhead + n
	return p, b[PushedMessageOverhead:size], size, true
}
