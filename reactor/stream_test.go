package reactor

import (
	"bytes"
	"math/rand/v2"
	"strconv"
	"testing"

	"smss/codec"
	"smss/engine"
)

// publish stores messages and waits for the replies.
func (c *fakeConn) publish(topic string, bodies ...string) {
	c.h.tb.Helper()
	for _, b := range bodies {
		c.put(reqPub(topic, b))
		c.ok()
	}
}

// push takes a push and checks the bodies in it.
func (c *fakeConn) push(bodies ...string) {
	c.h.tb.Helper()
	r := c.next(true)
	if r.code != codec.CodeOK || r.n != len(bodies) {
		c.h.tb.Fatalf("got %v, want a push of %q", r, bodies)
	}
	for _, want := range bodies {
		_, m, size, ok := codec.ParsePushed(r.push)
		if !ok {
			c.h.tb.Fatalf("push %x", r.push)
		}
		r.push = r.push[size:]
		if got, _, _ := codec.ParseMessage(m); string(got.Body) != want {
			c.h.tb.Fatalf("got message %q, want %q", got.Body, want)
		}
	}
}

func TestAcks(t *testing.T) {
	tests := map[string]struct {
		why  string // "" = stays open
		then []string
		act  func(c *fakeConn)
	}{
		"in one piece":       {then: []string{"b"}, act: func(c *fakeConn) { c.put(reqAck(0)) }},
		"in two":             {then: []string{"b"}, act: func(c *fakeConn) { c.split(reqAck(0), 1) }},
		"two in one segment": {why: "more input than one ack", act: func(c *fakeConn) { c.put(append(reqAck(0), reqAck(0)...)) }},
		"one and a half":     {why: "more input than one ack", act: func(c *fakeConn) { c.put(append(reqAck(0), 0)) }},
		"one and the other":  {why: "input while no ack is due", act: func(c *fakeConn) { c.put(reqAck(0)); c.put(reqAck(0)) }},
		"unknown":            {why: "unknown ack", act: func(c *fakeConn) { c.put(reqAck(2)) }},
		"unknown high byte":  {why: "unknown ack", act: func(c *fakeConn) { c.split([]byte{0, 1}, 1) }},
		"a request instead":  {why: "unknown ack", act: func(c *fakeConn) { c.put(reqAlive()) }},
		"the end and a request": {act: func(c *fakeConn) {
			c.put(append(reqAck(codec.AckEnd), reqAlive()...))
			c.want(codec.CodeAlive, "")
			c.put(reqSub("t", "w")) // the name is free, and the position the old one
			c.push("a", "b")
		}},
		"the end, then a request": {act: func(c *fakeConn) {
			c.put(reqAck(codec.AckEnd))
			c.nothing()
			c.alive()
		}},
	}
	for name, x := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, setup{})
			p := h.client("t")
			c := h.subscriber("t", "w")
			p.publish("t", "a")
			c.push("a")
			p.publish("t", "b")
			c.nothing() // one push at a time
			x.act(c)
			h.settle()
			if x.why != "" {
				c.wantClosed(x.why)
				again := h.open()
				again.put(reqSub("t", "w"))
				again.push("a", "b")
				return
			}
			c.wantOpen()
			if len(x.then) > 0 {
				c.push(x.then...)
			}
		})
	}
}

// TestInputBeforeAnyPush: a subscriber has nothing to say before its first
// push, whatever the server is doing meanwhile.
func TestInputBeforeAnyPush(t *testing.T) {
	h := newHarness(t, setup{})
	p := h.client("t")
	c := h.subscriber("t", "parked")
	c.put(reqAck(0))
	c.wantClosed("input while no ack is due")

	c = h.open()
	c.put(append(reqSub("t", "w"), reqAck(0)...))
	h.settle()
	c.wantClosed("input while no ack is due")

	p.publish("t", "a")
	gate := h.blockReaders()
	c = h.subscriber0("t", "w", locating)
	c.put(reqAck(0))
	c.wantOpen() // it may be a request that follows a refused SUB
	gate()
	h.settle()
	c.wantClosed("input while no ack is due")

	p.put(reqCreate("t2"))
	p.ok()
	c = h.subscriber("t2", "w")
	gate = h.blockReaders()
	p.put(reqPub("t2", "b"))
	h.until(func() bool { return c.session.state == reading })
	c.put(reqAck(0))
	c.wantClosed("input while no ack is due")
	gate()
	p.ok()
}

// subscriber0 opens a subscriber and waits for a state on the way.
func (h *harness) subscriber0(topic, who string, st state) *fakeConn {
	h.tb.Helper()
	c := h.open()
	c.put(reqSub(topic, who))
	h.until(func() bool { return c.session.state == st })
	return c
}

// TestRefusedSub: a connection whose SUB is refused goes on, with what it has
// sent behind the SUB as well.
func TestRefusedSub(t *testing.T) {
	h := newHarness(t, setup{})
	p := h.client("t")
	first := h.subscriber("t", "taken")
	tests := []struct {
		req  []byte
		text string
	}{
		{reqSub("missing", "w"), codec.TextTopicNotExist},
		{reqSub("t", "taken"), "taken" + codec.TextSubscriberExists},
		{reqSub("t", "a\nb"), "subscriber name must be UTF-8 without control characters"},
		{codec.AppendSub(nil, &codec.Subscription{Topic: "t", Who: "w", EventID: -1}), codec.TextEventNotFound},
	}
	c := h.open()
	for _, x := range tests {
		c.put(x.req)
		c.want(codec.CodeError, x.text)
		c.put(append(bytes.Clone(x.req), reqAlive()...))
		c.want(codec.CodeError, x.text)
		c.want(codec.CodeAlive, "")
	}
	c.nothing()
	p.publish("t", "a")
	first.push("a")
}

// TestTopicDeleted: whatever a subscriber is doing when its topic goes, it is
// told, and its connection can ask again.
func TestTopicDeleted(t *testing.T) {
	end := func(t *testing.T, h *harness, c *fakeConn) {
		t.Helper()
		if r := c.next(true); r.code != codec.CodeEnd {
			t.Fatalf("got %v, want 255", r)
		}
		c.nothing()
		c.alive()
		c.put(reqCreate("t"))
		c.ok()
		c.put(reqSub("t", "w"))
		h.until(func() bool { return c.session.state == parked })
	}
	t.Run("parked", func(t *testing.T) {
		h := newHarness(t, setup{})
		p := h.client("t")
		c, other := h.subscriber("t", "w"), h.subscriber("t", "other")
		p.put(reqDelete("t"))
		p.ok()
		end(t, h, c)
		if r := other.next(true); r.code != codec.CodeEnd {
			t.Errorf("the other subscriber got %v, want 255", r)
		}
	})
	t.Run("owing an ack", func(t *testing.T) {
		h := newHarness(t, setup{})
		p := h.client("t")
		c := h.subscriber("t", "w")
		p.publish("t", "a")
		c.push("a")
		p.put(reqDelete("t"))
		p.ok()
		c.nothing()
		c.put(reqAck(0))
		end(t, h, c)
	})
	t.Run("reading", func(t *testing.T) {
		h := newHarness(t, setup{})
		p := h.client("t")
		c := h.subscriber("t", "w")
		gate := h.blockReaders()
		p.publish("t", "a")
		h.until(func() bool { return c.session.state == reading })
		p.put(reqDelete("t"))
		p.ok()
		gate()
		end(t, h, c)
	})
	t.Run("locating", func(t *testing.T) {
		h := newHarness(t, setup{})
		p := h.client("t")
		gate := h.blockReaders()
		c := h.subscriber0("t", "w", locating)
		p.put(reqDelete("t"))
		p.ok()
		gate()
		end(t, h, c)
	})
	t.Run("attaching", func(t *testing.T) {
		h := newHarness(t, setup{})
		p := h.client("t")
		c := h.open()
		gate := h.blockReaders()
		c.put(reqSub("t", "w")) // before the deletion in the ring
		p.put(reqDelete("t"))
		p.ok()
		gate()
		end(t, h, c)
	})
	t.Run("attaching too late", func(t *testing.T) {
		h := newHarness(t, setup{hold: true})
		p, c := h.open(), h.open()
		p.put(append(reqCreate("t"), reqDelete("t")...))
		c.put(append(reqSub("t", "w"), reqAlive()...))
		h.release()
		p.ok()
		p.ok()
		c.want(codec.CodeError, codec.TextTopicNotExist)
		c.want(codec.CodeAlive, "")
	})
}

// TestNameIsFree: a subscriber that is gone leaves its name, wherever it was.
func TestNameIsFree(t *testing.T) {
	for name, way := range map[string]func(*fakeConn){"reset": (*fakeConn).hangUp, "half-close": (*fakeConn).halfClose} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, setup{})
			p := h.client("t")
			leave := func(c *fakeConn) {
				t.Helper()
				way(c)
				h.settle()
				if !c.session.gone() {
					t.Errorf("a subscriber lingers in state %d", c.session.state)
				}
			}
			c := h.open()
			c.put(reqSub("t", "w"))
			leave(c) // attaching
			leave(h.subscriber("t", "w"))

			gate := h.blockReaders()
			c = h.subscriber0("t", "w", locating)
			way(c)
			gate()
			leave(c)

			c = h.subscriber("t", "w")
			gate = h.blockReaders()
			p.publish("t", "a")
			h.until(func() bool { return c.session.state == reading })
			way(c)
			gate()
			leave(c)

			c = h.subscriber0("t", "w", awaitingAck)
			leave(c)

			c = h.open()
			c.put(reqSub("t", "w"))
			c.push("a")
		})
	}
}

// TestManySubscribers: all subscribers of a topic get everything, in order,
// while others acknowledge sooner or later than they.
func TestManySubscribers(t *testing.T) {
	h := newHarness(t, setup{engine: func(c *engine.Config) { c.RingSize = 4 }})
	p := h.client("t")
	const subscribers, messages = 20, 60
	var subs [subscribers]*fakeConn
	var next [subscribers]int
	for i := range subs {
		subs[i] = h.subscriber("t", string(rune('a'+i)))
	}
	random := rand.New(rand.NewPCG(5, 6))
	for sent, done := 0, 0; done < subscribers; {
		if sent < messages && random.IntN(4) == 0 {
			p.put(reqPub("t", strconv.Itoa(sent)))
			sent++
		}
		i := random.IntN(subscribers)
		if next[i] == messages || (len(subs[i].sent) == 0 && sent < messages) {
			h.el.runAll()
			continue
		}
		r := subs[i].next(true)
		for range r.n {
			_, m, size, _ := codec.ParsePushed(r.push)
			r.push = r.push[size:]
			if got, _, _ := codec.ParseMessage(m); string(got.Body) != strconv.Itoa(next[i]) {
				t.Fatalf("subscriber %d got %q instead of %d", i, got.Body, next[i])
			}
			next[i]++
		}
		subs[i].put(reqAck(0))
		if next[i] == messages {
			done++
		}
	}
	for range messages {
		p.ok()
	}
	for _, c := range subs {
		c.nothing()
	}
}
