package storage

import (
	"errors"
	"path/filepath"
)

// A reserve of disk space lies beside the binlog: on a full disk it is given
// up, so that deletions, which make space, can be written to the binlog.
const (
	reserveFile  = ".reserve"
	reserveBytes = 64 << 10
)

func (s *Store) reserveName() string { return filepath.Join(s.path, binlogDir, reserveFile) }

// KeepReserve makes the reserve where there is none. It fails where the disk
// is full, and is tried again by the janitor.
func (s *Store) KeepReserve() error {
	if s.reserved.Load() {
		return nil
	}
	f, err := s.fsys.OpenAppend(s.reserveName())
	if err != nil {
		return err
	}
	// Written and not only sized: a hole reserves nothing.
	_, err = f.WriteAt(make([]byte, reserveBytes), 0)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, removeIfExists(s.fsys, s.reserveName()))
	}
	s.reserved.Store(true)
	return nil
}

// ReleaseReserve gives the reserve up and reports whether there was one.
// Writer only.
func (s *Store) ReleaseReserve() bool {
	if !s.reserved.Swap(false) {
		return false
	}
	if err := removeIfExists(s.fsys, s.reserveName()); err != nil {
		s.opt.Events.note("the reserve of disk space cannot be given up", err)
		return false
	}
	return true
}
