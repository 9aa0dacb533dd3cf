package replication

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff says how long to wait before another attempt: longer each time, up to
// a limit, and by chance up to half of it less, so that slaves which have lost
// their master together do not come back all at once.
type backoff struct {
	first, max time.Duration
	last       time.Duration // 0 = there was none
}

// next returns the next pause.
func (b *backoff) next() time.Duration {
	b.last = min(max(2*b.last, b.first), b.max)
	return b.last - rand.N(b.last/2+1)
}

// reset begins with short pauses again.
func (b *backoff) reset() { b.last = 0 }

// toMax makes the next pauses as long as they get.
func (b *backoff) toMax() { b.last = b.max }

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
