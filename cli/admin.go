package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
)

// answerMax is the longest answer of an admin listener that is read.
const answerMax = 4 << 20

// ask sends one request to the admin listener and returns its answer.
func (s *session) ask(method, path string, args url.Values) ([]byte, error) {
	ctx, cancel := context.WithTimeout(s.ctx, s.timeout)
	defer cancel()
	target := url.URL{Scheme: "http", Host: s.addr, Path: path, RawQuery: args.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, target.String(), nil)
	if err != nil {
		return nil, err
	}
	// A proxy in the environment is not meant: the listener is on this machine.
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, s.adminError(method, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, answerMax))
	if err != nil {
		return nil, s.adminError(method, err)
	}
	if resp.StatusCode == http.StatusOK {
		return body, nil
	}
	var refusal struct{ Error string }
	if json.Unmarshal(body, &refusal) != nil || refusal.Error == "" {
		return nil, fmt.Errorf("%s answers %s to %s; is it the admin listener of smss?", s.addr, resp.Status, path)
	}
	if resp.StatusCode == http.StatusNotFound {
		refusal.Error += ": the server's version does not know it"
	}
	return nil, fmt.Errorf("%s (server %s)", refusal.Error, s.addr)
}

// adminError says what to do about a listener that does not answer.
func (s *session) adminError(method string, err error) error {
	var dial *net.OpError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nobody listens at %s: is the server running, and is its admin.port neither 0 nor another one? -admin or SMSS_ADMIN names another", s.addr)
	case errors.As(err, &dial) && dial.Op == "dial":
		return fmt.Errorf("cannot reach %s: %s; -admin or SMSS_ADMIN names another", s.addr, s.short(err))
	case isTimeout(err) || errors.Is(err, os.ErrDeadlineExceeded):
		if method == http.MethodPost {
			return fmt.Errorf("no answer from %s within %v: whether the change was made, smss status tells", s.addr, s.timeout)
		}
		return fmt.Errorf("no answer from %s within %v; allow more with -timeout", s.addr, s.timeout)
	case method == http.MethodPost:
		return fmt.Errorf("connection to %s was lost: %s; whether the change was made, smss status tells", s.addr, s.short(err))
	}
	return fmt.Errorf("%s: %s; is it the admin listener of smss?", s.addr, s.short(err))
}

// change asks for a change of the role and tells how it ended.
func (s *session) change(asJSON bool, path string, args url.Values, tell func(c *roleChange) string) error {
	body, err := s.ask(http.MethodPost, path, args)
	if err != nil {
		return err
	}
	if asJSON {
		_, err := s.out.Write(body)
		return err
	}
	var c roleChange
	if err := json.Unmarshal(body, &c); err != nil {
		return fmt.Errorf("%s answers what cannot be read: %w", s.addr, err)
	}
	fmt.Fprintln(s.out, tell(&c))
	return nil
}

// roleChange is the answer to a change.
type roleChange struct {
	Role        string `json:"role"`
	Master      string `json:"master"`
	LastEventID int64  `json:"lastEventId"`
}

// notes for whoever has changed a role that the next start does not know of.
const restartNote = "\nA start takes the role from its flags: change them to match before the next one."

func noArguments(args []string) error {
	if len(args) > 0 {
		return usagef("unexpected argument %q", args[0])
	}
	return nil
}

// one returns the only argument, or "" where there is none.
func one(args []string) (string, error) {
	if len(args) > 1 {
		return "", usagef("unexpected argument %q", args[1])
	}
	return strings.Join(args, ""), nil
}
