// Package bench is the load generator of smss: `smss bench MODE`.
//
// It answers one question, how much a server of this protocol does on this
// machine, and takes care that the generator is not what is measured:
//
//   - a handful of event loops over raw non-blocking sockets, no goroutine per
//     connection (loop.go says what was compared);
//   - requests are prebuilt, or one template is patched; nothing is allocated
//     per request or message;
//   - latencies go into one HDR histogram per loop, merged at the end;
//   - CPU of generator and server are reported apart, so that a run whose
//     generator was the limit shows itself.
//
// There are three kinds of loops. loop is a closed loop of equal requests:
// each connection keeps a fixed number in flight, and latency runs from just
// before a request is handed to the socket until its reply has been read.
// publisher sends messages that carry their time; with a rate it is an open
// loop, whose latencies count from when a request was due, so that a server
// that stalls cannot hide what it delays (coordinated omission). receiver
// follows subscribers' pushes and checks the order of their event ids.
//
// Absolute figures of a shared machine are noise. What holds is a comparison
// in one run: a plan (plan.go) measures every case on every server in every
// round, alternately, each time in a new process on an empty directory. The
// yardstick is the bare server (bare.go), an event loop of the same library
// that reads the same frames, stores nothing and answers; or any other binary
// (-against); or the same server at another flush level, or with replies that
// wait for a slave.
//
// A mode is one file: it names its cases and fills results, which are all of
// one form (report.go): figures by the key of their quantity (quantity.go),
// distributions, and a course. Summaries, ratios, tables, JSON, the page with
// its plots, the targets (targets.go) and BENCHMARKS.md (document.go) are made
// from them alone.
package bench
