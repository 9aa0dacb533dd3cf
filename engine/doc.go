// Package engine is the server without its sockets: the ring and the writer
// behind it, the topic catalog, the lists of waiting subscribers, the readers,
// the scheduler of delays and lifetimes, and the janitor.
//
// Mutations travel through the ring, reads travel through atomics, results
// travel through mailboxes. ORDER.md says who owns what, in which order things
// happen, and which interleaving each order prevents.
//
// Goroutines, and what of the exported API they may call:
//
//   - event loops (of package reactor): Push, Lookup, Park, Unpark, Detach,
//     Read, Mailbox.Drain and the command pool of their own lane;
//   - the writer, the syncer, the checkpointer, the readers, the scheduler and
//     the janitor: started by Start, ended by Stop, internal;
//   - anybody: Stats, Healthy.
//
// It promises: who got its 200 and then subscribes finds its message; at flush
// level 2 nobody sees what a power cut could take back; a parked subscription
// is woken by every later message of its topic; no call of an event loop
// blocks.
//
// It does not know sockets: what it has to say to a connection leaves through
// the mailbox of the connection's event loop. Clock and file system are
// injected, and the writer can be stepped by hand (see Step).
package engine
