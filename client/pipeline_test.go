package client

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"smss/client/clienttest"
	"smss/codec"
)

func TestPipelineKeepsOrder(t *testing.T) {
	const requests, window = 1000, 64
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		for i := range requests {
			r := s.Expect(codec.Pub)
			if m := clienttest.Messages(t, r.Payload); len(m) != 1 || string(m[0].Body) != fmt.Sprint(i) {
				t.Errorf("request %d holds %v", i, m)
			}
			if i%10 == 3 {
				s.Refuse(fmt.Sprint(i))
			} else {
				s.OK()
			}
		}
		s.Expect(codec.Alive)
		s.Alive()
		s.Closed()
	})
	c := dial(t, s, Options{})
	p := c.Pipeline(window)
	received := 0
	receive := func() {
		err := p.Receive()
		var refusal *ServerError
		if want := received%10 == 3; want != errors.As(err, &refusal) || !want && err != nil || want && refusal.Text != fmt.Sprint(received) {
			t.Fatalf("reply %d: %v", received, err)
		}
		received++
	}
	for i := range requests {
		err := p.Publish("t", clienttest.Text(fmt.Sprint(i)))
		if errors.Is(err, ErrWindowFull) {
			receive()
			err = p.Publish("t", clienttest.Text(fmt.Sprint(i)))
		}
		if err != nil || p.Outstanding() > window {
			t.Fatalf("request %d: %v, %d outstanding", i, err, p.Outstanding())
		}
	}
	if received != requests-window {
		t.Errorf("%d replies received before the end", received)
	}
	for p.Outstanding() > 0 {
		receive()
	}
	if err := p.Receive(); !errors.Is(err, ErrNothingOutstanding) {
		t.Errorf("receive with nothing outstanding: %v", err)
	}
	if err := c.Alive(); err != nil {
		t.Errorf("the connection afterwards: %v", err)
	}
}

func TestPipelineWindowOfBytes(t *testing.T) {
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		for range 9 {
			s.Expect(codec.Pub)
			s.OK()
		}
		s.Closed()
	})
	p := dial(t, s, Options{}).Pipeline(0)
	large := &codec.Message{Body: make([]byte, windowBytes/2)}
	huge := &codec.Message{Body: make([]byte, 2*windowBytes)}
	for _, v := range []struct {
		m    *codec.Message
		want error
	}{{large, nil}, {large, ErrWindowFull}, {huge, ErrWindowFull}, {clienttest.Text("small"), nil}} {
		if err := p.Publish("t", v.m); !errors.Is(err, v.want) {
			t.Errorf("%d bytes with %d outstanding: %v", len(v.m.Body), p.Outstanding(), err)
		}
	}
	for p.Outstanding() > 0 {
		if err := p.Receive(); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 { // the window is free again each time
		for _, m := range []*codec.Message{large, clienttest.Text("small")} {
			if err := p.Publish("t", m); err != nil {
				t.Errorf("%d bytes with %d outstanding: %v", len(m.Body), p.Outstanding(), err)
			}
		}
		for p.Outstanding() > 0 {
			if err := p.Receive(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := p.Publish("t", huge); err != nil {
		t.Errorf("larger than the window, alone: %v", err)
	}
	if err := p.Receive(); err != nil {
		t.Error(err)
	}
}

func TestOutstandingRepliesBlockOtherRequests(t *testing.T) {
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		s.Expect(codec.Delay)
		s.Expect(codec.Pub)
		s.OK()
		s.OK()
		s.Expect(codec.Alive)
		s.Alive()
		s.Closed()
	})
	c := dial(t, s, Options{})
	p := c.Pipeline(8)
	if err := p.PublishDelay("t", time.Second, one(clienttest.Text("a"))); err != nil {
		t.Fatal(err)
	}
	if err := p.PublishBatch("t", one(clienttest.Text("b"))); err != nil {
		t.Fatal(err)
	}
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := c.Alive(); !errors.Is(err, ErrOutstanding) {
		t.Errorf("alive between: %v", err)
	}
	if err := p.Receive(); err != nil {
		t.Fatal(err)
	}
	if err := c.Publish("t", clienttest.Text("c")); !errors.Is(err, ErrOutstanding) {
		t.Errorf("publish between: %v", err)
	}
	if err := p.Receive(); err != nil {
		t.Fatal(err)
	}
	if err := c.Alive(); err != nil {
		t.Errorf("alive afterwards: %v", err)
	}
}

func TestPipelineThatIsCut(t *testing.T) {
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		s.Expect(codec.Pub)
		s.OK()
		s.Expect(codec.Pub)
	})
	c := dial(t, s, Options{})
	p := c.Pipeline(8)
	for range 2 {
		if err := p.Publish("t", clienttest.Text("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Receive(); err != nil {
		t.Errorf("first: %v", err)
	}
	for range 2 {
		if err := p.Receive(); !errors.Is(err, ErrBroken) {
			t.Errorf("after the cut: %v", err)
		}
	}
	if err := p.Publish("t", clienttest.Text("x")); !errors.Is(err, ErrBroken) {
		t.Errorf("publish after the cut: %v", err)
	}
	if p.Outstanding() != 1 {
		t.Errorf("%d requests of unknown outcome, want 1", p.Outstanding())
	}
}
