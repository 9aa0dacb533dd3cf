// Package client is the Go client of smss: publishing, topics, subscribing.
//
// # Connections
//
// [Dial] gives a [Conn], on which one request waits for its reply before the
// next is sent; [Conn.Pipeline] keeps several on their way. [Pool] lends
// connections to any number of goroutines. A connection on which anything but
// a whole reply happened (a timeout, a cut, bytes that make no sense) is
// broken for good: every later call on it fails with [ErrBroken], because a
// late reply would be taken for the answer to another question.
//
// # Subscriptions
//
// [Subscribe] gives a [Subscriber]: take a batch with Next, consume it,
// acknowledge it with Ack. The server keeps no position: whoever wants to go
// on after a restart remembers the event id of the last message that it
// consumed. [Consume] runs that loop, reconnects, and goes on behind the last
// acknowledged message. Delivery is at least once and in order.
//
// # Errors
//
//   - [*ServerError]: the server refused the request; the connection goes on.
//   - [ErrBroken]: the connection is lost. Whether the server carried the
//     request out is not known: publishing again may publish twice.
//   - [ErrTraceTooLong], [ErrEmptyMessage] and their like: refused here,
//     nothing was sent.
//   - [ErrEnded], [ErrSilent]: how subscriptions end.
//
// # Goroutines
//
// A Conn, its Pipeline and a Subscriber belong to one goroutine at a time,
// apart from Close, which any goroutine may call at any time. A Pool may be
// used by any number of goroutines.
package client
