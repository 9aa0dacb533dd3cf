package codec

import "encoding/binary"

// Limits bounds what a request may claim. All are in bytes but
// MaxBatchMessages, which counts the messages of one payload.
type Limits struct {
	MaxMessageSize   int // payload of PUB and DELAY, and the body of an unknown command
	MaxBatchMessages int
	MaxWhoLength     int // a subscriber's name
}

// Request is one parsed request. Slices alias the input.
type Request struct {
	Command Command
	Topic   []byte
	Trace   []byte
	Payload []byte // PUB, DELAY: the messages, back to back; COPY: the body
	Who     []byte // SUB: the subscriber's name

	// Messages is the number of messages in Payload.
	Messages int
	// EventID is SUB's and REPLICA's last event consumed, VALID_LIST's bound.
	EventID int64
	// ExpireAtMs is CREATE_TOPIC's end of life, Unix ms, 0 = for ever.
	ExpireAtMs int64
	// DelayMs is DELAY's delay.
	DelayMs int64
	// AckTimeoutNs is SUB's ack timeout; 0 where the request has none or one
	// that is not positive, which stands for the default.
	AckTimeoutNs int64
	// Extended is REPLICA's mark of a slave of this project, Greeting the JSON
	// that comes with it.
	Extended bool
	Greeting []byte
	// Batch is SUB's batch size, 1 to MaxBatch.
	Batch int
	// Invalid is nil, or why a whole and well-framed request is refused. It is
	// not returned as an error, because the checks that come before it in the
	// existing server's order (is this a master?) are not codec's to make.
	Invalid *RequestError
}

var (
	errUnknownCommand = &RequestError{TextUnknownCommand}
	errPayloadSize    = &RequestError{TextPayloadSize}
	errPubPayload     = &RequestError{TextPubPayload}
	errDelayRequest   = &RequestError{TextDelayRequest}
	errBatchMessages  = &RequestError{"too many messages in one request, see limits.maxBatchMessages"}
	errWho            = &RequestError{"subscriber name must be UTF-8 without control characters"}
	errMessageSize    = &FrameError{"payload is larger than the server accepts, see limits.maxMessageSize"}
	errWhoLength      = &FrameError{"subscriber name is longer than the server accepts, see limits.maxWhoLength"}
)

// ParseRequest reads the request at the start of b into req.
//
//   - nil: b[:n] is one whole request, req describes it (see Request.Invalid).
//   - ErrShort: the request takes at least n bytes, more than b has; n grows
//     as more of it becomes known and never passes the limits.
//   - *RequestError: refused before its body arrived; the request takes n
//     bytes, which may be more than b has and are to be skipped.
//   - *FrameError: refused for good.
//
// req is overwritten in every case.
func ParseRequest(b []byte, lim *Limits, req *Request) (n int, err error) {
	*req = Request{}
	if len(b) < RequestHeaderSize {
		return RequestHeaderSize, ErrShort
	}
	req.Command = Command(b[0])
	topicLen := int(binary.LittleEndian.Uint16(b[1:3]))
	traceLen := int(b[19])
	body := RequestHeaderSize + topicLen + traceLen
	total, err := requestSize(b, body, lim, req)
	if err != nil {
		return total, err
	}
	if len(b) < total {
		return total, ErrShort
	}
	req.Topic = b[RequestHeaderSize : RequestHeaderSize+topicLen]
	req.Trace = b[RequestHeaderSize+topicLen : body]
	if req.Command == Sub {
		parseSub(b[3], b[4] == 1, b[body:total], req)
	} else {
		req.Extended = req.Command == Replica && b[3]&1 != 0
		parseBody(b[body:total], lim, req)
	}
	return total, nil
}

func parseSub(batch byte, hasTimeout bool, body []byte, req *Request) {
	req.Batch = max(1, int(batch))
	req.EventID = int64(binary.LittleEndian.Uint64(body))
	body = body[8:]
	if hasTimeout {
		req.AckTimeoutNs = max(0, int64(binary.LittleEndian.Uint64(body)))
		body = body[8:]
	}
	req.Who = body[4:]
	if !ValidSubscriberName(req.Who) {
		req.Invalid = errWho
	}
}

// requestSize returns the size of the whole request as far as b tells. An
// error other than ErrShort ends the parse.
func requestSize(b []byte, body int, lim *Limits, req *Request) (int, error) {
	switch req.Command {
	case Pub, Delay:
		return payloadRequestSize(b, body, lim, req)
	case Sub:
		return subRequestSize(b, body, lim)
	case CreateTopic, ValidList:
		return body + 8, nil
	case Replica:
		return replicaRequestSize(b, body)
	case Copy:
		return copyRequestSize(b, body)
	case DeleteTopic, Alive, TopicInfo, List:
		return body, nil
	}
	// An unknown command is skipped by the length that the rule for extensions
	// puts into bytes 3-6; existing clients send zeros there.
	claimed := binary.LittleEndian.Uint32(b[3:7])
	if uint64(claimed) > uint64(lim.MaxMessageSize) {
		return 0, errMessageSize
	}
	return body + int(claimed), errUnknownCommand
}

func payloadRequestSize(b []byte, body int, lim *Limits, req *Request) (int, error) {
	claimed := binary.LittleEndian.Uint32(b[3:7])
	if uint64(claimed) > uint64(lim.MaxMessageSize) {
		return 0, errMessageSize
	}
	total := body + int(claimed)
	if req.Command == Delay {
		total += 8
	}
	return total, nil
}

func subRequestSize(b []byte, body int, lim *Limits) (int, error) {
	whoAt := body + 8
	if b[4] == 1 {
		whoAt += 8
	}
	if len(b) < whoAt+4 {
		return whoAt + 4, ErrShort
	}
	whoLen := binary.LittleEndian.Uint32(b[whoAt:])
	if uint64(whoLen) > uint64(lim.MaxWhoLength) {
		return 0, errWhoLength
	}
	return whoAt + 4 + int(whoLen), nil
}

// parseBody fills req from a body of exactly the right size.
func parseBody(body []byte, lim *Limits, req *Request) {
	switch req.Command {
	case Pub:
		req.Payload = body
		req.Invalid = checkPayload(req, lim, errPayloadSize, errPubPayload)
	case Delay:
		req.DelayMs = int64(binary.LittleEndian.Uint64(body))
		req.Payload = body[8:]
		req.Invalid = checkPayload(req, lim, errDelayRequest, errDelayRequest)
	case Copy:
		req.Payload = body
	case CreateTopic:
		req.ExpireAtMs = int64(binary.LittleEndian.Uint64(body))
	case ValidList, Replica:
		req.EventID = int64(binary.LittleEndian.Uint64(body))
		if req.Extended {
			req.Greeting = body[12:]
		}
	}
}

func checkPayload(req *Request, lim *Limits, tooSmall, malformed *RequestError) *RequestError {
	if len(req.Payload) <= MessageOverhead {
		return tooSmall
	}
	n, ok := CountMessages(req.Payload)
	if !ok {
		return malformed
	}
	if n > lim.MaxBatchMessages {
		return errBatchMessages
	}
	req.Messages = n
	return nil
}
