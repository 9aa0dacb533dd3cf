package test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dgraph-io/badger/v4"
)

// What follows looks into a data directory whose server has stopped, by the
// published layout only.

// countKeys counts the keys of the metadata store that begin with prefix.
func countKeys(t *testing.T, s *server, prefix string) int {
	t.Helper()
	if s.running() {
		t.Fatal("the server still runs")
	}
	// The existing server never closes its store: opening it mends it.
	o := badger.DefaultOptions(filepath.Join(s.dataDir(), "meta")).WithLogger(nil).WithReadOnly(!peer).WithMetricsEnabled(false)
	db, err := badger.Open(o)
	if err != nil {
		t.Fatalf("open the metadata store: %v", err)
	}
	defer db.Close()
	n := 0
	err = db.View(func(tx *badger.Txn) error {
		it := tx.NewIterator(badger.IteratorOptions{Prefix: []byte(prefix)})
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			n++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// countDelays counts the pending delayed messages.
func countDelays(t *testing.T, s *server) int {
	t.Helper()
	return countKeys(t, s, "delay@")
}

// logFiles returns the *.log files of a directory below the data directory,
// which for a topic is "topic" followed by its topicRoot.
func logFiles(t testing.TB, s *server, sub ...string) []string {
	t.Helper()
	dir := filepath.Join(append([]string{s.dataDir()}, sub...)...)
	var all []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(p, ".log") {
			all = append(all, p)
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return all
}
