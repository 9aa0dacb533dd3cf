package storage

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// flipped is a world on a copy of the files of w, one bit of one of which is
// another.
func (w *world) flipped(name string, bit int) *world {
	w.t.Helper()
	c := &world{t: w.t, opt: w.opt, nowMs: w.nowMs}
	c.opt.Path = filepath.Join(w.t.TempDir(), "data")
	if w.meta != nil {
		c.meta = w.meta.clone()
	}
	must(w.t, os.CopyFS(c.opt.Path, os.DirFS(w.opt.Path)))
	name = filepath.Join(c.opt.Path, name)
	b, err := os.ReadFile(name)
	must(w.t, err)
	b[bit/8] ^= 1 << (bit % 8)
	must(w.t, os.WriteFile(name, b, 0o644))
	return c
}

// The small files beside the logs: each is a hint, or checked, or read by
// nobody. No bit of them changes what is read or where the next record goes; a
// format that is not what it was is refused by its name.
func TestBitsOfTheSmallFiles(t *testing.T) {
	w := opened(t, 1<<20)
	w.create("t", "u")
	bodies := numbered("m", 40, 10_000)
	for _, b := range bodies {
		w.pub("t", b)
	}
	w.pub("u", "u")
	must(t, w.s.KeepReserve())
	index, err := filepath.Rel(w.opt.Path, indexName(w.s.topicPath("t"), 0))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(w.s.topicPath("t"), "0.log.cut"), make([]byte, 64), 0o644))
	cut, reserve := strings.Replace(index, ".idx", ".log.cut", 1), filepath.Join(binlogDir, reserveFile)
	for i, name := range []string{index, cut, reserve, formatFile} {
		size := int(min(64, fileSize(t, filepath.Join(w.opt.Path, name)))) * 8
		for bit := i; bit < size; bit += sample(1, 53, 127) {
			what := fmt.Sprintf("bit %d of %s", bit, name)
			c := w.flipped(name, bit)
			if err := c.tryOpen(); err != nil {
				if name != formatFile || !strings.Contains(err.Error(), formatFile) && !strings.Contains(err.Error(), "folderCount") {
					t.Errorf("%s: open: %v", what, err)
				}
				continue
			}
			c.want("t", bodies...)
			end := c.topics["t"].End()
			for id := c.nextID - 2; id > 5; id -= 7 {
				if _, err := c.s.Reader("t").Locate(id, end); err != nil {
					t.Errorf("%s: id %d: %v", what, id, err)
				}
			}
			c.pub("t", "after")
			c.kill()
			c.open().want("t", append(slices.Clone(bodies), "after")...)
			c.want("u", "u")
			c.kill()
			must(t, os.RemoveAll(c.opt.Path))
		}
	}
}

// Badger's files: a start finds everything, from the logs where it has to, or
// is refused with the command that rebuilds. It never ends the process, and
// never finds half.
func TestBitsOfTheMetadata(t *testing.T) {
	w := newWorld(t, 1<<20)
	w.meta = nil
	w.open()
	w.create("t", "u")
	w.pub("t", "a", "b")
	key, err := w.tryDelay("t", 1<<50, strings.Repeat("late", 500)) // in the value log
	must(t, err)
	w.close()
	w.open() // what was in memory is in a table now
	w.create("v")
	w.pub("u", "c")
	w.pub("v", "d")
	w.checkpoint()
	must(t, w.s.Meta().Sync())
	left := &world{t: t, opt: w.opt, nowMs: w.nowMs}
	left.opt.Path = filepath.Join(t.TempDir(), "left")
	must(t, os.CopyFS(left.opt.Path, os.DirFS(w.opt.Path))) // as a kill leaves it
	w.kill()
	names, err := filepath.Glob(filepath.Join(left.opt.Path, metaDir, "*"))
	must(t, err)
	kinds, refused := map[string]int{}, 0
	for i, name := range names {
		size := fileSize(t, name)
		if size == 0 {
			continue
		}
		if base := filepath.Base(name); strings.ContainsRune(base, '.') {
			kinds[filepath.Ext(base)]++
		} else {
			kinds[base]++
		}
		name, err := filepath.Rel(left.opt.Path, name)
		must(t, err)
		for bit := i * 37 % sample(1, 251, 509); bit < int(min(64, size))*8; bit += sample(1, 251, 509) {
			what := fmt.Sprintf("bit %d of %s", bit, name)
			c := left.flipped(name, bit)
			err := c.tryOpen()
			if err != nil {
				refused++
				if !strings.Contains(err.Error(), "mv ") {
					t.Errorf("%s: %v", what, err)
				}
				// The command does what it says.
				must(t, os.Rename(filepath.Join(c.opt.Path, metaDir), filepath.Join(c.opt.Path, metaDir+".damaged")))
				if err := c.tryOpen(); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
			}
			if got := sortedKeys(c.topics); !slices.Equal(got, []string{"t", "u", "v"}) {
				t.Fatalf("%s: topics are %q; %q", what, got, c.notes)
			}
			c.want("t", "a", "b")
			c.want("u", "c")
			c.want("v", "d")
			p, ok, err := c.s.Meta().DelayPayload(key)
			if err != nil || len(p) == 0 {
				p, ok, err = c.s.FindDelay(key) // as who fires it does
			}
			if err != nil || !ok || !strings.HasSuffix(string(p), "latelate") {
				t.Errorf("%s: the delayed message is there: %v, %d bytes, %v", what, ok, len(p), err)
			}
			if c.nextID < w.nextID {
				t.Errorf("%s: the next id is %d, was %d", what, c.nextID, w.nextID)
			}
			c.kill()
			must(t, os.RemoveAll(c.opt.Path))
		}
	}
	if len(kinds) < 5 || refused == 0 {
		t.Errorf("only %v, of which %d were refused", kinds, refused)
	}
}
