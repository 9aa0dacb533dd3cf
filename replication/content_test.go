package replication

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"smss/engine"
	"smss/storage"
)

// content is what a server holds, as text: its topics with their messages, and
// what is delayed.
func content(t testing.TB, dir string, store *storage.Store, e *engine.Engine) string {
	t.Helper()
	var b strings.Builder
	o, err := storage.OpenOffline(dir)
	if err != nil {
		t.Fatal(err)
	}
	logs, err := o.Topics()
	if err != nil {
		t.Fatal(err)
	}
	for _, log := range logs {
		topic := e.Lookup([]byte(log.Topic))
		if topic == nil {
			continue // on its way out
		}
		fmt.Fprintf(&b, "%s %+v\n", log.Topic, topic.Meta)
		err := o.Walk(log, storage.WalkStart{}, storage.WalkSeen{
			Entry: func(e *storage.Entry) error {
				fmt.Fprintf(&b, "  %d %d %.60q\n", e.EventID, e.AtMs, e.Message.Message)
				return nil
			},
			Damage: func(at storage.Pos) { fmt.Fprintf(&b, "  damage at %v\n", at) },
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	err = store.Meta().DelayKeys(0, func(k storage.DelayKey) bool {
		p, _, err := store.Meta().DelayPayload(k)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "delay %v %q\n", k, p)
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// binlog is the content of a directory's binlog.
func binlog(t testing.TB, dir string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "binlog", "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(names, func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	var all strings.Builder
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}
