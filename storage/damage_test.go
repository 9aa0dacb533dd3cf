package storage

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"smss/codec"
)

func TestZeroTails(t *testing.T) {
	for _, n := range []int64{3, 4096, int64(sample(64, 8, 1)) << 20} {
		for _, of := range []string{"binlog", "topic", "topic's last record"} {
			t.Run(fmt.Sprint(n, " ", of), func(t *testing.T) {
				w, bodies := seeded(t, 1<<30)
				c := w.killed()
				name := fileName(c.binlogDir(), 0)
				if of != "binlog" {
					name = c.topicFile("a", 0)
				}
				size := c.size(name)
				keep := size
				if of == "topic's last record" {
					keep -= 20
					c.resize(name, keep)
				}
				c.resize(name, keep+n)
				start := time.Now()
				c.open()
				if d := time.Since(start); d > time.Minute { // byte by byte it would be far more
					t.Errorf("opening took %v", d)
				}
				if got := c.size(name); got != size {
					t.Errorf("the file has %d bytes, had %d", got, size)
				}
				if c.there(name+".cut") != (keep < size) {
					t.Errorf("kept aside: %v", keep == size)
				}
				c.want("a", bodies["a"]...)
				c.want("b", bodies["b"]...)
				c.aliveAfter("zeros")
			})
		}
	}
}

// Zeros in the middle are damage: reported, and never cut.
func TestZerosInTheMiddle(t *testing.T) {
	w, bodies := seeded(t, 1<<30)
	for _, binlog := range []bool{true, false} {
		c := w.killed()
		name := fileName(c.binlogDir(), 0)
		if !binlog {
			name = c.topicFile("a", 0)
		}
		c.poke(name, 500, make([]byte, 300))
		size := c.size(name)
		c.open()
		if len(c.damages) == 0 {
			t.Errorf("binlog %v: no damage reported", binlog)
		}
		if c.size(name) != size {
			t.Errorf("binlog %v: the file was changed", binlog)
		}
		c.want("b", bodies["b"]...)
		if binlog {
			c.want("a", bodies["a"]...)
		} else if have, err := c.readFrom("a", Pos{}); err == nil || prefix(have, bodies["a"]) < 1 {
			t.Errorf("read %v, %v", have, err)
		}
	}
}

func TestResyncOnZerosIsFast(t *testing.T) {
	w := opened(t, 1<<30)
	w.create("t")
	w.pub("t", "a")
	name := fileName(w.s.topicPath("t"), 0)
	rec, err := os.ReadFile(name)
	must(t, err)
	hole := int64(sample(256, 256, 32)) << 20
	cutFile(t, name, int64(len(rec))+hole)
	appendFile(t, name, rec)
	f, err := OS{}.Open(name)
	must(t, err)
	defer f.Close()
	var r TopicRecord
	start := time.Now()
	tl, err := scanTail(f, 0, topicKind, func(b []byte) (int, error) { return ParseTopicRecord(b, maxStoredPayload, &r) }, nil)
	must(t, err)
	if tl.good != tl.size || !slices.Equal(tl.damaged, []int64{int64(len(rec))}) {
		t.Errorf("tail is %+v", tl)
	}
	if d := time.Since(start); d > time.Minute { // byte by byte it would be far more
		t.Errorf("%d MiB of zeros took %v", hole>>20, d)
	}
}

// A message can hold what looks like a record. A torn or damaged record that
// holds one must not bring it to life.
func TestRecordsInsideAMessageAreNoRecords(t *testing.T) {
	var evil []byte
	for i := range 5 {
		evil = codec.AppendBinlogRecord(evil, &codec.BinlogRecord{Command: codec.DeleteTopic, EventID: int64(100 + i), Topic: []byte("a")}, nil)
		evil = AppendTopicRecord(evil, &TopicRecord{StoredAtMs: 1, EventID: int64(200 + i), Message: message("forged")})
	}
	w := inMemory(t, 1<<20)
	w.create("a", "b")
	w.pub("a", "one")
	w.pub("b", "filler "+string(evil)+" filler")
	for _, of := range []string{"binlog", "topic"} {
		name := fileName(w.binlogDir(), 0)
		if of == "topic" {
			name = w.topicFile("b", 0)
		}
		size := w.size(name)
		for cut := int64(1); cut < int64(len(evil))+40; cut++ {
			c := w.killed()
			c.resize(name, size-cut)
			c.open()
			c.want("a", "one")
			for _, g := range c.read("b") {
				if g.body == "forged" {
					t.Fatalf("%s without its last %d bytes: a forged message", of, cut)
				}
			}
			if len(c.damages) > 0 {
				t.Fatalf("%s without its last %d bytes: %v", of, cut, c.damages)
			}
		}
		// One flipped bit in the message, and another record behind it.
		c := w.killed()
		c.poke(name, size-int64(len(evil))-14, []byte("F"))
		if of == "binlog" {
			c.poke(name, size, codec.AppendBinlogRecord(nil, &codec.BinlogRecord{Command: codec.Pub, EventID: 90, Topic: []byte("a"), Payload: message("two")}, nil))
		}
		c.open()
		if of == "binlog" {
			c.want("a", "one", "two")
			if len(c.damages) == 0 {
				t.Error("no damage reported")
			}
		} else {
			c.want("a", "one")
		}
	}
}

// Every bit of the first 64 bytes: no panic, no hang, nothing damaged is
// delivered, the rest can be read and written to.
func TestEveryBitOfTheFirst64Bytes(t *testing.T) {
	w, bodies := seeded(t, 1500)
	for _, of := range []string{"binlog/0", "binlog/1", "a/0", "a/1"} {
		dir, file, _ := strings.Cut(of, "/")
		name := w.binlogDir() + "/" + file + ".log"
		if dir == "a" {
			name = w.s.topicPath("a") + "/" + file + ".log"
		}
		first := w.slurp(name)[:64]
		for bit := 0; bit < 64*8; bit += sample(1, 5, 17) {
			what := fmt.Sprintf("bit %d of %s", bit, of)
			c := w.killed()
			b := slices.Clone(first)
			b[bit/8] ^= 1 << (bit % 8)
			c.poke(name, 0, b)
			c.open()
			if len(c.damages)+len(c.notes) == 0 {
				t.Errorf("%s: not reported", what)
			}
			for name, all := range bodies {
				have, err := c.readFrom(name, Pos{})
				if n := prefix(have, all); n < 0 {
					t.Fatalf("%s: %s holds %v, %v", what, name, have, err)
				} else if err == nil && n != len(all) {
					t.Fatalf("%s: %s holds %d of %d messages without an error", what, name, n, len(all))
				} else if err != nil && dir != name {
					t.Fatalf("%s: reading %s: %v", what, name, err)
				}
			}
			if dir == "a" {
				// Behind the damage.
				end, readable := c.topics["a"].End(), 0
				for id := int64(1); id < c.nextID; id++ {
					if pos, err := c.s.Reader("a").Locate(id, end); err == nil {
						readable++
						if _, err := c.readFrom("a", pos); err != nil && file == "0" {
							t.Fatalf("%s: behind id %d: %v", what, id, err)
						}
					}
				}
				if readable < len(bodies["a"])-1 {
					t.Errorf("%s: %d of %d ids can be found", what, readable, len(bodies["a"]))
				}
			}
			for name := range c.topics {
				id := c.pub(name, "after")
				if pos, err := c.s.Reader(name).Locate(id, c.topics[name].End()); err != nil || pos.Before(c.topics[name].End()) && pos.File == c.topics[name].End().File {
					t.Fatalf("%s: the next message of %s: %v, %v", what, name, pos, err)
				}
			}
			c.kill()
		}
	}
}

// A last record that is as long as its line says and not what was written is no
// torn write of a process: it is damage, of which nothing is cut off the binlog,
// while a topic gets its message from there again. After a power cut it can be
// a torn write, and goes as one.
func TestDamagedLastRecord(t *testing.T) {
	for _, of := range []string{"binlog", "topic"} {
		for _, power := range []bool{false, true} {
			for _, back := range []int64{1, 2, 20} { // the end, the body, the line
				what := fmt.Sprintf("%s, power cut %v, %d bytes before the end", of, power, back)
				w := inMemory(t, 1<<20)
				w.create("t", "u")
				w.pub("t", "one")
				w.pub("u", "other")
				lastID := w.pub("t", "two", "three")
				name := fileName(w.binlogDir(), 0)
				if of == "topic" {
					name = w.topicFile("t", 0)
				}
				c := w.killed()
				size := c.size(name)
				b := c.slurp(name)[size-back : size-back+1]
				b[0] ^= 1
				c.poke(name, size-back, b)
				if power {
					c.opt.Boot = "another"
				}
				must(t, c.tryOpen())
				damaged := len(c.damages) == 1 && fileName(c.damages[0].Dir, c.damages[0].Pos.File) == name
				if damaged != !power {
					t.Errorf("%s: reported is %v", what, c.damages)
				}
				if lost := of == "binlog" && power; c.there(name+".cut") != (of == "topic" || power) {
					t.Errorf("%s: kept aside: %v", what, c.there(name+".cut"))
				} else if lost {
					c.want("t", "one")
				} else {
					c.want("t", "one", "two", "three")
				}
				if of == "binlog" && !power && c.size(name) != size {
					t.Errorf("%s: the binlog has %d bytes, had %d", what, c.size(name), size)
				}
				if c.nextID <= lastID+1 {
					t.Errorf("%s: the next id is %d, %d was given out", what, c.nextID, lastID+1)
				}
				c.aliveAfter(what)
				c.want("u", "other", "after")
			}
		}
	}
}

// The event of a damaged last record that nothing else tells of: its id is not
// given out again.
func TestIDOfADamagedLastRecord(t *testing.T) {
	w := inMemory(t, 1<<20)
	w.create("t")
	w.checkpoint()
	must(t, w.tryDelete("t"))
	given := w.nextID - 1
	c := w.killed()
	name := fileName(c.binlogDir(), 0)
	c.poke(name, c.size(name)-2, []byte{'x'})
	must(t, c.tryOpen())
	if c.nextID <= given || len(c.damages) != 1 {
		t.Errorf("the next id is %d, %d was given out; reported is %v", c.nextID, given, c.damages)
	}
}
