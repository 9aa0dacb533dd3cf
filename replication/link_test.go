package replication

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"smss/codec"
	"smss/storage"
)

// TestBackoff: pauses grow up to the longest one, none is shorter than half of
// what it may be, and they are not all the same.
func TestBackoff(t *testing.T) {
	t.Parallel()
	b := backoff{first: 100, max: 1500}
	seen := map[time.Duration]bool{}
	for range 50 {
		for i, most := range []time.Duration{100, 200, 400, 800, 1500, 1500, 1500} {
			d := b.next()
			if d > most || d < most/2 {
				t.Fatalf("pause %d is %d, of at most %d", i, d, most)
			}
			seen[d] = true
		}
		b.reset()
	}
	if len(seen) < 100 {
		t.Errorf("only %d different pauses of 350", len(seen))
	}
	b.toMax()
	for range 2 {
		if d := b.next(); d < 750 || d > 1500 {
			t.Errorf("the longest pause is %d", d)
		}
	}
}

// TestPausesGrow: a master that is away, and one whose record cannot be
// applied, are tried at growing intervals; a master that has brought something
// is tried again soon.
func TestPausesGrow(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"away", "bad"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			u, s := newUpstream(t, true)
			u.m.publish("t")
			frames, _ := u.frames(storage.Pos{})
			var at []time.Time
			set := s.set
			s.set = func(c *Config) {
				set(c)
				c.RetryFirst, c.RetryMax = 2*time.Millisecond, 200*time.Millisecond
				dial := c.Dial
				c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
					at = append(at, time.Now())
					if what == "away" {
						return nil, errors.New("away")
					}
					return dial(ctx, address)
				}
			}
			u.serve = func(_ int, c *downstream) {
				c.send(append(bytes.Clone(frames), flipped(bytes.Clone(frames))...))
				c.hold()
			}
			s.open("master:1")
			time.Sleep(500 * time.Millisecond) // how often it tries in that time is the subject
			s.stop()
			// 2 + 4 + … + 128 ms or half of it, then 100 to 200 each.
			if len(at) > 14 || len(at) < 3 {
				t.Errorf("%d attempts in half a second", len(at))
			}
		})
	}
}

// deadlineConn is a connection whose reads take a piece each.
type deadlineConn struct {
	net.Conn // nil: what is not overridden is not called
	pieces   [][]byte
	moved    int // deadlines since the last read
	missed   int // reads without a new deadline
	wait     time.Duration
}

func (c *deadlineConn) SetReadDeadline(at time.Time) error {
	if wait := time.Until(at); wait > c.wait-time.Second && wait <= c.wait {
		c.moved++
	}
	return nil
}

func (c *deadlineConn) Read(b []byte) (int, error) {
	if c.moved == 0 {
		c.missed++
	}
	c.moved = 0
	if len(c.pieces) == 0 {
		return 0, os.ErrDeadlineExceeded
	}
	n := copy(b, c.pieces[0])
	c.pieces = c.pieces[1:]
	return n, nil
}

// TestProgressCounts: each piece that arrives gives the master the whole time
// again, inside a frame too; only silence ends it.
func TestProgressCounts(t *testing.T) {
	t.Parallel()
	large := recordFrame(make([]byte, 300_000))
	var pieces [][]byte
	for rest := large; len(rest) > 0; {
		n := min(len(rest), 1+rand.IntN(3000))
		pieces, rest = append(pieces, rest[:n]), rest[n:]
	}
	c := &deadlineConn{pieces: pieces, wait: time.Hour}
	l := newLink(c, time.Hour)
	s := l.take()
	if err := l.fill(s); err != nil || len(s.frames) != 1 || s.frames[0].size != 300_000 {
		t.Fatalf("%d frames, %v", len(s.frames), err)
	}
	var silent *SilentError
	if err := l.fill(l.take()); !errors.As(err, &silent) || silent.For != time.Hour {
		t.Errorf("the end is %v", err)
	}
	if c.missed > 0 {
		t.Errorf("%d reads of %d went on with an old deadline", c.missed, len(pieces))
	}
}

// TestSlowRecord: a record that takes several times the silence that is borne
// comes through, in one connection, and so does one that comes in two halves.
func TestSlowRecord(t *testing.T) {
	t.Parallel()
	u, s := newUpstream(t, true)
	u.m.publish("t")
	u.m.pub("t", string(make([]byte, 900)))
	u.serve = func(_ int, c *downstream) {
		all, _ := u.answer(c.eventID, nil)
		for len(all) > 0 {
			n := min(len(all), 150)
			if !c.send(all[:n]) {
				return
			}
			all = all[n:]
			time.Sleep(120 * time.Millisecond)
		}
		c.hold()
	}
	set := s.set
	s.set = func(c *Config) { set(c); c.Silence = 700 * time.Millisecond }
	s.open("master:1")
	s.reaches(u.m)
	if n := u.conns.Load(); n != 1 {
		t.Errorf("it took %d connections", n)
	}
	s.same(u.m)
}

// TestSilence: a master that says nothing is taken for lost, at the beginning
// and in the middle of a frame, and followed again.
func TestSilence(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, legacy bool) {
		u, s := newUpstream(t, legacy)
		u.m.publish("t")
		u.m.pub("t", "m")
		u.serve = func(n int, c *downstream) {
			all, _ := u.answer(c.eventID, c.hello)
			switch n {
			case 0:
			case 1:
				c.send(all[:5])
			default:
				c.feed()
				return
			}
			c.hold()
		}
		var lost []error
		set := s.set
		s.set = func(c *Config) {
			set(c)
			c.Silence = 100 * time.Millisecond
			c.Events.Link = func(state LinkState, _ string, err error) {
				if state == LinkWaiting {
					lost = append(lost, err)
				}
			}
		}
		s.open("master:1")
		s.same(u.m)
		s.stop()
		var silent *SilentError
		if len(lost) < 2 || !errors.As(lost[0], &silent) || !errors.As(lost[1], &silent) {
			t.Errorf("lost for %v", lost)
		}
	})
}

// TestRareHeartbeats: a master that has said how often it speaks is borne with
// for that long, from its greeting on.
func TestRareHeartbeats(t *testing.T) {
	t.Parallel()
	u, s := newUpstream(t, false)
	u.m.publish("t")
	u.serve = func(_ int, c *downstream) {
		greeting, _ := u.answer(c.eventID, c.hello) // with the rig's heartbeat, 1 s
		if c.send(greeting) {
			c.hold()
		}
	}
	set := s.set
	s.set = func(c *Config) { set(c); c.Silence = 60 * time.Millisecond }
	s.open("master:1")
	s.reaches(u.m)
	time.Sleep(500 * time.Millisecond) // the silence is the subject
	if n := u.conns.Load(); n != 1 {
		t.Errorf("%d connections in a silence that was announced", n)
	}
}

// TestStopAnywhere: a follower that is stopped at any moment ends soon, and
// leaves nothing behind.
func TestStopAnywhere(t *testing.T) {
	u, s := newUpstream(t, false)
	u.m.fill()
	for range 30 {
		u.m.pub("t", string(make([]byte, 3000)))
	}
	s.open("master:1")
	s.link(LinkStreaming, "")
	s.n.mu.Lock()
	s.n.stopFollower()
	s.n.mu.Unlock()
	u.over.Wait()
	before := goleak.IgnoreCurrent()
	for i := range 200 {
		u.serve = []func(int, *downstream){
			nil,
			func(_ int, c *downstream) { c.hold() },
			func(_ int, c *downstream) { b, _ := u.answer(0, c.hello); c.send(b[:i*len(b)/200]); c.hold() },
			func(_ int, c *downstream) { c.send(codec.AppendError(nil, "no")) },
			func(_ int, c *downstream) { b, _ := u.answer(c.eventID, c.hello); c.send(b) },
		}[i%5]
		f := newFollower(s.n, "master:1")
		over := make(chan struct{})
		go func() { f.run(); close(over) }()
		time.Sleep(time.Duration(rand.IntN(1500)) * time.Microsecond) // the moment is the subject
		stopped := time.Now()
		f.stop()
		<-over
		if d := time.Since(stopped); d > 5*time.Second {
			t.Errorf("stop %d took %v", i, d)
		}
		u.over.Wait()
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
	f := newFollower(s.n, "master:1")
	u.serve = nil
	go f.run()
	s.same(u.m)
	f.stop()
}

// TestManyRecords: more records than the window, the ring and the budget for
// memory take, and ones larger than all of it.
func TestManyRecords(t *testing.T) {
	t.Parallel()
	u, s := newUpstream(t, false)
	u.m.publish("t")
	for range 1500 {
		u.m.pub("t", "m")
	}
	u.m.pub("t", string(make([]byte, 2<<20)))
	for range 5 {
		u.m.pub("t", string(make([]byte, 700_000)))
	}
	s.open("master:1")
	s.same(u.m)
	if n := u.conns.Load(); n != 1 {
		t.Errorf("it took %d connections", n)
	}
}

// FuzzStream: the reader of a stream takes any bytes, in whatever pieces they
// come: the same frames, and no more memory than what has arrived asks for.
func FuzzStream(f *testing.F) {
	greeting, err := codec.AppendGreeting(nil, &codec.Greeting{Node: "n", HeartbeatMs: 1 << 60})
	if err != nil {
		f.Fatal(err)
	}
	record := recordFrame([]byte("record"))
	f.Add(append(bytes.Clone(greeting), record...), uint64(1))
	f.Add(append(codec.AppendProgress(nil, 9), append(record, codec.AppendError(nil, "gone")...)...), uint64(2))
	f.Add(binary.LittleEndian.AppendUint32(codec.AppendCode(nil, codec.CodeOK), 1<<29), uint64(3))
	f.Add(codec.AppendTakeOver(nil, 4), uint64(4))
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		at := 0
		for _, split := range []bool{false, true} {
			random := rand.New(rand.NewPCG(seed, 1))
			c := &deadlineConn{wait: time.Hour}
			for rest := b; len(rest) > 0; {
				n := min(len(rest), 1<<15)
				if split {
					n = 1 + random.IntN(n)
				}
				c.pieces, rest = append(c.pieces, rest[:n]), rest[n:]
			}
			l := newLink(c, time.Hour)
			taken := 0
			for {
				s := l.take()
				err := l.fill(s)
				for i := range s.frames {
					fr := &s.frames[i]
					taken += codec.ReplyHeaderSize + len(s.body(fr))
					if fr.code == codec.CodeOK {
						taken += 4
					}
				}
				if cap(s.buf) > 4*len(b)+2*growBytes {
					t.Fatalf("%d bytes of memory for %d that came", cap(s.buf), len(b))
				}
				if err != nil {
					if errors.Is(err, io.EOF) {
						t.Errorf("the end is %v", err)
					}
					break
				}
			}
			if wait := time.Duration(l.patient.wait.Load()); wait < time.Hour || wait > 2*time.Hour {
				t.Fatalf("bears with %v of silence", wait)
			}
			if taken > len(b) || split && taken != at {
				t.Fatalf("%d bytes of %d in frames, and %d in one piece", taken, len(b), at)
			}
			at = taken
		}
	})
}

// FuzzGreetings: whatever a greeting says, two histories are compared without
// an end, and who is let through has no event that the other lacks.
func FuzzGreetings(f *testing.F) {
	f.Add([]byte(`{"node":"a","epochs":[{"id":"x","first":1}],"lastEventId":5}`), []byte(`{"node":"b","epochs":[{"id":"x","first":1},{"id":"y","first":4}],"lastEventId":9}`))
	f.Add([]byte(`{"epochs":[{"first":-1},{"first":9223372036854775807}],"lastEventId":-3}`), []byte(`{}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		m, err := codec.ParseGreeting(a)
		if err != nil {
			return
		}
		s, err := codec.ParseGreeting(b)
		if err != nil {
			return
		}
		err = compare(m.Epochs, s.Epochs, m.LastEventID, s.LastEventID)
		if err == nil && s.LastEventID > max(m.LastEventID, 0) {
			t.Errorf("a slave with event %d may follow a master with %d", s.LastEventID, m.LastEventID)
		}
	})
}
