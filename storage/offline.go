package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"smss/codec"
)

// Offline reads a data directory without opening it as a server does: it
// writes nothing, takes no lock, and may look at a directory that a server is
// using. It may be used by one goroutine at a time.
type Offline struct {
	fsys FS
	path string
}

// OpenOffline returns a reader of the data directory at path.
func OpenOffline(path string) (*Offline, error) {
	o := &Offline{fsys: OS{}, path: path}
	for _, dir := range []string{binlogDir, topicDir} {
		there, err := exists(o.fsys, filepath.Join(path, dir))
		if err != nil {
			return nil, err
		}
		if there {
			return o, nil
		}
	}
	return nil, fmt.Errorf("%s is no data directory: it has neither %s nor %s", path, binlogDir, topicDir)
}

// InUse reports whether a server has the directory open.
func (o *Offline) InUse() bool {
	f, err := o.fsys.Open(filepath.Join(o.path, lockFile))
	if err != nil {
		return false
	}
	defer f.Close()
	file, ok := f.(osFile)
	if !ok {
		return false
	}
	// A shared lock is refused while a server holds the exclusive one, and is
	// gone when the file is closed.
	return errors.Is(unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// LogName names a log of the directory: the binlog, or a topic's.
type LogName struct {
	Topic string // "" for the binlog
	Dir   string
}

// String returns how messages name the log.
func (n LogName) String() string {
	if n.Topic == "" {
		return "binlog"
	}
	return "topic " + n.Topic
}

// Binlog returns the binlog's name.
func (o *Offline) Binlog() LogName { return LogName{Dir: filepath.Join(o.path, binlogDir)} }

// Topics returns the logs of all topics that have a directory, by name.
func (o *Offline) Topics() ([]LogName, error) {
	root := filepath.Join(o.path, topicDir)
	var out []LogName
	err := o.eachNumbered(root, func(p1 string) error {
		return o.eachNumbered(p1, func(p2 string) error {
			names, err := o.fsys.ReadDir(p2)
			for _, name := range names {
				out = append(out, LogName{name, filepath.Join(p2, name)})
			}
			return err
		})
	})
	slices.SortFunc(out, func(a, b LogName) int {
		if a.Topic < b.Topic {
			return -1
		}
		return 1
	})
	return out, err
}

// topicNames returns the names of those topics.
func (o *Offline) topicNames() ([]string, error) {
	logs, err := o.Topics()
	names := make([]string, len(logs))
	for i, log := range logs {
		names[i] = log.Topic
	}
	return names, err
}

// Topic returns the log of one topic.
func (o *Offline) Topic(name string) (LogName, error) {
	all, err := o.Topics()
	if err != nil {
		return LogName{}, err
	}
	for _, n := range all {
		if n.Topic == name {
			return n, nil
		}
	}
	return LogName{}, fmt.Errorf("%s holds no topic %q", o.path, name)
}

// eachNumbered calls visit for the subdirectories whose names are numbers.
func (o *Offline) eachNumbered(dir string, visit func(string) error) error {
	names, err := o.fsys.ReadDir(dir)
	if err != nil {
		if isNotExist(err) {
			return nil
		}
		return err
	}
	for _, name := range names {
		if _, err := strconv.ParseUint(name, 10, 32); err != nil {
			continue
		}
		if err := visit(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// Entry is one record of a log, of whichever kind. It is valid during the
// call that it is passed to.
type Entry struct {
	Pos     Pos // where it begins
	EventID int64
	AtMs    int64
	Binlog  *codec.BinlogRecord // of the binlog, else nil
	Message *TopicRecord        // of a topic, else nil
}

// IDs returns how many event ids the entry takes.
func (e *Entry) IDs() int64 {
	if e.Binlog != nil {
		return e.Binlog.IDs()
	}
	return 1
}

// Checksummed reports whether the entry carries a checksum.
func (e *Entry) Checksummed() bool {
	if e.Binlog != nil {
		return e.Binlog.Checksummed
	}
	return e.Message.Checksummed
}

// WalkStart says where a walk begins: at the first record that holds an event
// id, or was written, at or behind a bound. Zero bounds are none.
type WalkStart struct {
	EventID int64
	AtMs    int64
}

func (w *WalkStart) before(e *Entry) bool {
	return e.EventID+e.IDs()-1 < w.EventID || e.AtMs < w.AtMs
}

// WalkSeen receives what a walk meets. Nil functions are not called.
type WalkSeen struct {
	// Entry may end the walk by an error, which Walk returns, but for errStop.
	Entry func(*Entry) error
	// Damage is a place at which no record can be read although whole ones
	// follow, or that does not lie at the log's end.
	Damage func(Pos)
	// Tail is what lies behind the last whole record of the newest file: the
	// beginning of one that is being written, or was when a process was killed.
	Tail func(at Pos, bytes int64)
	// File is called when a file has been walked, with the bytes of the log
	// walked and to walk.
	File func(done, total int64)
}

// Walk goes through the records of a log.
func (o *Offline) Walk(log LogName, start WalkStart, seen WalkSeen) error {
	ids, err := listFiles(o.fsys, log.Dir)
	if err != nil {
		return err
	}
	sizes := make([]int64, len(ids))
	var done, total int64
	for i, id := range ids {
		// A file that goes away meanwhile was removed by retention.
		if sizes[i], err = o.fsys.Size(fileName(log.Dir, id)); err != nil && !isNotExist(err) {
			return err
		}
		total += sizes[i]
	}
	first := o.firstFile(log, ids, start)
	for i, id := range ids {
		if i >= first {
			if err := o.walkFile(log, id, i == len(ids)-1, start, &seen); errors.Is(err, errStop) {
				return nil
			} else if err != nil {
				return err
			}
		}
		if done += sizes[i]; seen.File != nil {
			seen.File(done, total)
		}
	}
	return nil
}

// errStop ends a walk, without an error.
var errStop = errors.New("stop")

// firstFile returns the index of the file in which the walk begins: the last
// whose first record lies before the bounds. Files that cannot be read are
// not skipped.
func (o *Offline) firstFile(log LogName, ids []int64, start WalkStart) int {
	if start == (WalkStart{}) {
		return 0
	}
	for i := len(ids) - 1; i > 0; i-- {
		before := false
		seen := WalkSeen{Entry: func(e *Entry) error {
			before = (start.EventID == 0 || e.EventID <= start.EventID) && (start.AtMs == 0 || e.AtMs <= start.AtMs)
			return errStop
		}}
		if err := o.walkFile(log, ids[i], true, WalkStart{}, &seen); errors.Is(err, errStop) && before {
			return i
		}
	}
	return 0
}

func (o *Offline) walkFile(log LogName, id int64, newest bool, start WalkStart, seen *WalkSeen) error {
	f, err := o.fsys.Open(fileName(log.Dir, id))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	defer f.Close()
	entry, kind, parse := entryParser(log)
	from := int64(0)
	if log.Topic != "" && start.EventID > 0 {
		r := TopicReader{fsys: o.fsys, dir: log.Dir}
		if size, err := f.Size(); err == nil {
			from = r.nearest(f, id, size, func(e indexEntry) bool { return e.eventID < start.EventID && e.storedAtMs >= 0 })
		}
	}
	t, err := scanTail(f, from, kind, parse, func(off, _ int64) error {
		entry.Pos = Pos{id, off}
		entry.settle()
		if seen.Entry == nil || start.before(entry) {
			return nil
		}
		return seen.Entry(entry)
	})
	if err != nil {
		return err
	}
	for _, off := range t.damaged {
		if seen.Damage != nil {
			seen.Damage(Pos{id, off})
		}
	}
	switch {
	case t.torn() == 0:
	case newest && !t.broken:
		if seen.Tail != nil {
			seen.Tail(Pos{id, t.good}, t.torn())
		}
	case seen.Damage != nil:
		seen.Damage(Pos{id, t.good})
	}
	return nil
}

// entryParser returns an entry and the function that parses records into it.
func entryParser(log LogName) (*Entry, recordKind, func([]byte) (int, error)) {
	if log.Topic == "" {
		rec := new(codec.BinlogRecord)
		return &Entry{Binlog: rec}, binlogKind, func(b []byte) (int, error) { return codec.ParseBinlogRecord(b, maxStoredPayload, rec) }
	}
	rec := new(TopicRecord)
	return &Entry{Message: rec}, topicKind, func(b []byte) (int, error) { return ParseTopicRecord(b, maxStoredPayload, rec) }
}

// settle takes over what both kinds of record have.
func (e *Entry) settle() {
	if e.Binlog != nil {
		e.EventID, e.AtMs = e.Binlog.EventID, e.Binlog.WrittenAtMs
	} else {
		e.EventID, e.AtMs = e.Message.EventID, e.Message.StoredAtMs
	}
}
