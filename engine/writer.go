package engine

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"smss/codec"
	"smss/storage"
)

// The writer's batch ends at the first of these.
const (
	batchCommands = 1024
	batchBytes    = 4 << 20
)

// writer owns the next event id, the catalog as it will be once everything
// written is published, the append side of all logs, and the batch.
type writer struct {
	e      *Engine
	nextID int64
	lastID int64 // that a record has, the batch included
	keptID int64 // the same without the batch
	topics map[string]*Topic
	recent *Topic // found last by live, in this batch
	// failedStream is the stream of records that has failed last.
	failedStream uint64

	cmds  []*Command // of the batch being gathered, in order
	nowMs int64      // when gathering it began
	cur   *written   // what will be published when it is safe

	unsynced  []*written // level 2: written, waiting for a sync, in order
	syncing   []*written // level 2: covered by the sync that runs
	free      []*written
	touched   []*Mailbox // with a chain to post
	published int64      // commands, since the start
	answered  int64      // bytes of the commands in those chains

	acks       acks
	sync       syncer
	checkpoint checkpointer
	dirtySince time.Time // level 1: of the oldest write not covered by a sync; zero = none
	synced     storage.Pos
	lastCheck  time.Time
	moved      bool // something was written since the last checkpoint began
	settling   settling
	settlers   []*Command // Settle: waiting for the next sync to begin
	settled    []*Command // Settle: what settling is for

	quit  chan struct{}
	timer *time.Timer
}

func (w *writer) init(e *Engine, state *storage.State) {
	w.e, w.nextID = e, state.NextEventID
	w.lastID, w.keptID = e.cfg.LastEventID, e.cfg.LastEventID
	e.lastID.Store(w.lastID)
	w.topics = make(map[string]*Topic, len(state.Topics))
	w.quit = make(chan struct{})
	w.synced = e.store.BinlogEnd()
	e.durable.Store(w.synced.File)
	w.timer = time.NewTimer(time.Hour)
	w.lastCheck = e.mono()
	w.sync.init()
	w.checkpoint.init()
}

func (w *writer) start() {
	go w.sync.run()
	go w.checkpoint.run()
}

func (w *writer) stop() { close(w.quit) }

// run is the writer's goroutine. It sleeps only when the ring is empty and
// nothing is due.
func (w *writer) run() {
	defer close(w.e.done)
	for {
		if w.Step() {
			continue
		}
		if !w.maySleep() {
			continue
		}
		w.timer.Reset(w.pause())
		select {
		case <-w.e.ring.wake:
		case err := <-w.sync.done:
			w.synchronised(err)
		case err := <-w.checkpoint.done:
			w.checkpointed(err)
		case <-w.timer.C:
		case <-w.quit:
			w.e.ring.unpark()
			w.finish()
			return
		}
		w.e.ring.unpark()
	}
}

// Step takes one batch from the ring through the files, and sees to syncs that
// are done or due. It reports whether there was anything to do.
func (w *writer) Step() bool {
	w.detach()
	w.poll()
	w.acknowledged()
	worked := false
	if w.gather() {
		w.commit()
		worked = true
	}
	w.schedule()
	return worked
}

// poll takes results of syncs without waiting.
func (w *writer) poll() {
	select {
	case err := <-w.sync.done:
		w.synchronised(err)
	default:
	}
	select {
	case err := <-w.checkpoint.done:
		w.checkpointed(err)
	default:
	}
}

// detach frees the names of subscriptions that have left. For a client that
// leaves and comes back to find its name free it must run between taking the
// Attach from the ring and looking at the names: run before the ring is read
// only, it would miss a Detach and an Attach that both come in between.
func (w *writer) detach() {
	s := w.e.detached.Swap(nil)
	for s != nil {
		next := s.detached.Load()
		if s.Topic.names[s.Who] == s {
			delete(s.Topic.names, s.Who)
		}
		s = next
	}
}

// gather takes commands from the ring into the batch and stages them. It
// reports whether the batch holds anything.
func (w *writer) gather() bool {
	w.cur = w.take()
	w.nowMs = w.e.clock.NowMs()
	w.recent = nil
	w.countSlaves()
	for len(w.cmds) < batchCommands {
		cmd := w.e.ring.pop()
		if cmd == nil {
			break
		}
		if cmd.Kind == Settle && !w.e.broken.Load() {
			w.settlers = append(w.settlers, cmd) // bounded as all commands are
			continue
		}
		w.cmds = append(w.cmds, cmd)
		w.stage(cmd)
		if b := w.e.store.Batch(); b.Bytes() >= batchBytes || b.Closed() {
			break
		}
	}
	if w.e.crowded.Load() != 0 {
		w.post() // the ring has room again
	}
	if len(w.cmds) == 0 {
		w.recycle(w.cur)
		w.cur = nil
		return false
	}
	return true
}

func (w *writer) take() *written {
	if n := len(w.free); n > 0 {
		b := w.free[n-1]
		w.free = w.free[:n-1]
		return b
	}
	return new(written)
}

// stage validates cmd against the state that the batch leaves behind, and
// stages its records. A refusal is left in cmd.Err.
func (w *writer) stage(cmd *Command) {
	cmd.Err, cmd.staged, cmd.target, cmd.dropped = nil, false, nil, false
	if w.e.broken.Load() && cmd.Kind != Attach {
		cmd.Err = errBroken // reading goes on: subscriptions write nothing
		return
	}
	if cmd.Err = w.wrongRole(cmd.Kind); cmd.Err != nil {
		return
	}
	if w.acks.few && cmd.fromClient() {
		cmd.Err = errTooFewSlaves
		return
	}
	now := w.nowMs
	switch cmd.Kind {
	case Publish:
		cmd.Err = w.stagePublish(cmd, now)
	case Delay:
		cmd.Err = w.stageDelay(cmd, now)
	case Create:
		cmd.Err = w.stageCreate(cmd, now)
	case Delete:
		cmd.Err = w.stageDelete(cmd, w.topics[string(cmd.Topic())], now)
	case Attach:
		cmd.Err = w.attach(cmd, now)
	case fire:
		cmd.Err = w.stageFire(cmd, now)
	case expire:
		cmd.Err = w.stageExpire(cmd, now)
	case drop:
		w.stageDrop(cmd)
	case Replicate:
		cmd.Err = w.stageReplicate(cmd)
	case Adopt:
		cmd.Err = w.adopt(cmd)
	case Turn:
		w.turn(cmd)
	}
}

// live returns the topic of a name, if there is one whose life is not over.
// Most often it is the one that was asked for last; a batch ends with whatever
// changes which topic a name is, so that recent is no older than the batch.
func (w *writer) live(name []byte, now int64) (*Topic, error) {
	t := w.recent
	if t == nil || t.Meta.Name != string(name) {
		t = w.topics[string(name)]
		w.recent = t
	}
	if t == nil || w.expired(t, now) {
		return nil, ErrTopicNotExist
	}
	return t, nil
}

func (w *writer) record(cmd *Command, c codec.Command, now int64, payload []byte) storage.Pos {
	return w.e.store.Batch().Binlog(&codec.BinlogRecord{
		WrittenAtMs: now, Command: c, EventID: cmd.EventID, ReceivedAtMs: cmd.ReceivedAtMs,
		Topic: cmd.Topic(), Payload: payload,
	})
}

func (w *writer) ids(cmd *Command, n int) {
	cmd.EventID = w.nextID
	w.nextID += int64(n)
	w.lastID = w.nextID - 1
	cmd.staged = true
}

func (w *writer) stagePublish(cmd *Command, now int64) error {
	t, err := w.live(cmd.Topic(), now)
	if err != nil {
		return err
	}
	if w.e.lowDisk.Load() {
		return errDiskLow
	}
	w.ids(cmd, cmd.Messages)
	cmd.target = t
	at := w.record(cmd, codec.Pub, now, cmd.payload())
	w.e.store.Batch().Messages(t.log, now, now, cmd.EventID, at, cmd.payload())
	return nil
}

func (w *writer) stageDelay(cmd *Command, now int64) error {
	if _, err := w.live(cmd.Topic(), now); err != nil {
		return err
	}
	if w.e.lowDisk.Load() {
		return errDiskLow
	}
	w.ids(cmd, 1)
	payload := cmd.payload()
	codec.AppendDelayPrefix(payload[:0], cmd.TriggerAtMs, cmd.EventID)
	w.record(cmd, codec.Delay, now, payload)
	w.e.store.Batch().Meta().PutDelay(storage.DelayKey{
		TriggerAtMs: cmd.TriggerAtMs, EventID: cmd.EventID, Topic: string(cmd.Topic()),
	}, payload)
	return nil
}

// minLifeMs is how far ahead the end of a topic's life must lie.
const minLifeMs = 10_000

func (w *writer) stageCreate(cmd *Command, now int64) error {
	if cmd.ExpireAtMs < 0 || (cmd.ExpireAtMs != 0 && cmd.ExpireAtMs-cmd.ReceivedAtMs < minLifeMs) {
		return errExpire
	}
	if w.topics[string(cmd.Topic())] != nil {
		return ErrTopicExist
	}
	if len(w.topics) >= w.e.cfg.MaxTopics {
		return errTooManyTopics
	}
	if w.e.lowDisk.Load() {
		return errDiskLow
	}
	w.ids(cmd, 1)
	w.record(cmd, codec.CreateTopic, now, binary.LittleEndian.AppendUint64(nil, uint64(cmd.ExpireAtMs)))
	w.create(cmd, storage.TopicMeta{
		Name: string(cmd.Topic()), CreatedAtMs: now, ExpireAtMs: cmd.ExpireAtMs, CreateEventID: cmd.EventID,
		StateChangedAtMs: now, StateChangeEventID: cmd.EventID,
	})
	return nil
}

func (w *writer) stageDelete(cmd *Command, t *Topic, now int64) error {
	if t == nil {
		return ErrTopicNotExist
	}
	w.ids(cmd, 1)
	w.record(cmd, codec.DeleteTopic, now, nil)
	w.remove(cmd, t)
	return nil
}

// stageExpire deletes a topic whose life is over, unless that has happened
// since, or the clock has stepped back.
func (w *writer) stageExpire(cmd *Command, now int64) error {
	if t := cmd.victim; w.topics[t.Meta.Name] != t || !t.Expired(now) {
		return ErrTopicNotExist
	}
	return w.stageDelete(cmd, cmd.victim, now)
}

// stageFire publishes a delayed message. A topic that is gone, or that is
// another one of the same name, takes the message with it.
func (w *writer) stageFire(cmd *Command, now int64) error {
	batch := w.e.store.Batch()
	t, err := w.live(cmd.Topic(), now)
	if err != nil || t.Meta.CreateEventID > cmd.key.EventID {
		cmd.staged, cmd.dropped = true, true
		batch.Meta().DeleteDelay(cmd.key)
		return nil
	}
	if w.e.lowDisk.Load() {
		return errDiskLow
	}
	messages, _ := codec.DelayMessages(cmd.payload())
	w.ids(cmd, cmd.Messages)
	cmd.target = t
	at := w.record(cmd, codec.DelayApply, now, cmd.payload())
	batch.Messages(t.log, now, now, cmd.EventID, at, messages)
	batch.Meta().DeleteDelay(cmd.key)
	return nil
}

// stageDrop forgets delayed messages that belong to no topic. Whether they do
// is decided here: the janitor's view may be older than a topic that was just
// created.
func (w *writer) stageDrop(cmd *Command) {
	cmd.staged, cmd.Messages = true, 0
	for _, k := range cmd.orphans {
		if t := w.topics[k.Topic]; t == nil || t.Meta.CreateEventID > k.EventID {
			w.e.store.Batch().Meta().DeleteDelay(k)
			cmd.Messages++
		}
	}
}

// attach makes a subscription known under its name.
func (w *writer) attach(cmd *Command, now int64) error {
	t, err := w.live(cmd.Topic(), now)
	if err != nil {
		return err
	}
	w.detach()
	if t.names[cmd.Sub.Who] != nil {
		return &Refusal{cmd.Sub.Who + codec.TextSubscriberExists}
	}
	if t.names == nil {
		t.names = map[string]*Subscription{}
	}
	cmd.Sub.Topic, cmd.Sub.tail = t, &t.Tail
	t.names[cmd.Sub.Who] = cmd.Sub
	return nil
}

// commit brings the batch to the files. A topic whose files fail takes its own
// commands with it; the others are staged again without them.
func (w *writer) commit() {
	for failures := 1; ; failures++ {
		err := w.write()
		if err == nil {
			break
		}
		w.e.counters.failedBatches.Add(1)
		w.unstage(w.cur)
		var fatal *storage.FatalError
		if errors.As(err, &fatal) {
			w.fail(err)
			w.refuseStaged("", errBroken)
			for _, cmd := range w.cmds {
				if w.astray(cmd) {
					cmd.Err = errBroken
				}
			}
			break
		}
		w.e.events.WriteFail(err)
		var failed *storage.BatchError
		errors.As(err, &failed)
		if failed.Topic == "" && diskFull(err) && w.makeRoom() {
			w.restage()
			continue
		}
		topic := failed.Topic
		if failures == failuresMax {
			topic = ""
		}
		if !w.refuseStaged(topic, explainWrite(err)) {
			break
		}
		w.restage()
	}
	w.written()
}

// failuresMax is how many topics of a batch may fail before all of it is
// refused: each costs the writer another round over the whole batch.
const failuresMax = 16

// write commits what is staged, if anything is.
func (w *writer) write() error {
	b := w.e.store.Batch()
	if b.Empty() {
		return nil
	}
	w.e.counters.batches.Add(1)
	return b.Commit()
}

// unstage takes back what a batch has done to the catalog.
func (w *writer) unstage(b *written) {
	w.lastID = w.keptID
	if t := b.created; t != nil {
		delete(w.topics, t.Meta.Name)
		b.created = nil
	}
	if t := b.ended; t != nil {
		w.topics[t.Meta.Name] = t
		if !w.e.store.HasFiles(t.log) {
			t.astray.Store(true) // before leaving is taken back: see Engine.read
		}
		t.leaving.Store(false)
		b.ended = nil
	}
}

// refuseStaged refuses the staged commands that write to topic, or all of them
// where topic is empty, and reports whether others remain.
func (w *writer) refuseStaged(topic string, err error) (remain bool) {
	for _, cmd := range w.cmds {
		if !cmd.staged {
			continue
		}
		if topic == "" || (cmd.target != nil && cmd.target.Meta.Name == topic) {
			w.refuse(cmd, err)
		}
	}
	w.endStream()
	return slices.ContainsFunc(w.cmds, func(cmd *Command) bool { return cmd.staged })
}

// restage stages the remaining commands of a failed batch again. Ids that were
// given out and not used stay unused: gaps are legal, and a smaller id must
// never follow a larger one.
func (w *writer) restage() {
	for _, cmd := range w.cmds {
		if cmd.staged {
			w.stage(cmd)
		}
	}
}

// makeRoom gives up the reserve of disk space for the commands that make
// space; the others of the batch are refused. It reports false where there is
// none of them, or no reserve.
func (w *writer) makeRoom() bool {
	removes := func(cmd *Command) bool { return cmd.Kind == Delete || cmd.Kind == expire || cmd.Kind == drop }
	if !slices.ContainsFunc(w.cmds, func(cmd *Command) bool { return cmd.staged && removes(cmd) }) || !w.e.store.ReleaseReserve() {
		return false
	}
	for _, cmd := range w.cmds {
		if cmd.staged && !removes(cmd) {
			w.refuse(cmd, errDiskFull)
		}
	}
	return true
}

func diskFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

func explainWrite(err error) error {
	if diskFull(err) {
		return errDiskFull
	}
	return errStorage
}
