package client

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"smss/client/clienttest"
	"smss/codec"
)

func dial(t *testing.T, s *clienttest.Server, o Options) *Conn {
	t.Helper()
	c, err := Dial(context.Background(), s.Addr(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func one(m *codec.Message) []*codec.Message { return []*codec.Message{m} }

func TestRequests(t *testing.T) {
	at := time.UnixMilli(1796073091860)
	for _, v := range []struct {
		name  string
		call  func(*Conn) error
		check func(*clienttest.Session)
	}{
		{"publish", func(c *Conn) error { return c.Publish("t", clienttest.Text("hello", "k", "v"), Trace("tr-7")) },
			func(s *clienttest.Session) {
				r := s.Expect(codec.Pub)
				m := clienttest.Messages(t, r.Payload)
				if string(r.Topic) != "t" || string(r.Trace) != "tr-7" || len(m) != 1 || string(m[0].Body) != "hello" || m[0].Headers[0] != (codec.Header{Key: "k", Value: "v"}) {
					t.Errorf("got %+v with %v", r, m)
				}
				s.OK()
			}},
		{"batch", func(c *Conn) error {
			return c.PublishBatch("t", []*codec.Message{clienttest.Text("a"), clienttest.Text("b")})
		}, func(s *clienttest.Session) {
			if r := s.Expect(codec.Pub); r.Messages != 2 || len(r.Trace) != 0 {
				t.Errorf("got %+v", r)
			}
			s.OK()
		}},
		{"delay, rounded up", func(c *Conn) error {
			return c.PublishDelay("t", 1500*time.Millisecond+time.Nanosecond, one(clienttest.Text("late")), Trace("x"))
		}, func(s *clienttest.Session) {
			if r := s.Expect(codec.Delay); r.DelayMs != 1501 || r.Messages != 1 || string(r.Trace) != "x" {
				t.Errorf("got %+v", r)
			}
			s.OK()
		}},
		{"delay, negative", func(c *Conn) error { return c.PublishDelay("t", -time.Hour, one(clienttest.Text("late"))) },
			func(s *clienttest.Session) {
				if r := s.Expect(codec.Delay); r.DelayMs != 0 {
					t.Errorf("got %+v", r)
				}
				s.OK()
			}},
		{"create for ever", func(c *Conn) error { return c.CreateTopic("t", time.Time{}, Trace("x")) },
			func(s *clienttest.Session) {
				if r := s.Expect(codec.CreateTopic); r.ExpireAtMs != 0 || string(r.Topic) != "t" || string(r.Trace) != "x" {
					t.Errorf("got %+v", r)
				}
				s.OK()
			}},
		{"create with an end", func(c *Conn) error { return c.CreateTopic("t", at) },
			func(s *clienttest.Session) {
				if r := s.Expect(codec.CreateTopic); r.ExpireAtMs != at.UnixMilli() {
					t.Errorf("got %+v", r)
				}
				s.OK()
			}},
		{"create with an end in 1970", func(c *Conn) error { return c.CreateTopic("t", time.Unix(0, 0)) },
			func(s *clienttest.Session) {
				if r := s.Expect(codec.CreateTopic); r.ExpireAtMs != 1 {
					t.Errorf("got %+v", r)
				}
				s.OK()
			}},
		{"delete", func(c *Conn) error { return c.DeleteTopic("t", Trace("x")) },
			func(s *clienttest.Session) {
				if r := s.Expect(codec.DeleteTopic); string(r.Topic) != "t" || string(r.Trace) != "x" {
					t.Errorf("got %+v", r)
				}
				s.OK()
			}},
		{"alive", func(c *Conn) error { return c.Alive(Trace("x")) },
			func(s *clienttest.Session) {
				if r := s.Expect(codec.Alive); string(r.Trace) != "x" {
					t.Errorf("got %+v", r)
				}
				s.Alive()
			}},
	} {
		t.Run(v.name, func(t *testing.T) {
			s := clienttest.Serve(t, func(s *clienttest.Session) { v.check(s); s.Closed() })
			if err := v.call(dial(t, s, Options{})); err != nil {
				t.Error(err)
			}
		})
	}
}

const orderJSON = `{"name":"order","createTimeStamp":1796073091854,"expireAt":0,"createEventId":1,"stateChangeTime":1796073091855,"stateChangeEventId":4,"state":1,"topicRoot":"/3/3/order"}`

func TestTopicLists(t *testing.T) {
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		s.Expect(codec.TopicInfo)
		s.JSON(orderJSON)
		s.Expect(codec.List)
		s.JSON("[" + orderJSON + `,{"name":"订单","expireAt":1796073091860}]`)
		s.Expect(codec.List)
		s.JSON("")
		if r := s.Expect(codec.ValidList); r.EventID != 99 || string(r.Trace) != "x" {
			t.Errorf("got %+v", r)
		}
		s.JSON("[" + orderJSON + "]")
		s.Closed()
	})
	c := dial(t, s, Options{})
	info, err := c.TopicInfo("order")
	want := Topic{Name: "order", CreatedAt: time.UnixMilli(1796073091854), CreateEventID: 1, Deleted: true,
		StateChangedAt: time.UnixMilli(1796073091855), StateChangeEventID: 4, Root: "/3/3/order"}
	if err != nil || info != want {
		t.Errorf("info %+v, error %v", info, err)
	}
	list, err := c.Topics()
	if err != nil || len(list) != 2 || list[0] != want || list[1].Name != "订单" || !list[1].ExpireAt.Equal(time.UnixMilli(1796073091860)) {
		t.Errorf("list %+v, error %v", list, err)
	}
	if list, err = c.Topics(); err != nil || len(list) != 0 {
		t.Errorf("empty list %+v, error %v", list, err)
	}
	if list, err = c.ValidTopics(99, Trace("x")); err != nil || len(list) != 1 || list[0] != want {
		t.Errorf("valid list %+v, error %v", list, err)
	}
}

func TestRefusalLeavesTheConnectionUsable(t *testing.T) {
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		s.Expect(codec.Pub)
		s.Refuse(codec.TextTopicNotExist)
		s.Expect(codec.TopicInfo)
		s.Refuse("")
		s.Expect(codec.Alive)
		s.Alive()
		s.Closed()
	})
	c := dial(t, s, Options{})
	var refusal *ServerError
	if err := c.Publish("t", clienttest.Text("x")); !errors.As(err, &refusal) || refusal.Text != codec.TextTopicNotExist || errors.Is(err, ErrBroken) {
		t.Errorf("publish: %v", err)
	}
	if _, err := c.TopicInfo("t"); !errors.As(err, &refusal) || refusal.Text == "" {
		t.Errorf("refusal without a text: %v", err)
	}
	if err := c.Alive(); err != nil || c.Err() != nil {
		t.Errorf("alive: %v, connection: %v", err, c.Err())
	}
}

// What the client refuses is not sent: the ALIVE behind it is the first
// request that arrives.
func TestRefusedBeforeSending(t *testing.T) {
	x := clienttest.Text("x")
	longTrace, longTopic := Trace(strings.Repeat("t", 256)), strings.Repeat("n", 65536)
	for name, v := range map[string]struct {
		call func(*Conn) error
		want error
	}{
		"trace, publish":     {func(c *Conn) error { return c.Publish("t", x, longTrace) }, ErrTraceTooLong},
		"trace, delay":       {func(c *Conn) error { return c.PublishDelay("t", time.Second, one(x), longTrace) }, ErrTraceTooLong},
		"trace, create":      {func(c *Conn) error { return c.CreateTopic("t", time.Time{}, longTrace) }, ErrTraceTooLong},
		"trace, delete":      {func(c *Conn) error { return c.DeleteTopic("t", longTrace) }, ErrTraceTooLong},
		"trace, info":        {func(c *Conn) error { _, err := c.TopicInfo("t", longTrace); return err }, ErrTraceTooLong},
		"trace, list":        {func(c *Conn) error { _, err := c.Topics(longTrace); return err }, ErrTraceTooLong},
		"trace, valid list":  {func(c *Conn) error { _, err := c.ValidTopics(0, longTrace); return err }, ErrTraceTooLong},
		"trace, alive":       {func(c *Conn) error { return c.Alive(longTrace) }, ErrTraceTooLong},
		"trace, pipeline":    {func(c *Conn) error { return c.Pipeline(0).Publish("t", x, longTrace) }, ErrTraceTooLong},
		"topic":              {func(c *Conn) error { return c.Publish(longTopic, x) }, ErrTopicTooLong},
		"no messages":        {func(c *Conn) error { return c.PublishBatch("t", nil) }, ErrNoMessages},
		"no message":         {func(c *Conn) error { return c.Publish("t", nil) }, ErrEmptyMessage},
		"empty message":      {func(c *Conn) error { return c.Publish("t", &codec.Message{}) }, ErrEmptyMessage},
		"one of two empty":   {func(c *Conn) error { return c.PublishBatch("t", []*codec.Message{x, {}}) }, ErrEmptyMessage},
		"header without key": {func(c *Conn) error { return c.Publish("t", clienttest.Text("x", "", "v")) }, ErrEmptyKey},
	} {
		t.Run(name, func(t *testing.T) {
			s := clienttest.Serve(t, func(s *clienttest.Session) {
				s.Expect(codec.Alive)
				s.Alive()
				s.Closed()
			})
			c := dial(t, s, Options{})
			if err := v.call(c); !errors.Is(err, v.want) {
				t.Errorf("error %v, want %v", err, v.want)
			}
			if err := c.Alive(Trace(strings.Repeat("t", 255))); err != nil {
				t.Error(err)
			}
		})
	}
}

// The late reply to a request that timed out must not answer the next one.
func TestTimeoutBreaksTheConnection(t *testing.T) {
	timedOut := make(chan struct{})
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		s.Expect(codec.Pub)
		<-timedOut
		s.OK()
		s.Closed() // and nothing more was asked
	})
	c := dial(t, s, Options{Timeout: 30 * time.Millisecond})
	err := c.Publish("t", clienttest.Text("x"))
	if !errors.Is(err, ErrBroken) || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("publish: %v", err)
	}
	close(timedOut)
	for range 2 {
		if err := c.Publish("t", clienttest.Text("y")); !errors.Is(err, ErrBroken) {
			t.Errorf("publish on a broken connection: %v", err)
		}
	}
	if !errors.Is(c.Err(), ErrBroken) || !errors.Is(c.Err(), os.ErrDeadlineExceeded) {
		t.Errorf("connection: %v", c.Err())
	}
}

func TestNonsenseBreaksTheConnection(t *testing.T) {
	for name, v := range map[string]struct {
		reply []byte
		want  error
	}{
		"closed":                  {nil, io.EOF},
		"cut in the header":       {[]byte{200, 0, 0}, io.ErrUnexpectedEOF},
		"cut in the text":         {codec.AppendError(nil, "text")[:12], io.ErrUnexpectedEOF},
		"cut in the JSON":         {codec.AppendJSON(nil, []byte("{}"))[:11], io.ErrUnexpectedEOF},
		"unknown code":            {codec.AppendCode(nil, 202), ErrProtocol},
		"alive instead of a list": {codec.AppendCode(nil, codec.CodeAlive), ErrProtocol},
		"end instead of a list":   {codec.AppendCode(nil, codec.CodeEnd), ErrProtocol},
		"JSON that is none":       {codec.AppendJSON(nil, []byte("{")), ErrProtocol},
		"JSON of another kind":    {codec.AppendJSON(nil, []byte("[]")), ErrProtocol},
		"JSON that is too large":  {codec.AppendJSON(nil, make([]byte, 1025))[:10], ErrTooLarge},
		"JSON of 4 GiB":           {[]byte{200, 0, 255, 255, 255, 255, 0, 0, 0, 0}, ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			s := clienttest.Serve(t, func(s *clienttest.Session) {
				s.Expect(codec.TopicInfo)
				s.Send(v.reply)
			})
			c := dial(t, s, Options{MaxReplyBytes: 1024})
			if _, err := c.TopicInfo("t"); !errors.Is(err, ErrBroken) || !errors.Is(err, v.want) {
				t.Errorf("error %v, want %v", err, v.want)
			}
			if err := c.Alive(); !errors.Is(err, ErrBroken) {
				t.Errorf("next call: %v", err)
			}
		})
	}
}

func TestCloseEndsAWaitingCall(t *testing.T) {
	asked := make(chan struct{})
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		s.Expect(codec.Alive)
		close(asked)
		s.Closed()
	})
	c := dial(t, s, Options{})
	result := make(chan error)
	go func() { result <- c.Alive() }()
	<-asked
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-result; !errors.Is(err, ErrBroken) || !errors.Is(err, ErrClosed) {
		t.Errorf("waiting call: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}

// A server refuses a request that is too large before it has come whole, and
// closes. Its reason must reach the caller.
func TestRefusalInTheMiddleOfARequest(t *testing.T) {
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		s.Refuse("payload is larger than the server accepts")
		// Returning closes with the request unread.
	})
	c := dial(t, s, Options{})
	err := c.Publish("t", &codec.Message{Body: make([]byte, 16<<20)})
	if refusal := (*ServerError)(nil); !errors.As(err, &refusal) {
		t.Errorf("publish: %v", err)
	}
	if !errors.Is(c.Err(), ErrBroken) {
		t.Errorf("connection: %v", c.Err())
	}
}

func TestDialFails(t *testing.T) {
	s := clienttest.Serve(t, func(*clienttest.Session) {})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if c, err := Dial(ctx, s.Addr(), Options{}); err == nil {
		_ = c.Close()
		t.Error("connected with a context that is over")
	}
}
