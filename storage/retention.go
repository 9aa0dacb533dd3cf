package storage

import (
	"errors"
	"io/fs"
	"path/filepath"

	"smss/codec"
)

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// Retention removes whole files of one log whose last record is older than a
// cutoff. It belongs to the janitor, which keeps it between runs, because
// finding the last record of a file without an index means reading the file.
type Retention struct {
	s    *Store
	last map[string]fileAge // by file name
}

// fileAge is the time of a file's last record. firstID tells the file from one
// of the same name of a topic's former life.
type fileAge struct {
	firstID int64
	atMs    int64
	known   bool // false where no record can be read
}

// NewRetention returns a Retention; janitor only.
func (s *Store) NewRetention() *Retention { return &Retention{s: s, last: map[string]fileAge{}} }

// Topic removes a topic's files whose last message was stored at or before
// cutoffMs, oldest first, and returns their names. Files from keepFrom on and
// the newest one stay.
func (r *Retention) Topic(topic string, keepFrom int64, cutoffMs int64) ([]string, error) {
	return r.sweep(r.s.topicPath(topic), keepFrom, cutoffMs, topicAge)
}

// Binlog does the same for the binlog; keepFrom is the file of the checkpoint.
func (r *Retention) Binlog(keepFrom int64, cutoffMs int64) ([]string, error) {
	return r.sweep(filepath.Join(r.s.path, binlogDir), keepFrom, cutoffMs, binlogAge)
}

// ageReader returns the age of a file; old is what is remembered of one of
// that name.
type ageReader func(fsys FS, dir string, id int64, old fileAge) (fileAge, error)

func (r *Retention) sweep(dir string, keepFrom, cutoffMs int64, read ageReader) ([]string, error) {
	ids, err := listFiles(r.s.fsys, dir)
	if err != nil || len(ids) < 2 {
		return nil, err
	}
	var removed []string
	unknown := 0 // files before id whose age nobody knows
	for i, id := range ids[:len(ids)-1] {
		if id >= keepFrom {
			break
		}
		name := fileName(dir, id)
		age, err := read(r.s.fsys, dir, id, r.last[name])
		if err != nil {
			return removed, err
		}
		r.last[name] = age
		if !age.known {
			// It is as old as the one that follows it.
			unknown++
			continue
		}
		if age.atMs > cutoffMs {
			break // later files are newer still
		}
		for _, old := range ids[i-unknown : i+1] {
			if err := r.remove(dir, old); err != nil {
				return removed, err
			}
			removed = append(removed, fileName(dir, old))
		}
		unknown = 0
	}
	return removed, nil
}

func (r *Retention) remove(dir string, id int64) error {
	name := fileName(dir, id)
	if err := removeIfExists(r.s.fsys, name); err != nil {
		return err
	}
	delete(r.last, name)
	return removeIfExists(r.s.fsys, indexName(dir, id))
}

// Forget drops what is remembered of files that no longer exist, so that the
// memory follows the files.
func (r *Retention) Forget() {
	for name := range r.last {
		if there, err := exists(r.s.fsys, name); err == nil && !there {
			delete(r.last, name)
		}
	}
}

func topicAge(fsys FS, dir string, id int64, old fileAge) (fileAge, error) {
	f, err := fsys.Open(fileName(dir, id))
	if err != nil {
		return fileAge{}, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return fileAge{}, err
	}
	var age fileAge
	if first, err := recordAt(f, 0, size); err == nil {
		age.firstID = first.EventID
		if old.known && old.firstID == age.firstID {
			return old, nil
		}
	}
	reader := TopicReader{fsys: fsys, dir: dir}
	from := reader.nearest(f, id, size, func(indexEntry) bool { return true })
	var rec TopicRecord
	parse := func(b []byte) (int, error) { return ParseTopicRecord(b, maxStoredPayload, &rec) }
	_, err = scanTail(f, from, topicKind, parse, func(_, _ int64) error {
		age.atMs, age.known = max(age.atMs, rec.StoredAtMs), true
		return nil
	})
	return age, err
}

// binlogAge reads a binlog file from its beginning: it has no index, and each
// file is looked at once.
func binlogAge(fsys FS, dir string, id int64, old fileAge) (fileAge, error) {
	if old.known {
		return old, nil
	}
	f, err := fsys.Open(fileName(dir, id))
	if err != nil {
		return fileAge{}, err
	}
	defer f.Close()
	var age fileAge
	var rec codec.BinlogRecord
	parse := func(b []byte) (int, error) { return codec.ParseBinlogRecord(b, maxStoredPayload, &rec) }
	_, err = scanTail(f, 0, binlogKind, parse, func(_, _ int64) error {
		age.atMs, age.known = max(age.atMs, rec.WrittenAtMs), true
		return nil
	})
	return age, err
}
