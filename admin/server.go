package admin

import (
	"context"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"smss/engine"
)

// The limits of the listener.
const (
	headerBytes = 16 << 10
	// bodyBytes is what of a body is read and thrown away: no request needs one.
	bodyBytes = 4 << 10
	// connections are served at once; more wait to be accepted.
	connections = 32

	readTimeout  = 10 * time.Second
	writeTimeout = 10 * time.Second
	idleTimeout  = time.Minute
	// changeTimeout is how long the answer to a change may take: a switchover
	// waits for a slave, and has limits of its own that are shorter.
	changeTimeout = 5 * time.Minute
	// stopWait is how long a stop waits for requests.
	stopWait = time.Second
)

// Node changes the server's role. Its methods wait until the change is made or
// has failed, and refuse to run beside each other. An error that has a method
// Invalid is about what was asked for; one that has a method Unknown says that
// nobody can tell whether the change was made; any other leaves things as they
// were.
type Node interface {
	Promote() (lastEventID int64, err error)
	Follow(master string) error
	Switchover(to string) (master string, lastEventID int64, err error)
}

// Reseeder is a Node that can copy its master anew. discard says that events
// which only this server has may be lost.
type Reseeder interface {
	Reseed(discard bool) error
}

// Config says what is served.
type Config struct {
	// Engine and Node are nil while the server does not serve; Absent says why.
	Engine *engine.Engine
	Node   Node
	Absent error
	// Replication returns what is known of master and slaves, for JSON.
	Replication func() any
	Version     string
	Since       time.Time // of the start
	// Host is the name or address that the listener is bound to.
	Host string
	// Log takes what the HTTP server has to complain about.
	Log *log.Logger
	// Asked is told of every change that was asked for, and how it ended.
	Asked func(what, remote string, err error)
}

// Server is a running listener.
type Server struct {
	http *http.Server
	done chan struct{}
}

// Start serves on ln until Stop.
func Start(ln net.Listener, cfg Config) *Server {
	s := &Server{done: make(chan struct{}), http: &http.Server{
		Handler: &handler{cfg: cfg}, ErrorLog: cfg.Log, MaxHeaderBytes: headerBytes,
		ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
	}}
	go func() {
		defer close(s.done)
		// It ends with ErrServerClosed, or because the listener is broken, which
		// must not end the server.
		if err := s.http.Serve(limit(ln, connections)); err != http.ErrServerClosed {
			cfg.Log.Print("the admin listener has ended: ", err)
		}
	}()
	return s
}

// Stop ends the listener, if there is one. Requests get a moment to finish.
func (s *Server) Stop() {
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopWait)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		_ = s.http.Close() // what is under way is cut off
	}
	<-s.done
}

// limited accepts no more connections than there are slots.
type limited struct {
	net.Listener
	slots  chan struct{}
	closed chan struct{}
	once   sync.Once
}

func limit(ln net.Listener, n int) net.Listener {
	return &limited{Listener: ln, slots: make(chan struct{}, n), closed: make(chan struct{})}
}

func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &counted{Conn: c, free: sync.OnceFunc(func() { <-l.slots })}, nil
}

func (l *limited) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type counted struct {
	net.Conn
	free func()
}

func (c *counted) Close() error {
	defer c.free()
	return c.Conn.Close()
}
