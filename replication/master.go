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
	h := n.History()
	last := n.position()
	if g.Node == h.Node {
		r.Err = refusal(fmt.Errorf("a server cannot follow itself (node %s)", g.Node))
		return
	}
	// Before the place is looked at: an event id can stand in both histories.
	if err := compare(h.Epochs, g.Epochs, last, r.EventID); err != nil {
		r.Err = refusal(err)
		return
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

// addressOf returns where a slave takes connections itself: where it comes
// from, and the port that it names.
func addressOf(r *engine.Replica) string {
	host, _, err := net.SplitHostPort(r.Remote)
	if err != nil || r.Port == 0 {
		return ""
	}
	return net.JoinHostPort(host, strconv.Itoa(r.Port))
}
