//go:build race

package test

// raceEnabled makes the suite build the server with the race detector too.
const raceEnabled = true
