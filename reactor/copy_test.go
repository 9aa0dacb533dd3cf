package reactor

import (
	"bytes"
	"net"
	"testing"
	"time"

	"smss/codec"
	"smss/engine"
)

func reqCopy(t *testing.T, q *codec.CopyRequest) []byte {
	t.Helper()
	b, err := codec.AppendCopy(nil, "", q)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// newCopied sets a harness up for copies: each answer is the request, size
// bytes of it, or an error where that says so.
func newCopied(t *testing.T, size int, change func(*Replication)) *harness {
	return newFeeder(t, func(r *Replication) {
		r.Copy = func(r *engine.Read) {
			if bytes.Contains(r.Link.Hello, []byte(`"file":13`)) {
				r.Err = &engine.Refusal{Text: "unlucky"}
				return
			}
			r.Text = codec.AppendJSON(nil, append(r.Link.Hello, make([]byte, size)...))
		}
		if change != nil {
			change(r)
		}
	})
}

func TestCopyParts(t *testing.T) {
	h := newCopied(t, 0, nil)
	c := h.open()
	first := reqCopy(t, &codec.CopyRequest{})
	topics := reqCopy(t, &codec.CopyRequest{Ask: codec.AskTopics, EventID: 7})
	bad := reqCopy(t, &codec.CopyRequest{Ask: codec.AskTopics, File: 13})
	// Many at once, one of them in two pieces: the answers come in order, among
	// others'.
	c.put(bytes.Join([][]byte{first, topics, reqAlive(), bad, topics[:9]}, nil))
	c.ok()
	c.want(codec.CodeOK, `{"ask":"topics","event":7}`)
	c.want(codec.CodeAlive, "")
	c.want(codec.CodeError, "unlucky")
	c.put(topics[9:])
	c.want(codec.CodeOK, `{"ask":"topics","event":7}`)
	c.alive()
}

func TestCopyRefused(t *testing.T) {
	for text, change := range map[string]func(*Replication){
		codec.TextUnknownCommand: func(r *Replication) { r.Copy = nil },
		"not you":                func(r *Replication) { r.Refuses = func(net.Addr) string { return "not you" } },
		"too many copies at the same time, see replication.maxSlaves": func(r *Replication) { r.MaxReplicas = 0 },
	} {
		h := newCopied(t, 0, change)
		c := h.open()
		c.put(reqCopy(t, &codec.CopyRequest{}))
		c.want(codec.CodeError, text)
		c.alive()
		if n := h.r.copies.Load(); n != 0 {
			t.Errorf("%s: %d places are taken", text, n)
		}
	}
	h := newHarness(t, setup{}) // a slave
	c := h.open()
	c.put(reqCopy(t, &codec.CopyRequest{Ask: codec.AskTopics}))
	c.want(codec.CodeError, codec.TextUnknownCommand)
	c.alive()
}

// TestCopyPlaces: as many connections copy as there are places; a place comes
// back when its connection closes, or asks for nothing for too long.
func TestCopyPlaces(t *testing.T) {
	h := newCopied(t, 0, nil)
	first := reqCopy(t, &codec.CopyRequest{})
	var conns []*fakeConn
	for range 3 {
		c := h.open()
		c.put(append(bytes.Clone(first), first...)) // one place
		c.ok()
		c.ok()
		conns = append(conns, c)
	}
	late := h.open()
	late.put(first)
	late.want(codec.CodeError, "too many copies at the same time, see replication.maxSlaves")
	conns[0].hangUp()
	late.put(first)
	late.ok()
	h.advance(5 * time.Second)
	conns[1].put(first)
	conns[1].ok()
	h.advance(6 * time.Second)
	conns[2].wantClosed("nothing asked in the middle of a copy for replication.sendTimeoutMs")
	conns[1].wantOpen()
	conns[1].hangUp()
	late.hangUp()
	if n := h.r.copies.Load(); n != 0 {
		t.Errorf("%d places are taken", n)
	}
}

// TestCopyToASlowSlave: what is not sent bounds what is read.
func TestCopyToASlowSlave(t *testing.T) {
	h := newCopied(t, 700<<10, nil)
	c := h.open()
	c.room = 10
	c.put(bytes.Repeat(reqCopy(t, &codec.CopyRequest{}), 8))
	h.settle()
	if n := len(c.buffer); n > 2<<20 {
		t.Errorf("%d bytes are waiting for a slave that takes none", n)
	}
	c.hangUp()
	if n := h.r.copies.Load(); n != 0 {
		t.Errorf("%d places are taken", n)
	}
}

// TestCopyGoneWhileRead: the peer leaves while a reader is at its part.
func TestCopyGoneWhileRead(t *testing.T) {
	h := newCopied(t, 10, nil)
	release := h.blockReaders()
	c := h.open()
	c.put(reqCopy(t, &codec.CopyRequest{}))
	c.halfClose()
	release()
	h.settle()
	if n := h.r.copies.Load(); n != 0 {
		t.Errorf("%d places are taken", n)
	}
}
