package storage

import (
	"errors"
	"fmt"
)

// CheckedLog is what a check of a copied log has found.
type CheckedLog struct {
	// Bad are the files in which something cannot be read, or event ids do not
	// grow. At is the first such place.
	Bad    []int64
	At     Pos
	End    Pos   // behind the last record
	LastID int64 // the last event id, 0 where there is none
}

// Check reads every record of a copied log and compares its checksum. It makes
// the sparse indexes on its way.
func (s *Staging) Check(topic string) (c CheckedLog, err error) {
	if err := s.closeFile(); err != nil {
		return c, err
	}
	log := s.logName(topic)
	ids, err := listFiles(s.fsys, log.Dir)
	if err != nil {
		return c, err
	}
	w := indexWriter{every: indexEvery}
	if topic == "" {
		w.every = binlogIndexEvery
	}
	for _, id := range ids {
		if err := s.checkFile(log, id, &w, &c); err != nil {
			return c, fmt.Errorf("%s: %w", fileName(log.Dir, id), err)
		}
	}
	return c, nil
}

func (c *CheckedLog) bad(file int64, at Pos) {
	if len(c.Bad) == 0 {
		c.At = at
	}
	if n := len(c.Bad); n == 0 || c.Bad[n-1] != file {
		c.Bad = append(c.Bad, file)
	}
}

// indexBatch is how many entries are kept before they are written.
const indexBatch = 1024

func (s *Staging) checkFile(log LogName, id int64, w *indexWriter, c *CheckedLog) error {
	if err := removeIfExists(s.fsys, indexName(log.Dir, id)); err != nil {
		return err
	}
	f, err := s.fsys.Open(fileName(log.Dir, id))
	if err != nil {
		return err
	}
	entry, kind, parse := entryParser(log)
	t, err := scanTail(f, 0, kind, parse, func(off, _ int64) error {
		entry.settle()
		at := Pos{id, off}
		if entry.EventID <= c.LastID {
			c.bad(id, at)
		}
		c.LastID = max(c.LastID, entry.EventID+entry.IDs()-1)
		w.note(s.fsys, log.Dir, at, entry.EventID, entry.AtMs)
		if len(w.pending) >= indexBatch {
			return w.flush(s.fsys, log.Dir)
		}
		return nil
	})
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	for _, off := range t.damaged {
		c.bad(id, Pos{id, off})
	}
	if t.torn() > 0 {
		c.bad(id, Pos{id, t.good})
	}
	c.End = Pos{id, t.size}
	return w.flush(s.fsys, log.Dir)
}
