package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smss/codec"
	"smss/storage"
)

func slaves(r *rig) { r.cfg.Role = Slave }

// recordsBehind returns the records of a binlog behind an event id, as a slave
// gets them.
func (r *rig) recordsBehind(eventID int64) (out [][]byte) {
	r.t.Helper()
	pos, err := r.e.locateRecord(eventID)
	if err != nil {
		r.fatalf("the place behind event %d: %v", eventID, err)
	}
	for end := r.e.binlog.End(); pos.Before(end); {
		got, _, err := r.e.records.ReadRecords(pos, end, feedBytes, nil, nil)
		if err != nil {
			r.fatalf("records from %v on: %v", pos, err)
		}
		for rest := got.Frame; len(rest) > 0; {
			n := binary.LittleEndian.Uint32(rest[codec.ReplyHeaderSize:])
			rest = rest[storage.RecordFrameOverhead:]
			out = append(out, bytes.Clone(rest[:n]))
			rest = rest[n:]
		}
		pos = got.Next
	}
	return out
}

func (r *rig) replicate(raw []byte, stream uint64) *Command {
	r.t.Helper()
	cmd, err := r.pool.NewReplicate(raw, stream)
	if err != nil {
		r.fatalf("record %q: %v", raw, err)
	}
	cmd.Mailbox = r.cfg.Mailboxes[0]
	return r.push(cmd)
}

func (r *rig) pushTurn(role Role) *Command {
	c := r.command(Turn, "", nil)
	c.Role = role
	return r.push(c)
}

func (r *rig) pushAdopt(meta storage.TopicMeta) *Command {
	c := r.command(Adopt, meta.Name, nil)
	c.Meta = &meta
	return r.push(c)
}

// logs returns the contents of all log files that are not in the trash.
func (r *rig) logs() map[string]string {
	r.disk.mu.Lock()
	defer r.disk.mu.Unlock()
	out := map[string]string{}
	for name, node := range r.disk.names {
		below := strings.HasPrefix(name, root+"/binlog/") || strings.HasPrefix(name, root+"/topic/")
		below = below && !strings.Contains(name, "/.trash/")
		if below && strings.HasSuffix(name, ".log") && len(node.data) > 0 {
			out[name] = string(node.data)
		}
	}
	return out
}

func (m *memMeta) pendingKeys() (out []storage.DelayKey) {
	_ = m.DelayKeys(0, func(k storage.DelayKey) bool { out = append(out, k); return true })
	slices.SortFunc(out, func(a, b storage.DelayKey) int { return int(a.EventID - b.EventID) })
	return out
}

// same wants a slave to hold byte for byte what its master holds.
func (r *rig) same(master *rig) {
	r.t.Helper()
	have, want := r.logs(), master.logs()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if have[name] != want[name] {
			r.fatalf("%s has %d bytes on the slave, %d on the master, or others:\n%.200q\n%.200q", name, len(have[name]), len(want[name]), have[name], want[name])
		}
	}
	for name := range have {
		if _, ok := want[name]; !ok {
			r.fatalf("the master has no %s", name)
		}
	}
	metas := func(r *rig) (out []storage.TopicMeta) {
		for _, t := range r.e.topics(func(*Topic) bool { return true }) {
			out = append(out, t.Meta)
		}
		return out
	}
	if a, b := metas(r), metas(master); !slices.Equal(a, b) {
		r.fatalf("topics of the slave %+v, of the master %+v", a, b)
	}
	if a, b := r.meta.pendingKeys(), master.meta.pendingKeys(); !slices.Equal(a, b) {
		r.fatalf("pending on the slave %v, on the master %v", a, b)
	}
	if a, b := r.e.LastEventID(), master.e.LastEventID(); a != b {
		r.fatalf("the slave's last event is %d, the master's %d", a, b)
	}
}

// reign lets a master write a little of everything: batches, several lives of
// a topic, delays that fire, are pending and belong to nobody, and a life that
// is over.
func (r *rig) reign() *rig {
	r.t.Helper()
	r.create("a", "b", "gone")
	r.ok(r.pushCreate("short", 20_000))
	r.ok(r.pushPublish("a", "1"))
	r.ok(r.pushPublish("a", "2", "3", "4"), r.pushPublish("b", "5"), r.pushPublish("none", "lost"))
	r.ok(r.pushDelay("a", 1000, "fired"))
	r.ok(r.pushDelay("b", 50_000, "pending"))
	r.ok(r.pushDelay("gone", 60_000, "orphan"))
	r.time.pass(2 * time.Second)
	r.fireAll()
	r.ok(r.pushPublish("gone", "6"))
	r.ok(r.pushDelete("gone"))
	r.create("gone")
	r.ok(r.pushPublish("gone", "7"), r.pushPublish("short", "8"))
	r.time.pass(20 * time.Second)
	r.fireAll()
	r.ok(r.pushPublish("b", strings.Repeat("9", 300)))
	r.ok(r.pushDelete("b"))
	r.create("b")
	r.ok(r.pushDelay("b", 50_000, "new life"), r.pushPublish("b", "10"))
	return r
}

// master returns one that has reigned. Its refused requests leave gaps of no
// kind, but restarts do.
func master(t *testing.T, set func(*rig)) *rig {
	r := newRig(t, func(r *rig) {
		r.opt.MaxLogSize = 700
		if set != nil {
			set(r)
		}
	})
	r.create("none")
	r.ok(r.pushDelete("none"))
	// A failed batch leaves a gap in the ids.
	r.create("bad")
	r.disk.fail = failing(r.topicDir("bad"), "write create", unix.EIO)
	r.done(r.pushPublish("bad", "refused", "refused"))
	r.disk.fail = nil
	r.create("none")
	return r.reign()
}

func slaveOf(m *rig, set func(*rig)) *rig {
	return newRig(m.t, func(r *rig) {
		slaves(r)
		r.opt.MaxLogSize = m.opt.MaxLogSize
		if set != nil {
			set(r)
		}
	})
}

// TestReplicate: whatever is under way at once, a slave ends with the master's
// bytes, ids and times, and a restart finds the same.
func TestReplicate(t *testing.T) {
	m := master(t, nil)
	for lvl := range 3 {
		for _, window := range []int{1, 7, 1000} {
			t.Run(fmt.Sprintf("level%d/window%d", lvl, window), func(t *testing.T) {
				s := slaveOf(m, level(lvl))
				s.t, s.fatalf = t, t.Fatalf
				s.time.nowMs.Add(time.Hour.Milliseconds()) // its own clock is of no matter
				for group := range slices.Chunk(m.recordsBehind(0), window) {
					var cmds []*Command
					for _, raw := range group {
						cmds = append(cmds, s.replicate(raw, 1))
					}
					s.ok(cmds...)
					if last := cmds[len(cmds)-1].EventID; s.e.LastEventID() != last {
						t.Fatalf("after event %d the position is %d", last, s.e.LastEventID())
					}
				}
				s.same(m)
				if st := s.e.Stats(); st.Replicated != int64(len(m.recordsBehind(0))) || st.Refused != 0 {
					t.Errorf("counted: %+v", st)
				}
				s.open()
				s.same(m)
				if s.state.NextEventID != m.e.writer.nextID {
					t.Errorf("next id %d, the master's is %d", s.state.NextEventID, m.e.writer.nextID)
				}
			})
		}
	}
}

// TestReplicateAndSubscribe: a slave's subscribers are woken by what is
// applied, and told of a deletion.
func TestReplicateAndSubscribe(t *testing.T) {
	m := newRig(t, nil)
	m.create("t")
	m.ok(m.pushPublish("t", "1"))
	m.ok(m.pushDelete("t"))
	s := slaveOf(m, nil)
	recs := m.recordsBehind(0)
	s.ok(s.replicate(recs[0], 1))
	topic := s.e.Lookup([]byte("t"))
	sub := newSub(topic, 1)
	if !sub.Park() {
		t.Fatal("there is something to read")
	}
	s.ok(s.replicate(recs[1], 1))
	if got := s.drain(1); !slices.Equal(got, []any{&topic.lanes[1]}) {
		t.Fatalf("the subscriber got %v", got)
	}
	topic.lanes[1].Wake(woken(func(u *Subscription) { u.Pos = topic.End() }))
	if !sub.Park() {
		t.Fatal("it has read everything")
	}
	s.ok(s.replicate(recs[2], 1))
	if got := s.drain(1); !slices.Equal(got, []any{&topic.lanes[1]}) || !topic.Ended() {
		t.Errorf("the subscriber got %v of the deletion", got)
	}
}

// TestReplicateOrder: ids may leave gaps and must rise; what does not fit ends
// its stream and changes nothing, a later stream goes on.
func TestReplicateOrder(t *testing.T) {
	m := master(t, nil)
	recs := m.recordsBehind(0)
	s := slaveOf(m, nil)
	s.ok(s.replicate(recs[0], 1), s.replicate(recs[1], 1))
	for _, raw := range [][]byte{recs[1], recs[0]} { // again, and an older one
		last, stream := s.e.LastEventID(), s.e.writer.failedStream+2
		bad, behind := s.replicate(raw, stream), s.replicate(recs[2], stream)
		s.done(bad, behind)
		var refusal *Refusal
		if !errors.As(bad.Err, &refusal) || !strings.Contains(refusal.Text, fmt.Sprintf("which does not come after %d", last)) {
			t.Errorf("answer %v", bad.Err)
		}
		if behind.Err != errStreamFailed || s.e.LastEventID() != last {
			t.Errorf("behind it: %v, the position is %d", behind.Err, s.e.LastEventID())
		}
	}
	// The middle of a batch is not behind it.
	var batch []byte
	for _, raw := range recs[2:] {
		if cmd := s.replicate(raw, 100); cmd.Record().IDs() == 3 {
			batch = raw
			s.ok(cmd)
			break
		} else {
			s.ok(cmd)
		}
	}
	s.wantErr(s.replicate(batch, 101), fmt.Sprintf("the master sends event %d, which does not come after %d", s.e.LastEventID()-2, s.e.LastEventID()))
	for _, raw := range m.recordsBehind(s.e.LastEventID()) {
		s.ok(s.replicate(raw, 102))
	}
	s.same(m)
}

// TestReplicateWithoutTopic: the record is written, its event applies to
// nothing, and a topic that the slave was told of beforehand takes only what
// belongs to its life.
func TestReplicateWithoutTopic(t *testing.T) {
	m := master(t, nil)
	recs := m.recordsBehind(0)
	var last codec.BinlogRecord
	if _, err := codec.ParseBinlogRecord(recs[len(recs)-1], 1<<20, &last); err != nil {
		t.Fatal(err)
	}
	// A slave that begins in the middle knows no topic but those of a list,
	// among them one of a life that begins only later, and one that never does.
	s := slaveOf(m, func(r *rig) { r.cfg.LastEventID = 0 })
	gone := m.e.Lookup([]byte("gone")).Meta
	s.ok(s.pushAdopt(gone))
	s.wantErr(s.pushAdopt(gone), ErrTopicExist.Text)
	s.ok(s.pushAdopt(storage.TopicMeta{Name: "other", CreatedAtMs: 5, CreateEventID: 1}))
	for _, raw := range recs[7:] {
		s.ok(s.replicate(raw, 1))
	}
	if s.e.LastEventID() != m.e.LastEventID() {
		t.Errorf("the position is %d, the master's %d", s.e.LastEventID(), m.e.LastEventID())
	}
	if got := s.recordsBehind(0); !slices.EqualFunc(got, recs[7:], bytes.Equal) {
		t.Error("the binlog holds other records than the master's")
	}
	s.want("gone", "7") // and not "6" of its former life, whose deletion was not its own
	s.want("other")
	if s.e.Lookup([]byte("a")) != nil || s.e.Lookup([]byte("short")) != nil {
		t.Error("a topic came from nowhere")
	}
	// b was unknown in its first life, and created in its second.
	s.want("b", "10")
	if got := s.meta.pendingKeys(); len(got) != 1 || got[0].Topic != "b" || got[0].EventID < gone.CreateEventID {
		t.Errorf("pending: %v", got)
	}
	for range 2 {
		if got := s.topicNames(); !slices.Equal(got, []string{"b", "gone", "other"}) {
			t.Errorf("topics %q", got)
		}
		s.open()
	}
}

// TestAdopt: the limits and the role hold for it, too.
func TestAdopt(t *testing.T) {
	r := newRig(t, func(r *rig) { r.cfg.MaxTopics = 1 })
	r.wantErr(r.pushAdopt(storage.TopicMeta{Name: "a", CreateEventID: 1}), errNotSlave.Text)
	r.ok(r.pushTurn(Slave))
	r.ok(r.pushAdopt(storage.TopicMeta{Name: "a", CreateEventID: 9, ExpireAtMs: 1}))
	r.wantErr(r.pushAdopt(storage.TopicMeta{Name: "b", CreateEventID: 1}), errTooManyTopics.Text)
	if r.e.LastEventID() != 0 || len(r.logs()) != 0 {
		t.Error("it has left a record")
	}
	if got := r.e.Lookup([]byte("a")).Meta; got.CreateEventID != 9 || got.ExpireAtMs != 1 {
		t.Errorf("adopted as %+v", got)
	}
}

// faultyDisk lets the n-th operation that changes something fail, once.
func (r *rig) faultyDisk(n int, err error) (failed *bool) {
	failed = new(bool)
	ask := func(op string) error {
		switch op {
		case "write", "create", "truncate", "sync", "rename", "mkdir", "commit", "syncdir":
			if n--; n < 0 && !*failed {
				*failed = true
				return err
			}
		}
		return nil
	}
	r.disk.fail = func(op, _ string) error { return ask(op) }
	r.meta.fail = ask
	return failed
}

// TestReplicateFailures: whichever operation of the disk fails while a window
// is under way, what was answered well is a prefix, nothing behind the failure
// is applied, and a new stream from the position on ends with the master's
// bytes.
func TestReplicateFailures(t *testing.T) {
	m := master(t, nil)
	recs := m.recordsBehind(0)
	for lvl := range 3 {
		for _, fault := range []error{unix.EIO, unix.ENOSPC} {
			t.Run(fmt.Sprintf("level%d/%v", lvl, fault), func(t *testing.T) {
				for n := 0; ; n++ {
					s := slaveOf(m, level(lvl))
					s.t, s.fatalf = t, func(f string, a ...any) { t.Helper(); t.Fatalf("operation %d: "+f, append([]any{n}, a...)...) }
					failed := s.faultyDisk(n, fault)
					stream := uint64(0)
					for tries := 0; s.e.LastEventID() < m.e.LastEventID(); tries++ {
						if tries > 3 {
							s.fatalf("no progress at event %d", s.e.LastEventID())
						}
						stream++
						s.follow(m, stream, 20)
						if s.e.broken.Load() {
							// As after a kill: what was applied is what a start finds.
							s.disk.fail, s.meta.fail = nil, nil
							at := s.e.LastEventID()
							if s.open(); s.e.LastEventID() < at {
								s.fatalf("a start finds event %d, %d was applied", s.e.LastEventID(), at)
							}
						}
					}
					s.same(m)
					if !*failed {
						if n < len(recs)/2 {
							t.Errorf("only %d operations were seen", n)
						}
						return
					}
				}
			})
		}
	}
}

// follow sends everything behind the slave's position, window records at a
// time, until one is refused, and checks that the rest is.
func (r *rig) follow(m *rig, stream uint64, window int) {
	r.t.Helper()
	at := r.e.LastEventID()
	for group := range slices.Chunk(m.recordsBehind(at), window) {
		var cmds []*Command
		for _, raw := range group {
			cmds = append(cmds, r.replicate(raw, stream))
		}
		r.done(cmds...)
		failed := false
		for _, c := range cmds {
			switch {
			case c.Err != nil:
				failed = true
			case failed:
				r.fatalf("event %d was applied behind one that was not", c.EventID)
			default:
				at = c.EventID
			}
		}
		if now := r.e.LastEventID(); now != at {
			r.fatalf("the position is %d, applied was %d", now, at)
		}
		if failed {
			return
		}
	}
}
