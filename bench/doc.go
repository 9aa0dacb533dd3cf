// Package bench is the load generator of smss: `smss bench MODE`.
//
// It answers one question, how much a server of this protocol does on this
// machine, and takes care that the generator is not what is measured:
//
//   - a handful of event loops over raw non-blocking sockets, one by default
//     for each two processors, no goroutine per connection (generator.go says
//     what was compared);
//   - requests are prebuilt once; nothing is allocated per request;
//   - latencies go into one HDR histogram per loop, merged at the end;
//   - CPU of generator and server are reported apart, so that a run whose
//     generator was the limit shows itself.
//
// Load is a closed loop: each connection keeps a fixed number of requests in
// flight and sends the next when a reply has come. Latency runs from just
// before a request is handed to the socket until its reply has been read, so
// that with many connections it includes the time the reply waits for its
// turn in the generator.
//
// Absolute figures of a shared machine are noise. The comparison that holds
// is with the bare server (bare.go): an event loop of the same library that
// reads the same frames, stores nothing and answers. `smss bench limit
// -compare` measures both alternately in one run and prints the ratios.
//
// A mode is one file: it builds a workload, runs the generator over it and
// fills a Report, which is what the table and the JSON are written from.
package bench
