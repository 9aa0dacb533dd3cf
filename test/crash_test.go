package test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// These are the cases about killed processes, locks and files of a data
// directory over restarts.

// fate is what a publisher knows about one of its messages.
type fate int

const (
	unknown fate = iota // no answer came
	acknowledged
)

// oracle remembers what was published and what is known about it.
type oracle struct {
	mu    sync.Mutex
	fates map[string]map[string]fate // by topic and body
	order map[string][]string        // by topic and publisher: acknowledged bodies in their order
}

func newOracle() *oracle {
	return &oracle{fates: map[string]map[string]fate{}, order: map[string][]string{}}
}

func (o *oracle) sent(topic string, bodies ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fates[topic] == nil {
		o.fates[topic] = map[string]fate{}
	}
	for _, b := range bodies {
		o.fates[topic][b] = unknown
	}
}

func (o *oracle) acked(topic, stream string, bodies ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, b := range bodies {
		o.fates[topic][b] = acknowledged
	}
	if stream != "" {
		o.order[topic+"\x00"+stream] = append(o.order[topic+"\x00"+stream], bodies...)
	}
}

// check compares a topic with what is known: acknowledged ⇒ present exactly
// once, each publisher's messages in its order, nothing that was never sent.
// Rising ids are checked by the reader.
func (o *oracle) check(t *testing.T, topic string, got []pushed) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	at := map[string]int{}
	for i, m := range got {
		if _, ok := o.fates[topic][m.body]; !ok {
			t.Errorf("%s: %q was never published there", topic, m.body)
		}
		if _, twice := at[m.body]; twice {
			t.Errorf("%s: %q is there twice", topic, m.body)
		}
		at[m.body] = i
	}
	lost := 0
	for body, f := range o.fates[topic] {
		if _, ok := at[body]; !ok && f == acknowledged {
			lost++
			if lost <= 5 {
				t.Errorf("%s: acknowledged %q is lost", topic, body)
			}
		}
	}
	for stream, bodies := range o.order {
		if !strings.HasPrefix(stream, topic+"\x00") {
			continue
		}
		for i := 1; i < len(bodies); i++ {
			if at[bodies[i-1]] > at[bodies[i]] {
				t.Errorf("%s: %q comes after %q", topic, bodies[i-1], bodies[i])
			}
		}
	}
}

// TestCase30KillLoop: kills at any moment lose nothing that was acknowledged,
// at every flush level.
func TestCase30KillLoop(t *testing.T) {
	t.Parallel()
	for level := range 3 {
		t.Run(fmt.Sprintf("flushLevel=%d", level), func(t *testing.T) {
			t.Parallel()
			// Small files, so that kills meet rolls too.
			s := startServer(t, options{config: config{"store.flushLevel": level, "store.maxLogSize": 20000}})
			killLoop(t, s, scale(4, 50))
		})
	}
}

func killLoop(t *testing.T, s *server, rounds int) {
	t.Helper()
	random := rand.New(rand.NewPCG(30, uint64(rounds)))
	topics := []string{"a", "b", "c", "d", "e"}[:scale(3, 5)]
	admin := dial(t, s)
	for _, topic := range topics {
		admin.ok(reqCreate(topic, 0))
	}
	o := newOracle()
	for round := range rounds {
		var wg sync.WaitGroup
		errs := make(chan error, 16)
		for p := range scale(4, 8) {
			x := dial(t, s)
			seed := random.Uint64()
			wg.Go(func() { errs <- o.publish(x, topics, round, p, rand.New(rand.NewPCG(seed, 1))) })
		}
		// Topics come and go beside them.
		x := dial(t, s)
		wg.Go(func() {
			for i := 0; ; i++ {
				name := fmt.Sprintf("brief-%d-%d", round, i)
				for _, r := range [][]byte{reqCreate(name, 0), reqPub(name, message("m")), reqDelete(name)} {
					rep, err := x.do(r)
					if err != nil {
						return // killed
					}
					if rep.code != codeDone {
						errs <- fmt.Errorf("%s: %v", name, rep)
						return
					}
				}
			}
		})
		time.Sleep(time.Duration(100+random.IntN(scale(600, 2500))) * time.Millisecond) // the moment of the kill
		s.kill()
		wg.Wait()
		close(errs)
		for err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
		s.restart()
	}
	// Delays of the last round may still be due.
	time.Sleep(1600 * time.Millisecond)
	total := 0
	for _, topic := range topics {
		got := drain(t, s, topic)
		total += len(got)
		o.check(t, topic, got)
	}
	t.Logf("%d messages after %d kills", total, rounds)
	if total < 10*rounds {
		t.Error("too few messages for a test")
	}
	// Of the brief topics, at most the one that each kill caught is left.
	brief := 0
	for name := range dial(t, s).list() {
		if strings.HasPrefix(name, "brief-") {
			brief++
		}
	}
	if brief > rounds {
		t.Errorf("%d deleted topics are still there after %d kills", brief, rounds)
	}
}

// publish sends single messages, batches and delays until the server dies.
func (o *oracle) publish(x *client, topics []string, round, publisher int, random *rand.Rand) error {
	stream := fmt.Sprint(publisher)
	for n := 0; ; n++ {
		topic := topics[random.IntN(len(topics))]
		name := fmt.Sprintf("%d-%d-%d", round, publisher, n)
		bodies := []string{name}
		request := reqPub
		order := stream
		switch random.IntN(10) {
		case 0:
			bodies = []string{name + "a", name + "b", name + "c"}
		case 1:
			order = "" // comes when it is due
			request = func(topic string, payload []byte) []byte {
				return reqDelay(topic, 1000+int64(random.IntN(400)), payload)
			}
		case 2:
			bodies = []string{name + strings.Repeat("x", random.IntN(4000))}
		}
		o.sent(topic, bodies...)
		r, err := x.do(request(topic, batch(bodies...)))
		if err != nil {
			return nil // killed
		}
		if r.code != codeDone {
			return fmt.Errorf("publish %s: %v", name, r)
		}
		o.acked(topic, order, bodies...)
	}
}

// TestCase31KillWhenEmpty: starts on logs without a record work, and ids
// never go back.
func TestCase31KillWhenEmpty(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	s.kill()
	s.restart()
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	s.kill()
	s.restart()
	c = dial(t, s)
	if id := c.info("t").CreateEventID; id != 1 {
		t.Errorf("the first event has id %d", id)
	}
	c.ok(reqPub("t", message("one")))
	last := read(t, s, "t", 0, 1)[0].id
	root := filepath.FromSlash(c.info("t").TopicRoot)
	// Refused requests write nothing; the start after them is one more of a
	// log without a new record.
	c.refused(reqPub("none", message("x")), textNoTopic)
	s.kill()
	// Empty newest files, as a kill between creation and first write leaves.
	for _, dir := range []string{"binlog", filepath.Join("topic", root)} {
		next := len(logFiles(t, s, dir))
		if err := os.WriteFile(filepath.Join(s.dataDir(), dir, fmt.Sprintf("%d.log", next)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		s.restart()
		x := dial(t, s)
		x.sub(sub{topic: "t", who: "w", from: last, batch: 1})
		c = dial(t, s)
		c.ok(reqPub("t", message("next")))
		m := x.one("next")
		if m.id <= last {
			t.Fatalf("id %d after %d", m.id, last)
		}
		last = m.id
		s.kill()
	}
	// The last event is a delete: the topic's files are gone, its ids stay used.
	s.restart()
	c = dial(t, s)
	c.ok(reqDelete("t"))
	s.kill()
	s.restart()
	c = dial(t, s)
	c.ok(reqCreate("t", 0))
	if id := c.info("t").CreateEventID; id <= last+1 {
		t.Errorf("create has id %d, after a delete with more than %d", id, last)
	}
}

// TestCase33Lock: a killed server starts again at once, and a second one on
// the same directory is refused before it touches anything.
func TestCase33Lock(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	dial(t, s).ok(reqCreate("t", 0))
	for range scale(5, 20) {
		s.kill()
		s.restart()
	}
	c := dial(t, s)
	c.ok(reqPub("t", message("m")))
	// Badger goes on tidying up after a start for a moment.
	before := fileStates(t, s.dataDir())
	await(t, slack(10*time.Second), "the files stay as they are", func() bool {
		time.Sleep(300 * time.Millisecond) // twice Badger's own rhythm
		last := before
		before = fileStates(t, s.dataDir())
		return maps.Equal(last, before)
	})
	second := newServer(t, options{config: config{"store.path": s.dataDir()}})
	out := second.refusesToStart()
	if !strings.Contains(lastLine(out), s.dataDir()) {
		t.Errorf("the last line does not name the directory %s:\n%s", s.dataDir(), out)
	}
	for path, state := range fileStates(t, s.dataDir()) {
		// On a busy machine the tidying can come later still.
		if before[path] != state && filepath.Base(filepath.Dir(path)) != "meta" {
			t.Errorf("%s changed from %s to %s", path, before[path], state)
		}
	}
	c.ok(reqPub("t", message("m")))
	s.kill()
	s.restart()
	wantBodies(t, drain(t, s, "t"), "m", "m")
}

// fileStates describes every file by size and time.
func fileStates(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.Walk(root, func(p string, fi os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		if !fi.IsDir() {
			all[p] = fmt.Sprint(fi.Size(), " ", fi.ModTime().UnixNano())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestCase43SegmentsContinued: a restart goes on in the newest file as long
// as it is not full.
func TestCase43SegmentsContinued(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	const topics = 10
	c := dial(t, s)
	for i := range topics {
		c.ok(reqCreate(fmt.Sprint("t", i), 0))
	}
	restarts := scale(6, 20)
	for round := range restarts {
		c := dial(t, s)
		for i := range topics {
			c.ok(reqPub(fmt.Sprint("t", i), message(fmt.Sprint(round))))
		}
		if round%2 == 0 {
			s.stop()
		} else {
			s.kill()
		}
		s.restart()
	}
	if n := len(logFiles(t, s, "binlog")); n != 1 {
		t.Errorf("%d binlog files after %d restarts, want 1", n, restarts)
	}
	if n := len(logFiles(t, s, "topic")); n != topics {
		t.Errorf("%d files of %d topics after %d restarts, want one each", n, topics, restarts)
	}
	for i := range topics {
		msgs := read(t, s, fmt.Sprint("t", i), 0, restarts)
		for round, m := range msgs {
			if m.body != fmt.Sprint(round) || m.file != 0 {
				t.Fatalf("topic %d: message %d is %q in file %d", i, round, m.body, m.file)
			}
		}
	}
}

// TestCase85InterruptedStart: a signal at any moment of a start leaves data
// that the next start opens.
func TestCase85InterruptedStart(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{config: config{"store.maxLogSize": 100_000}})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	const n = 300
	for i := range n {
		c.ok(reqPub("t", message(fmt.Sprint(i)+strings.Repeat("x", 2000))))
	}
	c.ok(reqDelay("t", tenYears, message("far")))
	s.kill()
	// A torn tail gives the start something to mend.
	files := logFiles(t, s, "binlog")
	newest := files[0]
	for _, p := range files {
		if len(p) > len(newest) || len(p) == len(newest) && p > newest {
			newest = p
		}
	}
	f, err := os.OpenFile(newest, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("\x29\x00\x00\x001796073091860\t1\t"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		for step := range scale(8, 200) {
			if err := s.launch(); err != nil {
				t.Fatal(err)
			}
			// The moment of the signal is the subject.
			time.Sleep(time.Duration(step) * 10 * time.Millisecond)
			s.signal(sig)
			s.wait(slack(5 * time.Second))
		}
		s.restart()
		got := read(t, s, "t", 0, n)
		for i, m := range got {
			if !strings.HasPrefix(m.body, fmt.Sprint(i)+"x") {
				t.Fatalf("message %d is %.10q", i, m.body)
			}
		}
		s.stop()
		if got := countDelays(t, s); got != 1 {
			t.Errorf("%d delays pending, want 1", got)
		}
	}
}
