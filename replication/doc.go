// Package replication holds both ends of the link between a master and its
// slaves, and the histories that they compare.
//
// What it owns:
//
//   - Follower, the slave's end: one goroutine that takes records from the
//     master and pushes them through the engine's ring with the master's ids
//     and times, many of them under way at once; a second one reads the socket;
//   - Node, which knows the directory's history (epochs), the role, and how it
//     changes: promotion, following another master, a planned switchover;
//   - Copy, which makes a full copy of a master before the directory is opened,
//     and what the master answers it (Node.Copy);
//   - the master's judgement of a slave that greets (Node.Greet). The feed
//     itself is sent by the event loops of package reactor, from what the
//     engine's readers have read: no goroutine for each slave.
//
// What it promises:
//
//   - the master is asked to go on behind the first event id of the slave's last
//     record, because existing masters find no other of a batch; one of this
//     project learns from the greeting what the slave holds;
//   - a slave's position is the end of its own binlog. It moves when an event
//     is applied, and by nothing else: an event that cannot be read or applied
//     is tried again, neither skipped nor a reason to begin anew;
//   - delays, lifetimes and retention on a slave follow the master's events and
//     not the slave's clock; its subscribers are told of a deletion like those
//     of the master;
//   - a master that is silent for two heartbeat intervals is taken for lost,
//     and reconnecting, the first time included, pauses longer each time;
//   - two histories that have parted are never joined: an epoch, drawn at each
//     promotion, tells them apart. Existing servers have none and are taken as
//     they are. What is missing at the beginning is said, never passed over.
//
// A full copy is as of one event, so that its parts can be read at any later
// time while the master goes on; see engine/copy.go for why.
//
// Goroutines: Copy has one of the caller's. Node's methods may be called by any, one at a time where they
// change the role (a lock sees to that); Follower's run on its own; Greet, Node.Copy and
// Refuses on readers and event loops.
//
// What it does not: it knows neither gnet nor package reactor, and it appends
// nothing other than through the ring.
package replication
