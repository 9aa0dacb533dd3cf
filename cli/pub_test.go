package cli

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"smss/client/clienttest"
	"smss/codec"
)

func TestPub(t *testing.T) {
	for name, v := range map[string]struct {
		args    []string
		command codec.Command
		bodies  []string
		headers []codec.Header
		out     string
	}{
		"one":        {[]string{"pub", "t", "hello"}, codec.Pub, []string{"hello"}, nil, "published 1 message to t\n"},
		"three":      {[]string{"pub", "t", "a", "", "c d", "-header", "k=v=w", "-header", "k=2"}, codec.Pub, []string{"a", "", "c d"}, []codec.Header{{Key: "k", Value: "v=w"}, {Key: "k", Value: "2"}}, "published 3 messages to t\n"},
		"delayed":    {[]string{"pub", "-delay", "90s", "t", "late"}, codec.Delay, []string{"late"}, nil, "published 1 message to t, due in 1m30s\n"},
		"after --":   {[]string{"pub", "t", "--", "-5", "--"}, codec.Pub, []string{"-5", "--"}, nil, "published 2 messages to t\n"},
		"with trace": {[]string{"pub", "t", "x", "-trace", "tr-1"}, codec.Pub, []string{"x"}, nil, "published 1 message to t\n"},
	} {
		t.Run(name, func(t *testing.T) {
			s := clienttest.Serve(t, func(s *clienttest.Session) {
				r := s.Expect(v.command)
				if string(r.Topic) != "t" || r.Command == codec.Delay && r.DelayMs != 90000 || name == "with trace" && string(r.Trace) != "tr-1" {
					t.Errorf("got %+v", r)
				}
				messages := clienttest.Messages(t, r.Payload)
				if len(messages) != len(v.bodies) {
					t.Fatalf("%d messages", len(messages))
				}
				for i, m := range messages {
					if string(m.Body) != v.bodies[i] || fmt.Sprint(m.Headers) != fmt.Sprint(v.headers) {
						t.Errorf("message %d: %q %v", i, m.Body, m.Headers)
					}
				}
				s.OK()
				s.Closed()
			})
			if got := runLine(t.Context(), s.Addr(), "", v.args...); got != (outcome{0, v.out, ""}) {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestPubFails(t *testing.T) {
	for name, v := range map[string]struct {
		script func(*clienttest.Session)
		want   string
	}{
		"refused": {func(s *clienttest.Session) { s.Refuse(codec.TextTopicNotExist) },
			"smss pub: t: topic not exist (server SERVER); create it with smss topic create NAME, or see smss topic list\n"},
		"slave": {func(s *clienttest.Session) { s.Refuse(codec.TextMasterPublishes) },
			"smss pub: t: just master can pub message (server SERVER); this server is a slave, use the address of its master\n"},
		"cut": {func(s *clienttest.Session) {},
			"smss pub: t: connection to SERVER was lost: EOF; whether it was stored is not known\n"},
	} {
		t.Run(name, func(t *testing.T) {
			s := clienttest.Serve(t, func(s *clienttest.Session) { s.Expect(codec.Pub); v.script(s) })
			got := runLine(t.Context(), s.Addr(), "", "pub", "t", "x")
			if got != (outcome{1, "", strings.ReplaceAll(v.want, "SERVER", s.Addr())}) {
				t.Errorf("%+v", got)
			}
		})
	}
	s := clienttest.Serve(t, func(s *clienttest.Session) { s.Closed() })
	if got := runLine(t.Context(), s.Addr(), "", "pub", "t", ""); got.exit != 2 || !strings.Contains(got.err, "message 1 is empty") {
		t.Errorf("empty message: %+v", got)
	}
}

// expectLine reads one message and fails unless it is body.
func expectLine(t *testing.T, s *clienttest.Session, body string) {
	r := s.Expect(codec.Pub)
	if m := clienttest.Messages(t, r.Payload); len(m) != 1 || string(m[0].Body) != body {
		t.Errorf("got %v, want %q", m, body)
	}
}

func TestPubLines(t *testing.T) {
	const lines = 1000
	var in strings.Builder
	for i := range lines {
		fmt.Fprintf(&in, "line %d\n\n", i) // every second one is empty
	}
	in.WriteString("dos\r\nno newline at the end")
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		for i := range lines {
			expectLine(t, s, fmt.Sprintf("line %d", i))
			s.OK()
		}
		expectLine(t, s, "dos")
		s.OK()
		expectLine(t, s, "no newline at the end")
		s.OK()
		s.Closed()
	})
	got := runLine(t.Context(), s.Addr(), in.String(), "pub", "t", "-")
	if got != (outcome{0, "published 1002 messages to t\n", ""}) {
		t.Errorf("%+v", got)
	}
}

func TestPubNoLines(t *testing.T) {
	s := clienttest.Serve(t, func(s *clienttest.Session) { s.Closed() })
	if got := runLine(t.Context(), s.Addr(), "\n\n", "pub", "t", "-"); got != (outcome{0, "published 0 messages to t\n", ""}) {
		t.Errorf("%+v", got)
	}
}

func TestPubEmptyLinesWithHeaders(t *testing.T) {
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		for _, body := range []string{"", "a", ""} {
			r := s.Expect(codec.Delay)
			if m := clienttest.Messages(t, r.Payload); len(m) != 1 || string(m[0].Body) != body || len(m[0].Headers) != 1 || r.DelayMs != 5000 {
				t.Errorf("got %v after %d ms, want %q", m, r.DelayMs, body)
			}
			s.OK()
		}
		s.Closed()
	})
	if got := runLine(t.Context(), s.Addr(), "\na\n\n", "pub", "t", "-", "-header", "k=v", "-delay", "5s"); got.exit != 0 || !strings.HasPrefix(got.out, "published 3 ") {
		t.Errorf("%+v", got)
	}
}

// A line that comes alone is published and answered before the next is there.
func TestPubLinesOneByOne(t *testing.T) {
	in, feed := io.Pipe()
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		for i := range 3 {
			if _, err := fmt.Fprintf(feed, "line %d\n", i); err != nil {
				t.Error(err)
			}
			expectLine(t, s, fmt.Sprintf("line %d", i))
			s.OK()
		}
		_ = feed.Close()
		s.Closed()
	})
	var out, errOut strings.Builder
	if exit := run(t.Context(), []string{"pub", "t", "-", "-addr", s.Addr()}, in, &out, &errOut, noEnv); exit != 0 || out.String() != "published 3 messages to t\n" {
		t.Errorf("exit %d, out %q, err %q", exit, out.String(), errOut.String())
	}
}

func TestPubLinesFail(t *testing.T) {
	in := "a\nb\nc\nd\n"
	for name, v := range map[string]struct {
		script func(*clienttest.Session)
		want   string
	}{
		"one is refused": {func(s *clienttest.Session) {
			for i := range 4 {
				s.Expect(codec.Pub)
				if i == 1 {
					s.Refuse("no more")
				} else {
					s.OK()
				}
			}
			s.Closed()
		}, "smss pub: t: line 2: no more (server SERVER); 3 other lines were stored\n"},
		"cut": {func(s *clienttest.Session) {
			for range 4 {
				s.Expect(codec.Pub)
			}
			s.OK()
		}, "smss pub: t: line 2: connection to SERVER was lost: EOF; whether it was stored is not known; 1 other lines were stored\n"},
	} {
		t.Run(name, func(t *testing.T) {
			s := clienttest.Serve(t, v.script)
			got := runLine(t.Context(), s.Addr(), in, "pub", "t", "-")
			if got != (outcome{1, "", strings.ReplaceAll(v.want, "SERVER", s.Addr())}) {
				t.Errorf("%+v", got)
			}
		})
	}
}
