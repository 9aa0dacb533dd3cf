package storage

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

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
	// SyncDir makes names in a directory durable.
	SyncDir(name string) error
	// FreeBytes returns what an unprivileged writer may still write.
	FreeBytes(name string) (int64, error)
}

// File is an open file. ReadAt and Sync may run beside WriteAt on another
// goroutine; Truncate and Close may not.
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

// OS is the operating system's file system.
type OS struct{}

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (f osFile) Sync() error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if err == nil || !errors.Is(err, unix.EINTR) {
			return wrapPath("fdatasync", f.Name(), err)
		}
	}
}

func wrapPath(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}

// Open implements FS.
func (OS) Open(name string) (File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// OpenAppend implements FS.
func (OS) OpenAppend(name string) (File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
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

// SyncDir implements FS.
func (OS) SyncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
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

// syncNew makes a directory that was just created durable: its own names, and
// its name in its parent.
func syncNew(fsys FS, dir string) error {
	if err := fsys.SyncDir(dir); err != nil {
		return err
	}
	return fsys.SyncDir(filepath.Dir(dir))
}
