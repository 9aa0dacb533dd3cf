package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"smss/client/clienttest"
	"smss/codec"
)

// newConsumer is a consumer that notes its pauses instead of sleeping.
func newConsumer(addr string, o ConsumeOptions, handle Handler) (*consumer, *[]time.Duration) {
	o.Topic, o.Who = "t", "w"
	pauses := new([]time.Duration)
	return &consumer{addr: addr, options: o, handle: handle, sleep: func(ctx context.Context, d time.Duration) error {
		*pauses = append(*pauses, d)
		return ctx.Err()
	}}, pauses
}

func expectSub(t *testing.T, s *clienttest.Session, eventID int64) {
	if r := s.Expect(codec.Sub); r.EventID != eventID {
		t.Errorf("subscribed after %d, want %d", r.EventID, eventID)
	}
}

func TestConsumeResumesBehindTheLastAck(t *testing.T) {
	s := clienttest.Serve(t,
		func(s *clienttest.Session) { // refuses the name once
			expectSub(t, s, 4)
			s.Refuse("w" + codec.TextSubscriberExists)
		},
		func(s *clienttest.Session) { // cuts while a batch is not acknowledged
			expectSub(t, s, 4)
			s.Push(5, clienttest.Text("a"), clienttest.Text("b"))
			s.Ack(codec.AckNext)
			s.Push(7, clienttest.Text("c"))
			s.Reset()
		},
		func(s *clienttest.Session) { // cuts in the middle of a frame
			r := s.Expect(codec.Sub)
			// Whether the reset came before or after the ack was written is
			// not known to the server; the client must not skip.
			if r.EventID != 6 && r.EventID != 7 {
				t.Errorf("subscribed after %d", r.EventID)
			}
			s.Send(clienttest.Push(8, clienttest.Text("d"))[:20])
		},
		func(s *clienttest.Session) {
			s.Expect(codec.Sub)
			s.Push(8, clienttest.Text("d"))
			s.Ack(codec.AckEnd)
			s.Closed()
		})
	var got []string
	var acks []int64
	var retries []error
	c, pauses := newConsumer(s.Addr(), ConsumeOptions{
		SubscribeOptions: SubscribeOptions{EventID: 4},
		OnAck:            func(id int64) { acks = append(acks, id) },
		OnRetry:          func(err error, _ time.Duration) { retries = append(retries, err) },
	}, func(_ context.Context, batch []Delivery) error {
		for _, d := range batch {
			got = append(got, string(d.Body))
		}
		if got[len(got)-1] == "d" {
			return ErrStop
		}
		return nil
	})
	acked, err := c.run(ctx)
	if err != nil || acked != 8 {
		t.Errorf("acked %d, error %v", acked, err)
	}
	if len(got) < 3 || got[0] != "a" || got[1] != "b" || got[len(got)-1] != "d" {
		t.Errorf("consumed %v", got)
	}
	if acks[0] != 6 || acks[len(acks)-1] != 8 || !slices.IsSorted(acks) {
		t.Errorf("acks %v", acks)
	}
	if len(retries) != 3 || len(*pauses) != 3 {
		t.Errorf("retries %v, pauses %v", retries, *pauses)
	}
}

func TestConsumeEnds(t *testing.T) {
	own := errors.New("handler's own")
	pass := func(context.Context, []Delivery) error { return nil }
	for name, v := range map[string]struct {
		script func(*clienttest.Session)
		handle Handler
		want   error
		acked  int64
	}{
		"topic deleted": {func(s *clienttest.Session) {
			s.Push(1, clienttest.Text("a"))
			s.Ack(codec.AckNext)
			s.End()
		}, pass, ErrEnded, 1},
		"handler fails": {func(s *clienttest.Session) {
			s.Push(1, clienttest.Text("a"))
			s.Closed() // and no ack
		}, func(context.Context, []Delivery) error { return own }, own, 0},
		"handler stops": {func(s *clienttest.Session) {
			s.Push(1, clienttest.Text("a"), clienttest.Text("b"))
			s.Ack(codec.AckEnd)
			s.Closed()
		}, func(context.Context, []Delivery) error { return fmt.Errorf("enough: %w", ErrStop) }, nil, 2},
		"nonsense": {func(s *clienttest.Session) { s.Send(codec.AppendCode(nil, 202)) }, pass, ErrProtocol, 0},
		"refused": {func(s *clienttest.Session) { s.Refuse(codec.TextEventNotFound) }, pass,
			&ServerError{codec.TextEventNotFound}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := clienttest.Serve(t, func(s *clienttest.Session) { s.Expect(codec.Sub); v.script(s) })
			c, pauses := newConsumer(s.Addr(), ConsumeOptions{}, v.handle)
			acked, err := c.run(ctx)
			refusal := (*ServerError)(nil)
			same := errors.Is(err, v.want) || errors.As(v.want, &refusal) && err != nil && err.Error() == v.want.Error()
			if !same || acked != v.acked || len(*pauses) != 0 {
				t.Errorf("acked %d, error %v, pauses %v", acked, err, *pauses)
			}
		})
	}
}

func TestConsumeEndsWithItsContext(t *testing.T) {
	stopped, cancel := context.WithCancel(ctx)
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		s.Expect(codec.Sub)
		s.Push(1, clienttest.Text("a"))
		s.Ack(codec.AckNext)
		cancel() // while the client waits for the next batch
		s.Closed()
	})
	c, _ := newConsumer(s.Addr(), ConsumeOptions{}, func(context.Context, []Delivery) error { return nil })
	if acked, err := c.run(stopped); acked != 1 || !errors.Is(err, context.Canceled) {
		t.Errorf("acked %d, error %v", acked, err)
	}
}

func TestPausesGrow(t *testing.T) {
	refuse := errors.New("no route")
	dials := 0
	stopped, cancel := context.WithCancel(ctx)
	o := ConsumeOptions{MinPause: 100 * time.Millisecond, MaxPause: time.Second}
	c, pauses := newConsumer("", o, nil)
	c.options.Dial = func(context.Context, string, string) (net.Conn, error) {
		if dials++; dials == 8 {
			cancel()
		}
		return nil, refuse
	}
	if _, err := c.run(stopped); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	full := []time.Duration{100, 200, 400, 800, 1000, 1000, 1000}
	if len(*pauses) != len(full) {
		t.Fatalf("pauses %v", *pauses)
	}
	for i, p := range *pauses {
		if most := full[i] * time.Millisecond; p > most || p < most/2 {
			t.Errorf("pause %d is %v, want %v to %v", i, p, most/2, most)
		}
	}
}

func TestPauseStartsAgainAfterAnAck(t *testing.T) {
	round := func(s *clienttest.Session) {
		r := s.Expect(codec.Sub)
		s.Push(r.EventID+1, clienttest.Text("x"))
		s.Ack(codec.AckNext)
		// Returning closes.
	}
	last := func(s *clienttest.Session) {
		expectSub(t, s, 5)
		s.Push(6, clienttest.Text("x"))
		s.Closed()
	}
	s := clienttest.Serve(t, round, round, round, round, round, last)
	c, pauses := newConsumer(s.Addr(), ConsumeOptions{MinPause: 100 * time.Millisecond}, func(_ context.Context, batch []Delivery) error {
		if batch[0].EventID == 6 {
			return errors.New("enough")
		}
		return nil
	})
	if acked, err := c.run(ctx); acked != 5 || err == nil || err.Error() != "enough" {
		t.Errorf("acked %d, error %v", acked, err)
	}
	if len(*pauses) != 5 || slices.Max(*pauses) > 100*time.Millisecond {
		t.Errorf("pauses %v", *pauses)
	}
}

func TestSleepEndsWithItsContext(t *testing.T) {
	over, cancel := context.WithCancel(ctx)
	cancel()
	if err := sleep(over, time.Hour); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := sleep(ctx, 1); err != nil {
		t.Error(err)
	}
}
