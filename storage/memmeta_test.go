package storage

import (
	"bytes"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
)

// memMeta is a Meta in memory. It outlives the Store that uses it, as files
// do, and can forget what was not synced.
type memMeta struct {
	mu       sync.Mutex
	keys     map[string]string
	durable  map[string]string
	unsynced [][]metaOp
	// fail, if set, is asked before each operation.
	fail func(op string) error
}

func newMemMeta() *memMeta { return &memMeta{keys: map[string]string{}, durable: map[string]string{}} }

func (m *memMeta) open(string, bool) (Meta, error) { return m, m.ask("open") }

func (m *memMeta) ask(op string) error {
	if m.fail == nil {
		return nil
	}
	return m.fail("meta " + op)
}

func applyOps(keys map[string]string, ops []metaOp) {
	for _, op := range ops {
		if op.del {
			delete(keys, string(op.key))
		} else {
			keys[string(op.key)] = string(op.value)
		}
	}
}

func (m *memMeta) Commit(b *MetaBatch) error {
	if err := m.ask("commit"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	ops := make([]metaOp, len(b.ops))
	for i, op := range b.ops {
		ops[i] = metaOp{bytes.Clone(op.key), bytes.Clone(op.value), op.del}
	}
	applyOps(m.keys, ops)
	m.unsynced = append(m.unsynced, ops)
	return nil
}

func (m *memMeta) Sync() error {
	if err := m.ask("sync"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.durable, m.unsynced = maps.Clone(m.keys), nil
	return nil
}

// crash keeps what was synced and some of the commits after it.
func (m *memMeta) crash(rnd *rand.Rand) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, ops := range m.unsynced {
		if rnd.IntN(2) == 0 {
			applyOps(m.durable, ops)
		}
	}
	m.keys, m.unsynced = maps.Clone(m.durable), nil
}

func (m *memMeta) clone() *memMeta {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &memMeta{keys: maps.Clone(m.keys), durable: maps.Clone(m.durable), unsynced: slices.Clone(m.unsynced)}
}

func (m *memMeta) prefixed(prefix string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for k := range m.keys {
		if strings.HasPrefix(k, prefix) {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

func (m *memMeta) get(key string) (string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.keys[key]
	return v, ok
}

func (m *memMeta) Topics(see func(TopicMeta) error) error {
	for _, k := range m.prefixed(topicPrefix) {
		v, _ := m.get(k)
		t, err := parseTopicMeta(k[len(topicPrefix):], []byte(v))
		if err == nil {
			err = see(t)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (m *memMeta) Ends(see func(string, TopicEnd) error) error {
	for _, k := range m.prefixed(endPrefix) {
		v, _ := m.get(k)
		if e, ok := parseTopicEnd([]byte(v)); ok {
			if err := see(k[len(endPrefix):], e); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *memMeta) Checkpoint() (c Checkpoint, found bool, err error) {
	v, found := m.get(checkpointKey)
	if found {
		err = json.Unmarshal([]byte(v), &c)
	}
	return c, found, err
}

func (m *memMeta) DelayKeys(from int64, see func(DelayKey) bool) error {
	for _, k := range m.prefixed(delayPrefix) {
		if d, ok := parseDelayKey([]byte(k)); ok && d.TriggerAtMs >= from && !see(d) {
			return nil
		}
	}
	return nil
}

func (m *memMeta) DelayPayload(k DelayKey) ([]byte, bool, error) {
	v, ok := m.get(string(delayKey(k)))
	return []byte(v), ok, nil
}

func (m *memMeta) CollectGarbage() error { return nil }
func (m *memMeta) Close() error          { return nil }
