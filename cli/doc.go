// Package cli is the command-line client that the server's binary carries:
// smss ping, topic, pub, sub, verify, dump and help. Main hands a command line whose first
// word is one of Names to Run and exits with what it returns.
//
// Exit codes: 0 done, 1 it failed (one line on standard error says what, where
// and what to do), 2 the command line makes no sense (a message and the usage
// on standard error).
package cli
