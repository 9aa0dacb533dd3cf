// Package codec holds the grammar of everything that crosses the wire:
// requests, replies, pushes, the messages inside a payload, and the binlog
// records that replication sends verbatim. WIRE.md beside this file has the
// byte tables.
//
// It is pure: functions over byte slices, with no I/O, clock, goroutine or
// logging, callable from any goroutine. Parsing never allocates and never
// believes a length: every length is compared with its limit before it is
// returned, and with the bytes at hand before it is used. Results of parsing
// alias the input and are valid only as long as the input is.
//
// Errors come in three kinds, told apart by type, never by text:
//
//   - ErrShort: the input is a strict prefix of a valid request; read more.
//   - *RequestError: the request is refused; answer with its text, skip the
//     bytes that belong to it, and go on with the next request.
//   - *FrameError: the stream cannot be trusted any more; answer with its
//     text and close.
package codec
