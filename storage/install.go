package storage

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// CopiedTopic is a topic of a copy whose files are all there.
type CopiedTopic struct {
	Meta   TopicMeta
	End    Pos   // behind its last record
	LastID int64 // the event id of that
}

// Finish makes a data directory of the copied files: metadata that says that
// everything up to the copy's event is applied, format and history. delays
// calls put for the pending delayed messages; their payloads may be used again
// once it has returned.
func (s *Staging) Finish(topics []CopiedTopic, delays func(put func(DelayKey, []byte) error) error) error {
	dir := filepath.Join(s.dir, metaDir)
	if err := errors.Join(s.closeFile(), s.fsys.RemoveAll(dir)); err != nil {
		return err
	}
	for _, name := range []string{binlogDir, topicDir, metaDir} {
		if err := s.fsys.MkdirAll(filepath.Join(s.dir, name)); err != nil {
			return err
		}
	}
	meta, err := s.opt.openMeta(dir, false)
	if err != nil {
		return err
	}
	if err := errors.Join(s.fillMeta(meta, topics, delays), meta.Close()); err != nil {
		return err
	}
	f := format{FormatVersion, s.count, memTableSize}
	h := History{Node: NewEpochID(), Epochs: s.state.Epochs, Slave: true, IncompleteFrom: s.state.IncompleteFrom}
	if err := errors.Join(writeFormat(s.fsys, s.dir, f), writeHistory(s.fsys, s.dir, h)); err != nil {
		return err
	}
	return s.syncDirs(topics)
}

// fillMeta writes what a checkpoint at the copy's place would have left, as
// after a clean stop.
func (s *Staging) fillMeta(meta Meta, topics []CopiedTopic, delays func(put func(DelayKey, []byte) error) error) error {
	var b MetaBatch
	flush := func() error {
		if b.Empty() {
			return nil
		}
		err := meta.Commit(&b)
		b.Reset()
		return err
	}
	for i := range topics {
		t := &topics[i]
		b.PutTopic(&t.Meta)
		b.PutEnd(t.Meta.Name, &TopicEnd{t.Meta.CreateEventID, t.End, t.LastID})
		if err := commitFull(meta, &b); err != nil {
			return err
		}
	}
	payloads := 0 // bytes that b holds on to
	err := delays(func(k DelayKey, payload []byte) error {
		b.PutDelay(k, append([]byte(nil), payload...))
		if payloads += len(payload); b.Full() || payloads >= metaBatchMax {
			payloads = 0
			return flush()
		}
		return nil
	})
	if err != nil {
		return err
	}
	boot := s.opt.Boot
	if boot == "" {
		boot = bootID()
	}
	b.PutRole(1)
	b.PutCheckpoint(Checkpoint{
		Applied: s.state.Binlog, Durable: s.state.Binlog, NextEventID: s.state.EventID + 1, Machine: boot, Clean: true,
	})
	if err := flush(); err != nil {
		return err
	}
	return meta.Sync()
}

// syncDirs makes the names of the copy durable.
func (s *Staging) syncDirs(topics []CopiedTopic) error {
	dirs := map[string]struct{}{}
	for i := range topics {
		for dir := s.logName(topics[i].Meta.Name).Dir; len(dir) > len(s.dir); dir = filepath.Dir(dir) {
			dirs[dir] = struct{}{}
		}
	}
	for _, name := range []string{binlogDir, topicDir, metaDir, ""} {
		dirs[filepath.Join(s.dir, name)] = struct{}{}
	}
	for dir := range dirs {
		if err := syncDir(s.fsys, dir); err != nil {
			return err
		}
	}
	return nil
}

// Complete says that the copy is whole and takes the place of what the
// directory holds. From here on a start finishes that, whatever comes between.
func (s *Staging) Complete() error {
	state := s.state
	state.Complete, state.Discard = true, s.order.Discard
	state.Old = oldPrefix + strconv.FormatInt(time.Now().UnixMilli(), 10)
	return s.save(state)
}

// The parts of a data directory that a copy replaces.
var replaced = []string{binlogDir, topicDir, metaDir, historyFile, formatFile}

// errCopyLost says that a part of a complete copy is nowhere.
var errCopyLost = errors.New("a part of it has vanished")

// Install puts a complete copy in place. Which of its steps were taken is told
// by what exists, for each part on its own: as long as the copy has it, what
// the directory has under that name is the old one. Each step is durable before
// the next, on both of its sides: nothing else is assumed of a rename.
func (s *Staging) Install() error {
	old := filepath.Join(s.path, s.state.Old)
	for _, name := range replaced {
		if err := s.replace(name, old); err != nil {
			return err
		}
	}
	// The order goes before the copy does: without the copy it would have one
	// made again.
	if err := removeIfExists(s.fsys, filepath.Join(s.path, orderFile)); err != nil {
		return err
	}
	if err := syncDir(s.fsys, s.path); err != nil {
		return err
	}
	if err := s.clearOlds(); err != nil {
		return err
	}
	return s.Reset()
}

func (s *Staging) replace(name, old string) error {
	from, to, aside := filepath.Join(s.dir, name), filepath.Join(s.path, name), filepath.Join(old, name)
	copied, err1 := exists(s.fsys, from)
	have, err2 := exists(s.fsys, to)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if !copied {
		if !have {
			return fmt.Errorf("%s: %w", name, errCopyLost)
		}
		return nil
	}
	if have {
		if err := makeSynced(s.fsys, old); err != nil {
			return err
		}
		moved, err := exists(s.fsys, aside)
		if err != nil {
			return err
		}
		if moved {
			// One side of a rename without the other.
			err = s.fsys.RemoveAll(to)
		} else if err = s.fsys.Rename(to, aside); err == nil {
			err = syncDir(s.fsys, old)
		}
		if err == nil {
			err = syncDir(s.fsys, s.path)
		}
		if err != nil {
			return err
		}
	}
	if err := s.fsys.Rename(from, to); err != nil {
		return err
	}
	if err := syncDir(s.fsys, s.path); err != nil {
		return err
	}
	return syncDir(s.fsys, s.dir)
}

// clearOlds removes what copies have put aside, but for what this one has, if
// that holds any event and is to be kept.
func (s *Staging) clearOlds() error {
	keep := ""
	if !s.state.Discard {
		ids, err := listFiles(s.fsys, filepath.Join(s.path, s.state.Old, binlogDir))
		if err != nil {
			return err
		}
		if len(ids) > 0 {
			keep = s.state.Old
		}
	}
	olds, err := s.olds()
	if err != nil {
		return err
	}
	for _, name := range olds {
		if name == keep {
			continue
		}
		if err := s.fsys.RemoveAll(filepath.Join(s.path, name)); err != nil {
			return err
		}
	}
	if keep != "" {
		s.opt.Events.note("what the directory held before the full copy is kept in "+filepath.Join(s.path, keep)+" until the next one", nil)
	}
	return nil
}

func isOld(name string) bool {
	digits, ok := strings.CutPrefix(name, oldPrefix)
	if !ok {
		return false
	}
	_, err := strconv.ParseUint(digits, 10, 63)
	return err == nil
}
