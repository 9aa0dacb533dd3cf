package storage

import (
	"errors"
	"io/fs"
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
	return r.sweep(r.s.Reader(topic).search(), keepFrom, cutoffMs)
}

// Binlog does the same for the binlog; keepFrom is the file of the checkpoint.
func (r *Retention) Binlog(keepFrom int64, cutoffMs int64) ([]string, error) {
	return r.sweep(r.s.BinlogReader().search(), keepFrom, cutoffMs)
}

func (r *Retention) sweep(log *search, keepFrom, cutoffMs int64) ([]string, error) {
	dir := log.dir
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
		age, err := log.age(id, r.last[name])
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

// age returns the age of a file; old is what is remembered of one of that name.
func (s *search) age(id int64, old fileAge) (fileAge, error) {
	f, size, err := s.openUpTo(id, Pos{File: maxFileID + 1})
	if err != nil {
		return fileAge{}, err
	}
	defer f.Close()
	var age fileAge
	if first, err := s.headAt(f, 0, size); err == nil {
		age.firstID = first.first
		if old.known && old.firstID == age.firstID {
			return old, nil
		}
	}
	from := s.nearest(f, id, size, func(indexEntry) bool { return true })
	var h head
	parse := func(b []byte) (int, error) { return s.parse(b, &h) }
	_, err = scanTail(f, from, s.kind, parse, func(_, _ int64) error {
		age.atMs, age.known = max(age.atMs, h.storedAtMs), true
		return nil
	})
	return age, err
}
