package storage

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
)

// missing returns what was reported as missing from topics' ends.
func (w *world) missing() (out []string) {
	for _, d := range w.damages {
		if _, ok := d.Err.(*missingError); ok {
			out = append(out, d.Error())
		}
	}
	return out
}

func (w *world) stored(topic string) (e TopicEnd, ok bool) {
	v, there := w.meta.get(endPrefix + topic)
	if !there {
		return e, false
	}
	return parseTopicEnd([]byte(v))
}

// What a checkpoint covers and somebody cut away comes back from the binlog,
// wherever the cut lies, after a kill, a power cut and a clean stop, and
// whatever the other topics have.
func TestShortTopicIsRestored(t *testing.T) {
	for _, stop := range []string{"kill", "power", "clean"} {
		for _, maxLogSize := range []int64{1 << 20, 300} {
			w := inMemory(t, maxLogSize)
			w.create("t", "u")
			var bodies []string
			for i := range 12 {
				bodies = append(bodies, fmt.Sprint("m", i))
				w.pub("t", bodies[i])
				w.pub("u", fmt.Sprint("u", i))
			}
			w.checkpoint()
			w.pub("u", "later")
			must(t, w.trySync())
			if stop == "clean" {
				w.close()
			}
			last := w.topics["t"].log.last
			for _, end := range append([]Pos{{}}, readWhole(t, w)...) {
				if end.File != last.File && end != (Pos{}) {
					continue // only the newest file's end is kept
				}
				what := fmt.Sprintf("%s, files of %d, cut at %v", stop, maxLogSize, end)
				c := w.killed()
				if stop == "power" {
					c.opt.Boot = "another"
				}
				if end == (Pos{}) {
					must(t, c.fs().RemoveAll(c.topicFile("t", last.File)))
				} else {
					c.resize(c.topicFile("t", end.File), end.Off)
				}
				must(t, c.tryOpen())
				c.want("t", bodies...)
				if len(c.damages) > 0 {
					t.Errorf("%s: damage %v", what, c.damages)
				}
				if told := c.noted("written again from the binlog"); told != (end != last) {
					t.Errorf("%s: notes %q", what, c.notes)
				}
				if e, ok := c.stored("t"); !ok || e.End != c.topics["t"].log.last || e.LastEventID != c.topics["t"].lastID || e.LastEventID == 0 {
					t.Errorf("%s: the stored end is %+v, %v; want %v", what, e, ok, c.topics["t"].log.last)
				}
				c.aliveAfter(what)
			}
		}
	}
}

// readWhole returns the ends of t's records, each in its own file.
func readWhole(t *testing.T, w *world) (ends []Pos) {
	for _, id := range w.numbers(filepath.Dir(w.topicFile("t", 0))) {
		b := w.slurp(w.topicFile("t", id))
		for off := 0; off < len(b); {
			var rec TopicRecord
			n, err := ParseTopicRecord(b[off:], maxStoredPayload, &rec)
			must(t, err)
			off += n
			ends = append(ends, Pos{id, int64(off)})
		}
	}
	return ends
}

// What the binlog does not hold any more is reported, with its event ids, once.
func TestShortTopicBeyondTheBinlog(t *testing.T) {
	for _, clean := range []bool{false, true} {
		w := inMemory(t, 1<<20)
		w.create("t", "u")
		first := w.pub("t", "a")
		ends := readWhole(t, w)
		w.pub("t", "b")
		w.s.binlog.end = Pos{1, 0} // a file of its own for what follows
		must(t, w.s.binlog.Close())
		kept := w.pub("t", "c")
		w.pub("t", "d")
		w.pub("u", "x")
		w.checkpoint()
		if clean {
			w.close()
		}
		must(t, w.fs().Remove(fileName(w.binlogDir(), 0))) // as retention does

		c := w.killed()
		c.resize(c.topicFile("t", 0), ends[0].Off)
		must(t, c.tryOpen())
		c.want("t", "a", "c", "d")
		c.want("u", "x")
		want := fmt.Sprintf("behind %d up to %d are missing", first, kept-1)
		if m := c.missing(); len(m) != 1 || !strings.Contains(m[0], want) || !strings.Contains(m[0], c.topicFile("t", 0)) || c.damages[0].After != first {
			t.Errorf("clean %v: reported is %q, want %q", clean, m, want)
		}
		c.close()
		if must(t, c.tryOpen()); len(c.damages) > 0 {
			t.Errorf("clean %v: reported again: %v", clean, c.damages)
		}
		c.want("t", "a", "c", "d")
		c.aliveAfter("reported")

		// All of the file, of which the binlog has the second half only.
		c = w.killed()
		c.resize(c.topicFile("t", 0), 0)
		must(t, c.tryOpen())
		c.want("t", "c", "d")
		want = fmt.Sprintf("behind 0 up to %d are missing", kept-1)
		if m := c.missing(); len(m) != 1 || !strings.Contains(m[0], want) {
			t.Errorf("clean %v: reported is %q, want %q", clean, m, want)
		}
	}
}

// The end of one life says nothing about the next, whichever of deletion and
// checkpoint comes last.
func TestEndsFollowLives(t *testing.T) {
	w := inMemory(t, 1<<20)
	w.create("t", "u")
	w.pub("t", "a", "b", "c")
	w.checkpoint()
	if e, ok := w.stored("t"); !ok || e.CreateEventID != w.metas["t"].CreateEventID || e.End != w.topics["t"].log.last {
		t.Fatalf("stored is %+v, %v", e, ok)
	}
	w.pub("t", "d")
	must(t, w.trySync())
	under := w.s.BeginCheckpoint(w.s.BinlogEnd(), w.nextID, true)
	must(t, w.tryDelete("t"))
	must(t, under.Run()) // stores the end of what is gone
	w.create("t")
	must(t, w.trySync())
	c := w.killed()
	must(t, c.tryOpen())
	if c.want("t"); len(c.damages) > 0 || c.noted("written again") {
		t.Errorf("the former life counts: %v, %q", c.damages, c.notes)
	}
	if _, there := c.stored("t"); there {
		t.Error("the former life's end is still stored")
	}
	w.checkpoint()
	if _, there := w.stored("t"); there {
		t.Error("the checkpoint has left the former life's end")
	}
	w.pub("t", "e")
	w.checkpoint()
	if e, ok := w.stored("t"); !ok || e.CreateEventID != w.metas["t"].CreateEventID {
		t.Errorf("stored is %+v, %v", e, ok)
	}
	if len(w.s.forgotten) > 0 {
		t.Errorf("%q are still to be forgotten", w.s.forgotten)
	}
}

// A directory without stored ends, as an earlier version has left it, gets
// them at its first start, also after a clean stop.
func TestEndsOfAnEarlierVersion(t *testing.T) {
	for _, clean := range []bool{false, true} {
		w := inMemory(t, 1<<20)
		w.create("t", "u")
		w.pub("t", "a", "b")
		w.checkpoint()
		if clean {
			w.close()
		}
		for _, k := range w.meta.prefixed(endPrefix) {
			delete(w.meta.keys, k)
		}
		c := w.killed()
		must(t, c.tryOpen())
		if e, ok := c.stored("t"); !ok || e.End != c.topics["t"].log.last {
			t.Errorf("clean %v: stored is %+v, %v", clean, e, ok)
		}
		if _, ok := c.stored("u"); ok {
			t.Errorf("clean %v: an empty topic has a stored end", clean)
		}
		c = c.killed()
		c.resize(c.topicFile("t", 0), 0)
		must(t, c.tryOpen())
		c.want("t", "a", "b")
	}
}

// A checkpoint stores the ends of what was touched since the last one, however
// many topics there are, and a failing one does not pile up names.
func TestEndsAreStoredForTouchedTopics(t *testing.T) {
	w := inMemory(t, 1<<20)
	for i := range 50 {
		w.create(fmt.Sprint("t", i))
		w.pub(fmt.Sprint("t", i), "a")
	}
	w.checkpoint()
	w.pub("t7", "b")
	must(t, w.trySync())
	task := w.s.BeginCheckpoint(w.s.BinlogEnd(), w.nextID, true)
	if len(task.ends) != 1 || task.ends["t7"] == nil {
		t.Errorf("ends are %v", task.ends)
	}
	for range 100 { // none of them runs
		w.pub("t7", "c")
		task = w.s.BeginCheckpoint(w.s.BinlogEnd(), w.nextID, true)
	}
	if len(task.ends) != 1 || len(task.files) > 2 || len(task.dirs) > 8 {
		t.Errorf("left are %d ends, %d files, %d directories", len(task.ends), len(task.files), len(task.dirs))
	}
	must(t, task.Run())
	if e, _ := w.stored("t7"); e.End != w.topics["t7"].log.last {
		t.Errorf("stored is %+v", e)
	}
}

// Retention may remove the file in which a stored end lies.
func TestEndInARemovedFile(t *testing.T) {
	w := inMemory(t, 1) // a file for each record
	w.create("t")
	w.pub("t", "a")
	w.checkpoint()
	w.pub("t", "b")
	w.pub("t", "c")
	must(t, w.fs().Remove(w.topicFile("t", 0)))
	c := w.killed()
	must(t, c.tryOpen())
	if c.want("t", "b", "c"); len(c.damages) > 0 || c.noted("written again") {
		t.Errorf("%v, %q", c.damages, c.notes)
	}
}

// A start that fills a topic again can be interrupted anywhere.
func TestShortTopicInterrupted(t *testing.T) {
	w := inMemory(t, 1<<20)
	w.create("t", "u")
	w.pub("t", "a", "b")
	w.pub("u", "x")
	w.pub("t", "c", "d", "e")
	w.checkpoint()
	w.close()
	cut := readWhole(t, w)[0].Off
	for at := 1; ; at++ {
		c := w.killed()
		c.resize(c.topicFile("t", 0), cut)
		c.mem().crashAt = c.mem().ops + at
		if c.tryOpen() == nil {
			break
		}
		rnd := rand.New(rand.NewPCG(uint64(at), 3))
		for what, d := range map[string]*world{"kill": c.killed(), "power cut": c.unplugged(rnd)} {
			must(t, d.tryOpen())
			d.want("t", "a", "b", "c", "d", "e")
			d.want("u", "x")
			if len(d.damages) > 0 {
				t.Errorf("%s at operation %d: %v", what, at, d.damages)
			}
		}
	}
}
