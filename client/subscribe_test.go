package client

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"smss/client/clienttest"
	"smss/codec"
)

func subscribe(t *testing.T, s *clienttest.Server, o SubscribeOptions) *Subscriber {
	t.Helper()
	if o.Topic == "" {
		o.Topic, o.Who = "t", "w"
	}
	sub, err := Subscribe(ctx, s.Addr(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Close() })
	return sub
}

// take fails unless the next batch has these bodies, with consecutive ids
// from first on.
func take(t *testing.T, s *Subscriber, first int64, bodies ...string) []Delivery {
	t.Helper()
	batch, err := s.Next(ctx)
	if err != nil {
		t.Fatalf("next: %v", err)
	}
	if len(batch) != len(bodies) {
		t.Fatalf("%d messages, want %d", len(batch), len(bodies))
	}
	for i, d := range batch {
		if d.EventID != first+int64(i) || string(d.Body) != bodies[i] {
			t.Fatalf("message %d: event %d, body %q", i, d.EventID, d.Body)
		}
	}
	return batch
}

func TestSubscription(t *testing.T) {
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		r := s.Expect(codec.Sub)
		if string(r.Topic) != "order" || string(r.Who) != "billing" || string(r.Trace) != "tr" || r.EventID != 7 || r.Batch != 3 || r.AckTimeoutNs != 2e9 {
			t.Errorf("got %+v", r)
		}
		s.Alive()
		s.Push(10, clienttest.Text("a", "k", "v"), clienttest.Text("b"))
		s.Ack(codec.AckNext)
		s.Alive()
		s.Alive()
		s.Push(12, clienttest.Text("c"))
		s.Ack(codec.AckEnd)
		s.Closed()
	})
	sub := subscribe(t, s, SubscribeOptions{Topic: "order", Who: "billing", EventID: 7, Batch: 3, AckTimeout: 2 * time.Second, Trace: "tr"})
	if err := sub.Ack(); !errors.Is(err, ErrNothingToAck) || sub.Acked() != 7 {
		t.Errorf("ack before the first batch: %v, acked %d", err, sub.Acked())
	}
	first := take(t, sub, 10, "a", "b")
	if !first[0].StoredAt.Equal(time.UnixMilli(10000)) || len(first[0].Headers) != 1 || first[0].Headers[0] != (codec.Header{Key: "k", Value: "v"}) {
		t.Errorf("first %+v", first[0])
	}
	if _, err := sub.Next(ctx); !errors.Is(err, ErrNotAcked) || sub.Acked() != 7 {
		t.Errorf("next without an ack: %v, acked %d", err, sub.Acked())
	}
	if err := sub.Ack(); err != nil || sub.Acked() != 11 {
		t.Errorf("ack: %v, acked %d", err, sub.Acked())
	}
	take(t, sub, 12, "c")
	if string(first[0].Body) != "a" || string(first[1].Body) != "b" {
		t.Errorf("the first batch changed: %q, %q", first[0].Body, first[1].Body)
	}
	if err := sub.End(); err != nil || sub.Acked() != 12 {
		t.Errorf("end: %v, acked %d", err, sub.Acked())
	}
	if err := sub.End(); err != nil {
		t.Errorf("second end: %v", err)
	}
}

func TestSubscriptionDefaults(t *testing.T) {
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		if r := s.Expect(codec.Sub); r.Batch != 1 || r.AckTimeoutNs != 0 || r.EventID != 0 {
			t.Errorf("got %+v", r)
		}
		s.Closed()
	})
	sub := subscribe(t, s, SubscribeOptions{})
	if err := sub.End(); err != nil { // nothing to acknowledge: closes
		t.Error(err)
	}
}

func TestSubscribeRefusesOptions(t *testing.T) {
	for name, o := range map[string]SubscribeOptions{
		"batch 256": {Batch: 256},
		"batch -1":  {Batch: -1},
		"trace":     {Trace: strings.Repeat("t", 256)},
		"topic":     {Topic: strings.Repeat("n", 65536)},
	} {
		// The address is never used: options are looked at first.
		if _, err := Subscribe(ctx, "", o); err == nil || strings.Contains(err.Error(), "dial") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Consume(ctx, "", ConsumeOptions{SubscribeOptions: o}, nil); err == nil || strings.Contains(err.Error(), "dial") {
			t.Errorf("%s, consume: %v", name, err)
		}
	}
}

// badPush is a push of one good message after edit.
func badPush(edit func([]byte) []byte) []byte {
	return edit(clienttest.Push(5, clienttest.Text("x", "k", "v")))
}

func TestHowSubscriptionsEnd(t *testing.T) {
	put := func(at int, v uint32) func([]byte) []byte {
		return func(b []byte) []byte { binary.LittleEndian.PutUint32(b[at:], v); return b }
	}
	const message = codec.ReplyHeaderSize + codec.PushedMessageOverhead
	for name, v := range map[string]struct {
		frame []byte
		want  error
	}{
		"topic deleted":           {codec.AppendCode(nil, codec.CodeEnd), ErrEnded},
		"closed":                  {nil, io.EOF},
		"cut in a header":         {badPush(func(b []byte) []byte { return b[:9] }), io.EOF},
		"cut in a batch":          {badPush(func(b []byte) []byte { return b[:len(b)-1] }), io.EOF},
		"unknown code":            {codec.AppendCode(nil, 202), ErrProtocol},
		"batch of no messages":    {badPush(func(b []byte) []byte { b[2] = 0; return b }), ErrProtocol},
		"batch of nothing at all": {codec.AppendCode(nil, codec.CodeOK), ErrProtocol},
		"batch of too few":        {badPush(func(b []byte) []byte { b[2] = 2; return b }), ErrProtocol},
		"batch longer than said":  {badPush(func(b []byte) []byte { return put(4, uint32(len(b)-9))(append(b, 0)) }), ErrProtocol},
		"message longer than all": {badPush(put(message, 1000)), ErrProtocol},
		"message of 4 GiB":        {badPush(put(message, 1<<32-1)), ErrProtocol},
		"headers that lie":        {badPush(put(message+4, 1<<32-1)), ErrProtocol},
		"batch over the limit":    {badPush(put(4, 1001))[:codec.ReplyHeaderSize], ErrTooLarge},
		"batch of 4 GiB":          {badPush(put(4, 1<<32-1))[:codec.ReplyHeaderSize], ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			s := clienttest.Serve(t, func(s *clienttest.Session) {
				s.Expect(codec.Sub)
				s.Send(v.frame)
			})
			sub := subscribe(t, s, SubscribeOptions{MaxPushBytes: 1000})
			for range 2 { // what ended it stays
				if _, err := sub.Next(ctx); !errors.Is(err, v.want) || errors.Is(err, ErrBroken) != !errors.Is(v.want, ErrEnded) {
					t.Errorf("next: %v, want %v", err, v.want)
				}
			}
			if err := sub.Ack(); !errors.Is(err, v.want) {
				t.Errorf("ack: %v", err)
			}
		})
	}
}

func TestSubscriptionIsRefused(t *testing.T) {
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		s.Expect(codec.Sub)
		s.Refuse("w" + codec.TextSubscriberExists)
		s.Closed()
	})
	var refusal *ServerError
	if _, err := subscribe(t, s, SubscribeOptions{}).Next(ctx); !errors.As(err, &refusal) || refusal.Text != "w regiester exist" {
		t.Errorf("next: %v", err)
	}
}

func TestSilence(t *testing.T) {
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		s.Expect(codec.Sub)
		s.Alive()
		s.Closed()
	})
	sub := subscribe(t, s, SubscribeOptions{Silence: 40 * time.Millisecond})
	begin := time.Now()
	if _, err := sub.Next(ctx); !errors.Is(err, ErrSilent) {
		t.Errorf("next: %v", err)
	}
	if waited := time.Since(begin); waited < 40*time.Millisecond {
		t.Errorf("gave up after %v", waited)
	}
}

// Many short waits are silence as well as one long one.
func TestSilenceAcrossInterruptedCalls(t *testing.T) {
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		s.Expect(codec.Sub)
		s.Closed()
	})
	// Timeout is also the time that a late caller has, which must not add up.
	sub := subscribe(t, s, SubscribeOptions{Silence: 150 * time.Millisecond, Options: Options{Timeout: 100 * time.Millisecond}})
	for {
		short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
		_, err := sub.Next(short)
		cancel()
		if errors.Is(err, ErrSilent) {
			return
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("next: %v", err)
		}
	}
}

// A Next that its context interrupts loses nothing, wherever in a frame it
// stops.
func TestInterruptedNextGoesOn(t *testing.T) {
	frame := clienttest.Push(5, clienttest.Text("hello"), clienttest.Text("world"))
	for _, cut := range []int{0, 1, 9, 10, 11, 30, len(frame) - 1} {
		rest := make(chan struct{})
		s := clienttest.Serve(t, func(s *clienttest.Session) {
			s.Expect(codec.Sub)
			s.Send(frame[:cut])
			<-rest
			s.Send(frame[cut:])
			s.Ack(codec.AckEnd)
			s.Closed()
		})
		sub := subscribe(t, s, SubscribeOptions{})
		for range 3 {
			short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
			if _, err := sub.Next(short); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("cut at %d: %v", cut, err)
			}
			cancel()
		}
		close(rest)
		take(t, sub, 5, "hello", "world")
		if err := sub.End(); err != nil {
			t.Errorf("cut at %d: %v", cut, err)
		}
	}
}

func TestFramesInPieces(t *testing.T) {
	frames := append(codec.AppendCode(nil, codec.CodeAlive), clienttest.Push(5, clienttest.Text("hello"))...)
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		s.Expect(codec.Sub)
		for i := range frames {
			s.Send(frames[i : i+1])
		}
		s.Ack(codec.AckEnd)
		s.Closed()
	})
	sub := subscribe(t, s, SubscribeOptions{})
	take(t, sub, 5, "hello")
	if err := sub.End(); err != nil {
		t.Error(err)
	}
}

func TestLargeBatch(t *testing.T) {
	a, b := strings.Repeat("a", 2*bodyStep+1), strings.Repeat("b", bodyStep)
	frame := clienttest.Push(1, clienttest.Text(a), clienttest.Text(b))
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		s.Expect(codec.Sub)
		s.Send(frame)
		s.Ack(codec.AckNext)
		s.Push(3, clienttest.Text("c"))
		s.Ack(codec.AckEnd)
		s.Closed()
	})
	sub := subscribe(t, s, SubscribeOptions{MaxPushBytes: len(frame) - codec.ReplyHeaderSize})
	take(t, sub, 1, a, b)
	if err := sub.Ack(); err != nil {
		t.Fatal(err)
	}
	take(t, sub, 3, "c")
	if err := sub.End(); err != nil {
		t.Error(err)
	}
}

func TestCloseEndsAWaitingNext(t *testing.T) {
	subscribed := make(chan struct{})
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		s.Expect(codec.Sub)
		close(subscribed)
		s.Closed()
	})
	sub := subscribe(t, s, SubscribeOptions{})
	result := make(chan error)
	go func() { _, err := sub.Next(ctx); result <- err }()
	<-subscribed
	_ = sub.Close()
	if err := <-result; !errors.Is(err, ErrBroken) || !errors.Is(err, ErrClosed) {
		t.Errorf("next: %v", err)
	}
}

// Close without Ack leaves the batch unconsumed: the server sees no ack.
func TestCloseDoesNotAcknowledge(t *testing.T) {
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		s.Expect(codec.Sub)
		s.Push(5, clienttest.Text("x"))
		s.Closed()
	})
	sub := subscribe(t, s, SubscribeOptions{EventID: 4})
	take(t, sub, 5, "x")
	_ = sub.Close()
	if sub.Acked() != 4 {
		t.Errorf("acked %d", sub.Acked())
	}
	if err := sub.End(); err == nil {
		t.Error("ended after Close without an error")
	}
}

func TestNextWithAContextThatIsOver(t *testing.T) {
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		s.Expect(codec.Sub)
		s.Push(5, clienttest.Text("x"))
		s.Ack(codec.AckEnd)
		s.Closed()
	})
	sub := subscribe(t, s, SubscribeOptions{})
	over, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := sub.Next(over); !errors.Is(err, context.Canceled) {
		t.Errorf("next: %v", err)
	}
	take(t, sub, 5, "x")
	if err := sub.End(); err != nil {
		t.Error(err)
	}
}
