package storage

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
)

// TopicMeta is what is kept of a topic.
type TopicMeta struct {
	Name               string
	CreatedAtMs        int64
	ExpireAtMs         int64 // 0 = for ever
	CreateEventID      int64
	StateChangedAtMs   int64
	StateChangeEventID int64
	State              byte
}

// The states of a topic.
const (
	StateNormal  byte = 0
	StateDeleted byte = 1 // marked: its files are still to be removed
)

// DelayKey identifies a delayed message. It orders by time, then by id.
type DelayKey struct {
	TriggerAtMs int64
	EventID     int64 // of the DELAY event
	Topic       string
}

// Less is the order in which delayed messages fire.
func (k *DelayKey) Less(o *DelayKey) bool {
	return k.TriggerAtMs < o.TriggerAtMs || (k.TriggerAtMs == o.TriggerAtMs && k.EventID < o.EventID)
}

// StoredBefore is the order of the keys as they are stored.
func (k *DelayKey) StoredBefore(o *DelayKey) bool {
	return k.TriggerAtMs < o.TriggerAtMs || k.TriggerAtMs == o.TriggerAtMs && bytes.Compare(delayKey(*k), delayKey(*o)) < 0
}

// Checkpoint says up to where the binlog has been applied durably to topic
// logs and metadata: recovery starts there.
type Checkpoint struct {
	Applied     Pos   `json:"applied"`
	NextEventID int64 `json:"nextEventId"`
	// Boot is the run of the machine in which Applied was reached without a
	// sync (flush level 0): it holds for a killed process but not for a
	// machine that went down. Durable holds always.
	Boot    string `json:"boot,omitempty"`
	Durable Pos    `json:"durable"`
	// Machine is the run of the machine in which the checkpoint was written.
	Machine string `json:"machine,omitempty"`
	// Clean says that the server was stopped in order, so that no log has a
	// tail that needs looking at.
	Clean bool `json:"clean"`
	// Rebuild says that the metadata is being made again from the logs: a start
	// that was interrupted in that is followed by one that begins again.
	Rebuild bool `json:"rebuild,omitempty"`
}

// from returns where recovery starts.
func (c *Checkpoint) from(boot string) Pos {
	if c.Boot == "" || c.Boot == boot {
		return c.Applied
	}
	return c.Durable
}

// Meta is the metadata store.
type Meta interface {
	Topics(see func(TopicMeta) error) error
	// Ends calls see for the ends that checkpoints have stored.
	Ends(see func(name string, e TopicEnd) error) error
	// Checkpoint returns the last one written; found is false where there is
	// none, as in a directory of the existing server.
	Checkpoint() (c Checkpoint, found bool, err error)
	// Commit applies b whole or not at all. The writer calls it, and beside it
	// a CheckpointTask.
	Commit(b *MetaBatch) error
	// DelayKeys calls see for pending delayed messages with a trigger time of
	// at least from, ordered by time; within one millisecond in no order. It
	// ends when see returns false.
	DelayKeys(from int64, see func(DelayKey) bool) error
	// DelayPayload returns the payload of the DELAY record, or false.
	DelayPayload(k DelayKey) ([]byte, bool, error)
	// Sync makes everything committed durable.
	Sync() error
	// CollectGarbage frees space in the store's own files. It may take
	// seconds and runs beside everything else.
	CollectGarbage() error
	Close() error
}

// MetaBatch is a list of changes to the metadata.
type MetaBatch struct {
	ops   []metaOp
	size  int
	takes bool // holds a DeleteDelay
}

type metaOp struct {
	key, value []byte
	del        bool
}

// metaBatchMax is how many bytes of changes one batch may gather: a Badger
// transaction takes 15 % of the memtable.
const metaBatchMax = 900 << 10

// Full reports whether the batch should be committed before more is added.
func (b *MetaBatch) Full() bool { return b.size > metaBatchMax || len(b.ops) > 4000 }

// commitFull commits b and empties it if it is full.
func commitFull(m Meta, b *MetaBatch) error {
	if !b.Full() {
		return nil
	}
	err := m.Commit(b)
	b.Reset()
	return err
}

func (b *MetaBatch) put(key, value []byte) {
	b.ops = append(b.ops, metaOp{key: key, value: value})
	b.size += len(key) + min(len(value), valueThreshold) + 64
}

func (b *MetaBatch) delete(key []byte) {
	b.ops = append(b.ops, metaOp{key: key, del: true})
	b.size += len(key) + 64
}

// PutTopic writes a topic and, where its life ends, the index of lives.
func (b *MetaBatch) PutTopic(t *TopicMeta) {
	b.put(topicKey(t.Name), t.value())
	if t.ExpireAtMs != 0 {
		b.put(lifeKey(t.ExpireAtMs, t.Name), []byte{0})
	}
}

// DeleteTopic removes a topic and its entry in the index of lives.
func (b *MetaBatch) DeleteTopic(name string, expireAtMs int64) {
	b.delete(topicKey(name))
	if expireAtMs != 0 {
		b.delete(lifeKey(expireAtMs, name))
	}
}

// PutDelay writes a pending delayed message. payload is kept by reference
// until the batch is committed.
func (b *MetaBatch) PutDelay(k DelayKey, payload []byte) { b.put(delayKey(k), payload) }

// DeleteDelay removes a pending delayed message.
func (b *MetaBatch) DeleteDelay(k DelayKey) {
	b.delete(delayKey(k))
	b.takes = true
}

// PutCheckpoint writes the checkpoint.
func (b *MetaBatch) PutCheckpoint(c Checkpoint) {
	v, err := json.Marshal(c)
	if err != nil {
		panic(err) // a struct of numbers always marshals
	}
	b.put([]byte(checkpointKey), v)
}

// PutRole writes the role: 0 master, 1 slave.
func (b *MetaBatch) PutRole(role byte) { b.put([]byte("global@role"), []byte{role}) }

// Empty reports whether there is nothing to commit.
func (b *MetaBatch) Empty() bool { return len(b.ops) == 0 }

// Reset empties the batch.
func (b *MetaBatch) Reset() {
	clear(b.ops)
	b.ops, b.size, b.takes = b.ops[:0], 0, false
}

// The keys, which are the existing server's but for the last and for endPrefix.
const (
	topicPrefix   = "norm@"
	lifePrefix    = "lf@"
	delayPrefix   = "delay@"
	checkpointKey = "smss@checkpoint"
)

func topicKey(name string) []byte { return append([]byte(topicPrefix), name...) }

func lifeKey(expireAtMs int64, name string) []byte {
	k := binary.BigEndian.AppendUint64([]byte(lifePrefix), uint64(expireAtMs))
	return append(k, name...)
}

func delayKey(d DelayKey) []byte {
	k := make([]byte, 0, len(delayPrefix)+16+len(d.Topic))
	k = append(k, delayPrefix...)
	k = binary.BigEndian.AppendUint64(k, uint64(d.TriggerAtMs))
	k = binary.LittleEndian.AppendUint64(k, uint64(d.EventID)) // sic: the existing server's order
	return append(k, d.Topic...)
}

func parseDelayKey(k []byte) (DelayKey, bool) {
	if len(k) < len(delayPrefix)+16 {
		return DelayKey{}, false
	}
	k = k[len(delayPrefix):]
	return DelayKey{
		TriggerAtMs: int64(binary.BigEndian.Uint64(k)),
		EventID:     int64(binary.LittleEndian.Uint64(k[8:])),
		Topic:       string(k[16:]),
	}, true
}

const topicValueSize = 41

func (t *TopicMeta) value() []byte {
	v := make([]byte, 0, topicValueSize)
	for _, n := range [...]int64{t.CreatedAtMs, t.ExpireAtMs, t.CreateEventID, t.StateChangedAtMs, t.StateChangeEventID} {
		v = binary.LittleEndian.AppendUint64(v, uint64(n))
	}
	return append(v, t.State)
}

func parseTopicMeta(name string, v []byte) (TopicMeta, error) {
	if len(v) != topicValueSize {
		return TopicMeta{}, fmt.Errorf("metadata of topic %q has %d bytes instead of %d", name, len(v), topicValueSize)
	}
	n := func(i int) int64 { return int64(binary.LittleEndian.Uint64(v[8*i:])) }
	return TopicMeta{name, n(0), n(1), n(2), n(3), n(4), v[40]}, nil
}

// Badger's sizes. The memtable's must never shrink over the life of a
// directory: after an unclean stop a smaller one ends the process at every
// start. It is therefore a constant, and a directory of the existing server
// is first opened with that server's.
const (
	memTableSize         = 8 << 20
	existingMemTableSize = 64 << 20
	valueThreshold       = 1 << 10
	valueLogFileSize     = 32 << 20
	// MaxDelayPayload is how many bytes the messages of one delayed publish may
	// take: with what stands in front they must fit into a value log file.
	MaxDelayPayload = 16 << 20
)

func badgerOptions(dir string, memTable int64, log badger.Logger) badger.Options {
	return badger.DefaultOptions(dir).
		WithLogger(log).
		WithMemTableSize(memTable).
		WithNumMemtables(2).WithNumLevelZeroTables(2).WithNumLevelZeroTablesStall(6).
		WithNumCompactors(2).
		WithBaseTableSize(2 << 20).WithBaseLevelSize(8 << 20).
		WithValueLogFileSize(valueLogFileSize).
		WithValueThreshold(valueThreshold).
		WithBlockCacheSize(0).WithIndexCacheSize(0).WithCompression(options.None).
		WithSyncWrites(false).WithDetectConflicts(false).WithMetricsEnabled(false).
		WithNumVersionsToKeep(1).WithCompactL0OnClose(false).
		WithChecksumVerificationMode(options.OnBlockRead).WithVerifyValueChecksum(true)
}

type badgerMeta struct{ db *badger.DB }

// OpenBadger opens the metadata in dir. adopt opens it first as the existing
// server left it, so that what its write-ahead files hold reaches tables.
func OpenBadger(dir string, adopt bool, log badger.Logger) (Meta, error) {
	if err := awaitUnlocked(dir); err != nil {
		return nil, fmt.Errorf("metadata in %s: %w", dir, err)
	}
	if err := checkBadger(dir, badgerOptions(dir, memTableSize, log)); err != nil {
		return nil, refuseBadger(dir, err)
	}
	if adopt {
		db, err := badger.Open(badgerOptions(dir, existingMemTableSize, log))
		if err != nil {
			return nil, fmt.Errorf("metadata in %s, written by the existing server: %w", dir, err)
		}
		if err := db.Close(); err != nil {
			return nil, fmt.Errorf("metadata in %s: taking it over: %w", dir, err)
		}
	}
	db, err := badger.Open(badgerOptions(dir, memTableSize, log))
	if err != nil {
		return nil, refuseBadger(dir, err)
	}
	return &badgerMeta{db}, nil
}

func refuseBadger(dir string, err error) error {
	return fmt.Errorf("metadata in %s cannot be opened: %w; %s", dir, err, rebuildHint(dir))
}

// rebuildHint says how the metadata in dir is made again.
func rebuildHint(dir string) string {
	return fmt.Sprintf("to have it made again from the logs, move it away (mv %s %s.damaged) and start again", dir, dir)
}

func (m *badgerMeta) scan(prefix []byte, seek []byte, values bool, see func(*badger.Item) (bool, error)) error {
	return m.db.View(func(txn *badger.Txn) error {
		opt := badger.DefaultIteratorOptions
		opt.Prefix, opt.PrefetchValues = prefix, values
		it := txn.NewIterator(opt)
		defer it.Close()
		for it.Seek(seek); it.Valid(); it.Next() {
			more, err := see(it.Item())
			if err != nil || !more {
				return err
			}
		}
		return nil
	})
}

func (m *badgerMeta) Topics(see func(TopicMeta) error) error {
	prefix := []byte(topicPrefix)
	return m.scan(prefix, prefix, true, func(item *badger.Item) (bool, error) {
		var t TopicMeta
		err := item.Value(func(v []byte) (err error) {
			t, err = parseTopicMeta(string(item.Key()[len(prefix):]), v)
			return err
		})
		if err != nil {
			return false, err
		}
		return true, see(t)
	})
}

func (m *badgerMeta) Ends(see func(string, TopicEnd) error) error {
	prefix := []byte(endPrefix)
	return m.scan(prefix, prefix, true, func(item *badger.Item) (bool, error) {
		var e TopicEnd
		var ok bool
		if err := item.Value(func(v []byte) error { e, ok = parseTopicEnd(v); return nil }); err != nil || !ok {
			return err == nil, err
		}
		return true, see(string(item.Key()[len(prefix):]), e)
	})
}

func (m *badgerMeta) get(key []byte) (value []byte, found bool, err error) {
	err = m.db.View(func(txn *badger.Txn) error {
		item, err := txn.Get(key)
		if errors.Is(err, badger.ErrKeyNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		found = true
		value, err = item.ValueCopy(nil)
		return err
	})
	return value, found, err
}

func (m *badgerMeta) Checkpoint() (c Checkpoint, found bool, err error) {
	v, found, err := m.get([]byte(checkpointKey))
	if err != nil || !found {
		return c, false, err
	}
	if err := json.Unmarshal(v, &c); err != nil {
		return c, false, fmt.Errorf("checkpoint in the metadata: %w", err)
	}
	return c, true, nil
}

func (m *badgerMeta) Commit(b *MetaBatch) error {
	txn := m.db.NewTransaction(true)
	defer txn.Discard()
	for _, op := range b.ops {
		var err error
		if op.del {
			err = txn.Delete(op.key)
		} else {
			err = txn.Set(op.key, op.value)
		}
		if err != nil {
			return fmt.Errorf("metadata: %w", err)
		}
	}
	if err := txn.Commit(); err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	return nil
}

func (m *badgerMeta) DelayKeys(from int64, see func(DelayKey) bool) error {
	prefix := []byte(delayPrefix)
	seek := binary.BigEndian.AppendUint64([]byte(delayPrefix), uint64(max(0, from)))
	return m.scan(prefix, seek, false, func(item *badger.Item) (bool, error) {
		k, ok := parseDelayKey(item.Key())
		return !ok || see(k), nil
	})
}

func (m *badgerMeta) DelayPayload(k DelayKey) ([]byte, bool, error) { return m.get(delayKey(k)) }

func (m *badgerMeta) Sync() error { return m.db.Sync() }

func (m *badgerMeta) CollectGarbage() error {
	for {
		err := m.db.RunValueLogGC(0.5)
		if errors.Is(err, badger.ErrNoRewrite) || errors.Is(err, badger.ErrRejected) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (m *badgerMeta) Close() error { return m.db.Close() }
