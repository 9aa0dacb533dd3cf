package reactor

import (
	"bytes"
	"math"
	"strconv"
	"testing"
	"time"

	"smss/codec"
	"smss/engine"
)

func TestAckTimeout(t *testing.T) {
	tests := map[string]struct{ asked, held time.Duration }{
		"default":  {0, defaultAckTimeout},
		"negative": {-1, defaultAckTimeout},
		"1 s":      {time.Second, time.Second},
		"10 ms":    {10 * time.Millisecond, 10 * time.Millisecond},
		"an hour":  {time.Hour, time.Hour},
	}
	for name, x := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, setup{})
			p := h.client("t")
			sub := reqSubAck("t", "w", 1)
			for i := range 8 { // AppendSub leaves a timeout out that is not positive
				sub[codec.RequestHeaderSize+1+8+i] = byte(x.asked >> (8 * i))
			}
			c := h.open()
			c.put(sub)
			h.settle()
			h.advance(10 * time.Minute) // only a push starts the time
			p.publish("t", "a")
			h.settle()
			h.advance(x.held - time.Millisecond)
			c.wantOpen()
			h.advance(slotEvery + time.Millisecond)
			c.wantClosed("no ack in time")
			again := h.open()
			again.put(reqSub("t", "w"))
			again.push("a")
		})
	}
	t.Run("the longest", func(t *testing.T) {
		h := newHarness(t, setup{})
		p := h.client("t")
		c := h.open()
		c.put(reqSubAck("t", "w", math.MaxInt64))
		p.publish("t", "a")
		c.push("a")
		h.advance(24 * time.Hour)
		c.wantOpen()
		c.put(reqAck(0))
		h.client().publish("t", "b")
		c.push("b")
	})
	t.Run("each push anew", func(t *testing.T) {
		h := newHarness(t, setup{})
		p := h.client("t")
		c := h.open()
		c.put(reqSubAck("t", "w", time.Second))
		for range 10 {
			p.publish("t", "a")
			c.push("a")
			h.advance(900 * time.Millisecond)
			c.put(reqAck(0))
		}
		p.publish("t", "a")
		c.push("a")
		h.advance(1100 * time.Millisecond)
		c.wantClosed("no ack in time")
	})
}

func TestFrameTimeout(t *testing.T) {
	h := newHarness(t, setup{})
	p := h.client("t")
	req := reqPub("t", string(make([]byte, 1000)))
	drip := h.open()
	for i := range 29 {
		drip.put(req[i : i+1])
		h.advance(time.Second)
	}
	drip.wantOpen()
	h.advance(time.Second)
	drip.put(req[29:30]) // gains no time
	h.advance(slotEvery)
	drip.wantClosed("request not complete within limits.frameTimeoutMs")

	// Each request has the time for itself.
	slow := h.open()
	for range 10 {
		slow.put(reqAlive()[:10])
		h.advance(25 * time.Second)
		slow.put(append(reqAlive()[10:], reqAlive()[:10]...))
		slow.want(codec.CodeAlive, "")
		h.advance(25 * time.Second)
		slow.put(reqAlive()[10:])
		slow.want(codec.CodeAlive, "")
	}

	// A large one has as much more as its size takes at a slow rate.
	large := h.open()
	req = reqPub("t", string(make([]byte, 900<<10)))
	for i := 0; i < len(req); i += 20 << 10 {
		large.put(req[i:min(i+20<<10, len(req))])
		h.advance(time.Second)
	}
	large.wantOpen()
	large.ok()
	p.wantOpen()
}

// TestWaitingIsNotLate: a peer is not late with what the server makes wait.
func TestWaitingIsNotLate(t *testing.T) {
	h := newHarness(t, setup{hold: true, engine: func(c *engine.Config) { c.RingSize = 2 }, cfg: func(c *Config) {
		c.IdleTimeout, c.Window = time.Minute, 2
	}})
	barrier, window, queued := h.open(), h.open(), h.open()
	barrier.put(append(reqPub("t", "m"), reqAlive()...))
	window.put(bytes.Repeat(reqPub("t", "m"), 3))
	queued.put(reqPub("t", "m"))
	runs := h.el.runs
	h.advance(time.Hour)
	if n := h.el.runs - runs; n > 10 {
		t.Errorf("the loop was woken %d times in an hour of waiting", n)
	}
	for _, c := range h.conns {
		c.wantOpen()
	}
	h.release()
	for i, c := range []*fakeConn{barrier, window, window, window, queued} {
		if r := c.next(false); r.text != codec.TextTopicNotExist {
			t.Errorf("reply %d is %v", i, r)
		}
	}
	barrier.want(codec.CodeAlive, "")
}

func TestIdleTimeout(t *testing.T) {
	h := newHarness(t, setup{cfg: func(c *Config) { c.IdleTimeout = 10 * time.Minute }})
	p := h.client("t")
	quiet, busy := h.open(), h.open()
	sub := h.subscriber("t", "w")
	for range 20 {
		h.advance(time.Minute / 2)
		busy.alive()
	}
	h.advance(slotEvery)
	quiet.wantClosed("nothing asked for limits.idleTimeoutMs")
	if !p.closed {
		t.Error("the publisher is still open")
	}
	busy.alive()
	h.advance(time.Hour)
	if !busy.closed {
		t.Error("the busy one is still open")
	}
	sub.wantOpen()

	h = newHarness(t, setup{cfg: func(c *Config) { c.IdleTimeout = 0 }})
	c := h.open()
	h.advance(100 * 24 * time.Hour)
	c.alive()
}

// TestHeartbeats: each subscriber hears once in an interval, never later than
// it and at most a 32nd part earlier; a push starts the interval anew; and
// the number of wake-ups does not grow with the number of subscribers.
func TestHeartbeats(t *testing.T) {
	const every = 30 * time.Second
	h := newHarness(t, setup{})
	p := h.client("t", "other")
	var subs []*fakeConn
	heard := map[*fakeConn]int64{}
	for i := range 200 {
		topic := "t"
		if i == 0 {
			topic = "other"
		}
		c := h.subscriber(topic, strconv.Itoa(i))
		subs = append(subs, c)
		heard[c] = h.now
		h.advance(every / 200)
	}
	runs, beats := h.el.runs, 0
	const grain = 10 * time.Millisecond
	for range 5 * every / grain {
		h.advance(grain)
		for _, c := range subs {
			if len(c.sent) == 0 {
				continue
			}
			if r := c.next(true); r.code != codec.CodeAlive {
				t.Fatalf("got %v, want 201", r)
			}
			beats++
			if gap := time.Duration(h.now - heard[c]); gap > every+grain || gap < every-every/beatsTogether-grain {
				t.Fatalf("%v between two heartbeats", gap)
			}
			heard[c] = h.now
		}
	}
	if n := h.el.runs - runs; n > 5*(beatsTogether+1) {
		t.Errorf("%d wake-ups in 5 intervals", n)
	}
	if beats < 5*200 {
		t.Errorf("%d heartbeats in 5 intervals", beats)
	}
	h.advance(every / 2)
	for _, c := range subs {
		c.sent = nil
	}
	p.publish("other", "m")
	subs[0].push("m")
	subs[0].put(reqAck(0))
	h.settle()
	h.advance(every - every/beatsTogether - grain)
	subs[0].nothing()
	h.advance(every/beatsTogether + grain)
	subs[0].want(codec.CodeAlive, "")
}

// TestIdleCostsNothing: a loop is not woken for connections that wait.
func TestIdleCostsNothing(t *testing.T) {
	h := newHarness(t, setup{})
	h.client("t")
	for i := range 500 {
		h.open()
		if i%2 == 0 {
			h.subscriber("t", strconv.Itoa(i))
		}
		h.advance(7 * time.Millisecond)
	}
	runs := h.el.runs
	h.advance(20 * time.Minute)
	// Heartbeats: 32 an interval at most. Idle timeouts are looked at when
	// their slots on the horizon come, each 64 slots at most.
	most := 40*(beatsTogether+1) + int(20*time.Minute/(farSlots*slotEvery)) + 2
	if n := h.el.runs - runs; n > most {
		t.Errorf("woken %d times in 20 minutes, want at most %d", n, most)
	}
}

func TestWriteTimeout(t *testing.T) {
	const why = "no progress in sending for timeout.net.write"
	start := func(t *testing.T) (*harness, *fakeConn) {
		h := newHarness(t, setup{})
		p := h.client("t")
		c := h.open()
		c.room = 100
		c.put(reqSubAck("t", "w", time.Second))
		p.publish("t", string(make([]byte, 10000)))
		h.until(func() bool { return len(c.buffer) > 0 })
		return h, c
	}
	t.Run("never drains", func(t *testing.T) {
		h, c := start(t)
		h.advance(5*time.Second - time.Millisecond) // the ack is not due while the push is not sent
		c.wantOpen()
		h.advance(slotEvery + time.Millisecond)
		c.wantClosed(why)
		again := h.open()
		again.put(reqSub("t", "w"))
		if r := again.next(true); r.n != 1 {
			t.Errorf("got %v", r)
		}
	})
	t.Run("drains slowly, then no ack", func(t *testing.T) {
		h, c := start(t)
		for range 30 {
			h.advance(4 * time.Second)
			c.drain(1)
		}
		c.wantOpen()
		c.room = -1
		c.drain(0)
		h.advance(time.Second - slotEvery)
		c.wantOpen()
		h.advance(3 * slotEvery)
		c.wantClosed("no ack in time")
	})
	t.Run("drains, then the ack", func(t *testing.T) {
		h, c := start(t)
		h.advance(4 * time.Second)
		c.room = -1
		c.drain(0)
		c.put(reqAck(0))
		h.settle()
		h.advance(20 * time.Second)
		c.wantOpen()
	})
	t.Run("stops draining", func(t *testing.T) {
		h, c := start(t)
		h.advance(4 * time.Second)
		c.drain(10)
		h.advance(4 * time.Second)
		c.wantOpen()
		h.advance(6*time.Second + 2*slotEvery)
		c.wantClosed(why)
	})
	t.Run("as many replies as are read", func(t *testing.T) {
		h := newHarness(t, setup{})
		c := h.open()
		c.room = 0
		c.put(bytes.Repeat(reqAlive(), 10))
		for range 60 {
			h.advance(time.Second)
			c.put(reqAlive())
			c.drain(10)
		}
		c.wantOpen()
		c.put(reqAlive())
		h.advance(10*time.Second + 2*slotEvery)
		c.wantClosed(why)
	})
	t.Run("choked", func(t *testing.T) {
		h := newHarness(t, setup{cfg: func(c *Config) { c.MaxOutbound = 50 }})
		c := h.open()
		c.room = 0
		c.put(bytes.Repeat(reqAlive(), 10))
		c.put(reqAlive())
		for range 5 {
			h.advance(4 * time.Second)
			c.drain(10)
		}
		c.wantOpen()
		h.advance(10*time.Second + 2*slotEvery)
		c.wantClosed(why)
	})
}
