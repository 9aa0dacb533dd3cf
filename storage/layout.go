package storage

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The names in a data directory. The first three are the existing server's.
const (
	binlogDir  = "binlog"
	topicDir   = "topic"
	metaDir    = "meta"
	lockFile   = "LOCK"
	formatFile = "smss.json"
	// trashDir lies below the topics, so that moving a topic there is a rename
	// within one file system even where the topics have one of their own. The
	// existing server passes over names that are not numbers.
	trashDir = ".trash"
)

// FormatVersion is the version of the directory that this package writes.
const FormatVersion = 1

// DefaultFolderCount is the fan-out of a new directory that names none.
const DefaultFolderCount = 10

// format is what formatFile holds: what must not change over the life of a
// directory.
type format struct {
	Version     int   `json:"version"`
	FolderCount int   `json:"folderCount"`
	MemTable    int64 `json:"badgerMemTableBytes"`
}

// folders returns the two directory levels of a topic, as text.
func folders(topic string, count int) (p1, p2 string) {
	return folder(topic+"talk is cheap, show me your code", count), folder(topic+"The world is beautiful", count)
}

func folder(salted string, count int) string {
	h := fnv.New64a()
	h.Write([]byte(salted))
	return strconv.FormatUint(h.Sum64()%uint64(count), 10)
}

// lockDir takes the kernel's lock on the directory. It is freed by the kernel
// when the process ends, however that happens.
func lockDir(dir string) (*os.File, error) {
	name := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := flock(f, lockGrace); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s is in use by another smss process: stop that one, or give this one another store.path", dir)
		}
		return nil, wrapPath("flock", name, err)
	}
	return f, nil
}

// lockGrace is how long a start waits for the directory's lock. A process that
// only asks whether a server is running holds it for a moment, and one that was
// killed lets go of it when the kernel has done away with it. A second server is
// refused that much later.
const lockGrace = 500 * time.Millisecond

// lockPoll is the pause between two tries.
const lockPoll = 10 * time.Millisecond

// flock takes the exclusive lock on f, waiting for it no longer than grace.
func flock(f *os.File, grace time.Duration) error {
	for deadline := time.Now().Add(grace); ; time.Sleep(lockPoll) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(deadline) {
			return err
		}
	}
}

// settleFormat reads the directory's format, or makes one for a directory that
// has none: a new one, or one of the existing server, for which adopt is true.
func settleFormat(fsys FS, dir string, folderCount int) (f format, adopt bool, err error) {
	b, err := readSmallFile(fsys, filepath.Join(dir, formatFile))
	if err == nil {
		f, err = checkFormat(dir, b, folderCount)
		return f, false, err
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return f, false, err
	}
	found, err := inferFolderCount(fsys, filepath.Join(dir, topicDir))
	if err != nil {
		return f, false, err
	}
	if found > 0 && folderCount > 0 && found != folderCount {
		return f, false, folderCountError(dir, found, folderCount)
	}
	adopt, err = exists(fsys, filepath.Join(dir, metaDir, "MANIFEST"))
	if err != nil {
		return f, false, err
	}
	f = format{FormatVersion, max(found, folderCount), memTableSize}
	if f.FolderCount == 0 {
		f.FolderCount = DefaultFolderCount
	}
	return f, adopt, nil
}

func folderCountError(dir string, has, asked int) error {
	return fmt.Errorf("store.folderCount is %d, but %s was made with %d: topics would not be found; set store.folderCount to %d or remove the key", asked, dir, has, has)
}

func checkFormat(dir string, b []byte, folderCount int) (f format, err error) {
	name := filepath.Join(dir, formatFile)
	if err := json.Unmarshal(b, &f); err != nil {
		return f, fmt.Errorf("%s: %w", name, err)
	}
	if f.Version != FormatVersion {
		return f, fmt.Errorf("%s: format version %d, this smss reads version %d: use the smss that wrote it", name, f.Version, FormatVersion)
	}
	if f.FolderCount < 1 {
		return f, fmt.Errorf("%s: folderCount %d is not at least 1", name, f.FolderCount)
	}
	if f.MemTable > memTableSize {
		return f, fmt.Errorf("%s: written with a Badger memtable of %d bytes, this smss uses %d: opening it could end the process; use the smss that wrote it", name, f.MemTable, int64(memTableSize))
	}
	if folderCount > 0 && folderCount != f.FolderCount {
		return f, folderCountError(dir, f.FolderCount, folderCount)
	}
	return f, nil
}

// inferFolderCount returns the fan-out of a directory of the existing server,
// which made all its folders at its first start; 0 where there are none.
func inferFolderCount(fsys FS, dir string) (int, error) {
	names, err := fsys.ReadDir(dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return 0, nil
		}
		return 0, err
	}
	n := 0
	for _, name := range names {
		if v, err := strconv.Atoi(name); err == nil && v >= 0 && strconv.Itoa(v) == name {
			n = max(n, v+1)
		}
	}
	return n, nil
}

func writeFormat(fsys FS, dir string, f format) error {
	return writeJSON(fsys, filepath.Join(dir, formatFile), f)
}

// writeJSON makes v a small file for people to read, too.
func writeJSON(fsys FS, name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return writeSmallFile(fsys, name, append(b, '\n'))
}

// smallFileMax is how long a small file may be: none of this package comes near.
const smallFileMax = 64 << 10

// writeSmallFile makes a file durable by writing it beside and renaming.
func writeSmallFile(fsys FS, name string, b []byte) error {
	if len(b) > smallFileMax {
		return fmt.Errorf("%s would be %d bytes long and could not be read again: at most %d", name, len(b), smallFileMax)
	}
	tmp := name + ".new"
	out, err := fsys.OpenAppend(tmp)
	if err != nil {
		return err
	}
	err = out.Truncate(0)
	if err == nil {
		_, err = out.WriteAt(b, 0)
	}
	if err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	if err := fsys.Rename(tmp, name); err != nil {
		return err
	}
	return syncDir(fsys, filepath.Dir(name))
}

func readSmallFile(fsys FS, name string) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > smallFileMax {
		return nil, fmt.Errorf("%s is %d bytes long, at most %d are expected: it is not what its name says", name, size, smallFileMax)
	}
	b := make([]byte, size)
	n, err := f.ReadAt(b, 0)
	if n == len(b) {
		err = nil
	}
	return b[:n], err
}

// safePathName reports whether a topic name from the metadata may be joined to
// a path. The existing server let names through that leave their directory.
func safePathName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

// bootID tells one run of the machine from another: what a killed process left
// in the page cache is there in the same one only. Empty where unknown.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
