package storage

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"smss/codec"
)

// seeded is a store with 50 events in two topics, as a kill leaves it.
func seeded(t *testing.T, maxLogSize int64) (w *world, bodies map[string][]string) {
	w = inMemory(t, maxLogSize)
	bodies = map[string][]string{}
	w.create("a", "b")
	for i := range 24 {
		for _, name := range []string{"a", "b"} {
			body := fmt.Sprintf("%s%d", name, i)
			batch := []string{body}
			if i%4 == 0 {
				batch = append(batch, body+"'")
			}
			w.pub(name, batch...)
			bodies[name] = append(bodies[name], batch...)
		}
	}
	return w, bodies
}

// prefix returns how many of all have reads as its beginning, -1 if it is no
// beginning.
func prefix(have []got, all []string) int {
	if len(have) > len(all) {
		return -1
	}
	for i, g := range have {
		if g.body != all[i] {
			return -1
		}
	}
	return len(have)
}

// aliveAfter publishes to every topic, and reads all back, also after another
// start.
func (w *world) aliveAfter(what string) {
	w.t.Helper()
	before := map[string][]got{}
	for name := range w.topics {
		before[name] = w.read(name)
		id := w.pub(name, "after")
		before[name] = append(before[name], got{id: id, body: "after"})
	}
	for _, again := range []bool{false, true} {
		if again {
			w.kill()
			w.open()
		}
		for name, want := range before {
			have := w.read(name)
			if !slices.EqualFunc(have, want, func(a, b got) bool { return a.id == b.id && a.body == b.body }) {
				w.t.Fatalf("%s: %s holds %v, want %v (opened again: %v)", what, name, have, want, again)
			}
			for i := 1; i < len(have); i++ {
				if have[i].id <= have[i-1].id {
					w.t.Fatalf("%s: %s: id %d follows %d", what, name, have[i].id, have[i-1].id)
				}
			}
		}
	}
}

func TestBinlogCutAtEveryByte(t *testing.T) {
	w, bodies := seeded(t, 1<<20)
	name := fileName(w.binlogDir(), 0)
	whole := w.slurp(name)
	borders := map[int64]int{0: 0}
	at := 0
	for n := 1; at < len(whole); n++ {
		var rec codec.BinlogRecord
		size, err := codec.ParseBinlogRecord(whole[at:], maxStoredPayload, &rec)
		must(t, err)
		at += size
		borders[int64(at)] = n
	}
	for cut := int64(len(whole)) - 1; cut >= 0; cut -= int64(sample(1, 1, 3)) {
		what := fmt.Sprintf("binlog cut at %d", cut)
		c := w.killed()
		c.resize(name, cut)
		c.open()
		events := c.binlogEvents()
		for name, all := range bodies {
			if c.topics[name] != nil && prefix(c.read(name), all) < 0 {
				t.Fatalf("%s: %s holds %v", what, name, c.read(name))
			}
		}
		good := cut
		for borders[good] == 0 && good > 0 {
			good--
		}
		if len(events) != borders[good] {
			t.Fatalf("%s: the binlog holds %d events, want %d", what, len(events), borders[good])
		}
		if c.there(name+".cut") != (good < cut) || c.noted(name+".cut") != (good < cut) {
			t.Fatalf("%s: notes %q", what, c.notes)
		}
		if good < cut && !bytes.Equal(c.slurp(name+".cut"), whole[good:cut]) {
			t.Fatalf("%s: %q is kept aside, want %q", what, c.slurp(name+".cut"), whole[good:cut])
		}
		if c.nextID != w.nextID {
			t.Fatalf("%s: next id %d, was %d", what, c.nextID, w.nextID)
		}
		if cut%13 == 0 {
			c.aliveAfter(what)
		}
		c.kill()
	}
}

// What a topic lacks is in the binlog, whether it was written before the
// checkpoint or behind it.
func TestTopicCutAtEveryByte(t *testing.T) {
	for _, checkpointed := range []bool{false, true} {
		w, bodies := seeded(t, 1<<20)
		if checkpointed {
			w.checkpoint()
		}
		name := w.topicFile("a", 0)
		for cut := w.size(name) - 1; cut >= 0; cut -= int64(sample(1, 1, 5)) {
			what := fmt.Sprintf("topic cut at %d, checkpointed %v", cut, checkpointed)
			c := w.killed()
			c.resize(name, cut)
			c.open()
			have := c.read("a")
			if prefix(have, bodies["a"]) != len(bodies["a"]) {
				t.Fatalf("%s: it holds %v", what, have)
			}
			c.want("b", bodies["b"]...)
			if cut%13 == 0 {
				c.aliveAfter(what)
			}
			c.kill()
		}
	}
}

// A kill in the middle of an event's messages: the rest comes from the binlog.
func TestHalfAnEventIsCompleted(t *testing.T) {
	w := inMemory(t, 1<<20)
	w.create("t")
	w.pub("t", "a")
	w.pub("t", "b1", "b2", "b3", "b4")
	var sizes []int64
	for _, g := range w.read("t") {
		sizes = append(sizes, g.next.Off)
	}
	for _, size := range append(sizes, 0) {
		for _, extra := range []int64{0, 7} {
			c := w.killed()
			name := c.topicFile("t", 0)
			if size+extra > c.size(name) {
				continue
			}
			c.resize(name, size+extra)
			c.open().want("t", "a", "b1", "b2", "b3", "b4")
			c.aliveAfter(fmt.Sprint("cut at ", size+extra))
		}
	}
}

// A kill during a roll-back: the binlog was cut already, topics were not.
func TestTopicsAheadOfTheBinlogAreCut(t *testing.T) {
	for _, checkpointed := range []bool{false, true} {
		w := inMemory(t, 200_000)
		w.create("t")
		w.pub("t", "a")
		if checkpointed {
			w.checkpoint()
		}
		end := w.s.BinlogEnd()
		// More than index entries are apart, and over several files.
		lost := w.pub("t", numbered("lost", 60, 10_000)...)
		c := w.killed()
		for _, id := range c.numbers(c.binlogDir()) {
			if id > end.File {
				must(t, c.fs().Remove(fileName(c.binlogDir(), id)))
			}
		}
		c.resize(fileName(c.binlogDir(), end.File), end.Off)
		c.open()
		c.want("t", "a")
		if c.nextID < lost+60 {
			t.Errorf("next id is %d, %d was given out", c.nextID, lost+59)
		}
		c.aliveAfter("ahead")
		for range 30 {
			c.pub("t", strings.Repeat("z", 10_000))
		}
		c.wantIndexed(t)
	}
}

func TestRecoveryOfDelaysAndDeletions(t *testing.T) {
	w := inMemory(t, 300)
	w.create("t", "u")
	var keys []DelayKey
	for i := range 6 {
		k, err := w.tryDelay("t", int64(1000-i), fmt.Sprint("late", i))
		must(t, err)
		keys = append(keys, k)
	}
	_, err := w.tryFire(keys[0])
	must(t, err)
	old := w.meta.clone() // the metadata lags behind
	_, err = w.tryFire(keys[1])
	must(t, err)
	k, err := w.tryDelay("u", 5, "of u")
	must(t, err)
	must(t, w.tryDelete("u"))
	w.create("v")
	w.pub("v", "x")
	w.create("u")
	for _, m := range []*memMeta{w.meta, old} {
		c := w.killed()
		c.meta = m.clone()
		c.open()
		c.want("t", "late0", "late1")
		c.want("v", "x")
		c.want("u")
		pending := c.meta.prefixed(delayPrefix)
		if len(pending) != 5 || !slices.Contains(pending, string(delayKey(k))) || slices.Contains(pending, string(delayKey(keys[1]))) {
			t.Errorf("%d are pending: %q", len(pending), pending)
		}
		c.aliveAfter("delays")
	}
}

// The checkpoint of flush level 0 holds for a killed process and not for a
// machine that went down.
func TestCheckpointWithoutSync(t *testing.T) {
	for _, boot := range []string{"one", ""} {
		w := newWorld(t, 1<<20).memory()
		w.opt.Boot = boot
		w.open()
		if boot == "" {
			w.s.boot = "" // as where the kernel does not say
		}
		w.create("t")
		w.pub("t", "a")
		start := w.s.durable
		must(t, w.s.BeginCheckpoint(w.s.BinlogEnd(), w.nextID, false).Run())
		end := w.s.BinlogEnd()
		w.pub("t", "b")
		cp, found, err := w.meta.Checkpoint()
		must(t, err)
		if boot == "" && (!found || cp.from("") != start || cp.from("two") != start) {
			t.Errorf("unknown boot: %+v", cp)
		}
		if boot == "one" && (cp.from("one") != end || cp.from("two") != start || cp.from("") != start) {
			t.Errorf("known boot: %+v", cp)
		}
		for _, next := range []string{"one", "two"} {
			c := w.killed()
			c.opt.Boot = next
			c.open().want("t", "a", "b")
		}
		w.kill()
	}
}

// A clean stop is believed once: what the next process writes is not clean.
func TestCleanCheckpointIsBelievedOnce(t *testing.T) {
	w := inMemory(t, 1<<20)
	w.create("t")
	w.pub("t", "a")
	w.reopen()
	if !strings.Contains(w.meta.durable[checkpointKey], `"clean":false`) {
		t.Errorf("durable after the start: %s", w.meta.durable[checkpointKey])
	}
	w.close()
	if !strings.Contains(w.meta.durable[checkpointKey], `"clean":true`) {
		t.Errorf("durable after the stop: %s", w.meta.durable[checkpointKey])
	}
}

// A binlog that is shorter than the checkpoint says has lost what was synced.
func TestBinlogBeforeTheCheckpointIsRefused(t *testing.T) {
	w, _ := seeded(t, 1<<20)
	w.checkpoint()
	c := w.killed()
	c.resize(fileName(c.binlogDir(), 0), 100)
	if err := c.tryOpen(); err == nil || !strings.Contains(err.Error(), "before the place") {
		t.Errorf("error is %v", err)
	}
	if size := c.size(fileName(c.binlogDir(), 0)); size != 100 {
		t.Errorf("the binlog has %d bytes", size)
	}
}

func TestLostMetadataIsMadeAgain(t *testing.T) {
	w, bodies := seeded(t, 1500)
	k, err := w.tryDelay("a", 1<<60, "late")
	must(t, err)
	must(t, w.tryDelete("b"))
	w.checkpoint()
	first := w.killed()
	for _, retained := range []bool{true, false} {
		c := first.killed()
		c.meta = newMemMeta()
		if !retained {
			must(t, c.fs().Remove(fileName(c.binlogDir(), 0))) // with both creations
		}
		c.open()
		if len(c.topics) != 1 {
			t.Errorf("topics are %v", sortedKeys(c.topics))
		}
		c.want("a", bodies["a"]...)
		if p := c.meta.prefixed(delayPrefix); len(p) != 1 || p[0] != string(delayKey(k)) {
			t.Errorf("pending are %q", p)
		}
		if c.nextID != w.nextID || !c.noted("metadata is lost") {
			t.Errorf("next id %d, want %d; notes %q", c.nextID, w.nextID, c.notes)
		}
		c.aliveAfter("made again")
	}
}

// The records of a refused batch, back after a power cut because the process
// that undid it was killed before that was durable. Their place in the binlog
// is another event's by now.
func TestGhostsOfARefusedBatchAreCut(t *testing.T) {
	w := inMemory(t, 1<<20)
	w.create("t", "u")
	w.pub("t", "a", "b")
	at := w.s.BinlogEnd()
	name := w.topicFile("t", 0)
	ghosts := AppendTopicRecord(nil, &TopicRecord{StoredAtMs: 1, EventID: w.nextID, SavedAtMs: 1, Source: at, Message: message("ghost")})
	ghosts = AppendTopicRecord(ghosts, &TopicRecord{StoredAtMs: 1, EventID: w.nextID + 1, SavedAtMs: 1, Index: 1, Source: Pos{at.File, at.Off + 20}, Message: message("ghost")})
	w.nextID += 2
	w.pub("u", "c")
	w.checkpoint()
	c := w.killed()
	c.poke(name, c.size(name), ghosts)
	c.opt.Boot = "another"
	c.open()
	c.want("t", "a", "b")
	c.want("u", "c")
	c.aliveAfter("ghosts")
	// A topic's good copy of an event that the binlog has damaged stays.
	c = w.killed()
	c.poke(fileName(c.binlogDir(), 0), at.Off-30, []byte{0xff})
	c.opt.Boot = "another"
	c.open()
	c.want("t", "a", "b")
}

// After a power cut a hole in what no checkpoint covers is filled from the
// binlog. After a kill there can be none, and damage is left as it is.
func TestHolesBehindTheCheckpoint(t *testing.T) {
	w := inMemory(t, 4000)
	w.create("t")
	bodies := numbered("m", 40, 300)
	for i, b := range bodies {
		w.pub("t", b)
		if i == 4 {
			w.checkpoint()
		}
	}
	must(t, w.trySync())
	from := Pos{}
	for i, g := range w.read("t") {
		c := w.killed()
		c.poke(c.topicFile("t", from.File), from.Off+30, make([]byte, 200))
		c.opt.Boot = "another"
		c.open()
		if i < 4 {
			// What was synced is damaged: that is reported, and nothing is cut.
			// The last one of these cannot be told from what was not synced: it
			// is written again.
			if have, err := c.readFrom("t", Pos{}); err == nil || len(have) != i || c.noted("/0.log:") {
				t.Errorf("hole in message %d: %d can be read, %v; %q", i, len(have), err, c.notes)
			}
		} else {
			c.want("t", bodies...)
		}
		c = w.killed()
		name := c.topicFile("t", from.File)
		c.poke(name, from.Off+30, make([]byte, 200))
		size := c.size(name)
		c.open()
		last := i+1 == len(bodies)
		if last {
			c.want("t", bodies...)
		} else if have, err := c.readFrom("t", Pos{}); err == nil || len(have) != i || c.size(name) != size || len(c.damages) == 0 {
			t.Errorf("killed, hole in message %d: %d can be read, %v; size %d, was %d; damages %v", i, len(have), err, c.size(name), size, c.damages)
		}
		from = g.next
	}
}

func TestDeletedTopicsFilesAreFound(t *testing.T) {
	w := inMemory(t, 1<<20)
	w.create("t")
	w.pub("t", "a")
	before := w.killed() // its directory is there still
	must(t, w.tryDelete("t"))
	c := w.killed()
	c.opt.FS = before.opt.FS
	c.poke(fileName(c.binlogDir(), 0), 0, w.slurp(fileName(w.binlogDir(), 0)))
	c.open()
	if len(c.topics) != 0 || c.there(filepath.Dir(c.topicFile("t", 0))) {
		t.Errorf("topics %v, the directory is there: %v", sortedKeys(c.topics), c.there(filepath.Dir(c.topicFile("t", 0))))
	}
	c.create("t")
	c.want("t")
}

// After a power cut the name of a topic's first file can be lost where the next
// one's is not: what that holds comes behind what is missing.
func TestFirstFileLostByAPowerCut(t *testing.T) {
	for _, old := range []bool{false, true} {
		w := inMemory(t, 1) // a file for each record
		w.create("t")
		if old {
			w.pub("t", "0")
			w.checkpoint()
			must(t, w.fs().Remove(w.topicFile("t", 0))) // as retention does
			w.topics["t"].log.end = Pos{1, 0}
		}
		w.pub("t", "a")
		w.pub("t", "b", "c")
		must(t, w.trySync())
		first := w.logs("t")[0]
		c := w.killed()
		must(t, c.fs().Remove(c.topicFile("t", first)))
		c.opt.Boot = "another"
		c.open().want("t", "a", "b", "c")
		c.aliveAfter("first file lost")
		if len(c.damages) > 0 {
			t.Errorf("damage %v", c.damages)
		}
	}
}

// A start that makes the metadata again can be interrupted anywhere: the next
// one begins it again and does not take the half of it for all.
func TestRebuildIsInterrupted(t *testing.T) {
	w := inMemory(t, 300)
	w.create("gone", "t", "u")
	w.pub("gone", "x", "y")
	old := w.slurp(w.topicFile("gone", 0))
	w.pub("t", "a", "b")
	must(t, w.tryDelete("gone"))
	w.pub("u", "c")
	w.checkpoint()
	for at := 1; ; at++ {
		c := w.killed()
		// The directory comes back, as a lost sync could have it: nobody knows
		// the topic, and the metadata counts as lost.
		must(t, c.fs().MkdirAll(filepath.Dir(c.topicFile("gone", 0))))
		c.poke(c.topicFile("gone", 0), 0, old)
		c.mem().crashAt = c.mem().ops + at
		if c.tryOpen() == nil {
			if !c.noted("the metadata is lost") {
				t.Errorf("notes are %q", c.notes)
			}
			break
		}
		for what, d := range map[string]*world{"kill": c.killed(), "power cut": c.unplugged(rand.New(rand.NewPCG(uint64(at), 5)))} {
			must(t, d.tryOpen())
			if have := sortedKeys(d.topics); !slices.Equal(have, []string{"t", "u"}) {
				t.Fatalf("%s at operation %d: topics are %q", what, at, have)
			}
			d.want("t", "a", "b")
			d.want("u", "c")
			if d.nextID < w.nextID {
				t.Errorf("%s at operation %d: the next id is %d, was %d", what, at, d.nextID, w.nextID)
			}
			d.kill()
			must(t, d.tryOpen())
			if len(d.topics) != 2 || d.noted("the metadata is lost") {
				t.Errorf("%s at operation %d, started again: topics %q, notes %q", what, at, sortedKeys(d.topics), d.notes)
			}
		}
	}
}

// A power cut can take the end of a binlog file and leave the next one. What a
// topic has of the events between is taken away, and what it has of later ones
// stays: topic and binlog tell the same story, to slaves as well.
func TestEndOfABinlogFileLostByAPowerCut(t *testing.T) {
	w := newWorld(t, 500)
	w.opt.Boot = "before"
	w.open()
	w.create("t", "u")
	const messages = 20
	for i := range messages {
		w.pub("t", fmt.Sprint("m", i))
		w.pub("u", strings.Repeat("u", 100)) // so that a file of t spans several of the binlog
	}
	files := w.numbers(w.binlogDir())
	if len(files) < 4 {
		t.Fatalf("only %d files", len(files))
	}
	for _, file := range files[:len(files)-1] {
		c := w.copied()
		c.opt.Boot = "after"
		name := fileName(c.binlogDir(), file)
		cutFile(t, name, fileSize(t, name)-3)
		c.open()
		var events []string
		for _, m := range c.read("t") {
			events = append(events, fmt.Sprintf("%d PUB t", m.id))
		}
		published := slices.DeleteFunc(c.binlogEvents(), func(e string) bool { return !strings.HasSuffix(e, " PUB t") })
		if !slices.Equal(events, published) || len(events) < messages-1 {
			t.Errorf("file %d: the topic has %q, the binlog %q", file, events, published)
		}
	}
}

// The largest delayed message that is taken is made again as well.
func TestLargestDelayIsMadeAgain(t *testing.T) {
	w := inMemory(t, 1<<30)
	w.create("t")
	k, err := w.tryDelay("t", 1<<60, strings.Repeat("x", MaxDelayPayload-codec.MessageOverhead))
	must(t, err)
	w.checkpoint()
	c := w.killed()
	c.meta = newMemMeta()
	c.open()
	if p := c.meta.prefixed(delayPrefix); len(p) != 1 || p[0] != string(delayKey(k)) {
		t.Errorf("%d are pending; notes %q", len(p), c.notes)
	}
}
