package cli

import (
	"context"
	"errors"
	"strings"
	"testing"

	"smss/client/clienttest"
	"smss/codec"
)

func TestSubFormats(t *testing.T) {
	for format, want := range map[string]string{
		"text": "7\thello\n8\ttab\\there\t[k=v k=2\\n]\n9\t\\xff\n10\t\t[only=header]\n",
		"json": `{"eventId":7,"storedAt":"1970-01-01T00:00:07.000Z","body":"hello"}
{"eventId":8,"storedAt":"1970-01-01T00:00:07.000Z","headers":[{"key":"k","value":"v"},{"key":"k","value":"2\n"}],"body":"tab\there"}
{"eventId":9,"storedAt":"1970-01-01T00:00:07.000Z","bodyBase64":"/w=="}
{"eventId":10,"storedAt":"1970-01-01T00:00:07.000Z","headers":[{"key":"only","value":"header"}],"body":""}
`,
		"raw": "hello\ntab\there\n\xff\n\n",
	} {
		t.Run(format, func(t *testing.T) {
			s := clienttest.Serve(t, func(s *clienttest.Session) {
				s.Expect(codec.Sub)
				s.Push(7, clienttest.Text("hello"), clienttest.Text("tab\there", "k", "v", "k", "2\n"), clienttest.Text("\xff"), clienttest.Text("", "only", "header"))
				s.Ack(codec.AckEnd)
				s.Closed()
			})
			got := runLine(t.Context(), s.Addr(), "", "sub", "-name", "w", "t", "-format", format, "-count", "4", "-batch", "10")
			if got != (outcome{0, want, ""}) {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestSubRequest(t *testing.T) {
	for line, want := range map[string]codec.Subscription{
		"sub -name w t":                          {Topic: "t", Who: "w", Batch: 16, AckTimeoutNs: 30e9},
		"sub -name w t -from 1042 -batch 3":      {Topic: "t", Who: "w", Batch: 3, AckTimeoutNs: 30e9, EventID: 1042},
		"sub t -name w -count 5 -from -1":        {Topic: "t", Who: "w", Batch: 1, AckTimeoutNs: 30e9, EventID: -1},
		"sub t -name w -count 5 -batch 4":        {Topic: "t", Who: "w", Batch: 4, AckTimeoutNs: 30e9},
		"sub -ack-timeout 2s -trace x -name w t": {Topic: "t", Who: "w", Trace: "x", Batch: 16, AckTimeoutNs: 2e9},
	} {
		t.Run(line, func(t *testing.T) {
			s := clienttest.Serve(t, func(s *clienttest.Session) {
				r := s.Expect(codec.Sub)
				got := codec.Subscription{Topic: string(r.Topic), Who: string(r.Who), Trace: string(r.Trace), EventID: r.EventID, Batch: r.Batch, AckTimeoutNs: r.AckTimeoutNs}
				if got != want {
					t.Errorf("got %+v, want %+v", got, want)
				}
				s.End()
				s.Closed()
			})
			got := runLine(t.Context(), s.Addr(), "", strings.Fields(line)...)
			if got.exit != 1 || !strings.Contains(got.err, "smss sub: t: the topic was deleted or its life ended") {
				t.Errorf("%+v", got)
			}
		})
	}
}

// With -count, one message at a time comes and no other is acknowledged.
func TestSubCount(t *testing.T) {
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		s.Expect(codec.Sub)
		s.Push(1, clienttest.Text("a"))
		s.Ack(codec.AckNext)
		s.Alive()
		s.Push(2, clienttest.Text("b"))
		s.Ack(codec.AckEnd)
		s.Closed()
	})
	if got := runLine(t.Context(), s.Addr(), "", "sub", "-name", "w", "-count", "2", "t"); got != (outcome{0, "1\ta\n2\tb\n", ""}) {
		t.Errorf("%+v", got)
	}
}

// What is not printed is not acknowledged.
func TestSubCountInsideABatch(t *testing.T) {
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		s.Expect(codec.Sub)
		s.Push(1, clienttest.Text("a"), clienttest.Text("b"))
		s.Ack(codec.AckNext)
		s.Push(3, clienttest.Text("c"), clienttest.Text("d"))
		s.Closed()
	})
	got := runLine(t.Context(), s.Addr(), "", "sub", "-name", "w", "-count", "3", "-batch", "2", "t")
	if got != (outcome{0, "1\ta\n2\tb\n3\tc\n", ""}) {
		t.Errorf("%+v", got)
	}
}

func TestSubInterruptedWhileWaiting(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		s.Expect(codec.Sub)
		s.Push(1, clienttest.Text("a"))
		s.Ack(codec.AckNext)
		interrupt()
		s.Closed()
	})
	if got := runLine(ctx, s.Addr(), "", "sub", "-name", "w", "t"); got != (outcome{0, "1\ta\n", ""}) {
		t.Errorf("%+v", got)
	}
}

// writerFunc is a standard output that does something.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// An interrupt while a batch is being printed lets it be printed whole, and
// acknowledges it.
func TestSubInterruptedWhilePrinting(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		s.Expect(codec.Sub)
		s.Push(1, clienttest.Text("a"), clienttest.Text("b"))
		s.Ack(codec.AckEnd)
		s.Closed()
	})
	var out, errOut strings.Builder
	stdout := writerFunc(func(b []byte) (int, error) { interrupt(); return out.Write(b) })
	exit := run(ctx, []string{"sub", "-name", "w", "-addr", s.Addr(), "t"}, nil, stdout, &errOut, noEnv)
	if exit != 0 || out.String() != "1\ta\n2\tb\n" || errOut.String() != "" {
		t.Errorf("exit %d, out %q, err %q", exit, out.String(), errOut.String())
	}
}

func TestSubFails(t *testing.T) {
	for name, v := range map[string]struct {
		script func(*clienttest.Session)
		out    string
		want   string
	}{
		"name taken": {func(s *clienttest.Session) { s.Refuse("w" + codec.TextSubscriberExists) }, "",
			"smss sub: t: w regiester exist (server SERVER); another subscriber has this name, use another -name\n"},
		"unknown id": {func(s *clienttest.Session) { s.Refuse(codec.TextEventNotFound) }, "",
			"smss sub: t: can't find event id (server SERVER); -from takes an event id of this topic that is still kept, 0 starts at the oldest\n"},
		"cut": {func(s *clienttest.Session) {
			s.Push(5, clienttest.Text("a"))
			s.Ack(codec.AckNext)
		}, "5\ta\n", "smss sub: t: connection to SERVER was lost: EOF; go on with -from 5\n"},
		"deleted": {func(s *clienttest.Session) {
			s.Push(5, clienttest.Text("a"))
			s.Ack(codec.AckNext)
			s.End()
			s.Closed()
		}, "5\ta\n", "smss sub: t: the topic was deleted or its life ended (server SERVER)\n"},
	} {
		t.Run(name, func(t *testing.T) {
			s := clienttest.Serve(t, func(s *clienttest.Session) { s.Expect(codec.Sub); v.script(s) })
			got := runLine(t.Context(), s.Addr(), "", "sub", "-name", "w", "t")
			if got != (outcome{1, v.out, strings.ReplaceAll(v.want, "SERVER", s.Addr())}) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// A batch that could not be printed is not acknowledged.
func TestSubOutputFails(t *testing.T) {
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		s.Expect(codec.Sub)
		s.Push(1, clienttest.Text("a"))
		s.Closed()
	})
	var errOut strings.Builder
	full := writerFunc(func([]byte) (int, error) { return 0, errors.New("no space left") })
	exit := run(t.Context(), []string{"sub", "-name", "w", "-addr", s.Addr(), "t"}, nil, full, &errOut, noEnv)
	if exit != 1 || errOut.String() != "smss sub: t: standard output: no space left\n" {
		t.Errorf("exit %d, err %q", exit, errOut.String())
	}
}
