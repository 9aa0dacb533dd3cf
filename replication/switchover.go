package replication

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"smss/engine"
)

// A planned switchover: the master stops writing, waits until the slave holds
// its last event, orders it to take over, waits for its word, and follows it.
//
//	stop writes     role slave: clients are refused, timers rest, feeds go on
//	wait            until the slave has acknowledged the last event
//	save            "last written by a slave": from here on a crash is no reign
//	order           the last moment at which this server may go back
//	wait            for the slave's word that it is the master
//	follow          it
//
// Up to the order nobody else can have begun a reign: this server goes back to
// being the master under the same epoch, as if nothing had happened. After it,
// and without the slave's word, nobody can know whether there is another master:
// it stays a slave. Two masters are worse than none.

// The patience of a switchover, in which nobody can write.
const (
	lookEvery = 5 * time.Millisecond
	// stallWait is how long the slave may acknowledge nothing new, catchUpWait
	// how long it may need for all of it.
	stallWait   = 5 * time.Second
	catchUpWait = time.Minute
	// confirmWait is how long the slave may take to become the master: its own
	// limit, and then some.
	confirmWait = turnWait + 10*time.Second
)

// UnknownError says that a slave was ordered to take over, and that nobody knows
// whether it has.
type UnknownError struct {
	Slave string // its address
	Why   string
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("%s was ordered to take over and has not confirmed it (%s). This server takes no writes and tries to follow it. "+
		"See smss status there: if it is the master, all is well; if it is a slave, make one of the two the master with smss promote, never both", e.Slave, e.Why)
}

// Unknown marks the error for package admin.
func (e *UnknownError) Unknown() {}

// Switchover hands the role over to a slave: the one whose node id or address is
// to, or with "" the only one. It returns the new master's address and the last
// event of this server's reign. After any error but an UnknownError this server
// is the master as before.
func (n *Node) Switchover(to string) (master string, last int64, err error) {
	if err := n.begin(); err != nil {
		return "", 0, err
	}
	defer n.mu.Unlock()
	if n.cfg.Engine.Role() != engine.Master {
		return "", 0, fmt.Errorf("this server is a slave of %s: ask its master to switch over, or promote this one", n.link.Load().master)
	}
	r, err := n.choose(to)
	if err != nil {
		return "", 0, err
	}
	address := addressOf(r)
	n.handing.Store(true) // before the role changes: slaves that come must not be refused
	defer n.handing.Store(false)
	if err := n.handOver(r); err != nil {
		return "", 0, n.resume(err)
	}
	n.cfg.Events.note(fmt.Sprintf("handing over to %s behind event %d", address, n.position()), nil)
	r.TakeOver(n.position())
	if err := n.awaitPromoted(r, address); err != nil {
		var unknown *UnknownError
		if !errors.As(err, &unknown) {
			return "", 0, n.resume(err)
		}
		n.newReign()
		n.startFollower(address)
		return "", 0, err
	}
	last = n.position()
	n.newReign()
	n.startFollower(address)
	return address, last, nil
}

// choose returns the slave that is meant. Of two connections of one node the
// newer one counts.
func (n *Node) choose(to string) (*engine.Replica, error) {
	nodes := map[string]*engine.Replica{}
	for _, r := range n.cfg.Engine.Replicas() {
		if have := nodes[r.Node]; r.Extended && (have == nil || have.Since.Before(r.Since)) {
			nodes[r.Node] = r
		}
	}
	var found *engine.Replica
	var names []string
	for _, r := range nodes {
		names = append(names, fmt.Sprintf("%s (node %s)", addressOf(r), r.Node))
		if to == "" || to == r.Node || to == addressOf(r) || to == r.Remote {
			if found != nil {
				return nil, &RequestError{fmt.Errorf("there are several slaves, say which one: %s", strings.Join(names, ", "))}
			}
			found = r
		}
	}
	switch {
	case len(nodes) == 0:
		return nil, errors.New("no slave of this project is connected; existing servers cannot be told to take over: stop writing, wait until they are equal, and restart them with -role master")
	case found == nil:
		return nil, &RequestError{fmt.Errorf("no slave %q is connected; there are: %s", to, strings.Join(names, ", "))}
	case addressOf(found) == "":
		return nil, fmt.Errorf("the slave of node %s does not say on which port it takes connections, so that it could not be followed", found.Node)
	}
	return found, nil
}

// handOver stops writes and waits until the slave holds everything.
func (n *Node) handOver(r *engine.Replica) error {
	// Behind the answer nothing is written any more, and everything before it is
	// in the binlog for the slave to have.
	if _, err := n.turn(engine.Slave); err != nil {
		return err
	}
	if err := n.awaitHeld(r, n.position()); err != nil {
		return err
	}
	h := n.History()
	h.Slave = true
	return n.saveHistory(h)
}

// resume makes this server the master again: nobody else has reigned, so that
// the epoch is the same.
func (n *Node) resume(cause error) error {
	err := fmt.Errorf("%w; this server is the master as before", cause)
	if h := n.History(); h.Slave {
		h.Slave = false
		if e := n.saveHistory(h); e != nil {
			// The next start begins an epoch then, which does no harm.
			n.cfg.Events.note("after a switchover that did not happen", e)
		}
	}
	if _, e := n.turn(engine.Master); e != nil {
		return fmt.Errorf("%w; and going back failed: %w: ask for the status, and promote this server", cause, e)
	}
	return err
}

// connected reports whether a slave's connection is still there.
func (n *Node) connected(r *engine.Replica) bool {
	return slices.Contains(n.cfg.Engine.Replicas(), r)
}

// awaitHeld waits until the slave has acknowledged an event. What counts is
// progress, and there is an end to it: nobody can write meanwhile.
func (n *Node) awaitHeld(r *engine.Replica, last int64) error {
	begin := time.Now()
	held, moved := r.AckedID(), begin
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		now := time.Now()
		if at := r.AckedID(); at != held {
			held, moved = at, now
		}
		switch {
		case held >= last:
			return nil
		case !n.connected(r):
			return fmt.Errorf("the slave has left before it had everything: it holds event %d of %d", held, last)
		case now.Sub(moved) > stallWait:
			return fmt.Errorf("the slave holds event %d of %d and has acknowledged nothing for %v", held, last, stallWait)
		case now.Sub(begin) > catchUpWait:
			return fmt.Errorf("the slave holds event %d of %d and needs longer than %v; switch over when it has caught up", held, last, catchUpWait)
		}
		select {
		case <-tick.C:
		case <-n.changes.Done():
			return ErrStopped
		}
	}
}

// awaitPromoted waits for the slave's word. An error that is no UnknownError
// says that it was never told.
func (n *Node) awaitPromoted(r *engine.Replica, address string) error {
	begin := time.Now()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		gone := !n.connected(r) // before the looks: what it has said, it has said before it left
		switch {
		case r.HasPromoted():
			return nil
		case gone && !r.Told():
			return errors.New("the slave has left before it was told to take over")
		case gone:
			return &UnknownError{address, "the connection was lost"}
		case time.Since(begin) > confirmWait:
			return &UnknownError{address, fmt.Sprintf("no answer within %v", confirmWait)}
		}
		select {
		case <-tick.C:
		case <-n.changes.Done():
			return &UnknownError{address, ErrStopped.Error()}
		}
	}
}
