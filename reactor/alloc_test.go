package reactor

import (
	"runtime"
	"testing"
	"unsafe"

	"smss/engine"
)

// TestPublishAllocates: a small publish costs no allocation on the event loop,
// neither on its way to the ring nor on that of its reply.
func TestPublishAllocates(t *testing.T) {
	const conns, requests = 10, 40
	h := newHarness(t, setup{engine: func(c *engine.Config) { c.RingSize = conns * requests }})
	h.client("t")
	for range conns {
		h.open()
	}
	one := reqPub("t", string(make([]byte, 200)))
	var in []byte
	for range requests / 2 {
		in = append(in, one...)
	}
	read := make([]byte, len(in))
	mallocs := func(f func()) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		return after.Mallocs - before.Mallocs
	}
	push, reply := uint64(1<<60), uint64(1<<60)
	for range 50 {
		// The writer allocates at its own times, so the least of all rounds
		// is what the loop does.
		want := h.e.Stats().Published + conns*requests
		push = min(push, mallocs(func() {
			for _, c := range h.conns[1:] {
				for range 2 {
					c.in = read[:copy(read, in)]
					h.r.OnTraffic(c)
				}
			}
			h.r.loops[0].release() // as at the end of gnet's turn
		}))
		for h.e.Stats().Published < want {
			runtime.Gosched()
		}
		reply = min(reply, mallocs(func() { h.until(h.idle) }))
		for _, c := range h.conns {
			c.sent = c.sent[:0]
		}
	}
	t.Logf("%d and %d allocations for %d requests", push, reply, conns*requests)
	if most := uint64(conns * requests / 20); push > most || reply > most {
		t.Errorf("%d and %d allocations for %d requests", push, reply, conns*requests)
	}
}

// TestSessionSize: the size is memory for each idle connection.
func TestSessionSize(t *testing.T) {
	const most = 288 // the allocator's size class
	n := unsafe.Sizeof(session{})
	t.Logf("a session takes %d bytes", n)
	if n > most {
		t.Errorf("a session takes %d bytes, want at most %d", n, most)
	}
}
