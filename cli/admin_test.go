package cli

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

const masterStatus = `{"version":"v1","sinceMs":1796073091854,"healthy":true,"replication":{"role":"master","node":"aa","epoch":"e1","epochFirstEventId":5,
"lastEventId":90,"slaves":[{"remote":"10.0.0.2:5555","address":"10.0.0.2:12301","node":"bb","sinceMs":1796073091854,"sentEventId":90,"ackedEventId":88,"lagEvents":2,"lagBytes":300,"lagMs":1500},
{"remote":"10.0.0.3:5555","sinceMs":1796073091854,"sentEventId":70,"lagEvents":20,"lagBytes":9000,"lagMs":0}]},
"engine":{"ackWaits":10,"ackTimeouts":3,"ackLapsed":true}}`

const slaveStatus = `{"version":"v1","healthy":true,"replication":{"role":"slave","node":"bb","lastEventId":80,"incompleteFromEventId":7,
"link":{"master":"10.0.0.1:12301","state":"STATE","sinceMs":1796073091854,"error":"histories part\u001b[31m","masterEventId":90,"lagEvents":10,"lagMs":2000}}}`

// TestAdminCommands: what is asked, and how answers and refusals are told.
func TestAdminCommands(t *testing.T) {
	for _, v := range []struct {
		line, want string // the request
		code       int
		answer     string
		exit       int
		out, err   string // contained in what is printed
	}{
		{"status", "GET /status", 200, masterStatus, 0, "epoch:          e1, from event 5 on", ""},
		{"status", "GET /status", 200, masterStatus, 0, "10 batches waited for slaves, 3 in vain", ""},
		{"status", "GET /status", 200, masterStatus, 0, "10.0.0.2:12301   bb     ", ""},
		{"status", "GET /status", 200, masterStatus, 0, "88        2        300     1.5s", ""},
		{"status", "GET /status", 200, masterStatus, 0, "70 sent   20", ""},
		{"status -json", "GET /status", 200, masterStatus, 0, `"lastEventId":90`, ""},
		{"status", "GET /status", 200, strings.Replace(slaveStatus, "STATE", "streaming", 1), 0, "behind:      10 events, 2s", ""},
		{"status", "GET /status", 200, strings.Replace(slaveStatus, "STATE", "refused", 1), 1, `histories part\x1b[31m`, "somebody has to see to it"},
		{"status", "GET /status", 200, strings.Replace(slaveStatus, "STATE", "waiting", 1), 1, "incomplete, from event 7 on", "does not follow its master 10.0.0.1:12301 now"},
		{"status", "GET /status", 200, `{"healthy":false,"unhealthyBecause":"disk full"}`, 1, "health:      disk full", "does not take writes: disk full"},
		{"status", "GET /status", 200, `no JSON`, 1, "", "answers what cannot be read"},
		{"status", "GET /status", 500, `oops`, 1, "", "500 Internal Server Error to /status; is it the admin listener of smss?"},
		{"status x", "", 0, "", 2, "", `unexpected argument "x"`},

		{"promote", "POST /promote", 200, `{"role":"master","lastEventId":7}`, 0, "is the master, its last event was 7", ""},
		{"promote -json", "POST /promote", 200, `{"role":"master"}`, 0, `{"role":"master"}`, ""},
		{"promote", "POST /promote", 409, `{"error":"another change"}`, 1, "", "smss promote: another change (server "},
		{"demote m:1", "POST /follow?master=m%3A1", 200, `{"role":"slave","master":"m:1"}`, 0, "follows m:1", ""},
		{"demote", "", 0, "", 2, "", "the address of the master is missing"},
		{"demote a b", "", 0, "", 2, "", `unexpected argument "b"`},
		{"switchover", "POST /switchover", 200, `{"master":"m:1","lastEventId":9}`, 0, "m:1 is the master behind event 9", ""},
		{"switchover bb", "POST /switchover?to=bb", 504, `{"error":"ordered, not confirmed","outcome":"unknown"}`, 1, "", "ordered, not confirmed"},
		{"reseed", "POST /reseed?discard=false", 404, `{"error":"there is nothing at /reseed"}`, 1, "", "the server's version does not know it"},
		{"reseed -discard", "POST /reseed?discard=true", 200, `{"role":"slave"}`, 0, "copies its master anew", ""},
	} {
		asked := ""
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked = r.Method + " " + r.RequestURI
			w.WriteHeader(v.code)
			_, _ = w.Write([]byte(v.answer))
		}))
		var out, errOut bytes.Buffer
		env := func(name string) string {
			return map[string]string{"SMSS_ADMIN": strings.TrimPrefix(srv.URL, "http://")}[name]
		}
		exit := run(context.Background(), strings.Fields(v.line), nil, &out, &errOut, env)
		srv.Close()
		if exit != v.exit || asked != v.want || !strings.Contains(out.String(), v.out) || !strings.Contains(errOut.String(), v.err) {
			t.Errorf("smss %s: status %d, asked %q\n%s%s", v.line, exit, asked, out.String(), errOut.String())
		}
	}
}

// TestAdminUnreachable: an error says what to look at.
func TestAdminUnreachable(t *testing.T) {
	quiet := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-quiet }))
	defer srv.Close()
	defer close(quiet)
	for line, want := range map[string]string{
		"status -admin 127.0.0.1:1":     "is its admin.port neither 0 nor another one?",
		"status -admin a:b:c":           `-admin "a:b:c" is not HOST:PORT`,
		"status -timeout 50ms -admin ":  "no answer from SERVER within 50ms; allow more with -timeout",
		"promote -timeout 50ms -admin ": "whether the change was made, smss status tells",
	} {
		addr := strings.TrimPrefix(srv.URL, "http://")
		var out, errOut bytes.Buffer
		args := strings.Fields(line)
		if strings.HasSuffix(line, " ") {
			args = append(args, addr)
		}
		begin := time.Now()
		exit := run(context.Background(), args, nil, &out, &errOut, noEnv)
		if exit == 0 || !strings.Contains(errOut.String(), strings.ReplaceAll(want, "SERVER", addr)) || time.Since(begin) > 5*time.Second {
			t.Errorf("smss %s: %d: %s", line, exit, errOut.String())
		}
	}
}
