package test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// pushed is one message of a push.
type pushed struct {
	ts, id, file, pos int64
	raw               []byte // as published: both counts, headers, body
	headers           [][2]string
	body              string
}

// frame is what the server sends in stream mode.
type frame struct {
	code int
	text string
	msgs []pushed
	size int // of all that follows a push header
}

// frame reads the next frame in stream mode strictly.
func (c *client) frame() (frame, error) {
	h, err := c.full(10)
	if err != nil {
		return frame{}, err
	}
	f := frame{code: int(binary.LittleEndian.Uint16(h))}
	switch f.code {
	case codeAlive, codeEnd:
		if !zero(h[2:]) {
			return f, fmt.Errorf("frame % x: %w", h, errNotZero)
		}
		return f, nil
	case codeError:
		f.text, err = c.errorText(h)
		return f, err
	case codeDone:
	default:
		return f, fmt.Errorf("frame % x: unknown code", h)
	}
	n := int(h[2])
	f.size = int(binary.LittleEndian.Uint32(h[4:]))
	if n == 0 || h[3] != 0 || !zero(h[8:]) || f.size > 1<<30 {
		return f, fmt.Errorf("push header % x", h)
	}
	b, err := c.full(f.size)
	if err != nil {
		return f, err
	}
	for range n {
		var m pushed
		if m, b, err = parsePushed(b); err != nil {
			return f, err
		}
		f.msgs = append(f.msgs, m)
	}
	if len(b) != 0 {
		return f, fmt.Errorf("push of %d messages has %d bytes left over", n, len(b))
	}
	return f, nil
}

var errShortPush = errors.New("a message reaches over the end of its push")

// parsePushed takes one message off the front of a push.
func parsePushed(b []byte) (pushed, []byte, error) {
	if len(b) < 40 {
		return pushed{}, nil, errShortPush
	}
	i64 := func(at int) int64 { return int64(binary.LittleEndian.Uint64(b[at:])) }
	m := pushed{ts: i64(0), id: i64(8), file: i64(16), pos: i64(24)}
	size := int(binary.LittleEndian.Uint32(b[32:]))
	if size == 0 || len(b) < 40+size {
		return m, nil, errShortPush
	}
	m.raw = b[32 : 40+size]
	content, rest := b[40:40+size], b[40+size:]
	text := func() (string, error) {
		if len(content) < 4 {
			return "", errShortPush
		}
		n := binary.LittleEndian.Uint32(content)
		if uint64(n) > uint64(len(content)-4) {
			return "", errShortPush
		}
		s := string(content[4 : 4+n])
		content = content[4+n:]
		return s, nil
	}
	for range binary.LittleEndian.Uint32(b[36:]) {
		key, err := text()
		if err != nil {
			return m, nil, err
		}
		value, err := text()
		if err != nil {
			return m, nil, err
		}
		m.headers = append(m.headers, [2]string{key, value})
	}
	m.body = string(content)
	return m, rest, nil
}

// push reads a push, over heartbeats, and fails on anything else.
func (c *client) push() []pushed {
	c.t.Helper()
	for {
		f, err := c.frame()
		if err != nil {
			c.t.Fatalf("waiting for a push: %v", err)
		}
		switch f.code {
		case codeAlive:
		case codeDone:
			return f.msgs
		default:
			c.t.Fatalf("waiting for a push: %d %s", f.code, f.text)
		}
	}
}

// one reads a push that must hold exactly this one body.
func (c *client) one(body string) pushed {
	c.t.Helper()
	msgs := c.push()
	if len(msgs) != 1 || msgs[0].body != body {
		c.t.Fatalf("pushed %s, want %q alone", bodies(msgs), body)
	}
	return msgs[0]
}

// end reads 255, over heartbeats.
func (c *client) end() {
	c.t.Helper()
	for {
		f, err := c.frame()
		if err != nil {
			c.t.Fatalf("waiting for 255: %v", err)
		}
		if f.code == codeEnd {
			return
		}
		if f.code != codeAlive {
			c.t.Fatalf("waiting for 255: %d %s %s", f.code, f.text, bodies(f.msgs))
		}
	}
}

var (
	ackNext = []byte{0, 0}
	ackLast = []byte{1, 0}
)

// sub sends SUB without reading what comes.
func (c *client) sub(o sub) {
	c.t.Helper()
	c.send(o.request())
}

// bodies abbreviates the bodies of messages for an error text.
func bodies(msgs []pushed) string {
	var b strings.Builder
	for i, m := range msgs {
		if i == 20 {
			fmt.Fprintf(&b, " … %d in all", len(msgs))
			break
		}
		fmt.Fprintf(&b, " %d:%.24q", m.id, m.body)
	}
	return "[" + strings.TrimSpace(b.String()) + "]"
}

// names gives each reader of the suite a name of its own.
var names atomic.Int64

// readUntil subscribes to a topic after event id from and reads until done
// says so, then ends the subscription by the last acknowledgement. The ids
// must rise.
func readUntil(addr, topic string, from int64, batch byte, done func(all []pushed) bool) ([]pushed, error) {
	c, err := dialErr(addr)
	if err != nil {
		return nil, err
	}
	defer c.close()
	who := fmt.Sprintf("reader-%d", names.Add(1))
	if err := c.write(sub{topic: topic, who: who, from: from, batch: batch}.request()); err != nil {
		return nil, err
	}
	var all []pushed
	last := from
	for !done(all) {
		f, err := c.frame()
		if err != nil {
			return all, fmt.Errorf("after %s: %w", bodies(all), err)
		}
		switch f.code {
		case codeAlive:
			continue
		case codeDone:
		default:
			return all, fmt.Errorf("after %s: %d %s", bodies(all), f.code, f.text)
		}
		for _, m := range f.msgs {
			if m.id <= last {
				return all, fmt.Errorf("event id %d after %d", m.id, last)
			}
			last = m.id
		}
		all = append(all, f.msgs...)
		ack := ackNext
		if done(all) {
			ack = ackLast
		}
		if err := c.write(ack); err != nil {
			return all, err
		}
	}
	return all, nil
}

// read returns the next n messages after event id from.
func read(t testing.TB, s *server, topic string, from int64, n int) []pushed {
	t.Helper()
	all, err := readUntil(s.addr(), topic, from, 255, func(all []pushed) bool { return len(all) >= n })
	if err != nil {
		t.Fatalf("read %q: %v", topic, err)
	}
	return all[:n] // the last push may have held more
}

// drain returns every message of a topic: it publishes a mark and reads until
// the mark arrives. Marks of earlier drains are left out too.
func drain(t testing.TB, s *server, topic string) []pushed {
	t.Helper()
	const prefix = "drain-mark-"
	mark := fmt.Sprintf("%s%d", prefix, names.Add(1))
	c, err := dialErr(s.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if err := c.doOK(reqPub(topic, message(mark))); err != nil {
		t.Fatalf("publish a mark to %q: %v", topic, err)
	}
	all, err := readUntil(s.addr(), topic, 0, 255, func(all []pushed) bool {
		// A delayed message may have been stored behind the mark.
		return slices.ContainsFunc(all, func(m pushed) bool { return m.body == mark })
	})
	if err != nil {
		t.Fatalf("drain %q: %v", topic, err)
	}
	kept := all[:0]
	for _, m := range all {
		if !strings.HasPrefix(m.body, prefix) {
			kept = append(kept, m)
		}
	}
	return kept
}

// wantBodies checks messages against the expected bodies in order.
func wantBodies(t testing.TB, got []pushed, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d messages %s, want %d %.60q", len(got), bodies(got), len(want), want)
	}
	for i, m := range got {
		if m.body != want[i] {
			t.Fatalf("message %d is %.40q, want %.40q", i, m.body, want[i])
		}
	}
}
