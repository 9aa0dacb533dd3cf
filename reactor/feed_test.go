package reactor

import (
	"bytes"
	"encoding/binary"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smss/codec"
	"smss/engine"
	"smss/storage"
)

// feeding sets a harness up for slaves.
func newFeeder(t *testing.T, change func(*Replication)) *harness {
	rep := &Replication{
		Refuses: func(net.Addr) string { return "" }, MaxReplicas: 3, SendTimeout: 10 * time.Second,
		Greet: func(r *engine.Read) {
			if r.Err == nil {
				r.Link.Node = "n:" + string(r.Link.Hello)
				r.Link.Answer = codec.AppendJSON(nil, []byte("hello"))
			}
		},
	}
	if change != nil {
		change(rep)
	}
	return newHarness(t, setup{cfg: func(c *Config) { c.Replication = func() *Replication { return rep } }})
}

func reqReplica(after int64) []byte {
	return codec.AppendEventRequest(nil, codec.Replica, "", after)
}

// record takes one record off a feed.
func (c *fakeConn) record() (rec codec.BinlogRecord) {
	c.h.tb.Helper()
	head := c.take(storage.RecordFrameOverhead)
	if h := codec.ParseReplyHeader(head); h.Code != codec.CodeOK {
		c.h.tb.Fatalf("got % x instead of a record: %s", head, c.sent)
	}
	raw := c.take(int(binary.LittleEndian.Uint32(head[codec.ReplyHeaderSize:])))
	if n, err := codec.ParseBinlogRecord(raw, 1<<20, &rec); err != nil || n != len(raw) {
		c.h.tb.Fatalf("record %q: %v", raw, err)
	}
	return rec
}

func (c *fakeConn) records(ids ...int64) {
	c.h.tb.Helper()
	for _, id := range ids {
		if rec := c.record(); rec.EventID != id {
			c.h.tb.Fatalf("got event %d, want %d", rec.EventID, id)
		}
	}
}

// progress takes a heartbeat that carries the master's last event.
func (c *fakeConn) progress(last int64) {
	c.h.tb.Helper()
	b := c.take(codec.ReplyHeaderSize)
	if codec.ParseReplyHeader(b).Code != codec.CodeAlive || codec.ParseEventFrame(b) != last {
		c.h.tb.Fatalf("got % x, want a heartbeat at %d", b, last)
	}
}

func TestFeed(t *testing.T) {
	h := newFeeder(t, nil)
	c := h.client("t") // event 1
	c.publish("t", "a", "b")
	slave := h.open()
	slave.put(reqReplica(0))
	slave.records(1, 2, 3)
	slave.put([]byte("what an existing slave sends is ignored"))
	c.publish("t", "c")
	slave.records(4)
	h.settle()
	if slave.session.beatNs == 0 {
		t.Fatal("not parked")
	}
	h.advance(31 * time.Second)
	slave.want(codec.CodeAlive, "")
	c.publish("t", "d")
	slave.records(5)
	other := h.open()
	other.put(reqReplica(3))
	other.records(4, 5)
	if n := len(h.e.Replicas()); n != 2 {
		t.Errorf("%d slaves are known", n)
	}
	other.hangUp()
	if n := len(h.e.Replicas()); n != 1 {
		t.Errorf("%d slaves are known after one has left", n)
	}
}

func TestFeedRefused(t *testing.T) {
	for text, c := range map[string]struct {
		after  int64
		change func(*Replication)
	}{
		codec.TextReplicaEventID: {after: -3},
		codec.TextEventNotFound:  {after: 77},
		"not you":                {change: func(r *Replication) { r.Refuses = func(net.Addr) string { return "not you" } }},
		"too many slaves, see replication.maxSlaves": {change: func(r *Replication) { r.MaxReplicas = 0 }},
	} {
		h := newFeeder(t, c.change)
		h.client("t")
		slave := h.open()
		slave.put(append(reqReplica(c.after), reqAlive()...))
		slave.want(codec.CodeError, text)
		slave.want(codec.CodeAlive, "") // in step, and in command mode
	}
	h := newHarness(t, setup{})
	slave := h.open()
	slave.put(append(reqReplica(0), reqAlive()...))
	slave.want(codec.CodeError, codec.TextUnknownCommand)
	slave.want(codec.CodeAlive, "")
}

func TestExtendedFeed(t *testing.T) {
	h := newFeeder(t, nil)
	c := h.client("t")
	slave := h.open()
	req, err := codec.AppendReplica(nil, "", 0, &codec.Greeting{Node: "x"})
	if err != nil {
		t.Fatal(err)
	}
	slave.split(req, 5, 21, 29, 33)
	slave.want(codec.CodeOK, "hello")
	slave.records(1)
	slave.progress(1)
	rep := h.e.Replicas()[0]
	if !rep.Extended || !strings.Contains(rep.Node, `"x"`) || rep.Sent() != 1 {
		t.Errorf("known as %q, extended %v, sent %d", rep.Node, rep.Extended, rep.Sent())
	}
	slave.split(codec.AppendReport(codec.AppendReport(nil, 0, false), 1, false), 3, 11)
	if rep.AckedID() != 1 {
		t.Errorf("acknowledged is %d", rep.AckedID())
	}
	rep.TakeOver(1)
	order := slave.take(codec.ReplyHeaderSize)
	if codec.ParseReplyHeader(order).Code != codec.CodeTakeOver || codec.ParseEventFrame(order) != 1 {
		t.Errorf("order % x", order)
	}
	if rep.HasPromoted() {
		t.Error("promoted before it says so")
	}
	slave.put(codec.AppendReport(nil, 1, true))
	if !rep.HasPromoted() {
		t.Error("its word was not heard")
	}
	c.publish("t", "more")
	slave.records(2)
	slave.progress(2)
	h.settle()
	h.advance(31 * time.Second)
	slave.progress(2)
}

// A slave that reads slowly gets everything, and what waits for it is bounded;
// one that takes nothing is dropped.
func TestFeedSlow(t *testing.T) {
	h := newFeeder(t, nil)
	c := h.client("t")
	body := strings.Repeat("x", 100_000)
	for range 40 {
		c.publish("t", body)
	}
	slave := h.open()
	slave.room = 1000
	slave.put(reqReplica(1))
	h.settle()
	if n := len(slave.buffer); n == 0 || n > 1<<20+768<<10 {
		t.Fatalf("%d bytes wait for it", n)
	}
	for range 200 {
		slave.drain(100_000)
		h.advance(slotEvery)
		h.settle()
	}
	for id := int64(2); id <= 41; id++ {
		if rec := slave.record(); rec.EventID != id || !bytes.Contains(rec.Payload, []byte(body)) {
			t.Fatalf("got event %d, want %d", rec.EventID, id)
		}
	}
	slave.room = 0
	for range 20 {
		c.publish("t", body)
	}
	h.settle()
	h.advance(9 * time.Second)
	slave.wantOpen()
	h.advance(2 * time.Second)
	slave.wantClosed("no progress in sending for replication.sendTimeoutMs")
	if len(h.e.Replicas()) != 0 {
		t.Error("it is still known")
	}
}

// TestFeedUnacknowledged: where the kernel is the first to find that a slave
// takes nothing, the reason is the same.
func TestFeedUnacknowledged(t *testing.T) {
	var left []string
	h := newFeeder(t, func(r *Replication) { r.Left = func(_ *engine.Replica, why string) { left = append(left, why) } })
	h.client("t").publish("t", "a")
	for _, err := range []error{unix.ETIMEDOUT, unix.ECONNRESET} {
		slave := h.open()
		slave.put(reqReplica(0))
		h.settle()
		slave.closeWith(os.NewSyscallError("write", err))
	}
	want := []string{"no progress in sending for replication.sendTimeoutMs", "the connection is closed"}
	if !slices.Equal(left, want) {
		t.Errorf("left: %q, want %q", left, want)
	}
}

// A slave that goes away at any moment leaves nothing behind.
func TestFeedGoesAway(t *testing.T) {
	for _, when := range []string{"seeking", "reading", "parked"} {
		h := newFeeder(t, nil)
		h.client("t").publish("t", "a")
		slave := h.open()
		slave.put(reqReplica(0))
		switch when {
		case "reading":
			h.until(func() bool { return slave.session.state == feeding })
		case "parked":
			h.settle()
		}
		slave.hangUp()
		h.settle()
		if n := len(h.e.Replicas()); n != 0 {
			t.Errorf("%s: %d slaves are known", when, n)
		}
	}
}

// TestDismissedFeed: nothing that is written behind the call is sent, the
// connection ends, and one that was judged by what is no more does not begin.
func TestDismissedFeed(t *testing.T) {
	current := true
	h := newFeeder(t, func(r *Replication) { r.Current = func(*engine.Link) bool { return current } })
	c := h.client("t")
	req, err := codec.AppendReplica(nil, "", 0, &codec.Greeting{Node: "x"})
	if err != nil {
		t.Fatal(err)
	}
	slave := h.open()
	slave.put(req)
	slave.want(codec.CodeOK, "hello")
	slave.records(1)
	slave.progress(1)
	h.e.Replicas()[0].Dismiss()
	c.publish("t", "of another reign")
	h.settle()
	if len(slave.sent) != 0 || !slave.session.closed || len(h.e.Replicas()) != 0 {
		t.Errorf("sent % x, closed %v, %d slaves are left", slave.sent, slave.session.closed, len(h.e.Replicas()))
	}
	current = false
	stale := h.open()
	stale.put(req)
	h.settle()
	if len(stale.sent) != 0 || !stale.session.closed || len(h.e.Replicas()) != 0 {
		t.Errorf("a stale one: sent % x, closed %v, %d slaves are left", stale.sent, stale.session.closed, len(h.e.Replicas()))
	}
}

// TestFeedOfASlave: who asks a slave that feeds none is told why, an existing
// server in its own words.
func TestFeedOfASlave(t *testing.T) {
	h := newHarness(t, setup{cfg: func(c *Config) { c.Replication = func() *Replication { return nil } }})
	req, err := codec.AppendReplica(nil, "", 0, &codec.Greeting{Node: "x"})
	if err != nil {
		t.Fatal(err)
	}
	a, b := h.open(), h.open()
	a.put(req)
	a.want(codec.CodeError, "this server is a slave and feeds none, see replication.chain")
	b.put(reqReplica(0))
	b.want(codec.CodeError, codec.TextUnknownCommand)
}

// A slave that is behind gets much in each round of its loop, or it would fall
// further behind a master whose rounds are long.
func TestFeedPieces(t *testing.T) {
	h := newFeeder(t, nil)
	c := h.client("t")
	body := strings.Repeat("x", 30_000)
	for range 30 {
		c.publish("t", body)
	}
	slave := h.open()
	slave.put(reqReplica(0))
	h.until(func() bool { return len(slave.sent) > 0 })
	if n := len(slave.sent); n < 400_000 || n > 700_000 {
		t.Errorf("%d bytes came in the first piece", n)
	}
}
