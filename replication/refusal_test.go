package replication

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"smss/codec"
	"smss/engine"
	"smss/storage"
)

// TestUnreadable: what cannot be read, or cannot come next, is seen in the
// state of the link and asked for again; nothing is applied behind it, and once
// it is right everything is.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	record := func(r codec.BinlogRecord) []byte { return recordFrame(codec.AppendBinlogRecord(nil, &r, nil)) }
	pub := codec.BinlogRecord{WrittenAtMs: 1700000000000, Command: codec.Pub, EventID: 3, ReceivedAtMs: 1700000000000, Topic: []byte("t"), Payload: messages("m")}
	change := func(set func(*codec.BinlogRecord)) []byte { r := pub; set(&r); return record(r) }
	for name, tt := range map[string]struct {
		frame []byte
		why   string
	}{
		"a wrong checksum":     {flipped(record(pub)), "a record behind event 2 cannot be read"},
		"another grammar":      {recordFrame([]byte("\x05\x00\x00\x00what\n")), "a record behind event 2 cannot be read"},
		"no line":              {recordFrame(nil), "a record behind event 2 cannot be read"},
		"more than a record":   {recordFrame(append(record(pub)[storage.RecordFrameOverhead:], 'x')), "a record behind event 2 cannot be read"},
		"an unknown command":   {change(func(r *codec.BinlogRecord) { r.Command = 77 }), "cannot be read"},
		"half a message":       {change(func(r *codec.BinlogRecord) { r.Payload = r.Payload[:8] }), "does not hold whole messages"},
		"an event it has":      {change(func(r *codec.BinlogRecord) { r.EventID = 2 }), "sends event 2, which does not come after 2"},
		"an event of no id":    {change(func(r *codec.BinlogRecord) { r.EventID = 0 }), "sends event 0, which does not come after 2"},
		"too long":             {append(codec.AppendCode(nil, codec.CodeOK), 0xff, 0xff, 0xff, 0xff), "announces a record of 4294967295 bytes"},
		"a code of no meaning": {codec.AppendCode(nil, codec.CodeEnd), "code 255"},
		"a greeting too long":  {binary.LittleEndian.AppendUint64(append([]byte{}, byte(codec.CodeGreeting), 0), 1<<30), "a greeting of 1073741824 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u, s := newUpstream(t, true)
			u.m.publish("t")
			u.m.pub("t", "first")
			right := make(chan struct{})
			u.serve = func(n int, c *downstream) {
				select {
				case <-right:
					c.feed()
					return
				default:
				}
				out, _ := u.answer(c.eventID, nil)
				// What comes behind it must not be taken.
				behind := pub
				behind.EventID = 10
				c.send(append(append(out, tt.frame...), record(behind)...))
				c.hold()
			}
			s.open("master:1")
			s.link(LinkWaiting, tt.why)
			eventually(t, "it has asked three times", func() bool { return u.conns.Load() > 3 })
			u.mu.Lock()
			for i, id := range u.asked[1:] {
				if id != 2 {
					t.Errorf("attempt %d asks for what comes behind event %d", i+1, id)
				}
			}
			u.mu.Unlock()
			if at := s.n.position(); at != 2 {
				t.Errorf("it holds event %d", at)
			}
			close(right)
			u.m.pub("t", "second")
			s.same(u.m)
			s.link(LinkStreaming, "")
		})
	}
}

// flipped returns a frame with a bit of its last byte but one changed.
func flipped(frame []byte) []byte {
	frame[len(frame)-2] ^= 4
	return frame
}

// TestRefused: a master's error ends the attempt and is what the state says;
// when it takes the slave again, that goes on.
func TestRefused(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, legacy bool) {
		for name, before := range map[string]func(u *upstream, c *downstream) []byte{
			"at once":   func(*upstream, *downstream) []byte { return nil },
			"in stream": func(u *upstream, c *downstream) []byte { b, _ := u.answer(c.eventID, c.hello); return b },
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				u, s := newUpstream(t, legacy)
				u.m.publish("t")
				u.serve = func(n int, c *downstream) {
					if n < 2 {
						c.send(codec.AppendError(before(u, c), "not you"))
						c.hold()
						return
					}
					c.feed()
				}
				var states []string
				set := s.set
				s.set = func(c *Config) {
					set(c)
					c.Events.Link = func(state LinkState, _ string, err error) { states = append(states, fmt.Sprint(state, " ", err)) }
				}
				s.open("master:1")
				eventually(t, "it comes a third time", func() bool { return u.conns.Load() > 2 })
				s.same(u.m)
				s.link(LinkStreaming, "")
				s.stop()
				if seen := strings.Join(states, "\n"); strings.Count(seen, "refused the master refuses: not you") != 2 {
					t.Errorf("the states were\n%s", seen)
				}
			})
		}
	})
}

// TestRefusedList: so does one that refuses the list of topics, or sends none
// that can be read.
func TestRefusedList(t *testing.T) {
	t.Parallel()
	u, s := newUpstream(t, true)
	u.m.publish("t")
	u.list = []byte(`[{"name":"t"`)
	s.open("master:1")
	s.link(LinkWaiting, "the master's list of topics")
	if s.n.position() != 0 {
		t.Error("it has taken events")
	}
}

// TestGreet: how a master judges who greets it.
func TestGreet(t *testing.T) {
	t.Parallel()
	r := newRig(t, "")
	r.publish("t")
	r.pub("t", "m", "n", "o") // events 2 to 4
	h := r.saved()
	own := h.Epochs[0]
	for name, tt := range map[string]struct {
		asks  int64
		hello codec.Greeting
		at    int64 // that it is fed behind
		why   string
	}{
		"an empty one":                         {0, codec.Greeting{Node: "s"}, 0, ""},
		"one that is behind":                   {1, codec.Greeting{Node: "s", LastEventID: 1, Epochs: h.Epochs}, 1, ""},
		"one with all":                         {4, codec.Greeting{Node: "s", LastEventID: 4, Epochs: h.Epochs}, 4, ""},
		"one that asks as existing masters do": {2, codec.Greeting{Node: "s", LastEventID: 4, Epochs: h.Epochs}, 4, ""},
		"one of before there were epochs":      {1, codec.Greeting{Node: "s", LastEventID: 1}, 1, "histories part after event 0"},
		"itself":                               {0, codec.Greeting{Node: h.Node}, 0, "cannot follow itself"},
		"one that has parted":                  {1, codec.Greeting{Node: "s", LastEventID: 3, Epochs: []codec.Epoch{own, {ID: "x", First: 2}}}, 0, "histories part after event 1"},
		"one that is ahead":                    {4, codec.Greeting{Node: "s", LastEventID: 9, Epochs: h.Epochs}, 0, "the master is behind: its last event is 4, the slave's 9"},
		"one that was told where to begin":     {3, codec.Greeting{Node: "s"}, 3, ""},
		"one that claims more than it asks":    {1, codec.Greeting{Node: "s", LastEventID: 5, Epochs: h.Epochs}, 0, "the master is behind"},
	} {
		hello, err := codec.AppendReplica(nil, "", tt.asks, &tt.hello)
		if err != nil {
			t.Fatal(err)
		}
		var req codec.Request
		if _, err := codec.ParseRequest(hello, &codec.Limits{}, &req); err != nil {
			t.Fatal(err)
		}
		read := &engine.Read{Kind: engine.LocateRecord, Link: &engine.Link{Extended: true, Hello: req.Greeting}}
		r.e.LocateRecord(read, req.EventID)
		r.n.Greet(read)
		if tt.why != "" {
			if read.Err == nil || !strings.Contains(read.Err.Error(), tt.why) {
				t.Errorf("%s: %v", name, read.Err)
			}
			continue
		}
		if read.Err != nil || read.EventID != tt.at {
			t.Errorf("%s: fed behind event %d, %v", name, read.EventID, read.Err)
			continue
		}
		g, err := codec.ParseGreeting(read.Link.Answer[codec.ReplyHeaderSize:])
		if err != nil || g.Node != h.Node || g.LastEventID != 4 || g.OldestEventID != 1 || !g.Complete || read.Link.Node != tt.hello.Node {
			t.Errorf("%s: greeted with %+v, %v", name, g, err)
		}
	}
	read := &engine.Read{Kind: engine.LocateRecord, Link: &engine.Link{Extended: true, Hello: []byte("{")}}
	if r.n.Greet(read); read.Err == nil {
		t.Error("a greeting that cannot be read is answered")
	}
}

// TestGreeted: how a slave judges a master's greeting. It keeps what it holds,
// its history too.
func TestGreeted(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		empty bool
		set   func(g *codec.Greeting)
		why   string
	}{
		"parted":        {set: func(g *codec.Greeting) { g.Epochs = []codec.Epoch{{ID: "x", First: 1}} }, why: "histories part after event 0"},
		"parted later":  {set: func(g *codec.Greeting) { g.Epochs = append(g.Epochs, codec.Epoch{ID: "x", First: 2}) }, why: "histories part after event 1"},
		"behind":        {set: func(g *codec.Greeting) { g.LastEventID = 1 }, why: "the master is behind"},
		"a new, empty":  {set: func(g *codec.Greeting) { g.Epochs, g.LastEventID = []codec.Epoch{{ID: "x", First: 1}}, 0 }, why: "histories part after event 0"},
		"its past gone": {empty: true, set: func(g *codec.Greeting) { g.Complete, g.OldestEventID = false, 2 }, why: "the master's oldest event is 2, this slave needs those from 1 on"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u, s := newUpstream(t, false)
			u.m.publish("t")
			u.m.pub("t", "m")
			if !tt.empty {
				s.open("master:1")
				s.reaches(u.m)
				s.stop()
			}
			h := u.m.saved()
			g := codec.Greeting{Node: h.Node, Epochs: h.Epochs, LastEventID: u.m.e.LastEventID(), OldestEventID: 1, Complete: true}
			tt.set(&g)
			u.serve = func(_ int, c *downstream) {
				b, err := codec.AppendGreeting(nil, &g)
				if err != nil {
					t.Error(err)
				}
				frames, _ := u.frames(storage.Pos{})
				c.send(append(b, frames...))
				c.hold()
			}
			s.open("master:1")
			before, at := s.saved(), s.n.position()
			s.link(LinkRefused, tt.why)
			if after := s.saved(); fmt.Sprint(after) != fmt.Sprint(before) || s.n.position() != at {
				t.Errorf("the history was %+v and is %+v, the event %d and is %d", before, after, at, s.n.position())
			}
		})
	}
	t.Run("twice", func(t *testing.T) {
		t.Parallel()
		u, s := newUpstream(t, false)
		u.serve = func(_ int, c *downstream) {
			b, _ := u.answer(c.eventID, c.hello)
			c.send(append(b, b...))
			c.hold()
		}
		s.open("master:1")
		s.link(LinkWaiting, "in the middle of its stream")
	})
}

// TestBootstrap: a slave that has nothing makes the topics known that the
// master had before its binlog begins, whose own events do not count then.
func TestBootstrap(t *testing.T) {
	t.Parallel()
	u, s := newUpstream(t, true)
	u.m.fill()
	second := u.m.e.Lookup([]byte("u")).Meta
	u.list = fmt.Appendf(nil, `[{"name":"../etc"},{"name":"old","createTimeStamp":5,"expireAt":0,"createEventId":0,"stateChangeTime":6,"stateChangeEventId":0,"state":0,"topicRoot":"x"},`+
		`{"name":"u","createTimeStamp":%d,"createEventId":%d,"stateChangeTime":%d,"stateChangeEventId":%d}]`,
		second.CreatedAtMs, second.CreateEventID, second.StateChangedAtMs, second.StateChangeEventID)
	var notes []string
	set := s.set
	s.set = func(c *Config) {
		set(c)
		c.Events.Note = func(what string, _ error) { notes = append(notes, what) }
	}
	s.open("master:1")
	s.reaches(u.m)
	old := s.e.Lookup([]byte("old"))
	if old == nil || old.Meta.CreatedAtMs != 5 || old.Meta.StateChangedAtMs != 6 {
		t.Errorf("the topic of before is %+v", old)
	}
	if got := s.e.Lookup([]byte("u")); got == nil || got.Meta != second {
		t.Errorf("the topic that was created twice is %+v", got)
	}
	got, want := content(t, s.dir, s.store, s.e), content(t, u.m.dir, u.m.store, u.m.e)
	if !strings.Contains(got, want) {
		t.Errorf("the slave holds\n%s\nthe master\n%s", got, want)
	}
	s.stop()
	u.list = []byte("{") // it is not asked for any more
	s.open("master:1")
	s.link(LinkStreaming, "")
	s.stop()
	if len(u.lists) != 1 || u.lists[0] != 0 || len(notes) != 1 || !strings.Contains(notes[0], `"../etc"`) {
		t.Errorf("lists as of %d, notes %q", u.lists, notes)
	}
}

// TestBase: a slave that is told an event id begins behind it, with the topics
// as of then.
func TestBase(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, legacy bool) {
		u, s := newUpstream(t, legacy)
		u.m.publish("t")
		u.m.pub("t", "before", "before")
		meta := u.m.e.Lookup([]byte("t")).Meta
		base := int64(2)
		if !legacy {
			base = 3 // any id of the batch
		}
		u.m.pub("t", "behind")
		u.list = fmt.Appendf(nil, `[{"name":"t","createTimeStamp":%d,"createEventId":1,"stateChangeTime":%d,"stateChangeEventId":1}]`, meta.CreatedAtMs, meta.StateChangedAtMs)
		set := s.set
		s.set = func(c *Config) { set(c); c.Event = base }
		s.event = base
		s.open("master:1")
		s.reaches(u.m)
		if got, want := content(t, s.dir, s.store, s.e), content(t, u.m.dir, u.m.store, u.m.e); strings.Contains(got, "before") || strings.Count(got, "behind") != 1 {
			t.Errorf("the slave holds\n%s\nthe master\n%s", got, want)
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.lists[0] != base || u.asked[0] != base {
			t.Errorf("asked for the topics as of %d and the events behind %d", u.lists, u.asked)
		}
	})
}

// TestIncomplete: what an existing master lacks at the beginning is noted once,
// and stays in the state.
func TestIncomplete(t *testing.T) {
	t.Parallel()
	u, s := newUpstream(t, true)
	u.m.publish("t")
	u.m.pub("t", "gone")
	u.m.pub("t", "kept")
	first, _ := u.frames(storage.Pos{})
	skip := frameSize(first)
	skip += frameSize(first[skip:])
	var notes []string
	u.serve = func(n int, c *downstream) {
		if c.eventID != 0 {
			c.feed()
			return
		}
		if n == 0 {
			c.send(first[skip : len(first)-1]) // not even one
			return
		}
		c.send(first[skip:])
	}
	set := s.set
	s.set = func(c *Config) {
		set(c)
		c.Events.Note = func(what string, _ error) { notes = append(notes, what) }
	}
	u.list = []byte(`[{"name":"t","createTimeStamp":5,"createEventId":1}]`)
	s.open("master:1")
	s.reaches(u.m)
	s.link(LinkStreaming, "")
	s.stop()
	s.open("master:1")
	s.link(LinkStreaming, "")
	if st := s.n.Status(); st.IncompleteFrom != 3 {
		t.Errorf("the status says incomplete from %d", st.IncompleteFrom)
	}
	s.stop()
	if len(notes) != 1 || !strings.Contains(notes[0], "the master's oldest event is 3") {
		t.Errorf("notes %q", notes)
	}
}
