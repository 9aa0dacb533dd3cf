package storage

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// FS is what storage needs of a file system. OS is the real one; tests use
// one that fails and forgets.
type FS interface {
	// Open opens for reading, OpenAppend for reading and writing, creating the
	// file where it is missing.
	Open(name string) (File, error)
	OpenAppend(name string) (File, error)
	MkdirAll(name string) error
	// ReadDir returns the names in a directory, in no order.
	ReadDir(name string) ([]string, error)
	// Size returns a file's size; a directory has size 0.
	Size(name string) (int64, error)
	Rename(from, to string) error
	Remove(name string) error
	RemoveAll(name string) error
	// OpenDir opens a directory for syncing. That is a step of its own, so that a
	// shortage of descriptors is met before anything is written, where it can be
	// refused, and not where a sync is due.
	OpenDir(name string) (Dir, error)
	// FreeBytes returns what an unprivileged writer may still write.
	FreeBytes(name string) (int64, error)
}

// File is an open file. ReadAt and Sync may run beside WriteAt and Truncate on
// another goroutine; Close may not.
type File interface {
	io.ReaderAt
	io.WriterAt
	Truncate(size int64) error
	// Sync makes the content durable. After a failed Sync nothing may be
	// assumed of what was written before it, and it must not be retried: the
	// kernel may have dropped the pages and report success the next time.
	Sync() error
	Size() (int64, error)
	Close() error
}

// Dir is an open directory. Sync makes its names durable; for a failed one
// File's rule holds.
type Dir interface {
	Sync() error
	Close() error
}

// OS is the operating system's file system.
type OS struct {
	// NoCache drops a file's pages from the system's cache once they are
	// synced.
	NoCache bool
}

type osFile struct {
	*os.File
	noCache bool // immutable
}

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (f osFile) Sync() error {
	// Through the connection and not by the number of the descriptor, which
	// could be another file's by then.
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		for {
			if failed = unix.Fdatasync(int(fd)); !errors.Is(failed, unix.EINTR) {
				break
			}
		}
		if failed == nil && f.noCache {
			// Advice: whether it is taken changes nothing but the cache.
			_ = unix.Fadvise(int(fd), 0, 0, unix.FADV_DONTNEED)
		}
	})
	return wrapPath("fdatasync", f.Name(), errors.Join(err, failed))
}

// Gone reports whether the file has no name any more.
func (f osFile) Gone() bool {
	info, err := f.Stat()
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Nlink == 0
}

func wrapPath(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}

// Open implements FS.
func (o OS) Open(name string) (File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	return osFile{f, o.NoCache}, nil
}

// OpenAppend implements FS.
func (o OS) OpenAppend(name string) (File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	return osFile{f, o.NoCache}, nil
}

// MkdirAll implements FS.
func (OS) MkdirAll(name string) error { return os.MkdirAll(name, 0o755) }

// ReadDir implements FS.
func (OS) ReadDir(name string) ([]string, error) {
	d, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

// Size implements FS.
func (OS) Size(name string) (int64, error) {
	info, err := os.Stat(name)
	if err != nil {
		return 0, err
	}
	if info.IsDir() {
		return 0, nil
	}
	return info.Size(), nil
}

// Rename implements FS.
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// Remove implements FS.
func (OS) Remove(name string) error { return os.Remove(name) }

// RemoveAll implements FS.
func (OS) RemoveAll(name string) error { return os.RemoveAll(name) }

// OpenDir implements FS. Sync is fsync and not fdatasync: whether that writes
// new names is for the file system to say.
func (OS) OpenDir(name string) (Dir, error) {
	d, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// syncDir makes the names in a directory durable. A *FatalError is a failed
// sync; any other error says that none was tried.
func syncDir(fsys FS, name string) error {
	d, err := fsys.OpenDir(name)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return &FatalError{err}
	}
	return nil
}

// FreeBytes implements FS.
func (OS) FreeBytes(name string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(name, &st); err != nil {
		return 0, wrapPath("statfs", name, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

func exists(fsys FS, name string) (bool, error) {
	_, err := fsys.Size(name)
	if err == nil {
		return true, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return false, err
}

// makeDir makes a directory where it is missing.
func makeDir(fsys FS, dir string) (made bool, err error) {
	there, err := exists(fsys, dir)
	if err != nil || there {
		return false, err
	}
	return true, fsys.MkdirAll(dir)
}

// makeSynced is makeDir with the name durable in its parent.
func makeSynced(fsys FS, dir string) error {
	made, err := makeDir(fsys, dir)
	if err != nil || !made {
		return err
	}
	return syncDir(fsys, filepath.Dir(dir))
}
