package replication

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"smss/codec"
	"smss/engine"
	"smss/storage"
)

// The window: what is under way to the writer at once.
const (
	windowCommands = 1024
	windowBytes    = 16 << 20
)

// Follower copies a master: it connects, and connects again, until it is
// stopped. One goroutine runs it; what others see is Status.
type Follower struct {
	n       *Node
	address string
	ctx     context.Context
	cancel  context.CancelFunc
	done    chan struct{}

	// The rest belongs to its goroutine.
	mailbox  *engine.Mailbox
	wake     chan struct{}
	pool     engine.CommandPool
	out      int   // commands under way
	outBytes int64 // and what they take
	stream   uint64
	link     *link
	extended bool
	greeted  bool
	failed   error // of the first record of this stream that was not applied
	reported int64 // last event id that the master was told of
	records  bool  // this connection has brought some
	// The last record that was applied, as far as this follower knows: see
	// place.
	lastFirst, lastID int64
}

func newFollower(n *Node, address string) *Follower {
	f := &Follower{n: n, address: address, done: make(chan struct{}), wake: make(chan struct{}, 1)}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.mailbox = engine.NewMailbox(func() {
		select {
		case f.wake <- struct{}{}:
		default:
		}
	})
	return f
}

// run is the follower's goroutine.
func (f *Follower) run() {
	defer close(f.done)
	pauses := backoff{first: f.n.cfg.RetryFirst, max: f.n.cfg.RetryMax}
	for f.ctx.Err() == nil {
		f.n.linkIs(f.address, LinkConnecting, nil)
		before, began := f.n.position(), time.Now()
		err := f.follow()
		f.settle()
		if f.ctx.Err() != nil {
			break
		}
		// Records that come and cannot be applied are no progress: the master
		// would send the same ones again, and again at once.
		if f.n.position() > before || f.greeted && time.Since(began) > f.n.cfg.RetryMax {
			pauses.reset()
		}
		state := LinkWaiting
		if final(err) {
			pauses.toMax() // it needs somebody to do something
			state, err = f.copyInstead(LinkRefused, err)
		}
		f.n.linkIs(f.address, state, err)
		sleep(f.ctx, pauses.next())
	}
	f.n.linkIs(f.address, LinkOff, nil)
}

// stop ends the follower and waits for it. Everything that it has pushed is
// answered by then.
func (f *Follower) stop() {
	f.cancel()
	<-f.done
}

// final reports whether an error stays as long as nobody does something.
func final(err error) bool {
	var refused *RefusedError
	var gone *IncompleteError
	return errors.As(err, &refused) || errors.As(err, &gone)
}

// IncompleteError says that the master does not have the events any more that
// this slave needs next.
type IncompleteError struct{ Oldest, Want int64 }

func (e *IncompleteError) Error() string {
	return fmt.Sprintf("the master's oldest event is %d, this slave needs those from %d on: it needs a full copy", e.Oldest, e.Want)
}

// follow is one connection.
func (f *Follower) follow() error {
	f.records, f.greeted, f.extended, f.failed = false, false, false, nil
	f.stream = f.n.streams.Add(1)
	conn, err := f.n.cfg.Dial(f.ctx, f.address)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(f.ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	f.link = newLink(conn, f.n.cfg.Silence)
	if err := f.bootstrap(); err != nil {
		return err
	}
	after, err := f.place()
	if err != nil {
		return err
	}
	f.reported = f.n.position()
	req, err := codec.AppendReplica(nil, traceID, after, f.n.greeting())
	if err != nil {
		return err
	}
	if err := f.link.send(req); err != nil {
		return err
	}
	go f.link.stream()
	defer f.drop()
	return f.receive()
}

// place returns the event id that the master is asked to go on behind: the
// first one of the last record. Existing masters do not find the others, and
// would refuse for ever a slave that has a batch last. Those of this project
// take the last one from the greeting.
func (f *Follower) place() (int64, error) {
	at := f.n.position()
	if f.lastID != at {
		first, last, err := f.n.cfg.Engine.LastRecord()
		if err != nil {
			return 0, fmt.Errorf("the end of the binlog: %w", err)
		}
		f.lastFirst, f.lastID = first, last
	}
	if f.lastID != at {
		return at, nil // the binlog is empty, and at is what this slave was told to begin behind
	}
	return f.lastFirst, nil
}

// drop waits for the reading goroutine to end.
func (f *Follower) drop() {
	f.link.conn.Close()
	for range f.link.full {
	}
}

// bootstrap makes the topics known that a master had before its binlog begins.
// A directory that has events has had them already.
func (f *Follower) bootstrap() error {
	base := f.n.History().Base
	if f.n.position() > base {
		return nil
	}
	text, err := f.link.validList(base)
	if err != nil {
		return err
	}
	var topics []codec.TopicJSON
	if len(text) > 0 {
		if err := json.Unmarshal(text, &topics); err != nil {
			return fmt.Errorf("the master's list of topics: %w", err)
		}
	}
	for _, t := range topics {
		if !codec.ValidTopicName([]byte(t.Name)) {
			f.n.cfg.Events.note(fmt.Sprintf("topic %q of the master is left out: its name is not one that a directory can have", t.Name), nil)
			continue
		}
		if err := f.adopt(&t); err != nil {
			return fmt.Errorf("topic %s of the master: %w", t.Name, err)
		}
	}
	// They leave no record in the binlog: they must be on the disk before a
	// record is, because a slave that has one does not ask for them again.
	cmd := f.pool.Get()
	cmd.Kind = engine.Settle
	if err := f.push(cmd); err != nil {
		return err
	}
	return f.await(0)
}

func (f *Follower) adopt(t *codec.TopicJSON) error {
	cmd := f.pool.Get()
	cmd.Kind = engine.Adopt
	cmd.Meta = &storage.TopicMeta{
		Name: t.Name, CreatedAtMs: t.CreateTimeStamp, ExpireAtMs: t.ExpireAt, CreateEventID: t.CreateEventID,
		StateChangedAtMs: t.StateChangeTime, StateChangeEventID: t.StateChangeEventID,
	}
	cmd.SetText([]byte(t.Name), nil, nil)
	if err := f.push(cmd); err != nil {
		return err
	}
	return f.await(0)
}

// receive takes the stream as it comes.
func (f *Follower) receive() error {
	for {
		select {
		case s, ok := <-f.link.full:
			if !ok {
				return f.link.err
			}
			for i := range s.frames {
				if err := f.frame(&s.frames[i], s.body(&s.frames[i])); err != nil {
					return err
				}
			}
			f.link.give(s)
		case <-f.wake:
			if err := f.drain(); err != nil {
				return err
			}
		case <-f.ctx.Done():
			return f.ctx.Err()
		}
	}
}

func (f *Follower) frame(fr *frame, body []byte) error {
	switch fr.code {
	case codec.CodeError:
		return f.refused(string(body))
	case codec.CodeGreeting:
		return f.greet(body)
	}
	if !f.greeted {
		if err := f.begin(nil); err != nil {
			return err
		}
	}
	switch fr.code {
	case codec.CodeAlive:
		if last := codec.ParseEventFrame(fr.head[:]); f.extended && last > 0 {
			f.n.masterLast.Store(last)
		}
		return nil
	case codec.CodeTakeOver:
		return f.takeOver(codec.ParseEventFrame(fr.head[:]))
	}
	return f.record(body)
}

// greet takes the greeting of a master of this project.
func (f *Follower) greet(text []byte) error {
	g, err := codec.ParseGreeting(text)
	if err != nil {
		return fmt.Errorf("the master's greeting cannot be read: %w", err)
	}
	if f.greeted {
		return errors.New("the master greets in the middle of its stream")
	}
	f.extended = true
	f.n.masterLast.Store(g.LastEventID)
	return f.begin(&g)
}

// begin is called once for a connection, before its first record: g is nil
// where the master is an existing server.
func (f *Follower) begin(g *codec.Greeting) error {
	f.greeted = true
	if g == nil {
		f.n.masterLast.Store(0) // an existing master does not say
	}
	h := f.n.History()
	before, last := h, f.n.position()
	// A promotion that was cut short may have announced an epoch.
	h.Slave, h.Epochs = true, reigned(h.Epochs, last)
	if g != nil {
		if err := compare(g.Epochs, h.Epochs, g.LastEventID, f.n.holds(&h)); err != nil {
			return &RefusedError{err.Error()}
		}
		if last == 0 && !g.Complete && g.OldestEventID > 1 {
			return &IncompleteError{g.OldestEventID, 1}
		}
		h.Epochs = g.Epochs
	}
	if h.Slave != before.Slave || !slices.Equal(h.Epochs, before.Epochs) {
		if err := f.n.saveHistory(h); err != nil {
			return err
		}
		f.n.newReign() // this server's own slaves
	}
	f.n.linkIs(f.address, LinkStreaming, nil)
	return nil
}

// record hands one record to the writer.
func (f *Follower) record(raw []byte) error {
	cmd, err := f.pool.NewReplicate(raw, f.stream)
	if err != nil {
		return fmt.Errorf("a record behind event %d cannot be read: %w", f.n.position(), err)
	}
	if !f.extended && !f.records && f.n.position() == 0 && cmd.Record().EventID > 1 {
		// An existing master does not say what it lacks.
		h := f.n.History()
		h.IncompleteFrom = cmd.Record().EventID
		if err := f.n.saveHistory(h); err != nil {
			f.pool.Put(cmd)
			return err
		}
		f.n.cfg.Events.note(fmt.Sprintf("history incomplete: the master's oldest event is %d; what was published before is not copied", h.IncompleteFrom), nil)
	}
	f.records = true
	return f.push(cmd)
}

// push hands cmd to the writer, waiting for room in the window and the ring.
func (f *Follower) push(cmd *engine.Command) error {
	cmd.Mailbox = f.mailbox
	size := cmd.Size()
	for f.out > 0 && (f.out >= windowCommands || f.outBytes+size > windowBytes) {
		if err := f.wait(); err != nil {
			f.pool.Put(cmd)
			return err
		}
	}
	for !f.n.cfg.Engine.Push(cmd) {
		if f.out > 0 {
			if err := f.wait(); err != nil {
				f.pool.Put(cmd)
				return err
			}
			continue
		}
		sleep(f.ctx, time.Millisecond) // the ring is full of others' commands, which the writer works off
		if f.ctx.Err() != nil {
			f.pool.Put(cmd)
			return f.ctx.Err()
		}
	}
	f.out++
	f.outBytes += size
	return nil
}

// await waits until at most n commands are under way.
func (f *Follower) await(n int) error {
	for f.out > n {
		if err := f.wait(); err != nil {
			return err
		}
	}
	return nil
}

// wait waits until something has come back.
func (f *Follower) wait() error {
	select {
	case <-f.wake:
	case <-f.ctx.Done():
		return f.ctx.Err()
	}
	return f.drain()
}

// drain takes what the writer has answered, and reports it to the master.
func (f *Follower) drain() error {
	f.mailbox.Drain(f.back)
	if f.failed != nil {
		return fmt.Errorf("not applied behind event %d: %w", f.n.position(), f.failed)
	}
	if at := f.n.position(); f.extended && at > f.reported {
		f.reported = at
		return f.link.send(codec.AppendReport(nil, at, false))
	}
	return nil
}

// back takes one command that the writer has answered.
func (f *Follower) back(note *engine.Note) {
	cmd := note.Subject.(*engine.Command)
	f.out--
	f.outBytes -= cmd.Size()
	switch {
	case cmd.Err == nil:
		if cmd.Kind == engine.Replicate && cmd.EventID > f.lastID {
			f.lastFirst, f.lastID = cmd.Record().EventID, cmd.EventID
		}
	case f.failed == nil && !errors.Is(cmd.Err, engine.ErrTopicExist):
		f.failed = cmd.Err
	}
	f.pool.Put(cmd)
}

// settle waits for everything that is under way: the writer answers always.
func (f *Follower) settle() {
	for f.out > 0 {
		<-f.wake
		f.mailbox.Drain(f.back)
	}
}

// takeOver becomes the master on its word, once everything up to its last
// event is applied.
func (f *Follower) takeOver(last int64) error {
	if err := f.await(0); err != nil {
		return err
	}
	if at := f.n.position(); at != last {
		return fmt.Errorf("the master wants this slave to take over behind event %d, but it has %d", last, at)
	}
	if err := f.n.takeOver(f); err != nil {
		return err
	}
	if err := f.link.send(codec.AppendReport(nil, last, true)); err != nil {
		f.n.cfg.Events.note("the old master could not be told that this server has taken over", err)
	}
	f.linger()
	f.cancel()
	return f.ctx.Err()
}

// lingerWait is how long the old master may take to end the connection.
const lingerWait = 5 * time.Second

// linger lets the old master end the connection: closed from here, with
// heartbeats unread, it would be reset, and the report thrown away on arrival.
func (f *Follower) linger() {
	late := time.NewTimer(lingerWait)
	defer late.Stop()
	for {
		select {
		case s, ok := <-f.link.full:
			if !ok {
				return
			}
			f.link.give(s)
		case <-late.C:
			return
		case <-f.ctx.Done():
			return
		}
	}
}
