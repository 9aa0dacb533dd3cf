package replication

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"smss/codec"
	"smss/engine"
	"smss/storage"
)

// server is an engine on a directory, and on a port that answers COPY as the
// event loops do.
type server struct {
	t     testing.TB
	opt   storage.Options
	store *storage.Store
	e     *engine.Engine
	n     *Node
	ln    net.Listener
	mail  *engine.Mailbox
	wake  chan struct{}
	pool  engine.CommandPool
	over  sync.WaitGroup

	mu    sync.Mutex // of do: the port's goroutine and the test's
	asked atomic.Pointer[hook]
	sent  atomic.Int64 // bytes of answers
	cut   atomic.Int64 // of a connection, after which it is cut; 0 = never
}

// hook is called before a request is answered, and may change the answer.
type hook func(q *codec.CopyRequest, answer func() []byte) []byte

func (s *server) onAsk(h hook) {
	if h == nil {
		h = func(_ *codec.CopyRequest, answer func() []byte) []byte { return answer() }
	}
	s.asked.Store(&h)
}

const (
	logSize      = 3000
	slaveFolders = 3 // other than the master's
)

func newServer(t testing.TB, dir string, role engine.Role) *server {
	t.Helper()
	s := &server{t: t, wake: make(chan struct{}, 1)}
	s.opt = storage.Options{Path: dir, MaxLogSize: logSize, FolderCount: 2, MaxOpenTopics: 16}
	if role == engine.Slave {
		s.opt.FolderCount = slaveFolders
	}
	var err error
	var state *storage.State
	if s.store, state, err = storage.Open(s.opt); err != nil {
		t.Fatal(err)
	}
	s.mail = engine.NewMailbox(func() {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	})
	last, err := s.store.BinlogReader().Last(s.store.BinlogEnd())
	if err != nil {
		t.Fatal(err)
	}
	s.e = engine.New(engine.Config{
		Loops: 1, Mailboxes: []*engine.Mailbox{s.mail}, RingSize: 64, Readers: 1, MaxInflightBytes: 64 << 20, MaxPushBytes: 1 << 20,
		MaxTopics: 1000, FirstScanAfter: time.Hour, Clock: engine.WallClock{}, Role: role, LastEventID: last,
	}, s.store, state)
	s.n = New(Config{Engine: s.e, Store: s.store, Clock: engine.WallClock{}, Heartbeat: time.Second, Silence: 2 * time.Second,
		RetryFirst: time.Millisecond, RetryMax: 10 * time.Millisecond})
	if s.ln, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	s.e.Start()
	if role == engine.Master {
		if err := s.n.Start(); err != nil {
			t.Fatal(err)
		}
	}
	s.over.Add(1)
	go s.accept()
	return s
}

func (s *server) stop() {
	s.t.Helper()
	s.ln.Close()
	s.over.Wait()
	s.n.Stop()
	next, broken := s.e.Stop()
	if err := s.store.Close(next, broken); err != nil {
		s.t.Error(err)
	}
}

// accept serves one connection after the other: a copy uses one.
func (s *server) accept() {
	defer s.over.Done()
	for {
		c, err := s.ln.Accept()
		if err != nil {
			return
		}
		_ = s.serve(c) // the peer's end, or the cut
		c.Close()
	}
}

func (s *server) serve(c net.Conn) error {
	for sent := int64(0); ; {
		head := make([]byte, codec.RequestHeaderSize)
		if _, err := io.ReadFull(c, head); err != nil {
			return err
		}
		raw := append(head, make([]byte, int(head[19])+int(binary.LittleEndian.Uint32(head[3:])))...)
		if _, err := io.ReadFull(c, raw[len(head):]); err != nil {
			return err
		}
		var req codec.Request
		if _, err := codec.ParseRequest(raw, &codec.Limits{}, &req); err != nil {
			return err
		}
		answer := s.answer(&req)
		cut := s.cut.Load()
		if cut > 0 && sent+int64(len(answer)) > cut {
			answer = answer[:cut-sent]
		}
		n, err := c.Write(answer)
		sent += int64(n)
		s.sent.Add(int64(n))
		if err != nil {
			return err
		}
		if sent == cut {
			// With requests unread a close would be a reset, which destroys what
			// the slave has not read yet.
			err := c.(*net.TCPConn).CloseWrite()
			_, drained := io.Copy(io.Discard, c)
			return errors.Join(err, drained)
		}
	}
}

func (s *server) answer(req *codec.Request) []byte {
	answer := func() []byte {
		r := &engine.Read{Kind: engine.CopyPart, Link: &engine.Link{Hello: req.Payload}}
		s.n.Copy(r)
		if r.Err != nil {
			return codec.AppendError(nil, r.Err.Error())
		}
		return r.Text
	}
	q, err := codec.ParseCopy(req.Payload)
	h := s.asked.Load()
	if err != nil || h == nil {
		return answer()
	}
	return (*h)(&q, answer)
}

func (s *server) do(set func(*engine.Command)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	cmd := s.pool.Get()
	set(cmd)
	cmd.Mailbox, cmd.ReceivedAtMs = s.mail, time.Now().UnixMilli()
	for !s.e.Push(cmd) {
		time.Sleep(time.Millisecond)
	}
	done := false
	for !done {
		<-s.wake
		s.mail.Drain(func(note *engine.Note) { done = done || note.Subject == cmd })
	}
	return cmd.Err
}

func (s *server) must(set func(*engine.Command)) {
	s.t.Helper()
	if err := s.do(set); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) create(topic string) {
	s.t.Helper()
	s.must(func(c *engine.Command) { c.Kind = engine.Create; c.SetText([]byte(topic), nil, nil) })
}

func (s *server) delete(topic string) {
	s.t.Helper()
	s.must(func(c *engine.Command) { c.Kind = engine.Delete; c.SetText([]byte(topic), nil, nil) })
}

func (s *server) pub(topic, body string) {
	s.t.Helper()
	s.must(func(c *engine.Command) {
		c.Kind, c.Messages = engine.Publish, 1
		c.SetText([]byte(topic), nil, codec.AppendMessage(nil, &codec.Message{Body: []byte(body)}))
	})
}

func (s *server) delay(topic, body string, triggerAtMs int64) {
	s.t.Helper()
	s.must(func(c *engine.Command) {
		c.Kind, c.Messages, c.TriggerAtMs = engine.Delay, 1, triggerAtMs
		c.SetText([]byte(topic), nil, codec.AppendMessage(nil, &codec.Message{Body: []byte(body)}))
	})
}

// topicFile returns the path of a file of a topic.
func (s *server) topicFile(topic string, n int) string {
	return filepath.Join(s.opt.Path, "topic", s.store.TopicRoot(topic), fmt.Sprint(n, ".log"))
}

// content is what a server holds, as text.
func (s *server) content() string {
	s.t.Helper()
	return content(s.t, s.opt.Path, s.store, s.e)
}

// fill gives a server something to copy.
func (s *server) fill() {
	s.t.Helper()
	far := time.Now().Add(time.Hour).UnixMilli()
	for _, name := range []string{"a", "b", "big", "empty", "doomed"} {
		s.create(name)
	}
	for i := range 60 {
		s.pub("a", fmt.Sprint("a", i, strings.Repeat("x", i*5)))
		s.pub("doomed", fmt.Sprint("doomed", i, strings.Repeat("x", 400)))
		if i%5 == 0 {
			s.pub("b", fmt.Sprint("b", i))
			s.delay("b", fmt.Sprint("later", i), far+int64(i/20))
		}
	}
	s.pub("big", strings.Repeat("big", 300_000))
}

// slaveDir is a directory with an order for a copy of the server.
func (s *server) slaveDir() string {
	s.t.Helper()
	dir := s.t.TempDir()
	text := fmt.Sprintf(`{"master": %q}`, s.ln.Addr())
	if err := os.WriteFile(filepath.Join(dir, "reseed.json"), []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
	return dir
}

// copier runs the copy of a directory.
type copier struct {
	notes, failures []string
	minFree         int64
	once            bool // the first failure ends it
}

func (c *copier) run(t testing.TB, dir string) error {
	t.Helper()
	st, err := storage.OpenStaging(storage.Options{Path: dir, FolderCount: slaveFolders, MaxLogSize: logSize})
	if err != nil || st == nil {
		t.Fatalf("no copy is to be made: %v", err)
	}
	defer st.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return NewCopy(CopyConfig{
		Staging: st, Silence: 10 * time.Second, RetryFirst: time.Millisecond, RetryMax: 2 * time.Millisecond, MinFree: c.minFree,
		Events: CopyEvents{
			Note: func(what string, err error) { c.notes = append(c.notes, fmt.Sprint(what, " ", err)) },
			Failed: func(err error, _ time.Duration) {
				if c.failures = append(c.failures, err.Error()); c.once {
					cancel()
				}
			},
		},
	}).Run(ctx)
}

func (c *copier) noted(part string) bool {
	return slices.ContainsFunc(slices.Concat(c.notes, c.failures), func(s string) bool { return strings.Contains(s, part) })
}

// catchUp opens a copied directory as a slave, gives it what the master has
// behind it, and compares the two.
func (s *server) catchUp(dir string) {
	s.t.Helper()
	x := newServer(s.t, dir, engine.Slave)
	defer x.stop()
	log := s.store.BinlogReader()
	end := s.store.BinlogEnd()
	pos, err := log.Locate(x.e.LastEventID(), end)
	if err != nil {
		s.t.Fatalf("behind event %d: %v", x.e.LastEventID(), err)
	}
	for pos.Before(end) {
		out, _, err := log.ReadRecords(pos, end, 1, nil, nil)
		if err != nil {
			s.t.Fatal(err)
		}
		if pos = out.Next; out.Count == 0 {
			continue // it was the end of a file
		}
		raw := out.Frame[storage.RecordFrameOverhead:]
		cmd, err := x.pool.NewReplicate(raw, 1)
		if err != nil {
			s.t.Fatal(err)
		}
		cmd.Mailbox = x.mail
		for !x.e.Push(cmd) {
			time.Sleep(time.Millisecond)
		}
		for done := false; !done; {
			<-x.wake
			x.mail.Drain(func(note *engine.Note) { done = done || note.Subject == cmd })
		}
		if cmd.Err != nil {
			s.t.Fatal(cmd.Err)
		}
	}
	if got, want := x.content(), s.content(); got != want {
		s.t.Errorf("the slave holds\n%s\nthe master\n%s", got, want)
	}
}

// TestCopyBesideWrites: the copy is right whatever the master does meanwhile.
func TestCopyBesideWrites(t *testing.T) {
	t.Parallel()
	m := newServer(t, t.TempDir(), engine.Master)
	defer m.stop()
	m.fill()
	n := 0
	m.onAsk(func(q *codec.CopyRequest, answer func() []byte) []byte {
		n++
		m.pub("a", fmt.Sprint("meanwhile ", n))
		switch {
		case n == 2:
			m.create("young")
			m.pub("young", "y")
			m.delay("a", "young delay", time.Now().Add(time.Hour).UnixMilli())
		case q.Ask == codec.AskPiece && string(q.Topic) == "doomed" && q.File == 3:
			if m.e.Lookup([]byte("doomed")).Meta.CreateEventID == q.EventID {
				m.delete("doomed")
				m.create("doomed") // another life of the name
				m.pub("doomed", "reborn")
			}
		}
		return answer()
	})
	var c copier
	dir := m.slaveDir()
	if err := c.run(t, dir); err != nil {
		t.Fatal(err)
	}
	if len(c.failures) > 0 {
		t.Errorf("it did not go through at once: %v", c.failures)
	}
	m.onAsk(nil)
	m.catchUp(dir)
}

// TestCopyWithCuts: a connection that is cut after any number of bytes costs
// what was on its way, and no more.
func TestCopyWithCuts(t *testing.T) {
	t.Parallel()
	m := newServer(t, t.TempDir(), engine.Master)
	defer m.stop()
	m.fill()
	var whole copier
	if err := whole.run(t, m.slaveDir()); err != nil {
		t.Fatal(err)
	}
	size := m.sent.Load()
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, cut := range []int64{330_000, 700_000, size - 1000, size - 1} {
		m.sent.Store(0)
		m.cut.Store(cut - rnd.Int64N(50))
		dir := m.slaveDir()
		var c copier
		if err := c.run(t, dir); err != nil {
			t.Fatal(err)
		}
		if len(c.failures) == 0 {
			t.Errorf("cut at %d of %d: nothing was cut", cut, size)
		}
		// Pieces on their way are asked for again, and the lists.
		if most := size + int64(len(c.failures))*(pieceBytes+20_000); m.sent.Load() > most {
			t.Errorf("cut at %d: %d bytes were sent in %d connections, more than %d", cut, m.sent.Load(), len(c.failures)+1, most)
		}
		m.cut.Store(0)
		m.catchUp(dir)
	}
}

// TestCopyAcrossRestarts: the copying process is ended at many places and begun
// again; so is the master.
func TestCopyAcrossRestarts(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	m := newServer(t, home, engine.Master)
	m.fill()
	dir := m.slaveDir()
	rounds := 0
	for ; rounds < 30; rounds++ {
		st, err := storage.OpenStaging(storage.Options{Path: dir, FolderCount: slaveFolders, MaxLogSize: logSize})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		c := NewCopy(CopyConfig{Staging: st, Silence: 10 * time.Second, RetryFirst: time.Millisecond, RetryMax: time.Millisecond})
		n, from := 0, int64(0)
		m.onAsk(func(q *codec.CopyRequest, answer func() []byte) []byte {
			if q.Ask == codec.AskPiece {
				switch n++; n {
				case 1:
					from = c.done.Load()
				case 6: // each round takes something, and none takes all
					for c.done.Load() == from {
						time.Sleep(time.Millisecond)
					}
					cancel()
				}
			}
			return answer()
		})
		err = c.Run(ctx)
		cancel()
		st.Close()
		if err == nil {
			break
		}
		if rounds == 1 {
			m.stop()
			m = newServer(t, home, engine.Master)
			text := fmt.Sprintf(`{"master": %q}`, m.ln.Addr())
			if err := os.WriteFile(filepath.Join(dir, "reseed.json"), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		m.pub("a", fmt.Sprint("between ", rounds))
	}
	defer m.stop()
	if rounds < 2 || rounds == 30 {
		t.Errorf("%d rounds: the copy was not interrupted, or did not go on", rounds)
	}
	m.onAsk(nil)
	m.catchUp(dir)
}

// TestCopyDamaged: an answer that was damaged on its way is asked for again; so
// is a file whose records are; and one that is damaged at the master is kept as
// it is there.
func TestCopyDamaged(t *testing.T) {
	t.Parallel()
	m := newServer(t, t.TempDir(), engine.Master)
	defer m.stop()
	m.fill()
	n := 0
	t.Run("on its way", func(t *testing.T) {
		m.t = t
		n = 0
		m.onAsk(func(_ *codec.CopyRequest, answer func() []byte) []byte {
			b := answer()
			if n++; n == 5 {
				b[len(b)/2] ^= 1
			}
			return b
		})
		var c copier
		dir := m.slaveDir()
		if err := c.run(t, dir); err != nil || !c.noted(codec.ErrCopyDamaged.Error()) {
			t.Fatal(err, c.failures)
		}
		m.onAsk(nil)
		m.catchUp(dir)
	})
	t.Run("once in a file", func(t *testing.T) {
		m.t = t
		n = 0
		m.onAsk(func(q *codec.CopyRequest, answer func() []byte) []byte {
			b := answer()
			if string(q.Topic) == "doomed" && q.File == 4 && q.Off == 0 {
				if n++; n == 1 {
					var head codec.CopyPiece
					data, err := codec.ParseCopyAnswer(b[codec.ReplyHeaderSize:], &head)
					if err != nil {
						t.Error(err)
					}
					data = slices.Clone(data)
					data[len(data)/2] ^= 4
					b, err = codec.AppendCopyAnswer(nil, &head, data)
					if err != nil {
						t.Error(err)
					}
				}
			}
			return b
		})
		var c copier
		dir := m.slaveDir()
		if err := c.run(t, dir); err != nil || !c.noted("are damaged and are fetched again") || n != 2 {
			t.Fatal(err, c.notes, n)
		}
		m.onAsk(nil)
		m.catchUp(dir)
	})
	t.Run("at the master", func(t *testing.T) {
		m.t = t
		name := m.topicFile("doomed", 2)
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 4
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
		n = 0
		m.onAsk(func(q *codec.CopyRequest, answer func() []byte) []byte {
			if string(q.Topic) == "doomed" && q.File == 2 && q.Off == 0 {
				n++
			}
			return answer()
		})
		var c copier
		dir := m.slaveDir()
		if err := c.run(t, dir); err != nil || !c.noted("damaged at 2:") || n != fetchTries {
			t.Fatal(err, c.notes, n)
		}
		m.onAsk(nil)
		m.catchUp(dir) // which compares the damage, too
	})
}

// TestCopyBesideRetention: files that go away while they are copied go from the
// copy, with all that lie before them; a binlog that goes away begins it anew.
func TestCopyBesideRetention(t *testing.T) {
	t.Parallel()
	m := newServer(t, t.TempDir(), engine.Master)
	defer m.stop()
	m.fill()
	remove := func(names ...string) {
		for _, name := range names {
			if err := os.Remove(name); err != nil {
				t.Error(err)
			}
		}
	}
	starts, done := 0, false
	m.onAsk(func(q *codec.CopyRequest, answer func() []byte) []byte {
		switch {
		case q.Ask == codec.AskStart:
			starts++
		case q.Ask == codec.AskPiece && string(q.Topic) == "doomed" && q.File == 3 && !done:
			done = true
			remove(m.topicFile("doomed", 0), m.topicFile("doomed", 1), m.topicFile("doomed", 2), m.topicFile("doomed", 3), m.topicFile("doomed", 4))
		case q.Ask == codec.AskDelays && starts == 1:
			old, err := filepath.Glob(filepath.Join(m.opt.Path, "binlog", "*.log"))
			if err != nil {
				t.Error(err)
			}
			for i := range 30 {
				m.pub("a", fmt.Sprint("rolls ", i, strings.Repeat("r", 500)))
			}
			remove(old...)
		}
		return answer()
	})
	var c copier
	dir := m.slaveDir()
	if err := c.run(t, dir); err != nil || !c.noted("the copy begins anew") || !c.noted("does not reach back") {
		t.Fatal(err, c.notes, c.failures)
	}
	m.onAsk(nil)
	m.catchUp(dir)
}

// TestCopyOfWhollyRemovedTopic: all that a topic had as of the copy is removed
// while it is copied; it goes on in the file in which it does at the master.
func TestCopyOfWhollyRemovedTopic(t *testing.T) {
	t.Parallel()
	m := newServer(t, t.TempDir(), engine.Master)
	defer m.stop()
	m.create("t")
	for range 8 {
		m.pub("t", strings.Repeat("x", 1000))
	}
	done := false
	m.onAsk(func(q *codec.CopyRequest, answer func() []byte) []byte {
		if q.Ask == codec.AskPiece && len(q.Topic) > 0 && !done {
			done = true
			for range 8 {
				m.pub("t", strings.Repeat("y", 1000))
			}
			for i := range 4 {
				if err := os.Remove(m.topicFile("t", i)); err != nil {
					t.Error(err)
				}
			}
		}
		return answer()
	})
	var c copier
	dir := m.slaveDir()
	if err := c.run(t, dir); err != nil {
		t.Fatal(err, c.failures)
	}
	m.onAsk(nil)
	x := newServer(t, dir, engine.Slave)
	defer x.stop()
	files, err := filepath.Glob(filepath.Join(filepath.Dir(x.topicFile("t", 0)), "*.log"))
	if err != nil || !slices.Equal(files, []string{x.topicFile("t", 4)}) {
		t.Errorf("the slave has %v, %v", files, err)
	}
}

// TestCopyOfAnotherDirectory: what was copied of one is not mixed with another.
func TestCopyOfAnotherDirectory(t *testing.T) {
	t.Parallel()
	a, b := newServer(t, t.TempDir(), engine.Master), newServer(t, t.TempDir(), engine.Master)
	defer a.stop()
	defer b.stop()
	a.fill()
	b.create("only")
	b.pub("only", "one")
	dir := a.slaveDir()
	st, err := storage.OpenStaging(storage.Options{Path: dir, FolderCount: slaveFolders})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	a.onAsk(func(q *codec.CopyRequest, answer func() []byte) []byte {
		if q.Ask == codec.AskDelays {
			cancel()
		}
		return answer()
	})
	if err := NewCopy(CopyConfig{Staging: st, Silence: time.Second, RetryFirst: time.Second, RetryMax: time.Second}).Run(ctx); err == nil {
		t.Fatal("it went through")
	}
	st.Close()
	if err := os.WriteFile(filepath.Join(dir, "reseed.json"), fmt.Appendf(nil, `{"master": %q}`, b.ln.Addr()), 0o644); err != nil {
		t.Fatal(err)
	}
	var c copier
	if err := c.run(t, dir); err != nil || !c.noted("another data directory") {
		t.Fatal(err, c.notes)
	}
	b.catchUp(dir)
}

// TestCopyThatCannotBe: what is in the way is said, and nothing is lost.
func TestCopyThatCannotBe(t *testing.T) {
	t.Parallel()
	m := newServer(t, t.TempDir(), engine.Master)
	defer m.stop()
	m.create("t")
	m.pub("t", "x")
	c := copier{minFree: 1 << 60, once: true}
	if err := c.run(t, m.slaveDir()); err == nil || !c.noted("a full copy takes") {
		t.Errorf("no room: %v, %v", err, c.failures)
	}
	self := m.slaveDir()
	b, err := os.ReadFile(filepath.Join(m.opt.Path, "history.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(self, "history.json"), b, 0o644); err != nil {
		t.Fatal(err)
	}
	c = copier{once: true}
	if err := c.run(t, self); err == nil || !c.noted("cannot copy itself") {
		t.Errorf("itself: %v, %v", err, c.failures)
	}
	m.onAsk(func(*codec.CopyRequest, func() []byte) []byte {
		return codec.AppendError(nil, codec.TextUnknownCommand)
	})
	c = copier{once: true}
	if err := c.run(t, m.slaveDir()); err == nil || !c.noted(errNoCopies.Error()) {
		t.Errorf("an existing server: %v, %v", err, c.failures)
	}
	empty := newServer(t, t.TempDir(), engine.Master)
	defer empty.stop()
	c = copier{once: true}
	if err := c.run(t, empty.slaveDir()); err == nil || !c.noted(engine.ErrNothingToCopy.Text) {
		t.Errorf("an empty master: %v, %v", err, c.failures)
	}
}

// TestReseed: who can be told to copy anew, and what is ordered.
func TestReseed(t *testing.T) {
	m := newServer(t, t.TempDir(), engine.Master)
	defer m.stop()
	m.create("t")
	x := newServer(t, t.TempDir(), engine.Slave)
	defer x.stop()
	if err := x.n.Reseed(false); !errors.Is(err, errNoReseed) {
		t.Errorf("without a way to start anew: %v", err)
	}
	var orders []storage.CopyOrder
	for _, s := range []*server{m, x} {
		s.n.cfg.OrderCopy = func(o storage.CopyOrder) error { orders = append(orders, o); return nil }
	}
	if err := m.n.Reseed(true); !errors.Is(err, errMasterReseed) {
		t.Errorf("a master: %v", err)
	}
	if err := x.n.Reseed(false); err == nil {
		t.Error("a slave without a master is copied")
	}
	addr := m.ln.Addr().String()
	x.n.linkIs(addr, LinkRefused, nil)
	x.n.cfg.FreeBytes = func() (int64, error) { return 1000, nil }
	x.n.cfg.MinFree = 990
	var room *RoomError
	if err := x.n.Reseed(false); !errors.As(err, &room) || room.Free != 1000 {
		t.Errorf("without room: %v", err)
	}
	if err := x.n.Reseed(true); err != nil {
		t.Error(err)
	}
	x.n.cfg.MinFree = 0
	if err := x.n.Reseed(false); err != nil {
		t.Error(err)
	}
	if len(orders) != 2 || orders[0] != (storage.CopyOrder{Master: addr, Reason: "ordered", Discard: true}) || orders[1].Discard {
		t.Errorf("ordered: %+v", orders)
	}
	m.onAsk(func(*codec.CopyRequest, func() []byte) []byte { return codec.AppendError(nil, "no") })
	if err := x.n.Reseed(true); err == nil || len(orders) != 2 {
		t.Errorf("a master that refuses: %v, %d orders", err, len(orders))
	}
	// What a follower makes of its master's words.
	f := newFollower(x.n, addr)
	err := f.refused((&engine.GoneError{Oldest: 77}).Error())
	var gone *IncompleteError
	if !errors.As(err, &gone) || gone.Oldest != 77 || gone.Want != 1 {
		t.Errorf("gone: %v", err)
	}
	m.onAsk(nil)
	if state, err := f.copyInstead(LinkRefused, err); state != LinkRefused || !strings.Contains(err.Error(), "replication.autoCopy is off") {
		t.Errorf("not by itself: %v, %v", state, err)
	}
	x.n.cfg.AutoCopy = true
	if state, _ := f.copyInstead(LinkRefused, err); state != LinkCopying || len(orders) != 3 {
		t.Errorf("by itself: %v, %d orders", state, len(orders))
	}
	parted := f.refused((&PartedError{3, 4}).Error())
	if state, _ := f.copyInstead(LinkRefused, parted); state != LinkRefused || len(orders) != 3 {
		t.Errorf("histories that have parted are joined by themselves: %v, %d orders", state, len(orders))
	}
	// A stop does not wait for a master that says nothing.
	over := make(chan struct{})
	m.onAsk(func(*codec.CopyRequest, func() []byte) []byte { x.n.Interrupt(); <-over; return nil })
	var silent *SilentError
	if err := x.n.Reseed(true); err == nil || errors.As(err, &silent) || len(orders) != 3 {
		t.Errorf("interrupted: %v, %d orders", err, len(orders))
	}
	close(over)
}
