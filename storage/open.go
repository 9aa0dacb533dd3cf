package storage

import (
	"container/list"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// TopicState is a topic as Open found it.
type TopicState struct {
	Meta TopicMeta
	Log  *TopicLog
}

// State is what Open found, after recovery.
type State struct {
	Topics []TopicState
	// NextEventID is larger than every id that the directory has seen.
	NextEventID int64
	// LastEventID is the largest id that was seen. NextEventID can be far
	// behind it.
	LastEventID int64
	// PowerLost says that the machine may have gone down since the last stop or
	// checkpoint: events at the end may be missing that others have seen.
	PowerLost bool
	// Adopted says that the directory was the existing server's until now.
	Adopted bool
	// Replayed is how many events recovery applied again.
	Replayed int64
}

// Open opens the data directory, making it where it is missing, and brings
// binlog, topic logs and metadata into agreement. A second process on the same
// directory is refused before anything is touched.
func Open(opt Options) (*Store, *State, error) {
	if opt.FS == nil {
		opt.FS = OS{}
	}
	s := &Store{opt: opt, fsys: opt.FS, path: opt.Path, open: list.New(), dirtyDirs: map[string]struct{}{}, boot: opt.Boot}
	s.batch.s = s
	s.index.every = binlogIndexEvery
	if s.boot == "" {
		s.boot = bootID()
	}
	s.opt.MaxLogSize = max(1, opt.MaxLogSize) // 1: a file for each record
	made, err := makeDir(s.fsys, opt.Path)
	if err != nil {
		return nil, nil, explainPath(err, opt.Path)
	}
	if _, real := opt.FS.(OS); real {
		lock, err := lockDir(opt.Path)
		if err != nil {
			return nil, nil, explainPath(err, opt.Path)
		}
		s.lock = lock
	}
	state, err := s.openLocked(made)
	if err != nil {
		err = errors.Join(explainPath(err, opt.Path), s.closeAll())
		return nil, nil, err
	}
	return s, state, nil
}

// explainPath adds who is asking to an error of permission.
func explainPath(err error, path string) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("store.path %s: %w (running as uid %d)", path, err, os.Getuid())
	}
	return err
}

func (s *Store) openLocked(made bool) (*State, error) {
	f, adopt, err := settleFormat(s.fsys, s.path, s.opt.FolderCount)
	if err != nil {
		return nil, err
	}
	s.fmt = f
	if s.history, err = readHistory(s.fsys, s.path); err != nil {
		return nil, err
	}
	if err := s.settleDirs(made); err != nil {
		return nil, err
	}
	if s.meta, err = s.opt.openMeta(filepath.Join(s.path, metaDir), adopt); err != nil {
		return nil, err
	}
	r := recovery{s: s, state: &State{NextEventID: 1, Adopted: adopt}, topics: map[string]*recovering{}}
	if err := r.run(); err != nil {
		return nil, err
	}
	s.unsettled.Store(nil)
	// Only now is the directory ours: an adoption that a crash interrupts
	// begins again. A file that says so already is left alone, so that a full
	// disk does not keep the server down.
	there, err := exists(s.fsys, filepath.Join(s.path, formatFile))
	if err != nil || there {
		return r.state, err
	}
	if err := writeFormat(s.fsys, s.path, s.fmt); err != nil {
		return nil, err
	}
	return r.state, nil
}

// settleDirs makes the directories that are missing and their names durable,
// also those of a start that was interrupted before it had done so: until the
// format file is there, the data directory's own name may not be.
func (s *Store) settleDirs(made bool) error {
	for _, dir := range []string{binlogDir, topicDir, metaDir} {
		if _, err := makeDir(s.fsys, filepath.Join(s.path, dir)); err != nil {
			return err
		}
	}
	if err := syncDir(s.fsys, s.path); err != nil {
		return err
	}
	settled, err := exists(s.fsys, filepath.Join(s.path, formatFile))
	if err != nil || settled {
		return err
	}
	err = syncDir(s.fsys, filepath.Dir(s.path))
	if !made && errors.Is(err, os.ErrPermission) {
		return nil // somebody else has made it, in a place that is not ours to read
	}
	return err
}
