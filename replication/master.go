package replication

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"smss/codec"
	"smss/engine"
)

// Refuses returns why an address may not copy this server, or "". Event loops.
func (n *Node) Refuses(remote net.Addr) string {
	if len(n.cfg.Allow) == 0 {
		return ""
	}
	ap, err := netip.ParseAddrPort(remote.String())
	if err == nil {
		addr := ap.Addr().Unmap().WithZone("")
		for _, p := range n.cfg.Allow {
			if p.Contains(addr) {
				return ""
			}
		}
	}
	return "this address may not replicate, see replication.allow"
}

// Greet judges a slave by its greeting and answers it; see
// reactor.Replication. A reader runs it.
func (n *Node) Greet(r *engine.Read) {
	g, err := codec.ParseGreeting(r.Link.Hello)
	if err != nil {
		r.Err = refusal(fmt.Errorf("the slave's greeting cannot be read: %w", err))
		return
	}
	r.Link.Reign = n.reigns.Load() // before the history: see newReign
	h := n.History()
	last := n.position()
	if g.Node == h.Node {
		r.Err = refusal(fmt.Errorf("a server cannot follow itself (node %s)", g.Node))
		return
	}
	// Before the place is looked at: an event id can stand in both histories.
	if err := compare(h.Epochs, g.Epochs, last, g.LastEventID); err != nil {
		r.Err = refusal(err)
		return
	}
	if g.LastEventID > r.EventID {
		// It has asked as existing masters want it, see Follower.place. What
		// it says that it holds is looked up as what it asks for is: replies may
		// be waiting for it.
		n.cfg.Engine.LocateRecord(r, g.LastEventID)
	}
	if r.Err != nil {
		return
	}
	answer := codec.Greeting{
		Node: h.Node, Epochs: h.Epochs, LastEventID: last, Port: n.cfg.Port, HeartbeatMs: n.cfg.Heartbeat.Milliseconds(),
	}
	if answer.OldestEventID, answer.Complete, err = n.cfg.Engine.OldestEvent(); err != nil {
		r.Err = refusal(fmt.Errorf("the binlog cannot be read: %w", err))
		return
	}
	r.Link.Node, r.Link.Port = g.Node, g.Port
	if r.Link.Answer, err = codec.AppendGreeting(nil, &answer); err != nil {
		r.Err = refusal(err)
	}
}

// Current reports whether a slave was judged by the history as it is; see
// reactor.Replication. Event loops.
func (n *Node) Current(l *engine.Link) bool { return l.Reign == n.reigns.Load() }

// Feeds reports whether slaves are taken although this server is one, because it
// is a master that is about to hand over. Event loops.
func (n *Node) Feeds() bool { return n.handing.Load() }

// newReign drops the slaves: the history is another one than they were judged
// by, or this server is not a master any more. Those that come back are greeted
// anew, and learn of the new epoch before they have an event of it: with events
// of an epoch that they do not know they would look as if they had parted. The
// number is moved behind the history and before the look at who is connected.
func (n *Node) newReign() {
	n.reigns.Add(1)
	for _, r := range n.cfg.Engine.Replicas() {
		r.Dismiss()
	}
}

// addressOf returns where a slave takes connections itself: where it comes
// from, and the port that it names.
func addressOf(r *engine.Replica) string {
	host, _, err := net.SplitHostPort(r.Remote)
	if err != nil || r.Port == 0 {
		return ""
	}
	return net.JoinHostPort(host, strconv.Itoa(r.Port))
}
