package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"smss/codec"
)

// Defaults of SubscribeOptions.
const (
	DefaultSilence      = 35 * time.Second
	DefaultMaxPushBytes = 64 << 20
)

// SubscribeOptions say what to subscribe to, and how.
type SubscribeOptions struct {
	Options // of the connection; Timeout bounds sending, not waiting for messages
	// Topic is what to subscribe to; Who names the subscriber and is unique
	// among the topic's subscribers.
	Topic, Who string
	// EventID is of the last message already consumed; 0 = from the oldest
	// that is kept.
	EventID int64
	// Batch is how many messages come at once at most, 1 to 255; 0 = 1.
	Batch int
	// AckTimeout is how long the server waits for Ack before it closes. 0 and
	// less = the server's default, 3 s.
	AckTimeout time.Duration
	// Silence is how long to wait for a frame, heartbeats included. 0 and
	// less = DefaultSilence; a server sends one every 30 s unless configured
	// otherwise.
	Silence time.Duration
	// MaxPushBytes bounds one batch. 0 and less = DefaultMaxPushBytes.
	MaxPushBytes int
	// Trace is a trace id of up to 255 bytes for the server's log.
	Trace string
}

func (o SubscribeOptions) withDefaults() (SubscribeOptions, error) {
	o.Options = o.Options.withDefaults()
	if o.Batch == 0 {
		o.Batch = 1
	}
	if o.Batch < 1 || o.Batch > codec.MaxBatch {
		return o, fmt.Errorf("batch of %d, allowed are 1 to %d", o.Batch, codec.MaxBatch)
	}
	if o.Silence <= 0 {
		o.Silence = DefaultSilence
	}
	if o.MaxPushBytes <= 0 {
		o.MaxPushBytes = DefaultMaxPushBytes
	}
	return o, checkNames(o.Topic, o.Trace)
}

// Delivery is one message as it came. It belongs to the receiver.
type Delivery struct {
	codec.Message
	// EventID is what to remember once the message is consumed.
	EventID int64
	// StoredAt is when the server stored it, to the millisecond.
	StoredAt time.Time
}

// Subscriber is a running subscription. One goroutine uses it at a time; Close
// may be called from any.
type Subscriber struct {
	nc      net.Conn
	in      *bufio.Reader
	options SubscribeOptions
	closed  atomic.Bool
	failed  error // why no more batches come

	// The frame being read. It outlasts a Next that its context interrupts.
	header codec.ReplyHeader
	headed bool   // header is read, its body is not
	body   []byte // what has come of it
	size   int    // of the whole body

	unacked bool  // a batch waits for its ack
	last    int64 // event id of the last message of the last batch
	acked   int64 // the same of the last batch acknowledged

	heardAt    time.Time // last frame, or ack, which starts the wait for the next
	quietUntil time.Time // when the wait that is under way turns into ErrSilent
}

// Subscribe connects and asks for a subscription. The server does not confirm
// it: a refusal, such as a topic that does not exist or a name that is taken,
// comes as *ServerError from the first Next.
func Subscribe(ctx context.Context, addr string, o SubscribeOptions) (*Subscriber, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	nc, err := o.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	s := &Subscriber{nc: nc, in: bufio.NewReader(nc), options: o, last: o.EventID, acked: o.EventID, heardAt: time.Now()}
	request := codec.AppendSub(nil, &codec.Subscription{
		Topic: o.Topic, Who: o.Who, Trace: o.Trace, EventID: o.EventID,
		Batch: o.Batch, AckTimeoutNs: int64(o.AckTimeout),
	})
	if err := s.send(request); err != nil {
		return nil, err
	}
	return s, nil
}

// Next waits for the next batch, which has at least one message. The one
// before has to be acknowledged. Where ctx ends first its error is returned
// and the subscription goes on; every other error but ErrNotAcked ends it:
// *ServerError, ErrEnded, ErrSilent, or one that wraps ErrBroken.
func (s *Subscriber) Next(ctx context.Context) ([]Delivery, error) {
	if s.failed != nil {
		return nil, s.failed
	}
	if s.unacked {
		return nil, ErrNotAcked
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, s.interrupt)()
	// A caller that comes late still gets what has arrived meanwhile.
	s.quietUntil = s.heardAt.Add(s.options.Silence)
	if grace := time.Now().Add(s.options.Timeout); s.quietUntil.Before(grace) && time.Since(s.heardAt) > s.options.Timeout {
		s.quietUntil = grace
	}
	for {
		if err := s.readFrame(ctx); err != nil {
			return nil, err
		}
		switch s.header.Code {
		case codec.CodeAlive:
			continue
		case codec.CodeOK:
			return s.open()
		case codec.CodeEnd:
			return nil, s.fail(ErrEnded)
		default:
			return nil, s.fail(serverError(s.body))
		}
	}
}

// Ack acknowledges the batch that Next returned and asks for more.
func (s *Subscriber) Ack() error { return s.acknowledge(codec.AckNext) }

// End acknowledges the batch that Next returned, if it is not yet, and ends
// the subscription; the name is free again.
func (s *Subscriber) End() error {
	if !s.unacked {
		return s.Close()
	}
	err := s.acknowledge(codec.AckEnd)
	_ = s.Close()
	return err
}

func (s *Subscriber) acknowledge(a codec.Ack) error {
	if s.failed != nil {
		return s.failed
	}
	if !s.unacked {
		return ErrNothingToAck
	}
	if err := s.send(codec.AppendAck(nil, a)); err != nil {
		return err
	}
	s.unacked, s.acked = false, s.last
	s.heardAt = time.Now()
	return nil
}

// Close ends the subscription without acknowledging: the batch that Next
// returned last counts as not consumed. Any goroutine may call it, more than
// once; a Next that is waiting fails.
func (s *Subscriber) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	return s.nc.Close()
}

// Acked returns the event id of the last message acknowledged, before the
// first ack SubscribeOptions.EventID: where another subscription goes on.
func (s *Subscriber) Acked() int64 { return s.acked }

// fail ends the subscription for the first cause alone.
func (s *Subscriber) fail(err error) error {
	if s.failed == nil {
		if s.closed.Load() {
			err = broken(ErrClosed)
		}
		s.failed = err
	}
	_ = s.Close()
	return s.failed
}

func (s *Subscriber) send(b []byte) error {
	_ = s.nc.SetWriteDeadline(time.Now().Add(s.options.Timeout))
	if _, err := s.nc.Write(b); err != nil {
		return s.fail(broken(err))
	}
	return nil
}

// interrupt makes the read under way return; it may run on any goroutine.
func (s *Subscriber) interrupt() { _ = s.nc.SetReadDeadline(time.Unix(1, 0)) }

// await sets the deadline of the read that follows. It looks at ctx after
// that: one that ends before has moved the deadline in vain, one that ends
// later moves the new one.
func (s *Subscriber) await(ctx context.Context) error {
	_ = s.nc.SetReadDeadline(s.quietUntil)
	return ctx.Err()
}

// heard notes that bytes have arrived. Silence is measured from them, so that
// a large batch on a slow line has the time it needs.
func (s *Subscriber) heard() {
	s.heardAt = time.Now()
	s.quietUntil = s.heardAt.Add(s.options.Silence)
}

// outcome tells what the error of a read means; nil = read on.
func (s *Subscriber) outcome(ctx context.Context, err error) error {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return s.fail(broken(err))
	}
	now := time.Now()
	if !now.Before(s.quietUntil) || ctx.Err() != nil && now.Sub(s.heardAt) >= s.options.Silence {
		return s.fail(fmt.Errorf("%w: nothing for %v", ErrSilent, now.Sub(s.heardAt).Round(time.Millisecond)))
	}
	return ctx.Err() // nil where the interrupt of an earlier Next came late
}

// readFrame reads one frame into header and body, or as much of it as comes
// before ctx ends: the next call goes on from there.
func (s *Subscriber) readFrame(ctx context.Context) error {
	for !s.headed {
		if err := s.await(ctx); err != nil {
			return err
		}
		b, err := s.in.Peek(codec.ReplyHeaderSize)
		if err != nil {
			if err = s.outcome(ctx, err); err != nil {
				return err
			}
			continue
		}
		s.header = codec.ParseReplyHeader(b)
		_, _ = s.in.Discard(codec.ReplyHeaderSize)
		s.heard()
		if err := s.beginBody(); err != nil {
			return err
		}
	}
	for len(s.body) < s.size {
		if err := s.await(ctx); err != nil {
			return err
		}
		if err := s.readBody(); err != nil {
			if err = s.outcome(ctx, err); err != nil {
				return err
			}
		}
	}
	s.headed = false
	return nil
}

// bodyStep is what is allocated for a body ahead of its bytes; where more of
// them have come, as much again.
const bodyStep = 1 << 20

func (s *Subscriber) readBody() error {
	if len(s.body) == cap(s.body) {
		s.body = slices.Grow(s.body, min(s.size-len(s.body), max(bodyStep, len(s.body))))
	}
	n, err := s.in.Read(s.body[len(s.body):min(cap(s.body), s.size)])
	s.body = s.body[:len(s.body)+n]
	if n > 0 {
		s.heard()
		return nil
	}
	return err
}

// beginBody checks the header and prepares for what follows it.
func (s *Subscriber) beginBody() error {
	s.headed, s.body, s.size = true, nil, 0
	switch h := s.header; h.Code {
	case codec.CodeAlive, codec.CodeEnd:
	case codec.CodeError:
		s.size = h.TextSize
	case codec.CodeOK:
		if h.Messages == 0 {
			return s.fail(broken(fmt.Errorf("%w: batch without messages", ErrProtocol)))
		}
		if int64(h.PushSize) > int64(s.options.MaxPushBytes) {
			return s.fail(broken(fmt.Errorf("batch of %d bytes, allowed are %d: %w", h.PushSize, s.options.MaxPushBytes, ErrTooLarge)))
		}
		s.size = int(h.PushSize)
	default:
		return s.fail(broken(fmt.Errorf("%w: reply code %d", ErrProtocol, h.Code)))
	}
	return nil
}

// open takes the batch that was read apart.
func (s *Subscriber) open() ([]Delivery, error) {
	batch := make([]Delivery, 0, s.header.Messages)
	rest := s.body
	for range s.header.Messages {
		pushed, raw, size, ok := codec.ParsePushed(rest)
		if !ok {
			return nil, s.fail(broken(fmt.Errorf("%w: batch does not hold its messages", ErrProtocol)))
		}
		m, _, ok := codec.ParseMessage(raw)
		if !ok {
			return nil, s.fail(broken(fmt.Errorf("%w: headers of event %d do not fit its message", ErrProtocol, pushed.EventID)))
		}
		batch = append(batch, Delivery{Message: m, EventID: pushed.EventID, StoredAt: time.UnixMilli(pushed.StoredAtMs)})
		rest = rest[size:]
	}
	if len(rest) > 0 {
		return nil, s.fail(broken(fmt.Errorf("%w: batch is longer than its messages", ErrProtocol)))
	}
	s.body = nil // belongs to the receiver
	s.unacked, s.last = true, batch[len(batch)-1].EventID
	return batch, nil
}
