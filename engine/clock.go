package engine

import "time"

// Clock tells the time of day. It may step in both directions; nothing in the
// engine sleeps until a time of day.
type Clock interface{ NowMs() int64 }

// WallClock is the machine's clock.
type WallClock struct{}

// NowMs returns Unix milliseconds.
func (WallClock) NowMs() int64 { return time.Now().UnixMilli() }
