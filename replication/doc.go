// Package replication will hold both ends of the link between a master and its
// slaves. It holds nothing yet: this version answers REPLICA like an unknown
// command ("don't support action", with the request's body consumed, so that
// the connection goes on), and a start with -role slave is refused before the
// data directory is opened.
//
// What it will own:
//
//   - the feed of a master: from a position in the binlog to records that are
//     ready to send, byte for byte as they stand in the file, each checked
//     against its checksum before it leaves. It starts behind any event id,
//     also one in the middle of a batch, and holds a bounded amount of memory
//     for a slave that is slow;
//   - the follower of a slave: one goroutine that reads records from the
//     master and pushes them through the engine's ring with the master's ids
//     and times, many of them under way at once.
//
// What it will promise:
//
//   - a slave's position moves when an event is durably applied, and by
//     nothing else: an event that cannot be read or applied is tried again,
//     neither skipped nor a reason to begin anew;
//   - delays and lifetimes on a slave follow the master's events and not the
//     slave's clock; its subscribers are told of a deletion like those of the
//     master;
//   - a master that is silent for two heartbeat intervals is taken for lost, a
//     slave that makes no progress is let go, and reconnecting, the first time
//     included, pauses longer each time;
//   - two histories that have parted are never joined: an epoch, drawn at each
//     promotion, tells them apart. Existing servers have none and are taken as
//     they are.
//
// What it will not do: it knows neither gnet nor package reactor, it starts no
// goroutine for each slave (the event loops send what the feed has prepared),
// and it appends nothing other than through the ring.
package replication
