package reactor

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"testing"

	"smss/codec"
)

// TestLargeInSmallPieces: neither a large request in small pieces nor a long
// queue of small requests is copied again and again.
func TestLargeInSmallPieces(t *testing.T) {
	const size = 20 << 20
	h := newHarness(t, setup{cfg: func(c *Config) {
		c.Codec.MaxMessageSize, c.MaxUnread, c.MaxInput = size+100, size, 2*size
	}})
	c := h.open()
	one := codec.AppendError(nil, codec.TextTopicNotExist)
	large := reqPub("missing", string(make([]byte, size)))
	many := bytes.Repeat(reqPub("missing", "m"), 1<<17) // 5 MiB, in 2,048 windows
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	feed := func(b []byte, piece int) {
		for len(b) > 0 {
			n := min(piece, len(b))
			c.in = b[:n]
			h.r.OnTraffic(c)
			b = b[n:]
		}
	}
	feed(large, 1<<10)
	c.take(len(one))
	feed(many, 64<<10)
	if got := c.take(len(one) << 17); !bytes.Equal(got, bytes.Repeat(one, 1<<17)) {
		t.Error("wrong replies")
	}
	runtime.ReadMemStats(&after)
	// Doubling takes twice the size, the command has a copy, and there are the
	// replies. A copy for each window takes gigabytes.
	if got, most := after.TotalAlloc-before.TotalAlloc, uint64(8*(size+len(many))); got > most {
		t.Errorf("%d MiB were allocated for %d MiB of input", got>>20, (size+len(many))>>20)
	}
}

// TestDrop: what is behind the dropped bytes stays what it was, is moved
// seldom, and does not keep much more memory than it needs.
func TestDrop(t *testing.T) {
	h := newHarness(t, setup{})
	c := h.open()
	s := c.session
	const size = 1 << 18
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(i * 7 >> 3)
	}
	s.keep(want)
	moved, random := 0, rand.New(rand.NewPCG(3, 4))
	for s.waits() > 0 {
		n := min(1+random.IntN(50), s.waits())
		before := s.at
		s.drop(n)
		want = want[n:]
		if s.at != before+n {
			moved += s.waits()
		}
		if !bytes.Equal(s.in[s.at:], want) {
			t.Fatalf("wrong bytes with %d left", len(want))
		}
		if got := h.r.input.Load(); got != int64(len(want)) {
			t.Fatalf("%d bytes are charged for %d", got, len(want))
		}
		if cap(s.in) > max(9*len(want), 2*inKeep) {
			t.Fatalf("a buffer of %d bytes holds %d", cap(s.in), len(want))
		}
		if moved > 2*size {
			t.Fatalf("%d bytes were moved to drop %d", moved, size-len(want))
		}
	}
}
