package test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// These are the cases about bytes on the wire; sizes and fragments are in
// wire_size_test.go.

// TestCase01ClaimedLengths: a length prefix takes no memory before the bytes
// are there.
func TestCase01ClaimedLengths(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	rss, virtual := s.rss(), s.procStatus("VmSize")

	claim := u32(0xFFFFFFF0)
	requests := map[string][]byte{
		"PUB":     request(cmdPub, "t", "", claim, nil),
		"DELAY":   request(cmdDelay, "t", "", claim, i64(2000)),
		"SUB who": request(cmdSub, "t", "", []byte{1, 0}, append(i64(0), claim...)),
	}
	for name, r := range requests {
		for i := range 20 {
			x := dial(t, s)
			x.send(r)
			r, err := x.reply(false)
			if err != nil || r.code != codeError {
				t.Fatalf("%s, connection %d: %v, %v; want 400", name, i, r, err)
			}
			// The stream cannot be brought back into step over 4 GiB.
			x.closed()
		}
	}

	// Sizes that are allowed, promised by many and never sent.
	var waiting []*client
	for range 100 {
		x := dial(t, s)
		x.send(request(cmdPub, "t", "", u32(8<<20), nil))
		waiting = append(waiting, x)
	}
	c.alive()
	c.ok(reqPub("t", message("still here")))
	if grown := s.rss() - rss; grown > 64<<20 {
		t.Errorf("resident memory grew by %d MiB", grown>>20)
	}
	if grown := s.procStatus("VmSize") - virtual; grown > 1<<30 {
		t.Errorf("virtual memory grew by %d MiB", grown>>20)
	}
	for _, x := range waiting {
		x.close()
	}
	wantBodies(t, drain(t, s, "t"), "still here")
}

// TestCase03RefusedBody: what a refused request carries is never read as
// commands.
func TestCase03RefusedBody(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	admin := dial(t, s)
	admin.ok(reqCreate("t", 0))
	admin.ok(reqCreate("victim", 0))
	attack := reqDelete("victim")

	t.Run("PUB shorter than its body", func(t *testing.T) {
		c := dial(t, s)
		c.send(append(request(cmdPub, "t", "", u32(5), nil), attack...))
		c.refusal("")
	})
	exact := map[string][]byte{
		"PUB too small":      request(cmdPub, "t", "", u32(5), attack[:5]),
		"PUB of 0":           request(cmdPub, "t", "", u32(0), nil),
		"PUB of 8":           request(cmdPub, "t", "", u32(8), attack[:8]),
		"PUB malformed":      request(cmdPub, "t", "", u32(len(attack)), attack),
		"PUB no topic":       request(cmdPub, "none", "", u32(len(attack)), attack),
		"PUB bad name":       request(cmdPub, "a/b", "", u32(len(attack)), attack),
		"DELAY too small":    request(cmdDelay, "t", "", u32(5), append(i64(2000), attack[:5]...)),
		"DELAY of 0":         request(cmdDelay, "t", "", u32(0), i64(2000)),
		"DELAY too soon":     request(cmdDelay, "t", "", u32(len(attack)), append(i64(0), attack...)),
		"DELAY malformed":    request(cmdDelay, "t", "", u32(len(attack)), append(i64(2000), attack...)),
		"CREATE bad name":    request(cmdCreate, "a b", "", nil, i64(0)),
		"CREATE bad expiry":  request(cmdCreate, "new", "", nil, i64(-1)),
		"SUB no topic":       sub{topic: "none", who: string(attack)}.request(),
		"SUB bad id":         sub{topic: "t", who: string(attack), from: -7}.request(),
		"unknown, promised":  request(7, "t", "", u32(len(attack)), attack),
		"internal, promised": request(101, "t", "", u32(len(attack)), attack),
		"above, promised":    request(200, "t", "", u32(len(attack)), attack),
	}
	for name, r := range exact {
		t.Run(name, func(t *testing.T) {
			c := dial(t, s)
			// In one write, so that the bytes after the refusal are already
			// in the server's hands.
			c.send(append(bytes.Clone(r), reqAlive("")...))
			// The topic exists but has no message, and a SUB on it with a
			// foreign id must be refused all the same.
			c.refusal("")
			rep, err := c.reply(false)
			if err != nil || rep.code != codeAlive {
				t.Fatalf("after the refusal: %v, %v", rep, err)
			}
		})
	}
	if _, ok := admin.list()["victim"]; !ok {
		t.Error("victim was deleted")
	}
}

// TestReplicaRefused: a slave has no slaves of its own unless it is told to:
// REPLICA is answered like an unknown command and its body is consumed.
func TestReplicaRefused(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{args: []string{"-role", "slave", "-host", "127.0.0.1", "-port", strconv.Itoa(freePort(t))}})
	c := dial(t, s)
	c.refused(request(cmdReplica, "", "", nil, i64(0)), textNoAction)
	c.alive()
}

// TestCase04HalfHeader: a frame that arrives in parts, with pauses, is kept
// until it is whole.
func TestCase04HalfHeader(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	alive := reqAlive("trace")

	slow := dial(t, s)
	slow.send(alive[:10])
	pub := reqPub("t", message("slow"))
	body := dial(t, s)
	body.send(pub[:len(pub)-3])

	// Slow senders beside it: one byte now and then on many connections.
	var drips []*client
	for range scale(100, 2000) {
		drips = append(drips, dial(t, s))
	}
	// The pause is the case: the existing server gave up after 5 s.
	deadline := time.Now().Add(6 * time.Second)
	var worst time.Duration
	for i := 0; time.Now().Before(deadline); i++ {
		if i < len(alive)-1 {
			for _, d := range drips {
				d.send(alive[i : i+1])
			}
		}
		start := time.Now()
		c.ok(reqPub("t", message("beside")))
		worst = max(worst, time.Since(start))
		time.Sleep(250 * time.Millisecond)
	}
	if limit := slack(500 * time.Millisecond); worst > limit {
		t.Errorf("a publish beside slow senders took %v", worst)
	}
	slow.send(append(bytes.Clone(alive[10:]), alive...))
	for range 2 {
		if r, err := slow.reply(false); err != nil || r.code != codeAlive {
			t.Fatalf("ALIVE in two halves: %v, %v", r, err)
		}
	}
	body.send(pub[len(pub)-3:])
	if r, err := body.reply(false); err != nil || r.code != codeDone {
		t.Fatalf("PUB in two parts: %v, %v", r, err)
	}
}

// snapshot lists the paths below a directory with the sizes of files, but for
// the metadata store and the binlog, which change with every event.
func snapshot(t *testing.T, root string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // of a deleted topic, gone since its name was read
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		if d.IsDir() && (rel == "data/meta" || rel == "data/binlog") {
			fmt.Fprintln(&b, rel)
			return fs.SkipDir
		}
		// Directories of the fan-out may come into being at any time.
		if !d.IsDir() {
			fmt.Fprintln(&b, rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestCase06TopicNameAsPath: a name never leads out of the topic's own
// directory.
func TestCase06TopicNameAsPath(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	c := dial(t, s)
	for i := range 30 {
		name := fmt.Sprintf("keep-%d", i)
		c.ok(reqCreate(name, 0))
		c.ok(reqPub(name, message("kept")))
	}
	before := snapshot(t, s.dir)
	refused := []string{"", ".", "..", "../..", "../../../binlog", "../../x", "a/b", `a\b`, "/etc/x", "/", "a b", "a\tb",
		"a\nb", strings.Repeat("n", 129), strings.Repeat("n", 4000), strings.Repeat("n", math.MaxUint16)}
	for _, name := range refused {
		c.refused(reqCreate(name, 0), textTopicName)
		for _, r := range [][]byte{reqDelete(name), reqInfo(name), reqPub(name, message("x")), reqDelay(name, 2000, message("x")),
			sub{topic: name, who: "w"}.request()} {
			c.refused(r, "")
		}
		c.alive()
	}
	accepted := []string{strings.Repeat("n", 128), strings.Repeat("订", 42), "CON", "0", "5", "99", "...", "a..b", "~", "-", "%2e%2e", "binlog", "meta"}
	for _, name := range accepted {
		c.ok(reqCreate(name, 0))
		c.ok(reqPub(name, message("x")))
		if got := c.info(name).Name; got != name {
			t.Errorf("%q is listed as %q", name, got)
		}
		c.ok(reqDelete(name))
	}
	var after string
	await(t, slack(10*time.Second), "the files of the deleted topics are gone and the others stay", func() bool {
		after = snapshot(t, s.dir)
		return after == before
	})
	for i := range 30 {
		wantBodies(t, read(t, s, fmt.Sprintf("keep-%d", i), 0, 1), "kept")
	}
}

// TestCase07NotUTF8: names come back as they were given, or are refused.
func TestCase07NotUTF8(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	c := dial(t, s)
	for _, name := range []string{"a\xff\xfeb", "\xc0\xaf", "\xed\xa0\x80", "a\xe8\xae", "a\x00b", "\x00"} {
		c.refused(reqCreate(name, 0), textTopicName)
	}
	// Twins that look the same are two names.
	names := []string{"订单", "\u00e9migr\u00e9", "e\u0301migre\u0301", "🙂", "\u03a9", "\u2126"}
	for _, name := range names {
		c.ok(reqCreate(name, 0))
		c.ok(reqPub(name, message("of "+name)))
	}
	// A direction mark may be refused or carried, but not changed.
	mark := "a\u200fb"
	if r, err := c.do(reqCreate(mark, 0)); err != nil {
		t.Fatal(err)
	} else if r.code == codeDone {
		names = append(names, mark)
		c.ok(reqPub(mark, message("of "+mark)))
	}
	list := c.list()
	if len(list) != len(names) {
		t.Errorf("%d topics listed, want %d", len(list), len(names))
	}
	for _, name := range names {
		if _, ok := list[name]; !ok {
			t.Errorf("%q is not listed", name)
		}
		wantBodies(t, read(t, s, name, 0, 1), "of "+name)
	}
}

// TestCase08ControlCharacters: text of a client never breaks a record or the
// log.
func TestCase08ControlCharacters(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{config: config{"log.sample": 1}})
	c := dial(t, s)
	for _, name := range []string{"a\rb", "a\x0bb", "a\x1bb", "a\x7fb", "\x01"} {
		c.refused(reqCreate(name, 0), textTopicName)
	}
	c.ok(reqCreate("t", 0))
	const forged = "FORGED LINE"
	trace := "x\n" + forged
	c.ok(request(cmdPub, "t", trace, u32(len(message("m"))), message("m")))
	c.refused(request(cmdPub, "none", trace, u32(len(message("m"))), message("m")), textNoTopic)
	c.refused(request(200, "none\n"+forged, trace, nil, nil), textNoAction)
	x := dial(t, s)
	x.sub(sub{topic: "t", who: "a\tb\n" + forged})
	if f, err := x.frame(); err != nil {
		t.Fatal(err)
	} else if f.code == codeDone {
		x.send(ackLast)
		x.alive()
	}
	s.kill()
	s.restart()
	wantBodies(t, drain(t, s, "t"), "m")
	s.stop()
	for line := range strings.Lines(s.log.String()) {
		if strings.HasPrefix(line, forged) {
			t.Errorf("a client wrote the log line %q", line)
		}
	}
}

// TestCase09InnerLengths: a payload whose inner lengths do not fit is refused
// as a whole, and the connection stays in step.
func TestCase09InnerLengths(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	with := func(size, headers int, rest string) []byte {
		return append(append(u32(size), u32(headers)...), rest...)
	}
	good := message("good")
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	cases := map[string][]byte{
		"one byte more than there is":   with(5, 0, "abcd"),
		"one byte less than there is":   with(3, 0, "abcd"),
		"content of 0":                  with(0, 0, "abcd"),
		"content of 0 behind a good":    join(good, with(0, 0, "")),
		"1 byte left over":              join(good, good, []byte{0}),
		"7 bytes left over":             join(good, good, make([]byte, 7)),
		"8 bytes left over":             join(good, good, make([]byte, 8)),
		"content of 2 GiB":              with(0x7FFFFFFF, 0, "abcd"),
		"content of 4 GiB":              with(0xFFFFFFFF, 0, "abcd"),
		"4 GiB headers":                 with(4, 0xFFFFFFFF, "abcd"),
		"more headers than there are":   with(9+4, 2, "\x01\x00\x00\x00k\x00\x00\x00\x00body"),
		"header key over the end":       with(9, 1, "\x09\x00\x00\x00key\x00\x00"),
		"header value over the end":     with(9, 1, "\x01\x00\x00\x00k\x09\x00\x00\x00"),
		"header key of 4 GiB":           with(9, 1, "\xff\xff\xff\xffk\x00\x00\x00\x00"),
		"header reaching into the next": join(with(9, 1, "\x01\x00\x00\x00k\x04\x00\x00\x00"), good),
		"bad one behind a good":         join(good, with(9, 4, "abcdefghi")),
	}
	for name, payload := range cases {
		t.Run(name, func(t *testing.T) {
			c := dial(t, s)
			c.refused(reqPub("t", payload), textPubPayload)
			c.alive()
			c.refused(reqDelay("t", 1000, payload), textDelayRequest)
			c.alive()
		})
	}
	// Allowed: a value, and a body behind headers, of length 0.
	c.ok(reqPub("t", message("", [2]string{"k", ""})))

	const n = 65000
	r, err := c.do(reqPub("t", bytes.Repeat(message("1"), n)))
	if err != nil {
		t.Fatal(err)
	}
	if r.code == codeError {
		t.Logf("a batch of %d is refused: %s", n, r.text)
		c.alive()
		wantBodies(t, drain(t, s, "t"), "")
		return
	}
	all := read(t, s, "t", 0, n+1)
	for i, m := range all {
		if m.id != all[0].id+int64(i) {
			t.Fatalf("id of message %d is %d, the first has %d", i, m.id, all[0].id)
		}
	}
}

// TestCase12UnknownCommands: a number that is no command is answered and
// skipped, and an internal one writes nothing.
func TestCase12UnknownCommands(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	public := map[int]bool{cmdSub: true, cmdPub: true, cmdCreate: true, cmdDelete: true, cmdDelay: true, cmdAlive: true,
		cmdReplica: true, cmdInfo: true, cmdValidList: true, cmdList: true, cmdCopy: true}
	filler := bytes.Repeat([]byte{0xA5}, 64)
	for cmd := range 256 {
		if public[cmd] {
			continue
		}
		c.refused(request(byte(cmd), "", "", nil, nil), textNoAction)
		c.refused(request(byte(cmd), "t", "trace", u32(len(filler)), filler), textNoAction)
		c.alive()
	}
	// The record that the scheduler writes when a delay is due, by hand.
	forged := append(append(i64(time.Now().UnixMilli()), i64(1)...), message("forged")...)
	c.refused(request(101, "t", "", u32(len(forged)), forged), textNoAction)
	c.alive()
	wantBodies(t, drain(t, s, "t"))
	// A promise that cannot be skipped ends the connection.
	c.refused(request(7, "t", "", u32(0xFFFFFFF0), nil), "")
	c.closed()
}
