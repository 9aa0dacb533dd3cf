package engine

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"smss/storage"
)

// disk is a file system in memory that can fail and forget. What a killed
// process has written stays; a power cut keeps what was synced, of each file a
// prefix of the rest, and of the names a prefix of their changes, as a
// journalling file system does.
type disk struct {
	mu      sync.Mutex
	names   map[string]*inode // as a process sees them
	durable map[string]*inode // as they would be after a power cut
	journal []nameChange      // what lies between the two, in order
	free    int64
	freeOf  map[string]int64 // of directories on file systems of their own
	// fail, if set, is asked before each operation, without the lock.
	fail func(op, name string) error
}

// inode is a file, or a directory where dir is set.
type inode struct {
	dir      bool
	data     []byte
	synced   []byte
	unsynced []fileChange
}

// fileChange is a write at off, or a truncation to off where data is nil.
type fileChange struct {
	off  int64
	data []byte
}

// nameChange makes name mean node, or nothing where node is nil; with from set
// it moves a tree.
type nameChange struct {
	name, from string
	node       *inode
}

func newDisk() *disk {
	return &disk{names: map[string]*inode{}, durable: map[string]*inode{}, free: 1 << 40}
}

var _ storage.FS = (*disk)(nil)

func (d *disk) ask(op, name string) error {
	if d.fail == nil {
		return nil
	}
	if err := d.fail(op, name); err != nil {
		return &fs.PathError{Op: op, Path: name, Err: err}
	}
	return nil
}

func missing(op, name string) error { return &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist} }

func (c *nameChange) apply(names map[string]*inode) {
	switch {
	case c.from != "":
		for name, node := range maps.Clone(names) {
			if name == c.from || strings.HasPrefix(name, c.from+"/") {
				delete(names, name)
				names[c.name+name[len(c.from):]] = node
			}
		}
	case c.node == nil:
		delete(names, c.name)
	default:
		names[c.name] = c.node
	}
}

// change makes a change to the names; with the lock held.
func (d *disk) change(c nameChange) {
	c.apply(d.names)
	d.journal = append(d.journal, c)
}

func (d *disk) open(op, name string, create bool) (storage.File, error) {
	if err := d.ask(op, name); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	node := d.names[name]
	if node == nil {
		if parent := d.names[path.Dir(name)]; !create || parent == nil || !parent.dir {
			return nil, missing(op, name)
		}
		node = &inode{}
		d.change(nameChange{name: name, node: node})
	}
	return &diskFile{d: d, name: name, node: node}, nil
}

func (d *disk) Open(name string) (storage.File, error)       { return d.open("open", name, false) }
func (d *disk) OpenAppend(name string) (storage.File, error) { return d.open("create", name, true) }

func (d *disk) MkdirAll(name string) error {
	if err := d.ask("mkdir", name); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var made []string
	for ; d.names[name] == nil; name = path.Dir(name) {
		made = append(made, name)
		if name == path.Dir(name) {
			break
		}
	}
	for _, name := range slices.Backward(made) {
		d.change(nameChange{name: name, node: &inode{dir: true}})
	}
	return nil
}

func (d *disk) ReadDir(name string) ([]string, error) {
	if err := d.ask("readdir", name); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[name] == nil {
		return nil, missing("readdir", name)
	}
	var out []string
	for have := range d.names {
		if path.Dir(have) == name && have != name {
			out = append(out, path.Base(have))
		}
	}
	slices.Sort(out)
	return out, nil
}

func (d *disk) Size(name string) (int64, error) {
	if err := d.ask("size", name); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	node := d.names[name]
	if node == nil {
		return 0, missing("size", name)
	}
	return int64(len(node.data)), nil
}

func (d *disk) Rename(from, to string) error {
	if err := d.ask("rename", from); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[from] == nil || d.names[path.Dir(to)] == nil {
		return missing("rename", from)
	}
	d.change(nameChange{name: to, from: from})
	return nil
}

func (d *disk) Remove(name string) error {
	if err := d.ask("remove", name); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[name] == nil {
		return missing("remove", name)
	}
	for have := range d.names {
		if path.Dir(have) == name && have != name {
			return &fs.PathError{Op: "remove", Path: name, Err: unix.ENOTEMPTY}
		}
	}
	d.change(nameChange{name: name})
	return nil
}

func (d *disk) RemoveAll(name string) error {
	if err := d.ask("removeall", name); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []string
	for have := range d.names {
		if have == name || strings.HasPrefix(have, name+"/") {
			all = append(all, have)
		}
	}
	slices.Sort(all)
	for _, have := range slices.Backward(all) {
		d.change(nameChange{name: have})
	}
	return nil
}

// OpenDir opens a directory that is there.
func (d *disk) OpenDir(name string) (storage.Dir, error) {
	if err := d.ask("opendir", name); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[name] == nil {
		return nil, missing("opendir", name)
	}
	return &diskDir{d, name}, nil
}

// diskDir is an open directory.
type diskDir struct {
	d    *disk
	name string
}

func (f *diskDir) Close() error { return nil }

// Sync makes durable what was changed up to the last change in this
// directory: a journal has no holes.
func (f *diskDir) Sync() error {
	d, name := f.d, f.name
	if err := d.ask("syncdir", name); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, c := range slices.Backward(d.journal) {
		if path.Dir(c.name) == name || path.Dir(c.from) == name {
			d.commit(i + 1)
			return nil
		}
	}
	return nil
}

func (d *disk) commit(n int) {
	for i := range d.journal[:n] {
		d.journal[i].apply(d.durable)
	}
	d.journal = slices.Clone(d.journal[n:])
}

func (d *disk) FreeBytes(name string) (int64, error) {
	if err := d.ask("free", name); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if n, own := d.freeOf[name]; own {
		return n, nil
	}
	return d.free, nil
}

func (d *disk) setFree(n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.free = n
}

// cutPower leaves what a power cut leaves.
func (d *disk) cutPower(rnd *rand.Rand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.commit(rnd.IntN(len(d.journal) + 1))
	d.names, d.journal = maps.Clone(d.durable), nil
	for _, name := range slices.Sorted(maps.Keys(d.names)) {
		node := d.names[name]
		keep := rnd.IntN(len(node.unsynced) + 1)
		node.data = bytes.Clone(node.synced)
		for _, c := range node.unsynced[:keep] {
			node.data = c.apply(node.data)
		}
		if keep < len(node.unsynced) {
			if c := node.unsynced[keep]; c.data != nil {
				c.data = c.data[:rnd.IntN(len(c.data)+1)] // torn
				node.data = c.apply(node.data)
			}
		}
		node.synced, node.unsynced = bytes.Clone(node.data), nil
	}
}

func (c fileChange) apply(data []byte) []byte {
	end := int(c.off) + len(c.data)
	if c.data == nil {
		if end < len(data) {
			return data[:end]
		}
		return append(data, make([]byte, end-len(data))...)
	}
	if end > len(data) {
		data = append(data, make([]byte, end-len(data))...)
	}
	copy(data[c.off:], c.data)
	return data
}

// diskFile is an open file. Of two handles of one file each sees the other's
// writes, and a handle outlives its name.
type diskFile struct {
	d      *disk
	name   string
	node   *inode
	closed bool // disk.mu
}

func (f *diskFile) use(op string) error {
	if err := f.d.ask(op, f.name); err != nil {
		return err
	}
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.closed {
		return &fs.PathError{Op: op, Path: f.name, Err: fs.ErrClosed}
	}
	return nil
}

func (f *diskFile) change(c fileChange) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.node.data = c.apply(f.node.data)
	f.node.unsynced = append(f.node.unsynced, c)
}

func (f *diskFile) ReadAt(b []byte, off int64) (int, error) {
	if err := f.use("read"); err != nil {
		return 0, err
	}
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if off >= int64(len(f.node.data)) {
		return 0, io.EOF
	}
	n := copy(b, f.node.data[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt that fails for want of space leaves half of it behind.
func (f *diskFile) WriteAt(b []byte, off int64) (int, error) {
	if err := f.use("write"); err != nil {
		if n := len(b) / 2; n > 0 && errors.Is(err, unix.ENOSPC) {
			f.change(fileChange{off, bytes.Clone(b[:n])})
			return n, err
		}
		return 0, err
	}
	if len(b) > 0 {
		f.change(fileChange{off, bytes.Clone(b)})
	}
	return len(b), nil
}

func (f *diskFile) Truncate(size int64) error {
	if err := f.use("truncate"); err != nil {
		return err
	}
	f.change(fileChange{off: size})
	return nil
}

func (f *diskFile) Sync() error {
	if err := f.use("sync"); err != nil {
		return err
	}
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.node.synced, f.node.unsynced = bytes.Clone(f.node.data), nil
	return nil
}

func (f *diskFile) Size() (int64, error) {
	if err := f.use("fsize"); err != nil {
		return 0, err
	}
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	return int64(len(f.node.data)), nil
}

func (f *diskFile) Close() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.closed {
		return fs.ErrClosed
	}
	f.closed = true
	return nil
}

// failing makes operations whose name is below dir fail; ops names them,
// separated by spaces.
func failing(dir, ops string, err error) func(op, name string) error {
	return func(op, name string) error {
		if slices.Contains(strings.Fields(ops), op) && strings.HasPrefix(filepath.Clean(name)+"/", dir+"/") {
			return err
		}
		return nil
	}
}
