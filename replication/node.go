package replication

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"smss/codec"
	"smss/engine"
	"smss/storage"
)

// Store is where the history lies.
type Store interface {
	History() storage.History
	SaveHistory(storage.History) error
}

// Config says how a node replicates. All durations are positive.
type Config struct {
	Engine *engine.Engine
	Store  Store
	Clock  engine.Clock
	// Master is the host:port that a slave follows, "" for a master.
	Master string
	// Event is the event id after which an empty slave goes on, 0 = from the
	// beginning.
	Event int64
	// Port is where this server takes connections, for those who greet it.
	Port int
	// Heartbeat is how long this server is silent on a feed; Silence how long a
	// master may be before it counts as lost.
	Heartbeat, Silence time.Duration
	// RetryFirst and RetryMax bound the pauses between two connections.
	RetryFirst, RetryMax time.Duration
	// Allow limits who may copy this server; empty = everybody.
	Allow []netip.Prefix
	// PowerLost says that events may be missing that others have seen: a master
	// then begins a new epoch.
	PowerLost bool
	// AutoCopy says that a slave whose master does not have the next events any
	// more orders a full copy by itself, where its own are the beginning of the
	// master's. OrderCopy is called for that: it makes the order durable and
	// starts the server anew. FreeBytes returns what may still be written, and
	// MinFree what has to stay free.
	AutoCopy  bool
	OrderCopy func(storage.CopyOrder) error
	FreeBytes func() (int64, error)
	MinFree   int64
	// Dial connects to a master; nil = TCP.
	Dial   func(ctx context.Context, address string) (net.Conn, error)
	Events Events
}

// Events receives notable moments. They must not block.
type Events struct {
	// Note is something an operator may want to know.
	Note func(what string, err error)
	// Link is called when the state of the link changes, or its reason.
	Link func(s LinkState, master string, err error)
}

func (e *Events) note(what string, err error) {
	if e.Note != nil {
		e.Note(what, err)
	}
}

// LinkState is how a slave stands with its master.
type LinkState int32

// The states of a link.
const (
	LinkOff        LinkState = iota // a master
	LinkConnecting                  // or greeting
	LinkStreaming
	LinkWaiting // before it tries again
	LinkRefused // likewise, but somebody has to do something
	LinkCopying // a full copy is being made, or about to be
)

// String returns the state's name, for status and logs.
func (s LinkState) String() string {
	return [...]string{"off", "connecting", "streaming", "waiting", "refused", "copying"}[s]
}

// Node is this server in the eyes of others: whose history it holds, what it
// is, and whom it follows.
type Node struct {
	cfg        Config
	history    atomic.Pointer[storage.History] // replaced as a whole, under mu or by the follower
	streams    atomic.Uint64                   // numbers of streams that were used
	masterLast atomic.Int64                    // last event of the master, as far as it has said
	link       atomic.Pointer[linkStatus]
	reigns     atomic.Uint64   // how often slaves were dropped, see newReign
	handing    atomic.Bool     // a switchover is under way
	copying    atomic.Bool     // a full copy was ordered: the server is about to start anew
	changes    context.Context // of changes of the role; ended by Interrupt
	interrupt  func()

	mu       sync.Mutex // one change of role at a time
	follower *Follower  // mu
	stopped  bool       // mu
}

type linkStatus struct {
	state  LinkState
	master string
	since  time.Time
	err    error
}

// New returns a node. Start begins what its role asks for.
func New(cfg Config) *Node {
	if cfg.Dial == nil {
		cfg.Dial = dialTCP
	}
	n := &Node{cfg: cfg}
	n.changes, n.interrupt = context.WithCancel(context.Background())
	h := cfg.Store.History()
	n.history.Store(&h)
	n.link.Store(&linkStatus{since: time.Now()})
	return n
}

// Start settles the history and, on a slave, begins to follow. A directory
// that a slave has written last and that is a master's now was promoted by
// this start.
func (n *Node) Start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := n.History()
	if n.cfg.Master == "" {
		if h.Slave || len(h.Epochs) == 0 || n.cfg.PowerLost {
			return n.saveHistory(reign(h, n.position()))
		}
		return nil
	}
	if !h.Slave || h.Base < n.cfg.Event && n.position() <= n.cfg.Event {
		// A promotion that a crash has cut short had announced an epoch.
		h.Slave, h.Epochs = true, reigned(h.Epochs, n.position())
		if n.position() <= n.cfg.Event {
			h.Base = n.cfg.Event
		}
		if err := n.saveHistory(h); err != nil {
			return err
		}
	}
	n.startFollower(n.cfg.Master)
	return nil
}

// Base returns the last event id that a server begins with, whose binlog ends
// with binlogLast: for an empty slave the one that it was told.
func Base(h storage.History, binlogLast, event int64, slave bool) int64 {
	switch {
	case binlogLast > 0:
		return binlogLast
	case slave:
		return max(h.Base, event)
	}
	return h.Base
}

func (n *Node) startFollower(master string) {
	n.masterLast.Store(0)
	n.follower = newFollower(n, master)
	go n.follower.run()
}

// Interrupt ends a switchover or the order for a full copy that is under way,
// where it stands; nothing but a stop follows it.
func (n *Node) Interrupt() { n.interrupt() }

// Stop ends following. The engine must still run.
func (n *Node) Stop() {
	n.interrupt()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stopped = true
	n.stopFollower()
}

func (n *Node) stopFollower() {
	if n.follower != nil {
		n.follower.stop()
		n.follower = nil
	}
}

// Role returns what this server is now. Any goroutine.
func (n *Node) Role() engine.Role { return n.cfg.Engine.Role() }

// History returns what this server knows of its history.
func (n *Node) History() storage.History { return *n.history.Load() }

func (n *Node) saveHistory(h storage.History) error {
	if err := n.cfg.Store.SaveHistory(h); err != nil {
		return fmt.Errorf("saving the history: %w", err)
	}
	n.history.Store(&h)
	return nil
}

// position returns the last event that this server holds.
func (n *Node) position() int64 { return n.cfg.Engine.LastEventID() }

// holds returns the last event of a history that this server has, 0 for none: a
// slave that was told an event id to begin behind has nothing yet that could
// differ from its master's.
func (n *Node) holds(h *storage.History) int64 {
	at := n.position()
	if at <= h.Base && len(h.Epochs) == 0 {
		return 0
	}
	return at
}

func (n *Node) greeting() *codec.Greeting {
	h := n.History()
	return &codec.Greeting{
		Node: h.Node, Epochs: h.Epochs, LastEventID: n.holds(&h), Port: n.cfg.Port,
		HeartbeatMs: n.cfg.Heartbeat.Milliseconds(),
	}
}

// linkIs notes the state of the link; the follower calls it.
func (n *Node) linkIs(master string, state LinkState, err error) {
	old := n.link.Load()
	next := &linkStatus{state, master, time.Now(), err}
	if state == LinkConnecting && old.state != LinkStreaming {
		next.err = old.err // why it has to connect again stays visible
	}
	n.link.Store(next)
	if n.cfg.Events.Link != nil {
		n.cfg.Events.Link(state, master, err)
	}
}

// Errors of changes of the role that were not begun.
var (
	ErrStopped = errors.New("the server is stopping")
	ErrCopying = errors.New("a full copy of the master was ordered, for which the server starts anew: ask again when it is there")
	ErrBusy    = errors.New("another change of the role is under way; ask for the status, then try again")
)

// begin takes the lock for a change of the role, or says why there can be none.
// It does not wait: what was asked for may not be wanted any more once the other
// change is done.
func (n *Node) begin() error {
	if !n.mu.TryLock() {
		return ErrBusy
	}
	if n.stopped {
		n.mu.Unlock()
		return ErrStopped
	}
	return nil
}

// turnWait is how long a change of role may take.
const turnWait = 30 * time.Second

// turn changes the engine's role and returns the last event before it.
func (n *Node) turn(role engine.Role) (last int64, err error) {
	wake := make(chan struct{}, 1)
	mailbox := engine.NewMailbox(func() { wake <- struct{}{} })
	var pool engine.CommandPool
	cmd := pool.Get()
	cmd.Kind, cmd.Role, cmd.Mailbox = engine.Turn, role, mailbox
	late := time.NewTimer(turnWait)
	defer late.Stop()
	for !n.cfg.Engine.Push(cmd) {
		select {
		case <-late.C:
			return 0, errors.New("the writer takes nothing: the role was not changed")
		case <-time.After(time.Millisecond):
		}
	}
	select {
	case <-wake: // the writer answers always
	case <-late.C:
		return 0, errors.New("the writer does not answer: whether the role was changed is not known")
	}
	return cmd.EventID, cmd.Err
}

// Promote makes a slave the master: it stops following, begins an epoch behind
// the last event that it has applied, and takes writes. On a master it does
// nothing. It returns the last event before its own.
func (n *Node) Promote() (last int64, err error) {
	if err := n.begin(); err != nil {
		return 0, err
	}
	defer n.mu.Unlock()
	if n.cfg.Engine.Role() == engine.Master {
		return n.position(), nil
	}
	f := n.follower
	n.stopFollower()
	if n.copying.Load() {
		return 0, ErrCopying // the follower's last word
	}
	if last, err = n.reign(); err != nil && f != nil && n.cfg.Engine.Role() == engine.Slave {
		n.startFollower(f.address) // it goes on as it was
	}
	return last, err
}

// reign begins an epoch and takes writes. The epoch is on the disk first:
// a crash between the two leaves a slave with an epoch announced, which means
// nothing; the other way round events would belong to no reign. Slaves are
// dropped in between, so that they get no event of an epoch that they do not
// know.
func (n *Node) reign() (last int64, err error) {
	if err := n.saveHistory(reign(n.History(), n.position())); err != nil {
		return 0, err
	}
	n.newReign()
	return n.turn(engine.Master)
}

// takeOver is Promote for the follower itself, on the master's order. The
// follower stays the node's until it ends.
func (n *Node) takeOver(f *Follower) error {
	if err := n.begin(); err != nil {
		return err
	}
	defer n.mu.Unlock()
	switch {
	case n.follower != f:
		return ErrBusy
	case n.copying.Load():
		return ErrCopying
	}
	_, err := n.reign()
	return err
}

// Follow makes this server a slave of the one at address (host:port), or of
// another one than before. What it holds is kept; whether the two belong
// together is found out when they greet.
func (n *Node) Follow(address string) error {
	if err := checkAddress(address); err != nil {
		return &RequestError{err}
	}
	if err := n.begin(); err != nil {
		return err
	}
	defer n.mu.Unlock()
	n.stopFollower()
	if n.copying.Load() {
		return ErrCopying
	}
	if n.cfg.Engine.Role() == engine.Master {
		// Durable first: a crash in between must not begin another reign as if
		// nothing had been said.
		h := n.History()
		h.Slave = true
		if err := n.saveHistory(h); err != nil {
			return err
		}
		if _, err := n.turn(engine.Slave); err != nil {
			return err
		}
		n.newReign()
	}
	n.startFollower(address)
	return nil
}

// RequestError is an error of what was asked for.
type RequestError struct{ err error }

func (e *RequestError) Error() string { return e.err.Error() }

// Invalid marks the error for package admin.
func (e *RequestError) Invalid() {}

func checkAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("master %q: %w; it is given as host:port", address, err)
	}
	if p, err := strconv.Atoi(port); host == "" || err != nil || p < 1 || p > 65535 {
		return fmt.Errorf("master %q: it is given as host:port, with a port from 1 to 65535", address)
	}
	return nil
}
