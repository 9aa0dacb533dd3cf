package storage

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smss/codec"
)

// What a test knows of an event.
type outcome int

const (
	failed    outcome = iota // refused: must be nowhere
	unknown                  // the process or the machine stopped in it
	committed                // survives a killed process
	synced                   // survives a power cut
)

type event struct {
	kind   codec.Command
	topic  string
	ids    []int64
	bodies []string
	key    DelayKey // of a Delay or DelayApply
	is     outcome
}

// oracle drives a world and remembers what it was told.
type oracle struct {
	*world
	events []*event
	fatal  error
	// refused, if set, is called after an event that failed.
	refused func()
}

// run performs one event and files its outcome.
func (o *oracle) run(kind codec.Command, topic string, bodies []string, do func(e *event) error) {
	e := &event{kind: kind, topic: topic, bodies: bodies, is: unknown}
	first := o.nextID
	o.events = append(o.events, e)
	err := do(e)
	for id := first; id < o.nextID; id++ {
		e.ids = append(e.ids, id)
	}
	switch {
	case err == nil:
		e.is = committed
	case o.stopped(err):
	default:
		e.is = failed
		if o.refused != nil {
			o.refused()
		}
	}
}

// stopped notes an error after which nothing more may be done.
func (o *oracle) stopped(err error) bool {
	var fatal *FatalError
	if errors.As(err, &fatal) || errors.Is(err, errCrashed) || o.mem().crashed {
		o.fatal = err
		return true
	}
	return false
}

func (o *oracle) over() bool { return o.fatal != nil || o.mem().crashed }

func (o *oracle) doPub(topic string, bodies ...string) {
	if o.over() || o.topics[topic] == nil {
		return
	}
	o.run(codec.Pub, topic, bodies, func(*event) error { _, err := o.tryPub(topic, bodies...); return err })
}

func (o *oracle) doCreate(topic string) {
	if !o.over() {
		o.run(codec.CreateTopic, topic, nil, func(*event) error { return o.tryCreate(topic) })
	}
}

func (o *oracle) doDelete(topic string) {
	if !o.over() && o.topics[topic] != nil {
		o.run(codec.DeleteTopic, topic, nil, func(*event) error { return o.tryDelete(topic) })
	}
}

func (o *oracle) doDelay(topic, body string) (k DelayKey) {
	if !o.over() && o.topics[topic] != nil {
		o.run(codec.Delay, topic, []string{body}, func(e *event) (err error) {
			k, err = o.tryDelay(topic, 1000+o.nextID, body)
			e.key = k
			return err
		})
	}
	return k
}

func (o *oracle) doFire(k DelayKey, body string) {
	if o.over() || k.Topic == "" || o.topics[k.Topic] == nil {
		return
	}
	if _, ok, err := o.meta.DelayPayload(k); err != nil || !ok {
		return // putting it failed
	}
	o.run(codec.DelayApply, k.Topic, []string{body}, func(e *event) error {
		e.key = k
		_, err := o.tryFire(k)
		return err
	})
}

// doSync syncs the binlog as at flush level 2, and files what that covers.
func (o *oracle) doSync() {
	if o.over() {
		return
	}
	if err := o.trySync(); err != nil {
		o.fatal = err
		return
	}
	for _, e := range o.events {
		if e.is == committed {
			e.is = synced
		}
	}
}

func (o *oracle) doCheckpoint() {
	at := o.s.BinlogEnd()
	if o.doSync(); o.over() {
		return
	}
	if err := o.s.BeginCheckpoint(at, o.nextID, true).Run(); err != nil {
		o.stopped(err)
	}
}

// scenario does everything that a store does: several topics whose files roll,
// also within a batch, delays that are put and fired, topics that are deleted
// and made again, syncs, checkpoints, a clean stop, retention and trash.
func (o *oracle) scenario() {
	n := 0
	body := func(size int) string { n++; return fmt.Sprintf("m%d-%s", n, strings.Repeat("x", size)) }
	round := func() {
		o.doPub("a", body(10))
		o.doPub("b", body(30), body(30), body(700), body(5))
		o.doSync()
		o.doPub("a", body(900))
		o.doPub("c", body(10), body(20))
	}
	for _, name := range []string{"a", "b", "c"} {
		o.doCreate(name)
	}
	round()
	k1 := o.doDelay("a", "delayed 1")
	k2 := o.doDelay("c", "delayed 2")
	o.doCheckpoint()
	round()
	o.doFire(k1, "delayed 1")
	o.doPub("b", body(1200), body(10))
	o.doDelete("c")
	round()
	o.doFire(k2, "delayed 2")
	o.doCreate("c")
	o.doPub("c", body(10), body(1000))
	k3 := o.doDelay("c", "delayed 3")
	o.doCheckpoint()
	if !o.over() {
		if err := o.s.EmptyTrash(); err != nil {
			o.stopped(err)
		}
	}
	round()
	o.doFire(k3, "delayed 3")
	o.doPub("a", body(10))
	o.doDelay("a", "delayed 4")
}

func newOracle(t testing.TB) *oracle {
	w := newWorld(t, 1000).memory()
	w.opt.MaxOpenTopics = 2
	return &oracle{world: w}
}

// check compares a world that was opened after a stop with what the oracle
// knows. least is the outcome from which on an event must be there.
func (o *oracle) check(c *world, least outcome, what string) {
	o.t.Helper()
	type life struct {
		create, end *event
		all         []*event
	}
	if c.noted("written again from the binlog") || len(c.missing()) > 0 {
		o.t.Fatalf("%s: nobody has cut anything: %q, %v", what, c.notes, c.damages)
	}
	lives := map[string]*life{}
	var names []string
	for _, e := range o.events {
		if e.is == failed {
			continue
		}
		for _, id := range e.ids {
			if e.is >= committed && id >= c.state.NextEventID {
				o.t.Fatalf("%s: next id is %d, event %d was given out", what, c.state.NextEventID, id)
			}
		}
		switch e.kind {
		case codec.CreateTopic:
			lives[e.topic] = &life{create: e}
			if !slices.Contains(names, e.topic) {
				names = append(names, e.topic)
			}
		case codec.DeleteTopic:
			lives[e.topic].end = e
		default:
			lives[e.topic].all = append(lives[e.topic].all, e)
		}
	}
	for name := range c.topics {
		if lives[name] == nil {
			o.t.Fatalf("%s: there is a topic %s", what, name)
		}
	}
	for _, name := range names {
		l := lives[name]
		there := c.topics[name] != nil
		if there && l.end != nil && l.end.is >= least {
			o.t.Fatalf("%s: topic %s is there, it was deleted", what, name)
		}
		if !there {
			if l.create.is >= least && l.end == nil {
				o.t.Fatalf("%s: topic %s is not there", what, name)
			}
			continue
		}
		o.checkTopic(c, name, l.all, least, what)
	}
}

func (o *oracle) checkTopic(c *world, name string, all []*event, least outcome, what string) {
	o.t.Helper()
	have := map[string]int64{}
	last := int64(0)
	for _, g := range c.read(name) {
		if _, twice := have[g.body]; twice || g.id <= last {
			o.t.Fatalf("%s: %s: message %d:%.20s follows %d, seen before: %v", what, name, g.id, g.body, last, twice)
		}
		have[g.body], last = g.id, g.id
	}
	lastIn, expected := int64(0), 0
	for _, e := range all {
		if e.kind == codec.Delay {
			continue
		}
		for i, body := range e.bodies {
			id, there := have[body]
			if there {
				expected++
			}
			if !there && e.is >= least {
				o.t.Fatalf("%s: %s: message %.20s of event %d is missing; it holds %v", what, name, body, e.ids[0], sortedKeys(have))
			}
			if there && (id != e.ids[i] || id <= lastIn) {
				o.t.Fatalf("%s: %s: message %.20s has id %d, was given %d", what, name, body, id, e.ids[i])
			}
			lastIn = max(lastIn, id)
		}
	}
	if expected != len(have) {
		o.t.Fatalf("%s: %s holds messages that are not its own: %v", what, name, sortedKeys(have))
	}
	// A delayed message is pending or was delivered, never both, and never
	// neither once its acceptance is sure.
	for _, e := range all {
		if e.kind != codec.Delay {
			continue
		}
		_, pending, err := c.s.Meta().DelayPayload(e.key)
		must(o.t, err)
		_, delivered := have[e.bodies[0]]
		if pending && delivered || (!pending && !delivered && e.is >= least) {
			o.t.Fatalf("%s: %s: %s is pending: %v, delivered: %v", what, name, e.bodies[0], pending, delivered)
		}
	}
}

// reopened opens a world after a stop, checks it, writes to it, and checks
// that this is there after a second power cut.
func (o *oracle) reopened(c *world, least outcome, what string, rnd *rand.Rand) {
	o.t.Helper()
	if err := c.tryOpen(); err != nil {
		o.t.Fatalf("%s: open: %v", what, err)
	}
	o.check(c, least, what)
	want := map[string][]got{}
	for _, name := range sortedKeys(c.topics) {
		c.pub(name, "then "+name, strings.Repeat("y", 500))
		want[name] = c.read(name)
	}
	if err := c.trySync(); err != nil {
		o.t.Fatalf("%s: sync: %v", what, err)
	}
	d := c.unplugged(rnd)
	if err := d.tryOpen(); err != nil {
		o.t.Fatalf("%s: open after another power cut: %v", what, err)
	}
	for name, have := range want {
		if d.topics[name] == nil || !sameMessages(d.read(name), have) {
			o.t.Fatalf("%s: after another power cut %s holds %v, want %v", what, name, d.read(name), have)
		}
	}
}

func sameMessages(a, b []got) bool {
	return slices.EqualFunc(a, b, func(x, y got) bool { return x.id == y.id && x.body == y.body })
}

// sample returns how much of a test's cases to take: all of them with
// SMSS_TEST_LONG=1, fewer in CI, and fewer still under the race detector, which
// looks for something else.
func sample(all, plain, race int) int {
	switch {
	case os.Getenv("SMSS_TEST_LONG") != "":
		return all
	case raceEnabled:
		return race
	}
	return plain
}

// seeds returns the seeds of a test's random choices: n of them, as many as
// SMSS_TEST_SEEDS says, or the one of SMSS_TEST_SEED.
func seeds(t testing.TB, n int) []uint64 {
	t.Helper()
	if s := os.Getenv("SMSS_TEST_SEED"); s != "" {
		v, err := strconv.ParseUint(s, 10, 64)
		must(t, err)
		return []uint64{v}
	}
	if s := os.Getenv("SMSS_TEST_SEEDS"); s != "" {
		v, err := strconv.Atoi(s)
		must(t, err)
		n = v
	}
	out := make([]uint64, n)
	for i := range out {
		out[i] = uint64(i + 1)
	}
	return out
}

func scenarioOps(t testing.TB) int {
	o := newOracle(t)
	o.open().t.Helper()
	o.scenario()
	if o.fatal != nil {
		t.Fatal(o.fatal)
	}
	for _, e := range o.events {
		if e.is < committed {
			t.Fatalf("without a fault event %+v failed", e)
		}
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	o.reopened(o.killed(), committed, "no fault", rnd)
	n := o.mem().ops
	o.close()
	c := o.killed()
	must(t, c.tryOpen())
	o.check(c, committed, "clean stop")
	if c.state.Replayed != 0 {
		t.Errorf("after a clean stop %d events were replayed", c.state.Replayed)
	}
	return n
}

func TestScenarioWithoutFaults(t *testing.T) {
	t.Logf("%d operations", scenarioOps(t))
}

func TestEveryOperationFails(t *testing.T) {
	n := scenarioOps(t)
	kinds := []error{unix.ENOSPC, unix.EIO, unix.EMFILE}
	for at := 1; at <= n; at += sample(1, 1, 2) {
		kind := kinds[at%len(kinds)]
		o := newOracle(t)
		o.mem().failAt, o.mem().failErr = at, kind
		what := func() string { return fmt.Sprintf("operation %d (%s) fails with %v", at, o.mem().failed, kind) }
		if err := o.tryOpen(); err != nil {
			if !errors.Is(err, kind) {
				t.Fatalf("%s: open: %v", what(), err)
			}
			must(t, o.tryOpen())
		}
		o.refused = func() {
			for seed := range uint64(10) {
				c := o.unplugged(rand.New(rand.NewPCG(seed, uint64(at))))
				must(t, c.tryOpen())
				o.check(c, synced, what()+", unplugged at once")
			}
		}
		o.scenario()
		if o.fatal != nil && !strings.Contains(o.mem().failed, "sync") {
			t.Fatalf("%s: that is no reason to stop writing: %v", what(), o.fatal)
		}
		if o.fatal == nil && strings.HasPrefix(o.mem().failed, "sync ") && !strings.Contains(o.mem().failed, ".new") && len(o.events) > 0 {
			t.Fatalf("%s: and nothing stopped", what())
		}
		rnd := rand.New(rand.NewPCG(uint64(at), 2))
		o.check(o.killed().open(), committed, what()+", killed")
		o.reopened(o.unplugged(rnd), synced, what()+", unplugged", rnd)
		if o.fatal == nil {
			// It goes on as if nothing had been.
			for _, name := range sortedKeys(o.topics) {
				o.doPub(name, "later "+name)
			}
			if o.fatal != nil {
				t.Fatalf("%s: later: %v", what(), o.fatal)
			}
			o.doSync()
		}
		o.kill()
		o.reopened(o.killed(), committed, what(), rnd)
	}
}

func TestCrashAtEveryOperation(t *testing.T) {
	n := scenarioOps(t)
	for at := 1; at <= n; at++ {
		for _, seed := range seeds(t, sample(12, 3, 1)) {
			o := newOracle(t)
			o.mem().crashAt = at
			if err := o.tryOpen(); err == nil {
				o.scenario()
			}
			what := fmt.Sprintf("stop at operation %d (%s), seed %d", at, o.mem().failed, seed)
			rnd := rand.New(rand.NewPCG(seed, uint64(at)))
			o.reopened(o.unplugged(rnd), synced, what+", power cut", rnd)
			if seed == 1 {
				o.reopened(o.killed(), committed, what+", kill", rnd)
			}
		}
	}
}

// A crash, and another one at every operation of the recovery from it.
func TestCrashDuringRecovery(t *testing.T) {
	n := scenarioOps(t)
	for _, seed := range seeds(t, sample(24, 6, 2)) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		for _, power := range []bool{false, true} {
			first := 1 + rnd.IntN(n)
			o := newOracle(t)
			o.mem().crashAt = first
			if err := o.tryOpen(); err == nil {
				o.scenario()
			}
			left := func() *world {
				if power {
					return o.unplugged(rand.New(rand.NewPCG(seed, 8)))
				}
				return o.killed()
			}
			least := committed
			if power {
				least = synced
			}
			for at := 1; ; at += 1 + rnd.IntN(3) {
				c := left()
				c.mem().crashAt = at
				err := c.tryOpen()
				what := fmt.Sprintf("seed %d, power %v: stop at operation %d, then at %d (%s)", seed, power, first, at, c.mem().failed)
				if err == nil {
					c.mem().crashAt = 0
					o.check(c, least, what)
					break
				}
				o.reopened(c.killed(), least, what+", kill", rnd)
				o.reopened(c.unplugged(rnd), synced, what+", power cut", rnd)
			}
		}
	}
}
