package replication

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"smss/codec"
	"smss/engine"
	"smss/storage"
)

// upstream is a master of scripts: it judges and sends as a server does, from
// the binlog of an engine, apart from what a test changes.
type upstream struct {
	t      testing.TB
	m      *rig // whose binlog it has
	legacy bool // it is an existing server: no greeting, and it finds first event ids only
	list   []byte
	// serve answers REPLICA on connection n, from 0 on; nil = feed. The
	// connection ends when it returns.
	serve func(n int, c *downstream)

	conns    atomic.Int64
	reported atomic.Int64 // last report
	over     sync.WaitGroup

	mu    sync.Mutex
	asked []int64 // event ids of REPLICA
	hello []codec.Greeting
	lists []int64 // event ids of VALID_LIST
}

// downstream is a connection of a slave to it.
type downstream struct {
	*upstream
	net.Conn
	in      *bufio.Reader
	eventID int64 // that REPLICA asks for
	hello   []byte
	gone    chan struct{} // closed when the slave has ended it, once it has asked
}

// newUpstream returns a master that has the binlog of a rig, and a slave of it
// that is not started.
func newUpstream(t *testing.T, legacy bool) (*upstream, *rig) {
	m := newRig(t, "")
	u := &upstream{t: t, m: m, legacy: legacy}
	s := &rig{t: t, dir: t.TempDir(), set: u.follow}
	t.Cleanup(func() {
		s.stop()
		u.over.Wait()
	})
	return u, s
}

// follow makes a node's master of it.
func (u *upstream) follow(c *Config) {
	c.Dial = func(ctx context.Context, _ string) (net.Conn, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		near, far := net.Pipe()
		n := int(u.conns.Add(1)) - 1
		u.over.Add(1)
		go func() {
			defer u.over.Done()
			defer far.Close()
			u.accept(n, &downstream{upstream: u, Conn: far, in: bufio.NewReader(far), gone: make(chan struct{})})
		}()
		return near, nil
	}
}

// accept answers what a slave begins with.
func (u *upstream) accept(n int, c *downstream) {
	for {
		req, err := c.request()
		if err != nil {
			return
		}
		u.mu.Lock()
		switch req.Command {
		case codec.ValidList:
			u.lists = append(u.lists, req.EventID)
		case codec.Replica:
			u.asked = append(u.asked, req.EventID)
			c.eventID, c.hello = req.EventID, req.Greeting
			g, err := codec.ParseGreeting(req.Greeting)
			if err != nil {
				u.t.Error(err)
			}
			u.hello = append(u.hello, g)
		}
		u.mu.Unlock()
		switch {
		case req.Command == codec.ValidList && u.list == nil:
			_, err = c.Write(codec.AppendJSON(nil, nil))
		case req.Command == codec.ValidList:
			_, err = c.Write(codec.AppendJSON(nil, u.list))
		case req.Command == codec.Replica:
			u.over.Add(1)
			go c.listen()
			if u.serve != nil {
				u.serve(n, c)
			} else {
				c.feed()
			}
			return
		default:
			u.t.Errorf("a slave asks for %v", req.Command)
		}
		if err != nil {
			return
		}
	}
}

// request reads one request. What aliases the input is the caller's.
func (c *downstream) request() (*codec.Request, error) {
	var raw []byte
	for {
		b, err := c.in.ReadByte()
		if err != nil {
			return nil, err
		}
		raw = append(raw, b)
		var req codec.Request
		switch _, err := codec.ParseRequest(raw, &codec.Limits{}, &req); {
		case err == nil:
			return &req, nil
		case !errors.Is(err, codec.ErrShort):
			return nil, err
		}
	}
}

// listen takes the slave's reports, which rise.
func (c *downstream) listen() {
	defer c.over.Done()
	defer close(c.gone)
	for last := int64(0); ; {
		var b [codec.ReportSize]byte
		if _, err := io.ReadFull(c.in, b[:]); err != nil {
			return
		}
		id, _ := codec.ParseReport(b[:])
		if id <= last || c.legacy {
			c.t.Errorf("a report of event %d behind %d", id, last)
		}
		last = id
		c.reported.Store(id)
	}
}

// send writes, and reports whether it could.
func (c *downstream) send(b []byte) bool {
	_, err := c.Write(b)
	return err == nil
}

// hold keeps the connection until the slave ends it.
func (c *downstream) hold() { <-c.gone }

// feed is what a server answers to REPLICA: everything behind an event id, and
// heartbeats.
func (c *downstream) feed() {
	b, pos := c.upstream.answer(c.eventID, c.hello)
	for c.send(b) && pos != (storage.Pos{}) {
		time.Sleep(2 * time.Millisecond)
		b, pos = c.frames(pos)
		b = append(b, codec.AppendCode(nil, codec.CodeAlive)...)
	}
}

// answer is what a server sends at first, and where in its binlog that ends.
func (u *upstream) answer(eventID int64, hello []byte) (out []byte, pos storage.Pos) {
	r := &engine.Read{Kind: engine.LocateRecord, EventID: eventID, Link: &engine.Link{Extended: !u.legacy, Hello: hello}}
	u.m.e.LocateRecord(r, eventID)
	if u.legacy {
		if first, last, _ := u.m.e.LastRecord(); r.Err != nil || eventID > first && eventID <= last {
			return codec.AppendError(nil, "EOF"), pos // as it says it
		}
	} else {
		if u.m.n.Greet(r); r.Err != nil {
			return codec.AppendError(nil, r.Err.Error()), pos
		}
		out = r.Link.Answer
	}
	frames, pos := u.frames(r.Pos)
	return append(out, frames...), pos
}

// frames is the feed from a place on, and where it ends.
func (u *upstream) frames(pos storage.Pos) (out []byte, end storage.Pos) {
	log := u.m.store.BinlogReader()
	end = storage.UnpackPos(u.m.end.Load())
	for pos.Before(end) {
		records, _, err := log.ReadRecords(pos, end, 1, nil, nil)
		if err != nil {
			u.t.Error(err)
			return out, pos
		}
		out, pos = append(out, records.Frame...), records.Next
	}
	return out, pos
}

// frameSize is the size of the frame at the start of b.
func frameSize(b []byte) int {
	switch h := codec.ParseReplyHeader(b); h.Code {
	case codec.CodeOK:
		return storage.RecordFrameOverhead + int(binary.LittleEndian.Uint32(b[codec.ReplyHeaderSize:]))
	case codec.CodeGreeting:
		return codec.ReplyHeaderSize + int(h.JSONSize)
	}
	return codec.ReplyHeaderSize
}

// recordFrame puts a record into a frame.
func recordFrame(raw []byte) []byte {
	b := codec.AppendCode(nil, codec.CodeOK)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(raw)))
	return append(b, raw...)
}

func messages(bodies ...string) (payload []byte) {
	for _, b := range bodies {
		payload = codec.AppendMessage(payload, &codec.Message{Body: []byte(b)})
	}
	return payload
}

func (r *rig) pub(topic string, bodies ...string) {
	r.t.Helper()
	r.do(func(c *engine.Command) {
		c.Kind, c.Messages = engine.Publish, len(bodies)
		c.SetText([]byte(topic), nil, messages(bodies...))
	})
}

func (r *rig) delay(topic string, bodies ...string) {
	r.t.Helper()
	r.do(func(c *engine.Command) {
		c.Kind, c.Messages, c.TriggerAtMs = engine.Delay, len(bodies), time.Now().Add(time.Hour).UnixMilli()
		c.SetText([]byte(topic), nil, messages(bodies...))
	})
}

func (r *rig) delete(topic string) {
	r.t.Helper()
	r.do(func(c *engine.Command) { c.Kind = engine.Delete; c.SetText([]byte(topic), nil, nil) })
}

// fill gives a master one event of each kind.
func (r *rig) fill() {
	r.t.Helper()
	r.publish("t")
	r.pub("t", "one")
	r.pub("t", "b1", "b2", "b3")
	r.publish("u")
	r.delay("t", "later", "later still")
	r.pub("u", "in u")
	r.delete("u")
	r.publish("u")
	r.pub("u", "x", "y")
}

// reaches waits until a slave has everything.
func (r *rig) reaches(m *rig) {
	r.t.Helper()
	eventually(r.t, "the slave has everything", func() bool { return r.e.LastEventID() == m.e.LastEventID() })
}

// same compares a slave with its master.
func (r *rig) same(m *rig) {
	r.t.Helper()
	r.reaches(m)
	if binlog(r.t, r.dir) != binlog(r.t, m.dir) {
		r.t.Error("the binlogs differ")
	}
	// Each janitor forgets the delayed messages of a topic that is gone in its
	// own time.
	var got, want string
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if got, want = content(r.t, r.dir, r.store, r.e), content(r.t, m.dir, m.store, m.e); got == want {
			return
		}
	}
	r.t.Errorf("the slave holds\n%s\nthe master\n%s", got, want)
}

// link waits for a state of the link, and an error that has a text.
func (r *rig) link(state LinkState, text string) {
	r.t.Helper()
	var l *LinkInfo
	came := false
	defer func() {
		if !came {
			r.t.Logf("the link is %+v", l)
		}
	}()
	eventually(r.t, "the link is "+state.String()+" "+text, func() bool {
		l = r.n.Status().Link
		return l.State == state.String() && strings.Contains(l.Error, text) && (l.Error == "") == (text == "")
	})
	came = true
}

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("does not come about: %s", what)
		}
	}
}
