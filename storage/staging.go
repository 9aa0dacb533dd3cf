package storage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"smss/codec"
)

// The names of a full copy in the data directory that it is for.
const (
	orderFile  = "reseed.json" // a copy is to be made
	stagingDir = "copy"        // what there is of it, laid out as a data directory
	stateFile  = "copy.json"   // in stagingDir: what it is a copy of
	oldPrefix  = "old-"        // what the directory held before, Unix ms behind it
)

// CopyOrder says that a data directory is to become a copy of a master's, in
// place of what it holds.
type CopyOrder struct {
	Master string `json:"master"` // host:port
	Reason string `json:"reason,omitempty"`
	// Discard says that what the directory holds need not be kept aside, and
	// may be removed before the copy is made where there is no room for both.
	Discard bool `json:"discard,omitempty"`
}

// OrderCopy makes the order, durably. The next OpenStaging finds it.
func (s *Store) OrderCopy(o CopyOrder) error {
	return writeJSON(s.fsys, filepath.Join(s.path, orderFile), o)
}

// CopyState is what a copy under way is a copy of: the master's state behind an
// event.
type CopyState struct {
	Node    string        `json:"node"` // the master's
	Epochs  []codec.Epoch `json:"epochs,omitempty"`
	EventID int64         `json:"event"`
	Binlog  Pos           `json:"binlog"` // behind the event's record
	// IncompleteFrom is the master's own, see History.
	IncompleteFrom int64 `json:"incompleteFrom,omitempty"`
	// FolderCount is that of the layout.
	FolderCount int `json:"folderCount"`
	// Complete says that the copy takes the place of what the directory holds;
	// Old is the name under which that is kept, and Discard that it is not.
	Complete bool   `json:"complete,omitempty"`
	Old      string `json:"old,omitempty"`
	Discard  bool   `json:"discard,omitempty"`
}

// Staging is a full copy in the making, in a data directory that is not open as
// a Store. One goroutine uses it.
type Staging struct {
	opt   Options
	fsys  FS
	path  string
	dir   string
	lock  *os.File
	order CopyOrder
	state CopyState
	begun bool // there is a state
	count int  // of folders

	file File // the file that was written to last, or nil
	name string
}

// OpenStaging looks for a copy that is to be made, and finishes one that is to
// be put in place. It returns nil where there is none to make. The directory is
// locked until Close.
func OpenStaging(opt Options) (*Staging, error) {
	if opt.FS == nil {
		opt.FS = OS{}
	}
	s := &Staging{opt: opt, fsys: opt.FS, path: opt.Path, dir: filepath.Join(opt.Path, stagingDir)}
	staged, err1 := exists(s.fsys, s.dir)
	ordered, err2 := exists(s.fsys, filepath.Join(s.path, orderFile))
	if err := errors.Join(err1, err2); err != nil || !staged && !ordered {
		return nil, err
	}
	if _, real := opt.FS.(OS); real {
		lock, err := lockDir(opt.Path)
		if err != nil {
			return nil, explainPath(err, opt.Path)
		}
		s.lock = lock
	}
	there, err := s.load()
	if err != nil || !there {
		return nil, errors.Join(explainPath(err, opt.Path), s.Close())
	}
	return s, nil
}

// load reads what there is, and reports whether a copy is to be made.
func (s *Staging) load() (bool, error) {
	if err := s.loadState(); err != nil {
		return false, err
	}
	s.count = s.folderCount()
	if s.state.Complete {
		err := s.Install()
		if err == nil || !errors.Is(err, errCopyLost) {
			return false, err
		}
		s.opt.Events.note("the full copy cannot be put in place and is made again", err)
		if err := s.Reset(); err != nil {
			return false, err
		}
	}
	name := filepath.Join(s.path, orderFile)
	b, err := readSmallFile(s.fsys, name)
	if isNotExist(err) {
		// Whoever took the order back wants the directory as it is.
		return false, s.Reset()
	}
	if err == nil {
		err = json.Unmarshal(b, &s.order)
	}
	if err == nil && s.order.Master == "" {
		err = errors.New("it names no master")
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w; it is to read {\"master\": \"HOST:PORT\"}, or to be removed for the directory to stay as it is", name, err)
	}
	s.begun = s.begun && s.state.FolderCount == s.count
	return true, s.oneDevice()
}

func (s *Staging) loadState() error {
	b, err := readSmallFile(s.fsys, filepath.Join(s.dir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, &s.state); err != nil {
		s.state = CopyState{}
		s.opt.Events.note("what there is of a full copy cannot be used", fmt.Errorf("%s: %w", stateFile, err))
		return nil
	}
	s.begun = true
	return nil
}

// oneDevice refuses a directory of which a part is a mount of its own: nothing
// could be renamed into its place.
func (s *Staging) oneDevice() error {
	if _, real := s.fsys.(OS); !real {
		return nil
	}
	var here unix.Stat_t
	if err := unix.Stat(s.path, &here); err != nil {
		return wrapPath("stat", s.path, err)
	}
	for _, name := range []string{binlogDir, topicDir, metaDir} {
		var part unix.Stat_t
		err := unix.Stat(filepath.Join(s.path, name), &part)
		if err == nil && part.Dev != here.Dev {
			return fmt.Errorf("%s is a mount of its own: a full copy, which replaces it by renaming, cannot be made there; copy the master's directory by hand while the master is stopped, or mount %s as a whole",
				filepath.Join(s.path, name), s.path)
		}
	}
	return nil
}

// Close lets the directory go. What was copied stays.
func (s *Staging) Close() error {
	err := s.closeFile()
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
		s.lock = nil
	}
	return err
}

// Order returns what is to be done.
func (s *Staging) Order() CopyOrder { return s.order }

// Node returns the name of the directory's present history, a name that nobody
// has for none.
func (s *Staging) Node() (string, error) {
	h, err := readHistory(s.fsys, s.path)
	return h.Node, err
}

// State returns what the copy is of; false where none was begun.
func (s *Staging) State() (CopyState, bool) { return s.state, s.begun }

// Reset throws away what there is.
func (s *Staging) Reset() error {
	s.begun, s.state = false, CopyState{}
	if err := errors.Join(s.closeFile(), s.fsys.RemoveAll(s.dir)); err != nil {
		return err
	}
	return syncDir(s.fsys, s.path)
}

// Begin begins a copy, in place of what there is.
func (s *Staging) Begin(state CopyState) error {
	if err := s.Reset(); err != nil {
		return err
	}
	if err := makeSynced(s.fsys, s.dir); err != nil {
		return err
	}
	state.FolderCount = s.count
	return s.save(state)
}

func (s *Staging) save(state CopyState) error {
	b, err := json.Marshal(state) // without blanks: it has to fit into what is read of a small file
	if err != nil {
		return err
	}
	if err := writeSmallFile(s.fsys, filepath.Join(s.dir, stateFile), append(b, '\n')); err != nil {
		return err
	}
	s.state, s.begun = state, true
	return nil
}

// folderCount returns that of the directory to be: as configured, or as it was.
func (s *Staging) folderCount() int {
	if s.opt.FolderCount > 0 {
		return s.opt.FolderCount
	}
	if f, _, err := settleFormat(s.fsys, s.path, 0); err == nil {
		return f.FolderCount
	}
	return DefaultFolderCount
}

// logName returns a topic's log, or with "" the binlog.
func (s *Staging) logName(topic string) LogName {
	if topic == "" {
		return LogName{Dir: filepath.Join(s.dir, binlogDir)}
	}
	p1, p2 := folders(topic, s.count)
	return LogName{topic, filepath.Join(s.dir, topicDir, p1, p2, topic)}
}

// SafeName reports whether a topic of that name can have a directory.
func (s *Staging) SafeName(topic string) bool { return safePathName(topic) }

// Topics returns the topics that there is something of.
func (s *Staging) Topics() ([]string, error) {
	o := Offline{fsys: s.fsys, path: s.dir}
	return o.topicNames()
}

// Files returns what there is of a log, oldest first.
func (s *Staging) Files(topic string) ([]CopiedFile, error) {
	dir := s.logName(topic).Dir
	ids, err := listFiles(s.fsys, dir)
	files := make([]CopiedFile, len(ids))
	for i, id := range ids {
		size, sizeErr := s.fsys.Size(fileName(dir, id))
		files[i] = CopiedFile{id, size}
		err = errors.Join(err, sizeErr)
	}
	return files, err
}

// Write writes b at off of a file, which is how long the file is.
func (s *Staging) Write(topic string, file, off int64, b []byte) error {
	dir := s.logName(topic).Dir
	name := fileName(dir, file)
	if s.file == nil || s.name != name {
		if err := s.closeFile(); err != nil {
			return err
		}
		if err := s.fsys.MkdirAll(dir); err != nil {
			return err
		}
		f, err := s.fsys.OpenAppend(name)
		if err != nil {
			return err
		}
		s.file, s.name = f, name
	}
	_, err := s.file.WriteAt(b, off)
	return err
}

func (s *Staging) closeFile() error {
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	s.file, s.name = nil, ""
	return err
}

// Drop removes what there is of a topic.
func (s *Staging) Drop(topic string) error {
	return errors.Join(s.closeFile(), s.fsys.RemoveAll(s.logName(topic).Dir))
}

// DropFile removes a file.
func (s *Staging) DropFile(topic string, file int64) error {
	dir := s.logName(topic).Dir
	return errors.Join(s.closeFile(), removeIfExists(s.fsys, fileName(dir, file)), removeIfExists(s.fsys, indexName(dir, file)))
}

// Sync makes what there is of a log durable.
func (s *Staging) Sync(topic string) error {
	if err := s.closeFile(); err != nil {
		return err
	}
	dir := s.logName(topic).Dir
	if err := s.fsys.MkdirAll(dir); err != nil {
		return err
	}
	ids, err := listFiles(s.fsys, dir)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := syncByName(s.fsys, fileName(dir, id)); err != nil {
			return err
		}
	}
	return syncDir(s.fsys, dir)
}

// FreeBytes returns what may still be written to the directory.
func (s *Staging) FreeBytes() (int64, error) { return s.fsys.FreeBytes(s.path) }

// MakeRoom removes what is not to be kept: what an earlier copy has put aside
// and, where the order says so, what the directory holds. It reports whether
// there was anything.
func (s *Staging) MakeRoom() (bool, error) {
	olds, err := s.olds()
	if err != nil {
		return false, err
	}
	names := olds
	if s.order.Discard {
		names = append(names, binlogDir, topicDir, metaDir)
	}
	some := false
	for _, name := range names {
		name = filepath.Join(s.path, name)
		there, err := exists(s.fsys, name)
		if err != nil {
			return some, err
		}
		some = some || there
		if err := s.fsys.RemoveAll(name); err != nil {
			return some, err
		}
	}
	return some, syncDir(s.fsys, s.path)
}

// olds returns the names of what copies have put aside.
func (s *Staging) olds() ([]string, error) {
	names, err := s.fsys.ReadDir(s.path)
	return slices.DeleteFunc(names, func(name string) bool { return !isOld(name) }), err
}
