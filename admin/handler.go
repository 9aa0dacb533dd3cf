package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"smss/engine"
)

type handler struct{ cfg Config }

// verb is one path: GET tells, POST changes.
type verb struct {
	method string
	params []string
	do     func(h *handler, q url.Values) answer
}

type answer struct {
	code int
	body any // text as it is, anything else as JSON
	err  error
}

var verbs = map[string]verb{
	"/status":     {http.MethodGet, nil, (*handler).status},
	"/healthz":    {http.MethodGet, []string{"role"}, (*handler).health},
	"/promote":    {http.MethodPost, nil, (*handler).promote},
	"/follow":     {http.MethodPost, []string{"master"}, (*handler).follow},
	"/demote":     {http.MethodPost, []string{"master"}, (*handler).follow},
	"/switchover": {http.MethodPost, []string{"to"}, (*handler).switchover},
	"/reseed":     {http.MethodPost, []string{"discard"}, (*handler).reseed},
}

// verb returns what stands at a path. A node that cannot reseed has no such
// path.
func (h *handler) verb(path string) (verb, bool) {
	v, ok := verbs[path]
	if _, can := h.cfg.Node.(Reseeder); path == "/reseed" && !can && h.cfg.Node != nil {
		return verb{}, false
	}
	return v, ok
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a := h.serve(w, r)
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	if a.err != nil {
		a.body = map[string]any{"error": a.err.Error(), "outcome": outcome(a.err)}
	}
	text, plain := a.body.(string)
	body := []byte(text)
	header.Set("Content-Type", "text/plain; charset=utf-8")
	if !plain {
		header.Set("Content-Type", "application/json")
		b, err := json.MarshalIndent(a.body, "", "  ")
		if err != nil {
			a.code, b = http.StatusInternalServerError, []byte(`{"error": "the answer cannot be written as JSON"}`)
		}
		body = append(b, '\n')
	}
	header.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(a.code)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // whoever has gone does not want it
	}
}

func refuse(code int, format string, args ...any) answer {
	return answer{code: code, err: fmt.Errorf(format, args...)}
}

// outcome says what has become of a change that was not answered well.
func outcome(err error) string {
	var unknown interface{ Unknown() }
	if errors.As(err, &unknown) {
		return "unknown"
	}
	return "unchanged"
}

func (h *handler) serve(w http.ResponseWriter, r *http.Request) answer {
	if !h.mine(r.Host) {
		// A page whose name was made to lead here reads nothing and moves nothing.
		return refuse(http.StatusMisdirectedRequest, "this server is not %q; use its address, or the name in admin.host", r.Host)
	}
	if r.Header.Get("Origin") != "" {
		return refuse(http.StatusForbidden, "requests of web pages are not taken")
	}
	v, ok := h.verb(r.URL.Path)
	if !ok {
		return refuse(http.StatusNotFound, "there is nothing at %s", r.URL.Path)
	}
	if r.Method != v.method && !(r.Method == http.MethodHead && v.method == http.MethodGet) {
		allow := v.method
		if v.method == http.MethodGet {
			allow += ", " + http.MethodHead
		}
		w.Header().Set("Allow", allow)
		return refuse(http.StatusMethodNotAllowed, "%s takes %s", r.URL.Path, allow)
	}
	if _, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, bodyBytes)); err != nil {
		return refuse(http.StatusRequestEntityTooLarge, "a request has no body: arguments stand behind the question mark")
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return refuse(http.StatusBadRequest, "arguments: %v", err)
	}
	for name, values := range q {
		// A misspelt name must not make a change with something else than meant.
		if !slices.Contains(v.params, name) || len(values) != 1 {
			return refuse(http.StatusBadRequest, "%s does not take %s=%s", r.URL.Path, name, strings.Join(values, ","))
		}
	}
	if v.method != http.MethodPost {
		return v.do(h, q)
	}
	if h.cfg.Node == nil {
		return refuse(http.StatusServiceUnavailable, "%w", h.cfg.Absent)
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(changeTimeout))
	a := v.do(h, q)
	if h.cfg.Asked != nil {
		h.cfg.Asked(strings.TrimPrefix(r.URL.RequestURI(), "/"), r.RemoteAddr, a.err)
	}
	return a
}

// mine reports whether a Host header names this server.
func (h *handler) mine(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if host == "localhost" || host == h.cfg.Host && host != "" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	if addr.IsLoopback() {
		return true
	}
	// Bound to every address of the machine, which of them it is does not matter:
	// no name leads to an address that is written out.
	bound, err := netip.ParseAddr(h.cfg.Host)
	return h.cfg.Host == "" || err == nil && bound.IsUnspecified()
}

// engineStatus is engine.Stats as operators see it. Counters are since the
// start.
type engineStatus struct {
	Published     int64 `json:"published"`
	Delayed       int64 `json:"delayed"`
	Fired         int64 `json:"fired"`
	Replicated    int64 `json:"replicated"`
	Refused       int64 `json:"refused"`
	Batches       int64 `json:"batches"`
	FailedBatches int64 `json:"failedBatches"`
	AckWaits      int64 `json:"ackWaits"`
	AckTimeouts   int64 `json:"ackTimeouts"`
	InflightBytes int64 `json:"inflightBytes"`
	AckLapsed     bool  `json:"ackLapsed"`
	LowDisk       bool  `json:"lowDisk"`
	Broken        bool  `json:"broken"`
}

// healthy returns why no writes are taken, or nil.
func (h *handler) healthy() error {
	if h.cfg.Engine == nil {
		return h.cfg.Absent
	}
	return h.cfg.Engine.Healthy()
}

func (h *handler) status(url.Values) answer {
	var st engine.Stats
	if h.cfg.Engine != nil {
		st = h.cfg.Engine.Stats()
	}
	body := struct {
		Version     string       `json:"version"`
		SinceMs     int64        `json:"sinceMs"`
		Healthy     bool         `json:"healthy"`
		Unhealthy   string       `json:"unhealthyBecause,omitempty"`
		Replication any          `json:"replication"`
		Engine      engineStatus `json:"engine"`
	}{
		Version: h.cfg.Version, SinceMs: h.cfg.Since.UnixMilli(), Healthy: true, Replication: h.cfg.Replication(),
		Engine: engineStatus(st),
	}
	if err := h.healthy(); err != nil {
		body.Healthy, body.Unhealthy = false, err.Error()
	}
	return answer{code: http.StatusOK, body: body}
}

func (h *handler) health(q url.Values) answer {
	role, asked := q.Get("role"), q.Has("role")
	if asked && role != engine.Master.String() && role != engine.Slave.String() {
		return refuse(http.StatusBadRequest, "role=%s: master and slave are known", role)
	}
	if err := h.healthy(); err != nil {
		return answer{code: http.StatusServiceUnavailable, body: err.Error() + "\n"}
	}
	if have := h.cfg.Engine.Role().String(); asked && have != role {
		return answer{code: http.StatusServiceUnavailable, body: "this server is a " + have + "\n"}
	}
	return answer{code: http.StatusOK, body: "ok\n"}
}

// changed is the answer to a change that was made.
type changed struct {
	Role        string `json:"role"`
	Master      string `json:"master,omitempty"`
	LastEventID *int64 `json:"lastEventId,omitempty"`
}

// failed gives an error of the node its code.
func failed(err error) answer {
	var invalid interface{ Invalid() }
	var unknown interface{ Unknown() }
	code := http.StatusConflict
	switch {
	case errors.As(err, &invalid):
		code = http.StatusBadRequest
	case errors.As(err, &unknown):
		code = http.StatusGatewayTimeout
	}
	return answer{code: code, err: err}
}

func (h *handler) promote(url.Values) answer {
	last, err := h.cfg.Node.Promote()
	if err != nil {
		return failed(err)
	}
	return answer{code: http.StatusOK, body: changed{Role: "master", LastEventID: &last}}
}

func (h *handler) follow(q url.Values) answer {
	master := q.Get("master")
	if master == "" {
		return refuse(http.StatusBadRequest, "master=HOST:PORT is missing: whom to follow")
	}
	if err := h.cfg.Node.Follow(master); err != nil {
		return failed(err)
	}
	return answer{code: http.StatusOK, body: changed{Role: "slave", Master: master}}
}

func (h *handler) switchover(q url.Values) answer {
	master, last, err := h.cfg.Node.Switchover(q.Get("to"))
	if err != nil {
		return failed(err)
	}
	return answer{code: http.StatusOK, body: changed{Role: "slave", Master: master, LastEventID: &last}}
}

func (h *handler) reseed(q url.Values) answer {
	discard := false
	if text := q.Get("discard"); q.Has("discard") {
		var err error
		if discard, err = strconv.ParseBool(text); err != nil {
			return refuse(http.StatusBadRequest, "discard=%s: true and false are known", text)
		}
	}
	if err := h.cfg.Node.(Reseeder).Reseed(discard); err != nil {
		return failed(err)
	}
	return answer{code: http.StatusOK, body: changed{Role: "slave"}}
}
