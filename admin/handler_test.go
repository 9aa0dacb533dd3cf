package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type invalidError struct{ error }

func (invalidError) Invalid() {}

type unknownError struct{ error }

func (unknownError) Unknown() {}

// fakeNode notes what it is asked for and answers with err.
type fakeNode struct {
	asked []string
	err   error
}

func (n *fakeNode) ask(format string, args ...any) error {
	n.asked = append(n.asked, fmt.Sprintf(format, args...))
	return n.err
}

func (n *fakeNode) Promote() (int64, error)    { return 7, n.ask("promote") }
func (n *fakeNode) Follow(master string) error { return n.ask("follow %s", master) }
func (n *fakeNode) Switchover(to string) (string, int64, error) {
	return "new:1", 9, n.ask("switchover %q", to)
}

type seedNode struct{ fakeNode }

func (n *seedNode) Reseed(discard bool) error { return n.ask("reseed %v", discard) }

func post(h http.Handler, target string) (code int, body map[string]any, text string) {
	r := httptest.NewRequest(http.MethodPost, target, nil)
	r.Host = "localhost:1"
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	_ = json.Unmarshal(w.Body.Bytes(), &body)
	return w.Code, body, w.Body.String()
}

// TestChanges: each verb reaches the node, and each kind of error has its code
// and says what has become of the change.
func TestChanges(t *testing.T) {
	n := &seedNode{}
	told := 0
	h := &handler{cfg: Config{Node: n, Asked: func(string, string, error) { told++ }}}
	for _, v := range []struct{ target, asked, answer string }{
		{"/promote", "promote", `"lastEventId": 7`},
		{"/follow?master=a:1", "follow a:1", `"master": "a:1"`},
		{"/demote?master=a%3A1", "follow a:1", `"role": "slave"`},
		{"/switchover", `switchover ""`, `"master": "new:1"`},
		{"/switchover?to=x", `switchover "x"`, `"lastEventId": 9`},
		{"/reseed", "reseed false", `"role": "slave"`},
		{"/reseed?discard=true", "reseed true", `"role": "slave"`},
	} {
		n.asked, n.err = nil, nil
		code, _, text := post(h, v.target)
		if code != 200 || len(n.asked) != 1 || n.asked[0] != v.asked || !strings.Contains(text, v.answer) {
			t.Errorf("%s: %d, asked %q: %s", v.target, code, n.asked, text)
		}
		for _, e := range []struct {
			err     error
			code    int
			outcome string
		}{
			{errors.New("not now"), 409, "unchanged"},
			{fmt.Errorf("about: %w", invalidError{errors.New("not so")}), 400, "unchanged"},
			{fmt.Errorf("about: %w", unknownError{errors.New("who knows")}), 504, "unknown"},
		} {
			n.err = e.err
			code, body, text := post(h, v.target)
			if code != e.code || body["error"] != e.err.Error() || body["outcome"] != e.outcome {
				t.Errorf("%s with %v: %d %s", v.target, e.err, code, text)
			}
		}
	}
	if told != 4*7 {
		t.Errorf("told of %d changes", told)
	}
	n.asked = nil
	if code, _, _ := post(h, "/reseed?discard=perhaps"); code != 400 || n.asked != nil {
		t.Errorf("discard=perhaps: %d, asked %q", code, n.asked)
	}
	plain := &handler{cfg: Config{Node: &fakeNode{}}}
	if code, _, _ := post(plain, "/reseed"); code != 404 {
		t.Errorf("reseed of a node that cannot: %d", code)
	}
}

// TestAbsent: while the server makes a full copy it says so, and changes nothing.
func TestAbsent(t *testing.T) {
	h := &handler{cfg: Config{Absent: errors.New("busy with a copy"), Replication: func() any { return "copying" }}}
	for target, code := range map[string]int{"/promote": 503, "/reseed": 503, "/switchover": 503, "/follow?master=a:1": 503} {
		if got, body, text := post(h, target); got != code || body["error"] != "busy with a copy" {
			t.Errorf("%s: %d %s", target, got, text)
		}
	}
	for target, want := range map[string]string{"/healthz": "busy with a copy\n", "/healthz?role=slave": "busy with a copy\n", "/status": `"unhealthyBecause": "busy with a copy"`} {
		r := httptest.NewRequest(http.MethodGet, target, nil)
		r.Host = "localhost"
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); !strings.Contains(w.Body.String(), want) || (w.Code == 200) != (target == "/status") {
			t.Errorf("%s: %d %s", target, w.Code, w.Body.String())
		}
	}
}

// TestHosts: which names of a request are this server's, by what it is bound to.
func TestHosts(t *testing.T) {
	for _, v := range []struct {
		bound, host string
		mine        bool
	}{
		{"127.0.0.1", "127.0.0.1:12302", true},
		{"127.0.0.1", "localhost", true},
		{"127.0.0.1", "[::1]:80", true},
		{"127.0.0.1", "::1", true},
		{"127.0.0.1", "", false},
		{"127.0.0.1", "evil.example:12302", false},
		{"127.0.0.1", "localhost.evil.example", false},
		{"127.0.0.1", "10.0.0.1", false},
		{"broker", "broker:12302", true},
		{"broker", "other:12302", false},
		{"broker", "10.0.0.1", false},
		{"10.0.0.1", "10.0.0.1:1", true},
		{"10.0.0.1", "10.0.0.2:1", false},
		{"0.0.0.0", "10.0.0.2:1", true},
		{"0.0.0.0", "evil.example", false},
		{"", "10.0.0.2", true},
		{"", "evil.example", false},
		{"", "", false},
		{"::", "[2001:db8::1]:1", true},
	} {
		if got := (&handler{cfg: Config{Host: v.bound}}).mine(v.host); got != v.mine {
			t.Errorf("bound to %q, asked as %q: %v", v.bound, v.host, got)
		}
	}
}

// TestServer: connections are bounded, those that say nothing do not keep others
// out for ever, and a stop leaves nothing behind.
func TestServer(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := Start(ln, Config{Node: &fakeNode{}, Log: log.New(io.Discard, "", 0)})
	var idle []net.Conn
	for range connections {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		idle = append(idle, c)
	}
	ask := func() (answered bool) {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, "GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
		_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		b, _ := io.ReadAll(c)
		return strings.HasPrefix(string(b), "HTTP/1.1 404 ")
	}
	if ask() {
		t.Error("one connection too many is served")
	}
	for _, c := range idle {
		c.Close()
	}
	for i := 0; !ask(); i++ {
		if i == 50 {
			t.Fatal("not served although there is room again")
		}
	}
	keep, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer keep.Close()
	s.Stop()
	if _, err := net.Dial("tcp", ln.Addr().String()); err == nil {
		t.Error("it listens after the stop")
	}
	(*Server)(nil).Stop() // there was none
}
