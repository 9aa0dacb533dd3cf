package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"smss/client"
	"smss/codec"
)

// usageError says what is wrong with a command line.
type usageError string

func (e usageError) Error() string { return string(e) }

func usagef(format string, args ...any) error { return usageError(fmt.Sprintf(format, args...)) }

// refusedHere reports whether err is about what the command line said, found
// by the client before it sent anything.
func refusedHere(err error) bool {
	return errors.Is(err, client.ErrTraceTooLong) || errors.Is(err, client.ErrTopicTooLong)
}

// about puts what a request was about in front of why it failed.
type about struct {
	what string
	err  error
}

func (e *about) Error() string { return e.what + ": " + e.err.Error() }
func (e *about) Unwrap() error { return e.err }

// hint puts what to do behind an error.
type hint struct {
	err error
	do  string
}

func (e *hint) Error() string { return e.err.Error() + "; " + e.do }
func (e *hint) Unwrap() error { return e.err }

// dialError marks an error of connecting.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// reason says in one line what happened, where, and what to do.
func (s *session) reason(err error) string {
	what, do := "", ""
	for {
		switch e := err.(type) {
		case *about:
			what += e.what + ": "
			err = e.err
			continue
		case *hint:
			do = "; " + e.do + do
			err = e.err
			continue
		}
		return what + s.cause(err) + do
	}
}

func (s *session) cause(err error) string {
	var refusal *client.ServerError
	var dial *dialError
	switch {
	case errors.As(err, &refusal):
		return fmt.Sprintf("%s (server %s)%s", refusal.Text, s.addr, remedy(refusal.Text))
	case errors.As(err, &dial):
		return fmt.Sprintf("cannot reach %s: %s; is the server running? -addr or SMSS_ADDR names another", s.addr, s.short(dial.err))
	case errors.Is(err, client.ErrEnded):
		return fmt.Sprintf("the topic was deleted or its life ended (server %s)", s.addr)
	case errors.Is(err, client.ErrSilent):
		return fmt.Sprintf("%s has sent nothing, not even a heartbeat, for %v; the connection or the server hangs", s.addr, client.DefaultSilence)
	case isTimeout(err):
		return fmt.Sprintf("no answer from %s within %v; see the server's log, or allow more with -timeout", s.addr, s.timeout)
	case errors.Is(err, client.ErrProtocol):
		return fmt.Sprintf("%s does not speak the protocol of smss (%s); is it the right port?", s.addr, s.short(err))
	case errors.Is(err, client.ErrBroken):
		return fmt.Sprintf("connection to %s was lost: %s", s.addr, s.short(err))
	}
	return err.Error()
}

// remedy says what to do about a refusal, where that is known.
func remedy(text string) string {
	switch {
	case text == codec.TextTopicNotExist:
		return "; create it with smss topic create NAME, or see smss topic list"
	case text == codec.TextTopicExist:
		return "; it can be used as it is"
	case strings.HasSuffix(text, codec.TextSubscriberExists):
		return "; another subscriber has this name, use another -name"
	case text == codec.TextEventNotFound:
		return "; -from takes an event id of this topic that is still kept, 0 starts at the oldest"
	case text == codec.TextMasterManages, text == codec.TextMasterPublishes:
		return "; this server is a slave, use the address of its master"
	case text == codec.TextExpire:
		return "; use a longer -expire"
	case text == codec.TextDelayTime:
		return "; use a longer -delay"
	}
	return ""
}

// short is an error without the layers that the line around it tells anyway.
func (s *session) short(err error) string {
	var errno syscall.Errno
	var name *net.DNSError
	switch {
	case errors.As(err, &errno):
		return errno.Error()
	case errors.As(err, &name):
		return name.Err
	case isTimeout(err):
		return fmt.Sprintf("no connection within %v", s.timeout)
	}
	return strings.TrimPrefix(err.Error(), client.ErrBroken.Error()+": ")
}

func isTimeout(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

// connect opens a connection for requests.
func (s *session) connect() (*client.Conn, error) {
	c, err := client.Dial(s.ctx, s.addr, client.Options{Timeout: s.timeout})
	if err != nil {
		return nil, &dialError{err}
	}
	return c, nil
}

// request runs f on a connection of its own.
func (s *session) request(what string, f func(*client.Conn) error) error {
	c, err := s.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	if err := f(c); err != nil {
		return &about{what, err}
	}
	return nil
}
