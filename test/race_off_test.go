//go:build !race

package test

// raceEnabled says whether the test itself was built with the race detector.
const raceEnabled = false
