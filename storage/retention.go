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
	last map[string]int64 // file name → time of its last record, ms
}

// NewRetention returns a Retention; janitor only.
func (s *Store) NewRetention() *Retention { return &Retention{s: s, last: map[string]int64{}} }

// Topic removes a topic's files whose last message was stored at or before
// cutoffMs, oldest first, and returns their names. Files from keepFrom on and
// the newest one stay.
func (r *Retention) Topic(topic string, keepFrom int64, cutoffMs int64) ([]string, error) {
	return r.sweep(r.s.topicPath(topic), keepFrom, cutoffMs, func(dir string, id int64) (int64, error) {
		return r.lastOfTopic(topic, id)
	})
}

// Binlog does the same for the binlog; keepFrom is the file of the checkpoint.
func (r *Retention) Binlog(keepFrom int64, cutoffMs int64) ([]string, error) {
	return r.sweep(filepath.Join(r.s.path, binlogDir), keepFrom, cutoffMs, r.lastOfBinlog)
}

func (r *Retention) sweep(dir string, keepFrom, cutoffMs int64, lastAt func(string, int64) (int64, error)) ([]string, error) {
	ids, err := listFiles(r.s.fsys, dir)
	if err != nil || len(ids) < 2 {
		return nil, err
	}
	var removed []string
	for _, id := range ids[:len(ids)-1] {
		if id >= keepFrom {
			break
		}
		name := fileName(dir, id)
		at, known := r.last[name]
		if !known {
			if at, err = lastAt(dir, id); err != nil {
				return removed, err
			}
			r.last[name] = at
		}
		if at > cutoffMs {
			break // later files are newer still
		}
		if err := removeIfExists(r.s.fsys, name); err != nil {
			return removed, err
		}
		delete(r.last, name)
		removed = append(removed, name)
		if err := removeIfExists(r.s.fsys, indexName(dir, id)); err != nil {
			return removed, err
		}
	}
	return removed, nil
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

func (r *Retention) lastOfTopic(topic string, id int64) (int64, error) {
	reader := r.s.Reader(topic)
	f, err := r.s.fsys.Open(fileName(reader.dir, id))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return 0, err
	}
	from := reader.nearest(f, id, size, func(indexEntry) bool { return true })
	var rec TopicRecord
	at := int64(0)
	_, err = scanTail(f, from, func(b []byte) (int, error) { return ParseTopicRecord(b, maxStoredPayload, &rec) },
		func(_, _ int64) error { at = max(at, rec.StoredAtMs); return nil })
	return at, err
}

// lastOfBinlog reads a binlog file from its beginning: it has no index, and
// each file is looked at once.
func (r *Retention) lastOfBinlog(dir string, id int64) (int64, error) {
	f, err := r.s.fsys.Open(fileName(dir, id))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var rec codec.BinlogRecord
	at := int64(0)
	_, err = scanTail(f, 0, func(b []byte) (int, error) {
		return codec.ParseBinlogRecord(b, maxStoredPayload, &rec)
	}, func(_, _ int64) error { at = max(at, rec.WrittenAtMs); return nil })
	return at, err
}
