package test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// node is a server with an admin listener.
type node struct {
	*server
	admin string
}

// startNode starts one; args name its role.
func startNode(t testing.TB, c config, args ...string) *node {
	t.Helper()
	if peer {
		t.Skip("SMSS_TEST_PEER: the existing server has no admin listener")
	}
	port := freePort(t)
	all := config{"admin.port": port, "timeout.server.alive": 1000, "replication.retryMaxMs": 300}
	for k, v := range c {
		all[k] = v
	}
	return &node{startServer(t, options{config: all, args: args}), fmt.Sprintf("127.0.0.1:%d", port)}
}

// slaveOf are the arguments of a server that follows m.
func slaveOf(m *node) []string {
	return []string{"-role", "slave", "-host", "127.0.0.1", "-port", fmt.Sprint(m.port)}
}

// ask sends one request to the admin listener.
func (n *node) ask(method, path string, header ...string) (*http.Response, string) {
	n.t.Helper()
	req, err := http.NewRequest(method, "http://"+n.admin+path, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return resp, string(body)
}

// status is what tests look at of GET /status.
type status struct {
	Version     string
	Healthy     bool
	Unhealthy   string `json:"unhealthyBecause"`
	Replication struct {
		Role, Node, Epoch string
		LastEventID       int64
		Link              *struct {
			Master, State, Error string
			LagEvents            int64
		}
		Slaves []struct {
			Address, Node string
			AckedEventID  int64
		}
	}
	Engine struct {
		Published, AckWaits, AckTimeouts int64
		AckLapsed, Broken                bool
	}
}

func (n *node) status() (s status) {
	n.t.Helper()
	resp, body := n.ask("GET", "/status")
	if err := json.Unmarshal([]byte(body), &s); err != nil || resp.StatusCode != 200 {
		n.t.Fatalf("status %s: %v\n%s", resp.Status, err, body)
	}
	return s
}

// change asks for a change of the role by the command line, and wants it made.
func (n *node) change(args ...string) string {
	n.t.Helper()
	status, out := n.command(args...)
	if status != 0 {
		n.t.Fatalf("smss %s: status %d: %s", strings.Join(args, " "), status, out)
	}
	return out
}

func (n *node) command(args ...string) (status int, out string) {
	n.t.Helper()
	cmd := exec.Command(serverBinary, args...)
	cmd.Env = append(cmd.Environ(), "SMSS_ADMIN="+n.admin)
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		n.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(text)
}

// awaitEqual waits until s follows m and holds its last event.
func (s *node) awaitEqual(m *node) {
	s.t.Helper()
	last := m.status().Replication.LastEventID
	await(s.t, 10*time.Second, fmt.Sprintf("the slave streams and holds event %d", last), func() bool {
		r := s.status().Replication
		return r.Link != nil && r.Link.State == "streaming" && r.LastEventID == last
	})
}

// TestAdmin: what the listener tells, and whom it tells nothing.
func TestAdmin(t *testing.T) {
	t.Parallel()
	s := startNode(t, nil)
	c := dial(t, s.server)
	c.ok(reqCreate("t", 0))
	c.ok(reqPub("t", message("m")))
	st := s.status()
	if st.Replication.Role != "master" || !st.Healthy || st.Replication.LastEventID != 2 || st.Engine.Published != 1 || st.Version == "" || st.Replication.Epoch == "" {
		t.Errorf("status %+v", st)
	}
	for _, v := range []struct {
		method, path string
		header       []string
		code         int
		text         string
	}{
		{"GET", "/healthz", nil, 200, "ok\n"},
		{"HEAD", "/healthz", nil, 200, ""},
		{"GET", "/healthz?role=master", nil, 200, "ok\n"},
		{"GET", "/healthz?role=slave", nil, 503, "this server is a master"},
		{"GET", "/healthz?role=king", nil, 400, "role=king"},
		{"POST", "/healthz", nil, 405, "takes GET, HEAD"},
		{"GET", "/promote", nil, 405, "takes POST"},
		{"POST", "/promote", nil, 200, `"role": "master"`}, // it is one
		{"POST", "/promote?now=1", nil, 400, "does not take now=1"},
		{"POST", "/switchover?to=a&to=b", nil, 400, "does not take to=a,b"},
		{"POST", "/switchover", nil, 409, "no slave of this project is connected"},
		{"POST", "/follow", nil, 400, "master=HOST:PORT is missing"},
		{"POST", "/demote?master=here", nil, 400, "it is given as host:port"},
		{"GET", "/", nil, 404, "there is nothing at /"},
		{"GET", "/metrics", nil, 404, "there is nothing at /metrics"},
		{"GET", "/status", []string{"Host", "localhost"}, 200, `"role": "master"`},
		{"GET", "/status", []string{"Host", "[::1]:80"}, 200, `"role": "master"`},
		{"GET", "/status", []string{"Host", "rebound.example"}, 421, "this server is not"},
		{"POST", "/promote", []string{"Host", "192.0.2.1"}, 421, "this server is not"},
		{"POST", "/promote", []string{"Origin", "http://127.0.0.1"}, 403, "web pages"},
		{"GET", "/status", []string{"Origin", "null"}, 403, "web pages"},
	} {
		resp, body := s.ask(v.method, v.path, v.header...)
		if resp.StatusCode != v.code || !strings.Contains(body, v.text) {
			t.Errorf("%s %s %q: %s %s", v.method, v.path, v.header, resp.Status, body)
		}
		if allow := resp.Header.Get("Allow"); (v.code == 405) != (allow != "") {
			t.Errorf("%s %s: Allow is %q", v.method, v.path, allow)
		}
		for name := range resp.Header {
			if strings.HasPrefix(name, "Access-Control") {
				t.Errorf("%s %s: a header %s", v.method, v.path, name)
			}
		}
	}
	if role := s.status().Replication.Role; role != "master" {
		t.Errorf("after requests that were refused it is a %s", role)
	}
	// A body and a header that do not end are bounded.
	conn, err := net.Dial("tcp", s.admin)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(slack(5 * time.Second)))
	fmt.Fprintf(conn, "POST /promote HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n%s", strings.Repeat("x", 5000))
	head, _ := io.ReadAll(conn)
	if !strings.HasPrefix(string(head), "HTTP/1.1 413 ") {
		t.Errorf("a body is answered by %.60q", head)
	}

	for _, v := range []struct {
		args   string
		status int
		text   string
	}{
		{"status", 0, "role:        master"},
		{"status -json", 0, `"lastEventId": 2`},
		{"promote", 0, "its last event was 2"},
		{"switchover", 1, "no slave of this project is connected"},
		{"demote", 2, "the address of the master is missing"},
		{"demote here", 1, "it is given as host:port"},
		{"status -admin 127.0.0.1:1", 1, "is the server running, and is its admin.port neither 0 nor another one"},
		{"status -timeout 300ms -admin " + s.addr(), 1, s.addr()},
		{"reseed", 1, ""},
	} {
		if status, out := s.command(strings.Fields(v.args)...); status != v.status || !strings.Contains(out, v.text) {
			t.Errorf("smss %s: status %d: %s", v.args, status, out)
		}
	}
}

// TestAdminPort: a port that was asked for and is taken is an error; the default
// one is not.
func TestAdminPort(t *testing.T) {
	t.Parallel()
	a := startNode(t, nil)
	_, port, err := net.SplitHostPort(a.admin)
	if err != nil {
		t.Fatal(err)
	}
	b := newServer(t, options{config: config{"admin.port": port}})
	if out := b.refusesToStart(); !strings.Contains(out, "admin.port "+port) || !strings.Contains(out, "address already in use") {
		t.Errorf("refused with\n%s", out)
	}
	// Whoever holds the default port, two that have none given both start.
	x := startServer(t, options{config: config{"admin.port": absent}})
	y := startServer(t, options{config: config{"admin.port": absent}})
	dial(t, x).alive()
	dial(t, y).alive()
	y.logs("no admin listener")
	z := startServer(t, options{})
	if strings.Contains(z.log.String(), "admin listener") {
		t.Error("admin.port 0 is on")
	}
}

// TestHealthAfterFailedSync: a server that has stopped writing says so.
func TestHealthAfterFailedSync(t *testing.T) {
	t.Parallel()
	needStrace(t)
	s := startNode(t, config{"store.flushLevel": 2})
	c := dial(t, s.server)
	c.ok(reqCreate("t", 0))
	strace(t, s.server, "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO")
	c.refused(reqPub("t", message("refused")), "")
	for _, path := range []string{"/healthz", "/healthz?role=master"} {
		if resp, body := s.ask("GET", path); resp.StatusCode != 503 || !strings.Contains(body, "has stopped writing after a storage error") {
			t.Errorf("%s: %s %s", path, resp.Status, body)
		}
	}
	st := s.status()
	if st.Healthy || !st.Engine.Broken || !strings.Contains(st.Unhealthy, "has stopped writing") {
		t.Errorf("status %+v", st)
	}
	if status, out := s.command("status"); status != 1 || !strings.Contains(out, "does not take writes") {
		t.Errorf("smss status: %d: %s", status, out)
	}
}
