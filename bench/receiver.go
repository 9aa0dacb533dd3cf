package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"smss/codec"
)

// stampSize is what a message's body begins with in the modes that measure
// times: nanoseconds since the run's clock began.
const stampSize = 8

// receiver is one event loop over subscribers: it reads pushes, looks at each
// message's event id and time, and acknowledges. What is atomic may be
// used from outside while it runs; the rest belongs to its goroutine.
type receiver struct {
	dialer  *dialer
	poller  *poller
	subs    []*subscription
	buffer  []byte
	stamped bool // messages carry times
	clock   time.Time
	expect  int64 // messages for each subscriber; 0: until stopped

	stop      atomic.Bool
	from      atomic.Int64 // messages stamped earlier are not recorded
	delivered atomic.Int64
	pushes    atomic.Int64

	open    int           // subscribers that are to get more
	last    time.Duration // of the latest message recorded
	latency *hdrhistogram.Histogram
}

// subscription is one subscriber's connection and what is known of the frame
// that is arriving.
type subscription struct {
	fd       int
	got      int64
	eventID  int64 // of the last message
	messages int   // of the push, still to come
	state    frameState
	have     int // bytes gathered for the state
	skip     int // bytes of a message or text to pass over
	head     [messageHead + stampSize]byte
	text     []byte
	done     bool
}

type frameState byte

const (
	inHeader  frameState = iota // of a frame
	inMessage                   // the head of a message
	inBody                      // the rest of a message
	inText                      // of an error
)

// messageHead is what is gathered of each message: what the server adds and
// the message's two lengths.
const messageHead = codec.PushedMessageOverhead + codec.MessageOverhead

// receiveBuffer is one read: as much as the sockets of a loopback hold.
const receiveBuffer = 256 << 10

func newReceiver(addr string, clock time.Time, stamped bool) (*receiver, error) {
	d, err := newDialer(addr)
	if err != nil {
		return nil, err
	}
	p, err := newPoller()
	if err != nil {
		return nil, err
	}
	return &receiver{dialer: d, poller: p, buffer: make([]byte, receiveBuffer), stamped: stamped, clock: clock, latency: newHistogram()}, nil
}

// subscribe adds a subscriber from the topic's oldest message on, so that it
// does not matter when the server takes note of it.
func (r *receiver) subscribe(topic, who string, batch int) error {
	fd, err := r.dialer.dial()
	if err != nil {
		return err
	}
	s := &subscription{fd: fd}
	r.subs = append(r.subs, s)
	r.open++
	request := codec.AppendSub(nil, &codec.Subscription{Topic: topic, Who: who, Batch: batch, AckTimeoutNs: int64(ackTimeout)})
	if n, err := unix.Write(fd, request); err != nil || n < len(request) {
		return fmt.Errorf("subscribe: %s", closedText(err))
	}
	return r.poller.add(fd, len(r.subs)-1)
}

// ackTimeout is long enough for a generator that has to wait for its turn.
const ackTimeout = 60 * time.Second

func (r *receiver) close() {
	for _, s := range r.subs {
		unix.Close(s.fd)
	}
	r.poller.close()
}

// run receives until every subscriber has what is expected, or it is stopped.
// With a timeout, silence of that length is an error.
func (r *receiver) run(timeout time.Duration) error {
	heard := time.Now()
	for r.open > 0 && !r.stop.Load() {
		n, err := r.poller.wait(stopLatency)
		if err != nil {
			return err
		}
		for i := range n {
			index, _, _ := r.poller.event(i)
			if err := r.read(r.subs[index]); err != nil {
				return fmt.Errorf("subscriber %d: %w", index+1, err)
			}
		}
		if n > 0 {
			heard = time.Now()
		} else if timeout > 0 && time.Since(heard) > timeout {
			return fmt.Errorf("subscribers: no message within %s", timeout)
		}
	}
	return nil
}

func (r *receiver) read(s *subscription) error {
	if s.done {
		return nil
	}
	n, err := unix.Read(s.fd, r.buffer)
	if err == unix.EAGAIN || err == unix.EINTR {
		return nil
	}
	if err != nil || n == 0 {
		return errors.New(closedText(err))
	}
	now := time.Since(r.clock)
	before := s.got
	for b := r.buffer[:n]; len(b) > 0 && !s.done; {
		if b, err = r.advance(s, b, now); err != nil {
			return err
		}
	}
	r.delivered.Add(s.got - before)
	return nil
}

// advance takes the next part of a frame from b and returns the rest.
func (r *receiver) advance(s *subscription, b []byte, now time.Duration) ([]byte, error) {
	switch s.state {
	case inHeader:
		head, rest := s.gather(b, codec.ReplyHeaderSize)
		if head == nil {
			return nil, nil
		}
		return rest, s.begin(codec.ParseReplyHeader(head))
	case inMessage:
		size := messageHead
		if r.stamped {
			size += stampSize
		}
		head, rest := s.gather(b, size)
		if head == nil {
			return nil, nil
		}
		if err := r.message(s, head, now); err != nil {
			return nil, err
		}
		return rest, r.endMessage(s)
	case inBody:
		n := min(s.skip, len(b))
		s.skip -= n
		return b[n:], r.endMessage(s)
	}
	n := min(s.skip, len(b))
	s.text, s.skip = append(s.text, b[:n]...), s.skip-n
	if s.skip == 0 {
		return nil, fmt.Errorf("refused: %s", s.text)
	}
	return nil, nil
}

// gather returns size bytes in one piece, from b where it has them all, or
// nil until the rest has come.
func (s *subscription) gather(b []byte, size int) (head, rest []byte) {
	if s.have == 0 && len(b) >= size {
		return b[:size], b[size:]
	}
	n := copy(s.head[s.have:size], b)
	if s.have += n; s.have < size {
		return nil, nil
	}
	s.have = 0
	return s.head[:size], b[n:]
}

func (s *subscription) begin(h codec.ReplyHeader) error {
	switch h.Code {
	case codec.CodeAlive:
	case codec.CodeOK:
		if h.Messages == 0 {
			return errors.New("got a push without messages")
		}
		s.messages, s.state = h.Messages, inMessage
	case codec.CodeError:
		s.skip, s.state = h.TextSize, inText
		if s.skip == 0 {
			return errors.New("refused without a text")
		}
	case codec.CodeEnd:
		return errors.New("the topic was deleted meanwhile")
	default:
		return errors.New("got code " + strconv.Itoa(int(h.Code)))
	}
	return nil
}

// message looks at the head of one message.
func (r *receiver) message(s *subscription, head []byte, now time.Duration) error {
	id := int64(binary.LittleEndian.Uint64(head[8:]))
	if id <= s.eventID {
		return fmt.Errorf("event %d after %d: out of order", id, s.eventID)
	}
	s.eventID = id
	s.got++
	s.skip, s.state = int(binary.LittleEndian.Uint32(head[codec.PushedMessageOverhead:])), inBody
	if !r.stamped {
		return nil
	}
	if s.skip -= stampSize; s.skip < 0 {
		return errors.New("got a message without a time: somebody else publishes to the topic")
	}
	stamp := time.Duration(binary.LittleEndian.Uint64(head[messageHead:]))
	if int64(stamp) < r.from.Load() {
		return nil
	}
	r.last = now
	_ = r.latency.RecordValue(min(max(0, (now-stamp).Microseconds()), r.latency.HighestTrackableValue()))
	return nil
}

// endMessage goes on behind a message whose bytes have all come, and
// acknowledges behind the last of a push.
func (r *receiver) endMessage(s *subscription) error {
	if s.skip > 0 {
		return nil
	}
	s.state = inMessage
	if s.messages--; s.messages > 0 {
		return nil
	}
	s.state = inHeader
	r.pushes.Add(1)
	answer := ackNext
	if r.expect > 0 && s.got >= r.expect {
		answer, s.done = ackEnd, true
		r.open--
	}
	if n, err := unix.Write(s.fd, answer); err != nil || n < len(answer) {
		return fmt.Errorf("ack: %s", closedText(err))
	}
	return nil
}

var (
	ackNext = codec.AppendAck(nil, codec.AckNext)
	ackEnd  = codec.AppendAck(nil, codec.AckEnd)
)
