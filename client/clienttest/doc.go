// Package clienttest plays the server in tests of clients: a loopback
// listener whose connections follow scripts, in bytes. It knows the grammar
// and nothing of a server's behaviour.
//
// A script runs on a goroutine of its own, one for each connection, and says
// in order what it expects and what it answers; an expectation that fails
// fails the test and ends the script. Everything is closed and waited for when
// the test ends.
package clienttest
