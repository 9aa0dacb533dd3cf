package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"smss/codec"
)

// Defaults of ConsumeOptions.
const (
	DefaultMinPause = 200 * time.Millisecond
	DefaultMaxPause = 30 * time.Second
)

// ConsumeOptions are the options of Consume.
type ConsumeOptions struct {
	SubscribeOptions
	// MinPause and MaxPause bound the pause before a reconnect. It doubles
	// from one failure to the next, starts again after a batch that was
	// acknowledged, and is cut by up to a half at random. 0 and less =
	// DefaultMinPause, DefaultMaxPause.
	MinPause, MaxPause time.Duration
	// OnAck, if set, is called after each acknowledged batch with the event id
	// of its last message: the place to store it.
	OnAck func(eventID int64)
	// OnRetry, if set, is called before each pause with what went wrong.
	OnRetry func(err error, pause time.Duration)
	// Retryable decides whether to reconnect after an error of the
	// subscription; nil = the function Retryable.
	Retryable func(error) bool
}

// Handler consumes one batch. Nil acknowledges it; ErrStop acknowledges it and
// ends the consumption; any other error leaves it unacknowledged and ends the
// consumption with that error. It returns within the ack timeout.
type Handler func(ctx context.Context, batch []Delivery) error

// Retryable reports whether an error of a subscription may pass by itself:
// connections that fail or fall silent, and a subscriber name that is taken,
// as it is for a while after a connection was cut on the way. Other refusals
// and the end of the topic stay what they are.
func Retryable(err error) bool {
	if refusal := (*ServerError)(nil); errors.As(err, &refusal) {
		return strings.HasSuffix(refusal.Text, codec.TextSubscriberExists)
	}
	return !errors.Is(err, ErrEnded) && !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrTooLarge)
}

// Consume subscribes and gives batches to handle, one at a time, on the
// calling goroutine. When the connection is lost, or none can be made, it
// pauses and subscribes again behind the last batch that was acknowledged, so
// that a batch whose acknowledgement was lost comes twice.
//
// It returns the event id of the last message acknowledged, initially
// o.EventID, and why it ended: nil after ErrStop, the error of ctx, the
// handler's error, or one of the subscription that is not worth a retry.
func Consume(ctx context.Context, addr string, o ConsumeOptions, handle Handler) (acked int64, err error) {
	return (&consumer{addr: addr, options: o, handle: handle, sleep: sleep}).run(ctx)
}

type consumer struct {
	addr    string
	options ConsumeOptions
	handle  Handler
	sleep   func(context.Context, time.Duration) error
	pause   time.Duration // the next one, before its random cut
}

func (c *consumer) run(ctx context.Context) (int64, error) {
	o := &c.options
	if _, err := o.SubscribeOptions.withDefaults(); err != nil {
		return o.EventID, err
	}
	if o.MinPause <= 0 {
		o.MinPause = DefaultMinPause
	}
	if o.MaxPause <= 0 {
		o.MaxPause = DefaultMaxPause
	}
	if o.Retryable == nil {
		o.Retryable = Retryable
	}
	c.pause = o.MinPause
	for {
		over, err := c.subscribe(ctx)
		if over || err == nil {
			return o.EventID, err
		}
		if ctx.Err() != nil {
			return o.EventID, ctx.Err()
		}
		if !o.Retryable(err) {
			return o.EventID, err
		}
		pause := c.nextPause()
		if o.OnRetry != nil {
			o.OnRetry(err, pause)
		}
		if err := c.sleep(ctx, pause); err != nil {
			return o.EventID, err
		}
	}
}

// nextPause returns the pause that is due and doubles the one after it.
func (c *consumer) nextPause() time.Duration {
	full := min(c.pause, c.options.MaxPause)
	c.pause = min(2*full, c.options.MaxPause)
	return full - rand.N(full/2+1)
}

// subscribe runs one subscription. over says that the consumption ends with
// err whatever it is.
func (c *consumer) subscribe(ctx context.Context) (over bool, err error) {
	s, err := Subscribe(ctx, c.addr, c.options.SubscribeOptions)
	if err != nil {
		return false, err
	}
	defer func() { _ = s.Close() }()
	for {
		batch, err := s.Next(ctx)
		if err != nil {
			return false, err
		}
		stop := false
		if err := c.handle(ctx, batch); err != nil {
			if stop = errors.Is(err, ErrStop); !stop {
				return true, err
			}
		}
		if stop {
			err = s.End()
		} else {
			err = s.Ack()
		}
		if err != nil {
			return false, err
		}
		c.options.EventID, c.pause = s.Acked(), c.options.MinPause
		if c.options.OnAck != nil {
			c.options.OnAck(s.Acked())
		}
		if stop {
			return true, nil
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
