package storage

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"smss/codec"
)

// world is a store with what a test wants to know of it.
type world struct {
	t      testing.TB
	opt    Options
	meta   *memMeta // nil where Badger is used
	s      *Store
	state  *State
	topics map[string]*TopicLog
	metas  map[string]TopicMeta
	nextID int64
	nowMs  int64

	notes   []string
	damages []*DamageError
}

func newWorld(t testing.TB, maxLogSize int64) *world {
	w := &world{t: t, meta: newMemMeta(), nowMs: 1_700_000_000_000}
	w.opt = Options{Path: filepath.Join(t.TempDir(), "data"), MaxLogSize: maxLogSize, FolderCount: 3, MaxOpenTopics: 4}
	return w
}

func (w *world) tryOpen() error {
	w.notes, w.damages = nil, nil
	opt := w.opt
	opt.Events.Note = func(what string, err error) {
		if err != nil {
			what += ": " + err.Error()
		}
		w.notes = append(w.notes, what)
	}
	opt.Events.Damage = func(e *DamageError) { w.damages = append(w.damages, e) }
	if w.meta != nil {
		opt.OpenMeta = w.meta.open
	}
	s, state, err := Open(opt)
	if err != nil {
		return err
	}
	w.s, w.state, w.nextID = s, state, state.NextEventID
	w.topics, w.metas = map[string]*TopicLog{}, map[string]TopicMeta{}
	for _, t := range state.Topics {
		w.topics[t.Meta.Name], w.metas[t.Meta.Name] = t.Log, t.Meta
	}
	return nil
}

func (w *world) open() *world {
	w.t.Helper()
	if err := w.tryOpen(); err != nil {
		w.t.Fatalf("open: %v", err)
	}
	return w
}

// opened opens a new world that is closed when the test ends.
func opened(t testing.TB, maxLogSize int64) *world {
	t.Helper()
	w := newWorld(t, maxLogSize).open()
	t.Cleanup(func() { w.kill() })
	return w
}

// inMemory does so on a file system in memory.
func inMemory(t testing.TB, maxLogSize int64) *world {
	t.Helper()
	return newWorld(t, maxLogSize).memory().open()
}

func (w *world) close() {
	w.t.Helper()
	if w.s == nil {
		return
	}
	if err := w.s.Close(w.nextID, false); err != nil {
		w.t.Fatalf("close: %v", err)
	}
	w.s = nil
}

// kill lets go of the store as the end of a process would: nothing is written.
func (w *world) kill() {
	if w.s != nil {
		w.s.Close(w.nextID, true)
		w.s = nil
	}
}

func (w *world) reopen() *world {
	w.t.Helper()
	w.close()
	return w.open()
}

// copied is a world on a copy of the files as they are now: what a killed
// process leaves.
func (w *world) copied() *world {
	w.t.Helper()
	c := &world{t: w.t, opt: w.opt, nowMs: w.nowMs}
	c.opt.Path = filepath.Join(w.t.TempDir(), "data")
	if w.meta != nil {
		c.meta = w.meta.clone()
	}
	if err := os.CopyFS(c.opt.Path, os.DirFS(w.opt.Path)); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.kill() })
	return c
}

// message returns a message with a body.
func message(body string) []byte {
	return codec.AppendMessage(nil, &codec.Message{Body: []byte(body)})
}

func payload(bodies ...string) (b []byte) {
	for _, body := range bodies {
		b = append(b, message(body)...)
	}
	return b
}

func (w *world) takeIDs(n int) int64 {
	id := w.nextID
	w.nextID += int64(n)
	w.nowMs++
	return id
}

func (w *world) stageBinlog(c codec.Command, topic string, id int64, payload []byte) Pos {
	return w.s.Batch().Binlog(&codec.BinlogRecord{
		WrittenAtMs: w.nowMs, Command: c, EventID: id, ReceivedAtMs: w.nowMs, Topic: []byte(topic), Payload: payload,
	})
}

// stagePub stages a publish and returns its first id.
func (w *world) stagePub(topic string, bodies ...string) int64 {
	id := w.takeIDs(len(bodies))
	p := payload(bodies...)
	at := w.stageBinlog(codec.Pub, topic, id, p)
	w.s.Batch().Messages(w.topics[topic], w.nowMs, w.nowMs, id, at, p)
	return id
}

func (w *world) tryPub(topic string, bodies ...string) (int64, error) {
	id := w.stagePub(topic, bodies...)
	return id, w.s.Batch().Commit()
}

func (w *world) pub(topic string, bodies ...string) int64 {
	w.t.Helper()
	id, err := w.tryPub(topic, bodies...)
	if err != nil {
		w.t.Fatalf("publish to %s: %v", topic, err)
	}
	return id
}

func (w *world) tryCreate(topic string) error {
	id := w.takeIDs(1)
	w.stageBinlog(codec.CreateTopic, topic, id, make([]byte, 8))
	m := TopicMeta{Name: topic, CreatedAtMs: w.nowMs, CreateEventID: id, StateChangedAtMs: w.nowMs, StateChangeEventID: id}
	log := w.s.Batch().Create(&m)
	if err := w.s.Batch().Commit(); err != nil {
		return err
	}
	w.topics[topic], w.metas[topic] = log, m
	return nil
}

func (w *world) create(topics ...string) {
	w.t.Helper()
	for _, topic := range topics {
		if err := w.tryCreate(topic); err != nil {
			w.t.Fatalf("create %s: %v", topic, err)
		}
	}
}

func (w *world) tryDelete(topic string) error {
	id := w.takeIDs(1)
	w.stageBinlog(codec.DeleteTopic, topic, id, nil)
	m := w.metas[topic]
	w.s.Batch().Delete(w.topics[topic], &m)
	if err := w.s.Batch().Commit(); err != nil {
		return err
	}
	delete(w.topics, topic)
	delete(w.metas, topic)
	return nil
}

func (w *world) tryDelay(topic string, triggerAtMs int64, body string) (DelayKey, error) {
	id := w.takeIDs(1)
	p := append(codec.AppendDelayPrefix(nil, triggerAtMs, id), message(body)...)
	w.stageBinlog(codec.Delay, topic, id, p)
	k := DelayKey{triggerAtMs, id, topic}
	w.s.Batch().Meta().PutDelay(k, p)
	return k, w.s.Batch().Commit()
}

// tryFire publishes a delayed message, as the engine does when it is due.
func (w *world) tryFire(k DelayKey) (int64, error) {
	p, ok, err := w.s.Meta().DelayPayload(k)
	if err != nil || !ok {
		return 0, fmt.Errorf("pending message %v: found %v, %w", k, ok, err)
	}
	messages, _ := codec.DelayMessages(p)
	n, _ := codec.CountMessages(messages)
	id := w.takeIDs(n)
	at := w.stageBinlog(codec.DelayApply, k.Topic, id, p)
	w.s.Batch().Messages(w.topics[k.Topic], w.nowMs, w.nowMs, id, at, messages)
	w.s.Batch().Meta().DeleteDelay(k)
	return id, w.s.Batch().Commit()
}

// trySync makes the binlog durable, tryCheckpoint everything else.
func (w *world) trySync() error {
	task := w.s.SyncBinlog()
	return task.Run()
}

func (w *world) tryCheckpoint() error {
	at := w.s.BinlogEnd()
	if err := w.trySync(); err != nil {
		return err
	}
	return w.s.BeginCheckpoint(at, w.nextID, true).Run()
}

func (w *world) checkpoint() {
	w.t.Helper()
	if err := w.tryCheckpoint(); err != nil {
		w.t.Fatalf("checkpoint: %v", err)
	}
}

// got is a message as a reader sees it.
type got struct {
	id   int64
	body string
	next Pos
}

func (g got) String() string { return fmt.Sprintf("%d:%.20q", g.id, g.body) }

// parsePush takes a push frame apart.
func parsePush(t testing.TB, frame []byte) []got {
	t.Helper()
	var out []got
	n := int(frame[2])
	rest := frame[codec.ReplyHeaderSize:]
	if size := binary.LittleEndian.Uint32(frame[4:]); int(size) != len(rest) {
		t.Fatalf("push says %d bytes and has %d", size, len(rest))
	}
	for range n {
		i64 := func(i int) int64 { return int64(binary.LittleEndian.Uint64(rest[8*i:])) }
		g := got{id: i64(1), next: Pos{i64(2), i64(3)}}
		rest = rest[codec.PushedMessageOverhead:]
		m, size, ok := codec.ParseMessage(rest)
		if !ok {
			t.Fatalf("push holds no valid message at %d", len(frame)-len(rest))
		}
		g.body, rest = string(m.Body), rest[size:]
		out = append(out, g)
	}
	if len(rest) != 0 {
		t.Fatalf("%d bytes behind the messages of a push", len(rest))
	}
	return out
}

var wide = PushLimits{Messages: codec.MaxBatch, Bytes: 1 << 20}

// readFrom reads all messages from a position on, up to the topic's end.
func (w *world) readFrom(topic string, from Pos) (out []got, err error) {
	w.t.Helper()
	r, end := w.s.Reader(topic), w.topics[topic].End()
	for turn := 0; from.Before(end); turn++ {
		p, _, err := r.ReadPush(from, end, wide, nil, nil)
		if err != nil {
			return out, err
		}
		if turn > 1e6 {
			w.t.Fatalf("reading %s does not end: at %v of %v", topic, from, end)
		}
		if p.Messages > 0 {
			out = append(out, parsePush(w.t, p.Frame)...)
		}
		if !from.Before(p.Next) {
			w.t.Fatalf("reading %s stands still at %v of %v", topic, from, end)
		}
		from = p.Next
	}
	return out, nil
}

func (w *world) read(topic string) []got {
	w.t.Helper()
	if w.topics[topic] == nil {
		w.t.Fatalf("there is no topic %s", topic)
	}
	from, err := w.s.Reader(topic).Locate(0, w.topics[topic].End())
	if err != nil {
		w.t.Fatalf("locate 0 in %s: %v", topic, err)
	}
	out, err := w.readFrom(topic, from)
	if err != nil {
		w.t.Fatalf("read %s: %v", topic, err)
	}
	return out
}

// want compares a topic's messages with bodies, in order, with rising ids.
func (w *world) want(topic string, bodies ...string) {
	w.t.Helper()
	all := w.read(topic)
	var have []string
	last := int64(0)
	for _, g := range all {
		have = append(have, g.body)
		if g.id <= last {
			w.t.Errorf("%s: id %d follows %d", topic, g.id, last)
		}
		last = g.id
	}
	if !slices.Equal(have, bodies) {
		w.t.Errorf("%s holds %s, want %s", topic, brief(have), brief(bodies))
	}
}

// brief shortens a list of bodies for a message.
func brief(bodies []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d [", len(bodies))
	for i, body := range bodies {
		if i > 0 {
			b.WriteByte(' ')
		}
		if i == 60 {
			b.WriteString("…")
			break
		}
		if len(body) > 12 {
			body = body[:12] + "…"
		}
		b.WriteString(body)
	}
	return b.String() + "]"
}

// numbered returns bodies with a common prefix and size.
func numbered(prefix string, n, size int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s%d", prefix, i)
		if pad := size - len(out[i]); pad > 0 {
			out[i] += strings.Repeat(".", pad)
		}
	}
	return out
}

func (w *world) logs(topic string) []int64 {
	w.t.Helper()
	return w.numbers(w.s.topicPath(topic))
}

func logNumbers(t testing.TB, dir string) []int64 {
	t.Helper()
	ids, err := listFiles(OS{}, dir)
	must(t, err)
	return ids
}

// numbers is logNumbers on the world's own file system.
func (w *world) numbers(dir string) []int64 {
	w.t.Helper()
	ids, err := listFiles(w.fs(), dir)
	must(w.t, err)
	return ids
}

func (w *world) fs() FS {
	if w.opt.FS == nil {
		return OS{}
	}
	return w.opt.FS
}

// slurp returns the content of a file.
func (w *world) slurp(name string) []byte {
	w.t.Helper()
	f, err := w.fs().Open(name)
	must(w.t, err)
	defer f.Close()
	size, err := f.Size()
	must(w.t, err)
	b := make([]byte, size)
	if n, err := f.ReadAt(b, 0); int64(n) < size {
		w.t.Fatal(err)
	}
	return b
}

func (w *world) size(name string) int64 {
	w.t.Helper()
	size, err := w.fs().Size(name)
	must(w.t, err)
	return size
}

func (w *world) there(name string) bool {
	w.t.Helper()
	there, err := exists(w.fs(), name)
	must(w.t, err)
	return there
}

// resize cuts a file or fills it with zeros.
func (w *world) resize(name string, size int64) {
	w.t.Helper()
	f, err := w.fs().OpenAppend(name)
	must(w.t, err)
	must(w.t, errors.Join(f.Truncate(size), f.Close()))
}

func (w *world) poke(name string, off int64, b []byte) {
	w.t.Helper()
	f, err := w.fs().OpenAppend(name)
	must(w.t, err)
	_, err = f.WriteAt(b, off)
	must(w.t, errors.Join(err, f.Close()))
}

func (w *world) topicFile(topic string, id int64) string {
	return fileName((&Store{path: w.opt.Path, fmt: format{FolderCount: w.opt.FolderCount}}).topicPath(topic), id)
}

func (w *world) binlogDir() string { return filepath.Join(w.opt.Path, binlogDir) }

// binlogEvents returns "id command topic" of all records of the binlog, and
// checks that they can be read to the end.
func (w *world) binlogEvents() []string {
	w.t.Helper()
	var out []string
	for _, id := range w.numbers(w.binlogDir()) {
		b := w.slurp(fileName(w.binlogDir(), id))
		for len(b) > 0 {
			var rec codec.BinlogRecord
			n, err := codec.ParseBinlogRecord(b, maxStoredPayload, &rec)
			if err != nil {
				w.t.Fatalf("binlog file %d, %d bytes before its end: %v", id, len(b), err)
			}
			out = append(out, fmt.Sprintf("%d %v %s", rec.EventID, rec.Command, rec.Topic))
			b = b[n:]
		}
	}
	return out
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func fileSize(t testing.TB, name string) int64 {
	t.Helper()
	info, err := os.Stat(name)
	must(t, err)
	return info.Size()
}

func cutFile(t testing.TB, name string, size int64) {
	t.Helper()
	must(t, os.Truncate(name, size))
}

func appendFile(t testing.TB, name string, b []byte) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	_, err = f.Write(b)
	must(t, errors.Join(err, f.Close()))
}

func (w *world) noted(part string) bool {
	return slices.ContainsFunc(w.notes, func(n string) bool { return strings.Contains(n, part) })
}
