package engine

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"

	"smss/storage"
)

// memMeta is a storage.Meta in memory. It outlives the engine that uses it, as
// files do, and can forget what was not synced.
type memMeta struct {
	mu       sync.Mutex
	keys     map[string]string
	durable  map[string]string
	unsynced [][]metaChange
	delays   []string // sorted; may hold keys that are gone
	fresh    []string // delays that are not in delays yet
	fail     func(op string) error
	scanned  int // keys that DelayKeys has shown
}

type metaChange struct {
	key, value string
	del        bool
}

func newMemMeta() *memMeta { return &memMeta{keys: map[string]string{}, durable: map[string]string{}} }

func (m *memMeta) open(string, bool) (storage.Meta, error) { return m, nil }

func (m *memMeta) ask(op string) error {
	if m.fail == nil {
		return nil
	}
	return m.fail(op)
}

// changes reads a batch. Its content is closed to other packages, because no
// code but a test has to look into it.
func changes(b *storage.MetaBatch) []metaChange {
	ops := reflect.ValueOf(b).Elem().FieldByName("ops")
	out := make([]metaChange, ops.Len())
	for i := range out {
		op := ops.Index(i)
		out[i] = metaChange{string(op.FieldByName("key").Bytes()), string(op.FieldByName("value").Bytes()), op.FieldByName("del").Bool()}
	}
	return out
}

func applyChanges(keys map[string]string, list []metaChange) {
	for _, c := range list {
		if c.del {
			delete(keys, c.key)
		} else {
			keys[c.key] = c.value
		}
	}
}

func (m *memMeta) Commit(b *storage.MetaBatch) error {
	if err := m.ask("commit"); err != nil {
		return err
	}
	list := changes(b)
	m.mu.Lock()
	defer m.mu.Unlock()
	applyChanges(m.keys, list)
	m.unsynced = append(m.unsynced, list)
	for _, c := range list {
		if !c.del && strings.HasPrefix(c.key, delayPrefix) {
			m.fresh = append(m.fresh, c.key)
		}
	}
	return nil
}

func (m *memMeta) Sync() error {
	if err := m.ask("sync"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, list := range m.unsynced {
		applyChanges(m.durable, list)
	}
	m.unsynced = nil
	return nil
}

// cutPower keeps what was synced and a prefix of the commits after it: the
// real one has a write-ahead log.
func (m *memMeta) cutPower(rnd *rand.Rand) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, list := range m.unsynced[:rnd.IntN(len(m.unsynced)+1)] {
		applyChanges(m.durable, list)
	}
	m.keys, m.unsynced = maps.Clone(m.durable), nil
	m.delays, m.fresh = nil, nil
	for k := range m.keys {
		if strings.HasPrefix(k, delayPrefix) {
			m.fresh = append(m.fresh, k)
		}
	}
}

const (
	topicPrefix   = "norm@"
	delayPrefix   = "delay@"
	endPrefix     = "smss@end@"
	checkpointKey = "smss@checkpoint"
)

func (m *memMeta) get(key string) (string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.keys[key]
	return v, ok
}

// named returns what follows prefix in the keys that have it, in order.
func (m *memMeta) named(prefix string) (names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.keys {
		if name, ok := strings.CutPrefix(k, prefix); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (m *memMeta) Topics(see func(storage.TopicMeta) error) error {
	for _, name := range m.named(topicPrefix) {
		v, _ := m.get(topicPrefix + name)
		if len(v) != 41 {
			return fmt.Errorf("topic %q has %d bytes", name, len(v))
		}
		n := func(i int) int64 { return int64(binary.LittleEndian.Uint64([]byte(v[8*i:]))) }
		if err := see(storage.TopicMeta{
			Name: name, CreatedAtMs: n(0), ExpireAtMs: n(1), CreateEventID: n(2),
			StateChangedAtMs: n(3), StateChangeEventID: n(4), State: v[40],
		}); err != nil {
			return err
		}
	}
	return nil
}

func (m *memMeta) Ends(see func(string, storage.TopicEnd) error) error {
	for _, name := range m.named(endPrefix) {
		v, _ := m.get(endPrefix + name)
		n := func(i int) int64 { return int64(binary.LittleEndian.Uint64([]byte(v[8*i:]))) }
		if err := see(name, storage.TopicEnd{CreateEventID: n(0), End: storage.Pos{File: n(1), Off: n(2)}, LastEventID: n(3)}); err != nil {
			return err
		}
	}
	return nil
}

func (m *memMeta) Checkpoint() (c storage.Checkpoint, found bool, err error) {
	v, found := m.get(checkpointKey)
	if found {
		err = json.Unmarshal([]byte(v), &c)
	}
	return c, found, err
}

func (m *memMeta) sorted() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.fresh) > 0 {
		m.delays = append(m.delays, m.fresh...)
		m.delays = slices.DeleteFunc(m.delays, func(k string) bool { _, there := m.keys[k]; return !there })
		slices.Sort(m.delays)
		m.delays, m.fresh = slices.Compact(m.delays), nil
	}
	return m.delays
}

func (m *memMeta) DelayKeys(from int64, see func(storage.DelayKey) bool) error {
	if err := m.ask("scan"); err != nil {
		return err
	}
	all := m.sorted()
	first, _ := slices.BinarySearch(all, string(binary.BigEndian.AppendUint64([]byte(delayPrefix), uint64(max(0, from)))))
	for _, k := range all[first:] {
		if _, there := m.get(k); !there {
			continue
		}
		m.scanned++
		b := []byte(k[len(delayPrefix):])
		if !see(storage.DelayKey{
			TriggerAtMs: int64(binary.BigEndian.Uint64(b)), EventID: int64(binary.LittleEndian.Uint64(b[8:])), Topic: string(b[16:]),
		}) {
			return nil
		}
	}
	return nil
}

func delayKey(k storage.DelayKey) string {
	b := binary.BigEndian.AppendUint64([]byte(delayPrefix), uint64(k.TriggerAtMs))
	return string(append(binary.LittleEndian.AppendUint64(b, uint64(k.EventID)), k.Topic...))
}

func (m *memMeta) DelayPayload(k storage.DelayKey) ([]byte, bool, error) {
	if err := m.ask("payload"); err != nil {
		return nil, false, err
	}
	v, ok := m.get(delayKey(k))
	return []byte(v), ok, nil
}

// set changes a value behind the engine's back.
func (m *memMeta) set(key, value string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys[key] = value
}

// put stores a delayed message behind the engine's back.
func (m *memMeta) put(key, value string) {
	m.set(key, value)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fresh = append(m.fresh, key)
}

// pending returns how many delayed messages are stored.
func (m *memMeta) pending() int { return len(m.named(delayPrefix)) }

func (m *memMeta) CollectGarbage() error { return nil }
func (m *memMeta) Close() error          { return nil }
