package storage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/dgraph-io/badger/v4/table"
	"github.com/dgraph-io/ristretto/v2/z"
)

// Badger takes some damage for nothing: a damaged table ends the process from
// a goroutine of Badger's, or is left out with a line in the log, and a file
// that a kill left empty keeps it from opening. checkBadger looks first, while
// nothing is changed yet.

// checkBadger removes files that a kill left empty, and returns an error where
// Badger would lose or break on what lies in dir.
func checkBadger(dir string, opt badger.Options) error {
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return err
	}
	others := false
	for _, name := range names {
		switch filepath.Ext(name) {
		case ".mem", ".vlog":
			if err := removeIfEmpty(name); err != nil {
				return err
			}
			others = true
		case ".sst":
			others = true
		}
	}
	f, err := os.Open(filepath.Join(dir, badger.ManifestFilename))
	if errors.Is(err, os.ErrNotExist) {
		if others {
			return fmt.Errorf("%s is missing", badger.ManifestFilename)
		}
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	manifest, _, err := badger.ReplayManifestFile(f, 0, opt)
	if err != nil {
		return err
	}
	for id, t := range manifest.Tables {
		if err := checkTable(table.NewFilename(id, dir), t.Compression); err != nil {
			return err
		}
	}
	return nil
}

// lockPatience is how long a process that was killed may take to let go of
// Badger's lock.
const lockPatience = 5 * time.Second

// awaitUnlocked waits until nobody holds Badger's lock on dir. The lock on the
// data directory is ours by then, so that a holder can only be a process that
// was killed and that the kernel has not done away with altogether.
func awaitUnlocked(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return flock(f, lockPatience) // closing lets go of it, for Badger to take
}

// removeIfEmpty removes a file of size 0. Badger creates its files and then
// gives them their size; one that it did not come to holds nothing.
func removeIfEmpty(name string) error {
	info, err := os.Stat(name)
	if err != nil || info.Size() > 0 {
		return err
	}
	return os.Remove(name)
}

// checkTable verifies every checksum of one table file.
func checkTable(name string, compression options.CompressionType) (err error) {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	if info.Size() == 0 {
		return fmt.Errorf("%s is empty", name)
	}
	mapped, err := z.OpenMmapFile(name, os.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer mapped.Close(-1)
	// Badger indexes into what it reads, so that damage can be a panic.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s is damaged: %v", name, p)
		}
	}()
	t, err := table.OpenTable(mapped, table.Options{Compression: compression, BlockSize: 4 << 10, ChkMode: options.NoVerification})
	if err != nil {
		return fmt.Errorf("%s is damaged: %w", name, err)
	}
	if err := t.VerifyChecksum(); err != nil {
		return fmt.Errorf("%s is damaged: %w", name, err)
	}
	return nil
}
