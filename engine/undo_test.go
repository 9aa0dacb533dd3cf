package engine

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smss/storage"
)

// TestDirectoryThatDoesNotComeBack: a deletion fails in its last step, and so
// does bringing the directory back. Nothing is written any more, and the next
// start finds the topic deleted or whole, never empty; also after a power cut.
func TestDirectoryThatDoesNotComeBack(t *testing.T) {
	astray := 0
	for _, op := range []string{"rename", "syncdir"} {
		for lvl := range 3 {
			for seed := range uint64(8) {
				what := fmt.Sprintf("%s fails, level %d, seed %d", op, lvl, seed)
				r := newRig(t, func(r *rig) { rolling(r); r.cfg.FlushLevel = lvl })
				r.create("t", "u")
				r.ok(r.pushPublish("t", "1"))
				r.time.pass(8 * day)
				r.ok(r.pushPublish("u", "1"))
				r.settle()
				r.e.retain(r.store.NewRetention())
				if n := r.files(root + "/binlog"); n != 1 {
					t.Fatalf("%d files of the binlog: it could restore the topic", n)
				}
				r.meta.fail = func(o string) error {
					if o == "commit" {
						return unix.EIO
					}
					return nil
				}
				r.disk.fail = func(o, name string) error {
					if o == op && (op == "syncdir" || strings.Contains(name, "/.trash/")) {
						return unix.EIO
					}
					return nil
				}
				a, b := r.pushPublish("u", "2"), r.pushDelete("t")
				r.done(a, b)
				if !r.e.broken.Load() || b.Err != errBroken {
					t.Fatalf("%s: broken %v, the answer is %v", what, r.e.broken.Load(), b.Err)
				}
				r.disk.fail, r.meta.fail = nil, nil
				r.wantErr(r.pushPublish("u", "3"), errBroken.Text)
				if topic := r.e.Lookup([]byte("t")); topic.astray.Load() {
					astray++
					if out, _, err := r.e.CopyTopics(r.e.LastEventID(), "", 0); err != errReading {
						t.Fatalf("%s: a copy gets %v, %v", what, out, err)
					}
					if n, err := r.e.CopyPiece([]byte("t"), topic.Meta.CreateEventID, 0, 0, make([]byte, 9)); err != errReading {
						t.Fatalf("%s: a copy gets %d bytes, %v", what, n, err)
					}
				}
				if err := r.store.EmptyTrash(); err != nil {
					t.Fatal(err)
				}
				if seed > 0 {
					r.cutPower(rand.New(rand.NewPCG(seed, uint64(lvl))))
				}
				r.open()
				if topic := r.e.Lookup([]byte("t")); topic != nil {
					r.want("t", "1")
				} else if r.e.Lookup([]byte("u")) == nil {
					t.Fatalf("%s: both topics are gone", what)
				}
				if have := r.readFrom(r.e.Lookup([]byte("u")), storage.Pos{}); len(have) == 0 || have[0].body != "1" {
					t.Fatalf("%s: u holds %v", what, have)
				}
				if t.Failed() {
					t.Fatal(what)
				}
			}
		}
	}
	if astray == 0 {
		t.Error("no directory was left in the trash")
	}
}
