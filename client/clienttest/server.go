package clienttest

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"smss/codec"
)

// patience bounds every wait of a script, so that a test that goes wrong
// fails instead of hanging. No test waits for it when all is well.
const patience = 20 * time.Second

// Server listens on loopback and runs scripts.
type Server struct {
	t        testing.TB
	listener net.Listener
	scripts  []func(*Session)
	accepted atomic.Int64
	over     sync.WaitGroup
	open     chan net.Conn // for the clean-up
}

// Serve starts a server. The first connection follows the first script, and
// so on; connections beyond follow the last.
func Serve(t testing.TB, scripts ...func(*Session)) *Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, listener: l, scripts: scripts, open: make(chan net.Conn, 1000)}
	s.over.Add(1)
	go s.accept()
	t.Cleanup(s.stop)
	return s
}

// Addr returns the address to connect to.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Accepted returns how many connections have come so far.
func (s *Server) Accepted() int { return int(s.accepted.Load()) }

func (s *Server) accept() {
	defer s.over.Done()
	for {
		nc, err := s.listener.Accept()
		if err != nil {
			return
		}
		i := int(s.accepted.Add(1)) - 1
		s.open <- nc
		s.over.Add(1)
		go s.play(nc, s.scripts[min(i, len(s.scripts)-1)])
	}
}

func (s *Server) play(nc net.Conn, script func(*Session)) {
	defer s.over.Done()
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(patience))
	script(&Session{t: s.t, nc: nc, in: bufio.NewReader(nc)})
}

// stop closes the listener and gives the scripts the time to find out that
// their clients are gone.
func (s *Server) stop() {
	_ = s.listener.Close()
	done := make(chan struct{})
	go func() { s.over.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(patience):
		s.t.Error("a script of the test server did not end: is a connection left open?")
		for len(s.open) > 0 {
			_ = (<-s.open).Close()
		}
		<-done
	}
}

// Session is the server's side of one connection. Its methods are for the
// script that it was given to.
type Session struct {
	t  testing.TB
	nc net.Conn
	in *bufio.Reader
}

var limits = codec.Limits{MaxMessageSize: 64 << 20, MaxBatchMessages: 1 << 20, MaxWhoLength: 1 << 16}

// failf fails the test and ends the script.
func (s *Session) failf(format string, args ...any) {
	s.t.Errorf("test server: "+format, args...)
	runtime.Goexit()
}

// Next reads one request, or returns nil where the client closed instead.
func (s *Session) Next() *codec.Request {
	var b []byte
	for {
		r := new(codec.Request)
		n, err := codec.ParseRequest(b, &limits, r)
		if err == nil {
			return r
		}
		if err != codec.ErrShort {
			s.failf("request: %v", err)
		}
		have := len(b)
		b = append(b, make([]byte, n-have)...)
		if k, err := io.ReadFull(s.in, b[have:]); err != nil {
			if have+k == 0 && gone(err) {
				return nil
			}
			s.failf("request ended after %d of %d bytes: %v", have+k, n, err)
		}
	}
}

// gone reports whether err says that the client closed or reset.
func gone(err error) bool { return err != nil && !errors.Is(err, os.ErrDeadlineExceeded) }

// Expect reads one request and fails unless it is a whole and valid one of
// the given command.
func (s *Session) Expect(c codec.Command) *codec.Request {
	r := s.Next()
	switch {
	case r == nil:
		s.failf("connection closed, want %v", c)
	case r.Command != c || r.Invalid != nil:
		s.failf("got %v (invalid: %v), want %v", r.Command, r.Invalid, c)
	}
	return r
}

// Ack reads a subscriber's answer and fails unless it is a.
func (s *Session) Ack(a codec.Ack) {
	var b [codec.AckSize]byte
	if _, err := io.ReadFull(s.in, b[:]); err != nil {
		s.failf("ack: %v", err)
	}
	if got := codec.Ack(b[0]) | codec.Ack(b[1])<<8; got != a {
		s.failf("ack %d, want %d", got, a)
	}
}

// Send writes bytes. A client that is gone is no failure.
func (s *Session) Send(b []byte) { _, _ = s.nc.Write(b) }

// OK sends that a request is done.
func (s *Session) OK() { s.Send(codec.AppendCode(nil, codec.CodeOK)) }

// Alive sends the reply to ALIVE, which is also the heartbeat.
func (s *Session) Alive() { s.Send(codec.AppendCode(nil, codec.CodeAlive)) }

// End sends that the subscription is over.
func (s *Session) End() { s.Send(codec.AppendCode(nil, codec.CodeEnd)) }

// Refuse sends an error reply.
func (s *Session) Refuse(text string) { s.Send(codec.AppendError(nil, text)) }

// JSON sends a reply that carries JSON; empty = the empty list.
func (s *Session) JSON(json string) { s.Send(codec.AppendJSON(nil, []byte(json))) }

// Push sends a batch of messages with consecutive event ids from firstID on.
func (s *Session) Push(firstID int64, messages ...*codec.Message) { s.Send(Push(firstID, messages...)) }

// Push returns the bytes of a batch, stored at the second firstID of 1970.
func Push(firstID int64, messages ...*codec.Message) []byte {
	b := codec.AppendPushHeader(nil)
	for i, m := range messages {
		p := codec.Pushed{StoredAtMs: firstID * 1000, EventID: firstID + int64(i), NextPos: 1}
		b = codec.AppendPushed(b, p, codec.AppendMessage(nil, m))
	}
	codec.FinishPush(b, len(messages))
	return b
}

// Closed waits for the client to close and fails where it sends instead.
func (s *Session) Closed() {
	if b, err := s.in.ReadByte(); !gone(err) {
		s.failf("got byte %#x, error %v, want a close", b, err)
	}
}

// Reset closes such that the client sees a reset connection.
func (s *Session) Reset() {
	if tcp, ok := s.nc.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = s.nc.Close()
}

// Text returns a message of a body and of headers as key, value, key, value …
func Text(body string, keysAndValues ...string) *codec.Message {
	m := &codec.Message{Body: []byte(body)}
	for i := 0; i+1 < len(keysAndValues); i += 2 {
		m.Headers = append(m.Headers, codec.Header{Key: keysAndValues[i], Value: keysAndValues[i+1]})
	}
	return m
}

// Messages takes a payload apart.
func Messages(t testing.TB, payload []byte) []codec.Message {
	t.Helper()
	var out []codec.Message
	for len(payload) > 0 {
		m, size, ok := codec.ParseMessage(payload)
		if !ok {
			t.Errorf("payload %x holds no message", payload)
			return out
		}
		out = append(out, m)
		payload = payload[size:]
	}
	return out
}
