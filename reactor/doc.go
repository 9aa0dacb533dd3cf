// Package reactor is the server's sockets: it accepts connections, frames the
// protocol on gnet's event loops without a goroutine per connection, pushes
// commands onto the engine's ring, and answers when they come back.
//
// A session is one connection's state machine and belongs to its event loop:
// everything in it is touched on that loop only, without locks. A loop has a
// mailbox for what comes back from the engine, a list of sessions that wait
// for room in the ring, a timing wheel, and a queue of heartbeats. It sleeps
// until input, the engine, or the next thing that is due wakes it: an idle
// connection costs no wake-ups.
//
// It opens no files, computes no ids and never blocks a loop: whatever reads a
// file or takes long goes to the engine's readers.
//
// Connections are accepted by a goroutine of this package and then handed to
// gnet's loops. gnet's own acceptor ends the whole engine when the process runs
// out of descriptors; this one waits and goes on.
package reactor
