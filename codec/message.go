package codec

import "encoding/binary"

// CountMessages walks a payload and returns how many messages it holds. ok is
// false where the messages do not fill it exactly, a content length is 0, or a
// header list does not fit into its content: every existing client would fail
// on such a message for ever, so that none may be stored.
func CountMessages(payload []byte) (n int, ok bool) {
	for len(payload) > 0 {
		size, ok := MessageSize(payload)
		if !ok || !validHeaders(payload[:size]) {
			return 0, false
		}
		payload = payload[size:]
		n++
	}
	return n, n > 0
}

// CountStored counts the messages of a payload that lies in a log. Header
// lists are not looked at: the existing server stored them unchecked.
func CountStored(payload []byte) (n int, ok bool) {
	for len(payload) > 0 {
		size, ok := MessageSize(payload)
		if !ok {
			return 0, false
		}
		payload = payload[size:]
		n++
	}
	return n, n > 0
}

// MessageSize returns the bytes that the message at the start of b takes,
// which are at most len(b).
func MessageSize(b []byte) (size int, ok bool) {
	if len(b) <= MessageOverhead {
		return 0, false
	}
	content := binary.LittleEndian.Uint32(b)
	if content == 0 || uint64(content) > uint64(len(b)-MessageOverhead) {
		return 0, false
	}
	return MessageOverhead + int(content), true
}

// validHeaders reports whether the header list of msg, one whole message,
// fits into its content.
func validHeaders(msg []byte) bool {
	count := binary.LittleEndian.Uint32(msg[4:])
	rest := msg[MessageOverhead:]
	if uint64(count)*8 > uint64(len(rest)) {
		return false // each header takes at least its two lengths
	}
	for range count * 2 {
		if len(rest) < 4 {
			return false
		}
		size := binary.LittleEndian.Uint32(rest)
		if uint64(size) > uint64(len(rest)-4) {
			return false
		}
		rest = rest[4+int(size):]
	}
	return true
}

// Header is one entry of a message's header list.
type Header struct{ Key, Value string }

// Message is an application's message: headers in order, and a body.
type Message struct {
	Headers []Header
	Body    []byte
}

// AppendMessage appends m in wire form. The content (headers and body) must
// not be empty: the protocol has no message of length 0.
func AppendMessage(dst []byte, m *Message) []byte {
	content := len(m.Body)
	for i := range m.Headers {
		content += 8 + len(m.Headers[i].Key) + len(m.Headers[i].Value)
	}
	dst = binary.LittleEndian.AppendUint32(dst, uint32(content))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(m.Headers)))
	for i := range m.Headers {
		dst = appendString(dst, m.Headers[i].Key)
		dst = appendString(dst, m.Headers[i].Value)
	}
	return append(dst, m.Body...)
}

func appendString(dst []byte, s string) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(s)))
	return append(dst, s...)
}

// ParseMessage reads the message at the start of b and returns its size. The
// body aliases b, the headers are copies. ok is false where b does not start
// with a whole valid message.
func ParseMessage(b []byte) (m Message, size int, ok bool) {
	size, ok = MessageSize(b)
	if !ok || !validHeaders(b[:size]) {
		return Message{}, 0, false
	}
	count := binary.LittleEndian.Uint32(b[4:])
	rest := b[MessageOverhead:size]
	for range count {
		var h Header
		h.Key, rest = takeString(rest)
		h.Value, rest = takeString(rest)
		m.Headers = append(m.Headers, h)
	}
	m.Body = rest
	return m, size, true
}

func takeString(b []byte) (string, []byte) {
	n := int(binary.LittleEndian.Uint32(b))
	return string(b[4 : 4+n]), b[4+n:]
}
