package storage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// memFS is a file system in memory that can fail at its n-th operation, and
// forget what was not synced.
//
// What a crash keeps is weaker than what common file systems promise: of what
// was written or truncated since a file's last sync, any subset of the pieces
// of 512 bytes; of the names that were added to or removed from a directory
// since its last sync, any subset; both sides of a rename on their own.
type memFS struct {
	mu   sync.Mutex
	root *memNode
	ops  int // operations so far

	failAt  int   // the operation that fails, 0 = none
	failErr error // with what
	crashAt int   // the operation before which everything stops, 0 = none
	crashed bool
	failed  string // which operation it was
}

type memNode struct {
	dir   bool
	names map[string]*memNode
	data  []byte

	durableNames map[string]*memNode
	durableData  []byte
	nameOps      []nameOp // since the last sync
	dataOps      []dataOp
}

type nameOp struct {
	name string
	node *memNode // nil = removed
}

// dataOp writes b at off, or truncates to off where b is nil.
type dataOp struct {
	off int64
	b   []byte
}

func newMemDir() *memNode {
	return &memNode{dir: true, names: map[string]*memNode{}, durableNames: map[string]*memNode{}}
}

func newMemFS() *memFS { return &memFS{root: newMemDir()} }

var errCrashed = errors.New("the machine is down")

// op counts an operation and says whether it fails.
func (m *memFS) op(what string) error {
	if m.crashed {
		return errCrashed
	}
	m.ops++
	if m.ops == m.crashAt {
		m.crashed, m.failed = true, what
		return errCrashed
	}
	if m.ops == m.failAt {
		m.failed = what
		return fmt.Errorf("%s: %w", what, m.failErr)
	}
	return nil
}

func (m *memFS) metaOp(what string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.op(what)
}

func notExist(op, name string) error { return &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist} }

func (m *memFS) find(name string) *memNode {
	n := m.root
	for part := range strings.SplitSeq(strings.Trim(filepath.Clean(name), "/"), "/") {
		if part == "" {
			continue
		}
		if n = n.names[part]; n == nil {
			return nil
		}
	}
	return n
}

func (m *memFS) parent(name string) (*memNode, string) {
	return m.find(filepath.Dir(name)), filepath.Base(name)
}

func (n *memNode) set(name string, node *memNode) {
	if node == nil {
		delete(n.names, name)
	} else {
		n.names[name] = node
	}
	n.nameOps = append(n.nameOps, nameOp{name, node})
}

func (m *memFS) Open(name string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.op("open " + name); err != nil {
		return nil, err
	}
	n := m.find(name)
	if n == nil {
		return nil, notExist("open", name)
	}
	return &memFile{m, n, name}, nil
}

func (m *memFS) OpenAppend(name string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.op("create " + name); err != nil {
		return nil, err
	}
	dir, base := m.parent(name)
	if dir == nil {
		return nil, notExist("open", name)
	}
	n := dir.names[base]
	if n == nil {
		n = &memNode{}
		dir.set(base, n)
	}
	return &memFile{m, n, name}, nil
}

func (m *memFS) MkdirAll(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.root
	for part := range strings.SplitSeq(strings.Trim(filepath.Clean(name), "/"), "/") {
		if part == "" {
			continue
		}
		next := n.names[part]
		if next == nil {
			// Each directory is an operation: the last ones can fail.
			if err := m.op("mkdir " + part + " of " + name); err != nil {
				return err
			}
			next = newMemDir()
			n.set(part, next)
		}
		n = next
	}
	return nil
}

func (m *memFS) ReadDir(name string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.op("readdir " + name); err != nil {
		return nil, err
	}
	n := m.find(name)
	if n == nil {
		return nil, notExist("readdir", name)
	}
	return slices.Sorted(maps.Keys(n.names)), nil
}

func (m *memFS) Size(name string) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.op("stat " + name); err != nil {
		return 0, err
	}
	n := m.find(name)
	if n == nil {
		return 0, notExist("stat", name)
	}
	return int64(len(n.data)), nil
}

func (m *memFS) Rename(from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.op("rename " + from); err != nil {
		return err
	}
	a, aName := m.parent(from)
	b, bName := m.parent(to)
	if a == nil || b == nil || a.names[aName] == nil {
		return notExist("rename", from)
	}
	if n := b.names[bName]; n != nil && n.dir && len(n.names) > 0 {
		return fmt.Errorf("rename %s: %w", from, unix.ENOTEMPTY)
	}
	b.set(bName, a.names[aName])
	a.set(aName, nil)
	return nil
}

func (m *memFS) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.op("remove " + name); err != nil {
		return err
	}
	dir, base := m.parent(name)
	if dir == nil || dir.names[base] == nil {
		return notExist("remove", name)
	}
	if n := dir.names[base]; n.dir && len(n.names) > 0 {
		return fmt.Errorf("remove %s: %w", name, unix.ENOTEMPTY)
	}
	dir.set(base, nil)
	return nil
}

func (m *memFS) RemoveAll(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.op("removeall " + name); err != nil {
		return err
	}
	if dir, base := m.parent(name); dir != nil && dir.names[base] != nil {
		dir.set(base, nil)
	}
	return nil
}

func (m *memFS) OpenDir(name string) (Dir, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.op("opendir " + name); err != nil {
		return nil, err
	}
	n := m.find(name)
	if n == nil {
		return nil, notExist("open", name)
	}
	return &memDir{m, n, name}, nil
}

// memDir is an open directory. It stays the same one when it is renamed.
type memDir struct {
	fs   *memFS
	node *memNode
	name string
}

func (d *memDir) Sync() error {
	d.fs.mu.Lock()
	defer d.fs.mu.Unlock()
	if err := d.fs.op("syncdir " + d.name); err != nil {
		return err
	}
	d.node.durableNames, d.node.nameOps = maps.Clone(d.node.names), nil
	return nil
}

func (d *memDir) Close() error { return nil }

func (m *memFS) SyncDir(name string) error {
	d, err := m.OpenDir(name)
	if err != nil {
		return err
	}
	return d.Sync()
}

func (m *memFS) FreeBytes(string) (int64, error) { return 1 << 40, nil }

type memFile struct {
	fs   *memFS
	node *memNode
	name string
}

func (f *memFile) ReadAt(b []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.fs.op("read " + f.name); err != nil {
		return 0, err
	}
	if off >= int64(len(f.node.data)) {
		return 0, io.EOF
	}
	n := copy(b, f.node.data[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (n *memNode) apply(op dataOp) {
	if op.b == nil {
		if op.off <= int64(len(n.data)) {
			n.data = n.data[:op.off:op.off]
		} else {
			n.data = append(n.data, make([]byte, op.off-int64(len(n.data)))...)
		}
		return
	}
	if grow := op.off + int64(len(op.b)) - int64(len(n.data)); grow > 0 {
		n.data = append(n.data, make([]byte, grow)...)
	}
	copy(n.data[op.off:], op.b)
}

func (f *memFile) WriteAt(b []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	err := f.fs.op("write " + f.name)
	n := len(b)
	if err != nil {
		n /= 2 // a failing or interrupted write leaves its first half
	}
	if n > 0 && (err == nil || f.fs.ops == f.fs.failAt || f.fs.ops == f.fs.crashAt) {
		op := dataOp{off, slices.Clone(b[:n])}
		f.node.apply(op)
		f.node.dataOps = append(f.node.dataOps, op)
	}
	return n, err
}

func (f *memFile) Truncate(size int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.fs.op("truncate " + f.name); err != nil {
		return err
	}
	op := dataOp{size, nil}
	f.node.apply(op)
	f.node.dataOps = append(f.node.dataOps, op)
	return nil
}

func (f *memFile) Sync() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.fs.op("sync " + f.name); err != nil {
		if !errors.Is(err, errCrashed) {
			// The kernel drops the pages, and a second sync would be content.
			f.node.dataOps = nil
		}
		return err
	}
	f.node.durableData, f.node.dataOps = slices.Clone(f.node.data), nil
	return nil
}

func (f *memFile) Size() (int64, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.fs.op("fstat " + f.name); err != nil {
		return 0, err
	}
	return int64(len(f.node.data)), nil
}

func (f *memFile) Close() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	return f.fs.op("close " + f.name)
}

// clone is the file system as the next process on this machine finds it: all
// that was written is there.
func (m *memFS) clone() *memFS {
	m.mu.Lock()
	defer m.mu.Unlock()
	done := map[*memNode]*memNode{}
	var clone func(*memNode) *memNode
	cloneNames := func(names map[string]*memNode) map[string]*memNode {
		out := map[string]*memNode{}
		for name, n := range names {
			out[name] = clone(n)
		}
		return out
	}
	clone = func(n *memNode) *memNode {
		if n == nil {
			return nil
		}
		if c := done[n]; c != nil {
			return c
		}
		c := &memNode{dir: n.dir, data: slices.Clone(n.data), durableData: slices.Clone(n.durableData), dataOps: slices.Clone(n.dataOps)}
		done[n] = c
		if n.dir {
			c.names, c.durableNames = cloneNames(n.names), cloneNames(n.durableNames)
			for _, op := range n.nameOps {
				c.nameOps = append(c.nameOps, nameOp{op.name, clone(op.node)})
			}
		}
		return c
	}
	return &memFS{root: clone(m.root)}
}

// crash is the file system as the machine finds it after the power came back.
func (m *memFS) crash(rnd *rand.Rand) *memFS {
	out := m.clone()
	// All of what was not synced, none of it, or any part.
	mode := rnd.IntN(4)
	keep := func() bool { return mode == 1 || (mode > 1 && rnd.IntN(2) == 0) }
	done := map[*memNode]bool{}
	var settle func(*memNode)
	settle = func(n *memNode) {
		if done[n] {
			return
		}
		done[n] = true
		if !n.dir {
			n.data = n.durableData
			for _, op := range n.dataOps {
				if op.b == nil {
					if keep() {
						n.apply(op)
					}
					continue
				}
				for b, off := op.b, op.off; len(b) > 0; {
					piece := min(len(b), 512-int(off%512))
					if keep() {
						n.apply(dataOp{off, b[:piece]})
					}
					b, off = b[piece:], off+int64(piece)
				}
			}
			n.durableData, n.dataOps = slices.Clone(n.data), nil
			return
		}
		n.names = maps.Clone(n.durableNames)
		for _, op := range n.nameOps {
			if keep() {
				if op.node == nil {
					delete(n.names, op.name)
				} else {
					n.names[op.name] = op.node
				}
			}
		}
		n.durableNames, n.nameOps = maps.Clone(n.names), nil
		for _, name := range slices.Sorted(maps.Keys(n.names)) {
			settle(n.names[name])
		}
	}
	settle(out.root)
	return out
}

// memory puts a world on a file system in memory.
func (w *world) memory() *world {
	m := newMemFS()
	must(w.t, m.MkdirAll("/disk"))
	must(w.t, m.SyncDir("/"))
	w.opt.FS, w.opt.Path, w.opt.Boot = m, "/disk/data", "boot 1"
	w.meta.fail = m.metaOp
	return w
}

func (w *world) mem() *memFS { return w.opt.FS.(*memFS) }

// killed is the world that the next process finds when this one is killed now.
func (w *world) killed() *world {
	c := &world{t: w.t, opt: w.opt, nowMs: w.nowMs, meta: w.meta.clone()}
	m := w.mem().clone()
	c.opt.FS, c.meta.fail = m, m.metaOp
	return c
}

// unplugged is the world that is found after the power went.
func (w *world) unplugged(rnd *rand.Rand) *world {
	c := w.killed()
	m := w.mem().crash(rnd)
	c.opt.FS, c.opt.Boot, c.meta.fail = m, w.opt.Boot+"+", m.metaOp
	c.meta.crash(rnd)
	return c
}

func TestMemFSForgets(t *testing.T) {
	m := newMemFS()
	must(t, m.MkdirAll("/d"))
	f, err := m.OpenAppend("/d/f")
	must(t, err)
	_, err = f.WriteAt([]byte("abc"), 0)
	must(t, err)
	must(t, f.Sync())
	seen := map[string]bool{}
	for seed := range uint64(64) {
		c := m.crash(rand.New(rand.NewPCG(seed, 1)))
		if c.find("/d") == nil {
			seen["nothing"] = true
			continue
		}
		n := c.find("/d/f")
		seen[fmt.Sprint("file ", n != nil)] = true
	}
	if len(seen) != 3 {
		t.Errorf("seen %v", seen)
	}
	must(t, m.SyncDir("/"))
	must(t, m.SyncDir("/d"))
	_, err = f.WriteAt([]byte("def"), 3)
	must(t, err)
	for seed := range uint64(64) {
		n := m.crash(rand.New(rand.NewPCG(seed, 1))).find("/d/f")
		if n == nil || (string(n.data) != "abc" && string(n.data) != "abcdef") {
			t.Fatalf("seed %d: %v", seed, n)
		}
		seen[string(n.data)] = true
	}
	if len(seen) != 5 {
		t.Errorf("seen %v", seen)
	}
}
