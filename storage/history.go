package storage

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"smss/codec"
)

// historyFile says whose history the directory holds. A directory without one
// is the existing server's, or of before there was replication.
const historyFile = "history.json"

// History is what tells one line of events from another that has the same ids.
type History struct {
	// Node is the directory's own random name.
	Node string `json:"node"`
	// Epochs are the reigns under which its events were made, oldest first. One
	// whose first event lies behind the last event has been announced and has
	// none yet.
	Epochs []codec.Epoch `json:"epochs,omitempty"`
	// Slave says that the directory was last written by a slave.
	Slave bool `json:"slave,omitempty"`
	// Base is the event id after which an empty slave goes on.
	Base int64 `json:"base,omitempty"`
	// IncompleteFrom is the first event that a slave got of a master whose
	// earlier ones were gone; 0 = nothing is missing.
	IncompleteFrom int64 `json:"incompleteFrom,omitempty"`
}

// NewEpochID returns a random name for an epoch or a node.
func NewEpochID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it does not fail: the kernel would end the process first
	return hex.EncodeToString(b[:])
}

// readHistory reads the directory's history, or makes the beginning of one.
func readHistory(fsys FS, dir string) (h History, err error) {
	name := filepath.Join(dir, historyFile)
	b, err := readSmallFile(fsys, name)
	if errors.Is(err, fs.ErrNotExist) {
		return History{Node: NewEpochID()}, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &h)
	}
	if err != nil {
		return h, fmt.Errorf("%s: %w (it may be removed on a server that is no slave and has none)", name, err)
	}
	return h, nil
}

// History returns what Open found. Its slices must not be changed.
func (s *Store) History() History { return s.history }

// SaveHistory makes h the directory's history, durably. One goroutine at a
// time; not the writer's and not an event loop's.
func (s *Store) SaveHistory(h History) error { return writeHistory(s.fsys, s.path, h) }

func writeHistory(fsys FS, dir string, h History) error {
	return writeJSON(fsys, filepath.Join(dir, historyFile), h)
}
