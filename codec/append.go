package codec

import "encoding/binary"

// requestHeader appends the 20 bytes of a header, topic and trace id. A trace
// id longer than MaxTrace bytes is cut, since its length has one byte; a topic
// that its two bytes cannot count is cut as well, so that the frame stays
// whole and the server refuses the name.
func requestHeader(dst []byte, c Command, topic, trace string) ([]byte, int) {
	topic = topic[:min(len(topic), 1<<16-1)]
	trace = trace[:min(len(trace), MaxTrace)]
	at := len(dst)
	dst = append(dst, byte(c), byte(len(topic)), byte(len(topic)>>8),
		0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, byte(len(trace)))
	dst = append(dst, topic...)
	return append(dst, trace...), at
}

// AppendPub appends a PUB request; payload is one or more messages.
func AppendPub(dst []byte, topic, trace string, payload []byte) []byte {
	dst, at := requestHeader(dst, Pub, topic, trace)
	binary.LittleEndian.PutUint32(dst[at+3:], uint32(len(payload)))
	return append(dst, payload...)
}

// AppendDelay appends a DELAY request; delayMs is counted from when the
// server reads it.
func AppendDelay(dst []byte, topic, trace string, delayMs int64, payload []byte) []byte {
	dst, at := requestHeader(dst, Delay, topic, trace)
	binary.LittleEndian.PutUint32(dst[at+3:], uint32(len(payload)))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(delayMs))
	return append(dst, payload...)
}

// AppendCreateTopic appends a CREATE_TOPIC request; expireAtMs is Unix ms, 0 =
// for ever.
func AppendCreateTopic(dst []byte, topic, trace string, expireAtMs int64) []byte {
	dst, _ = requestHeader(dst, CreateTopic, topic, trace)
	return binary.LittleEndian.AppendUint64(dst, uint64(expireAtMs))
}

// AppendPlain appends a request without a body: DELETE_TOPIC, ALIVE,
// TOPIC_INFO or LIST.
func AppendPlain(dst []byte, c Command, topic, trace string) []byte {
	dst, _ = requestHeader(dst, c, topic, trace)
	return dst
}

// AppendEventRequest appends a request whose body is an event id: VALID_LIST
// or REPLICA.
func AppendEventRequest(dst []byte, c Command, trace string, eventID int64) []byte {
	dst, _ = requestHeader(dst, c, "", trace)
	return binary.LittleEndian.AppendUint64(dst, uint64(eventID))
}

// Subscription is what a SUB request asks for.
type Subscription struct {
	Topic, Who, Trace string
	EventID           int64 // of the last message already consumed, 0 = from the oldest kept
	Batch             int   // 1 to MaxBatch; what is outside counts as the nearer of them
	AckTimeoutNs      int64 // 0 = the server's default
}

// AppendSub appends a SUB request.
func AppendSub(dst []byte, s *Subscription) []byte {
	dst, at := requestHeader(dst, Sub, s.Topic, s.Trace)
	dst[at+3] = byte(min(max(s.Batch, 1), MaxBatch))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(s.EventID))
	if s.AckTimeoutNs > 0 {
		dst[at+4] = 1
		dst = binary.LittleEndian.AppendUint64(dst, uint64(s.AckTimeoutNs))
	}
	return appendString(dst, s.Who)
}

// AppendAck appends a subscriber's answer to a push.
func AppendAck(dst []byte, a Ack) []byte {
	return binary.LittleEndian.AppendUint16(dst, uint16(a))
}
