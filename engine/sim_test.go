package engine

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The simulator: clients that publish, delay, create, delete and subscribe,
// slow readers, faults of the disk, clocks that step, stops, kills and power
// cuts, all by one goroutine and one seed, on a disk in memory that forgets
// what was not synced. What must hold is the oracle's.
//
//	SMSS_SIM_SEEDS=N   runs seeds 1 to N instead of the fixed ones
//	SMSS_SIM_SEED=N    runs one seed and prints what it does

// simSteps is how many actions one seed takes.
const simSteps = 600

func TestSimulator(t *testing.T) {
	var seeds []uint64
	for seed := range uint64(60) {
		seeds = append(seeds, 1000+seed)
	}
	if v := os.Getenv("SMSS_SIM_SEEDS"); v != "" {
		n, err := strconv.ParseUint(v, 10, 32)
		if err != nil {
			t.Fatalf("SMSS_SIM_SEEDS: %v", err)
		}
		seeds = seeds[:0]
		for seed := range n {
			seeds = append(seeds, seed+1)
		}
	}
	verbose := false
	if v := os.Getenv("SMSS_SIM_SEED"); v != "" {
		seed, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatalf("SMSS_SIM_SEED: %v", err)
		}
		seeds, verbose = []uint64{seed}, true
	}
	var total simCounts
	start := time.Now()
	for i, seed := range seeds {
		runSim(t, seed, verbose, &total)
		if t.Failed() {
			return
		}
		if len(seeds) > 1000 && i%1000 == 999 {
			t.Logf("%d of %d seeds, %v", i+1, len(seeds), time.Since(start).Round(time.Second))
		}
	}
	t.Logf("%d seeds: %+v", len(seeds), total)
}

// TestSimulatorReproduces: the same seed does the same.
func TestSimulatorReproduces(t *testing.T) {
	for seed := uint64(1); seed <= 6; seed++ {
		var counts simCounts
		a, b := runSim(t, seed, false, &counts), runSim(t, seed, false, &counts)
		if !slices.Equal(a, b) {
			for i := range min(len(a), len(b)) {
				if a[i] != b[i] {
					t.Fatalf("seed %d: step %d is %q and %q", seed, i, a[i], b[i])
				}
			}
			t.Fatalf("seed %d: %d and %d steps", seed, len(a), len(b))
		}
	}
}

// simCounts says what the runs together have met, so that a simulator that has
// become tame is noticed.
type simCounts struct {
	Answers, Acked, Refused, Unknown, Seen, Fired int
	Stops, Kills, PowerCuts, Faults, Broken       int
}

type sim struct {
	*rig
	o       *oracle
	rnd     *rand.Rand
	seed    uint64
	verbose bool
	counts  *simCounts
	trace   []string

	loops   []*simLoop
	subs    []*simSub
	holders map[string]*simSub // by topic and name
	again   []*Read            // a reader waits for a deletion
	bodies  int
	maxMs   int64 // largest time of day so far

	failAfter, failFor int // operations until the disk fails, and how many do
	failWith           error
	syncAcks           int64 // oracle.acks when the sync under way began
	syncing            bool
	copy               *simSlave
}

func runSim(t *testing.T, seed uint64, verbose bool, counts *simCounts) []string {
	s := &sim{seed: seed, rnd: rand.New(rand.NewPCG(seed, 0)), verbose: verbose, counts: counts, holders: map[string]*simSub{}}
	s.o = newOracle(s)
	s.rig = newRig(t, func(r *rig) {
		r.cfg.FlushLevel = int(seed % 3)
		r.cfg.RingSize = 4 << s.rnd.IntN(3)
		r.cfg.MaxInflightBytes = 1000 + s.rnd.Int64N(4000)
		r.cfg.MaxPushBytes = 200 + s.rnd.IntN(2000)
		r.cfg.ReadAhead = []int{0, 500}[s.rnd.IntN(2)]
		r.cfg.MinFreeBytes = 1000
		r.opt.MaxLogSize = 200 + s.rnd.Int64N(3000)
		r.opt.MaxOpenTopics = 1 + s.rnd.IntN(3)
	})
	s.fatalf = s.failf
	s.newSlave()
	s.watch()
	s.started()
	for _, topic := range simTopics[:3] {
		s.create(s.loops[0], topic)
	}
	for range simSteps {
		s.act()
	}
	s.finish()
	s.tally()
	return s.trace
}

func (s *sim) failf(format string, args ...any) {
	s.t.Helper()
	from := max(0, len(s.trace)-40)
	s.t.Fatalf("seed %d (level %d), step %d: %s\nrun it alone with SMSS_SIM_SEED=%d; its last steps:\n%s",
		s.seed, s.cfg.FlushLevel, len(s.trace), fmt.Sprintf(format, args...), s.seed, strings.Join(s.trace[from:], "\n"))
}

func (s *sim) did(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf(format, args...))
	if s.verbose {
		s.t.Logf("%4d %s", len(s.trace), s.trace[len(s.trace)-1])
	}
}

// watch makes disk and metadata ask for faults.
func (s *sim) watch() {
	s.disk.fail = func(op, _ string) error { return s.fault(op) }
	s.meta.fail = s.fault
}

// fault lets the n-th operation fail. Operations whose order is not fixed by
// the seed do not count.
func (s *sim) fault(op string) error {
	switch op {
	case "write", "create", "truncate", "sync", "rename", "remove", "mkdir", "commit":
	default:
		return nil
	}
	if s.failAfter--; s.failAfter >= 0 || s.failFor <= 0 {
		return nil
	}
	s.failFor--
	s.counts.Faults++
	return s.failWith
}

func (s *sim) pick(list []string) string { return list[s.rnd.IntN(len(list))] }

// started is what follows an open.
func (s *sim) started() {
	s.e.scheduler.window = 1 + s.rnd.IntN(6)
	s.e.scheduler.wait, s.e.scheduler.lull = s.turn, s.turn
	s.loops, s.subs, s.again, s.syncing = nil, nil, nil, false
	clear(s.holders)
	for n := range s.cfg.Loops {
		s.loops = append(s.loops, &simLoop{s: s, n: n})
	}
	s.maxMs = max(s.maxMs, s.time.NowMs())
	if next := s.state.NextEventID; next <= s.o.maxID {
		s.failf("after a start the next id is %d, %d was acked", next, s.o.maxID)
	}
	s.o.check(true)
}

// turn steps the writer; what it waits for comes, too. See scheduler.wait.
func (s *sim) turn() {
	s.step()
	s.runSync()
}

func (s *sim) step() {
	s.e.writer.Step()
	if s.e.writer.sync.busy && !s.syncing {
		s.syncing, s.syncAcks = true, s.o.acks
	}
}

func (s *sim) runSync() bool {
	w := &s.e.writer
	select {
	case task := <-w.sync.tasks:
		err := task.Run()
		if err == nil {
			s.o.durable = s.syncAcks
		}
		s.syncing = false
		w.sync.done <- err
		s.step()
		return true
	default:
		return false
	}
}

func (s *sim) readOne() bool {
	var r *Read
	if len(s.again) > 0 {
		r, s.again = s.again[0], s.again[1:]
	} else {
		select {
		case r = <-s.e.reads:
		default:
			return false
		}
	}
	s.e.read(r, nil)
	if r.Kind == Locate && s.e.unsettled(r) {
		s.again = append(s.again, r)
		return true
	}
	r.Mailbox.Post(&r.note)
	return true
}

// act does one thing.
func (s *sim) act() {
	l := s.loops[s.rnd.IntN(len(s.loops))]
	topic := s.pick(simTopics)
	if !s.o.name(topic).live && s.rnd.IntN(3) > 0 {
		topic = s.pick(simTopics) // most requests are to topics that are there
	}
	switch n := s.rnd.IntN(1000); {
	case n < 220:
		s.publish(l, topic)
	case n < 280:
		s.delay(l, topic)
	case n < 330:
		s.create(l, topic)
	case n < 345:
		cmd, _ := l.command(Delete, topic, nil)
		s.o.name(topic).trying++
		s.did("delete %s", topic)
		l.push(cmd)
	case n < 385:
		s.resume(l, topic)
	case n < 400:
		if len(s.subs) > 0 {
			u := s.subs[s.rnd.IntN(len(s.subs))]
			if u.state == subParked || u.state == subHolding {
				s.did("%s leaves %s", u.sub.Who, u.sub.Topic.Meta.Name)
				u.leave()
			}
		}
	case n < 470:
		for _, u := range s.subs {
			if u.state == subHolding && s.rnd.IntN(2) == 0 {
				u.pump()
			}
		}
		s.did("acks")
	case n < 570:
		l.drain()
		s.did("loop %d drains", l.n)
	case n < 710:
		s.step()
		s.did("writer")
	case n < 780:
		s.did("sync %v", s.runSync())
	case n < 800:
		s.did("checkpoint %v", s.checkpoint())
	case n < 880:
		s.did("reader %v", s.readOne())
	case n < 930:
		s.e.scheduler.step()
		s.did("scheduler")
	case n < 970:
		s.tick()
	case n < 985:
		s.did("the slave takes %d records", s.follow(1+s.rnd.IntN(30)))
	default:
		s.disturb()
	}
	if s.e.lowDisk.Load() && s.rnd.IntN(20) == 0 {
		s.disk.setFree(1 << 30)
		s.e.checkDisk()
		s.did("space is free again")
	}
	if s.e.broken.Load() && s.rnd.IntN(10) == 0 {
		s.counts.Broken++
		s.crash(s.rnd.IntN(2) == 0)
	}
}

func (s *sim) publish(l *simLoop, topic string) {
	var bodies []string
	for range 1 + s.rnd.IntN(3) {
		bodies = append(bodies, s.body("p")+strings.Repeat(".", s.rnd.IntN(150)))
	}
	cmd, op := l.command(Publish, topic, payload(bodies...))
	op.bodies = bodies
	for _, b := range bodies {
		s.o.entries[b] = &entry{topic: topic}
	}
	s.did("publish %.6s… +%d to %s", bodies[0], len(bodies)-1, topic)
	l.push(cmd)
}

func (s *sim) delay(l *simLoop, topic string) {
	cmd, op := l.command(Delay, topic, payload(s.body("d")))
	cmd.TriggerAtMs = s.time.NowMs() + 1000 + s.rnd.Int64N(3)*500
	op.bodies = []string{fmt.Sprintf("d%d", s.bodies)}
	s.o.entries[op.bodies[0]] = &entry{topic: topic, delay: true, triggerMs: cmd.TriggerAtMs}
	s.did("delay %s to %s until %d", op.bodies[0], topic, cmd.TriggerAtMs)
	l.push(cmd)
}

func (s *sim) create(l *simLoop, topic string) {
	cmd, _ := l.command(Create, topic, nil)
	if s.rnd.IntN(3) == 0 {
		cmd.ExpireAtMs = cmd.ReceivedAtMs + minLifeMs + s.rnd.Int64N(20_000)
	}
	s.o.name(topic).trying++
	s.did("create %s until %d", topic, cmd.ExpireAtMs)
	l.push(cmd)
}

// resume subscribes from the beginning, or behind what some subscriber has
// seen last.
func (s *sim) resume(l *simLoop, topic string) {
	from, life := int64(0), int64(0)
	for _, r := range s.o.readings {
		if r.topic == topic && len(r.got) > 0 && s.rnd.IntN(2) == 0 {
			from, life = r.got[len(r.got)-1].id, r.life
		}
	}
	who := s.pick([]string{"x", "y", "z"})
	s.did("%s subscribes to %s behind %d", who, topic, from)
	s.subscribe(l, topic, who, from, life, 1+s.rnd.IntN(4))
}

func (s *sim) tick() {
	switch s.rnd.IntN(12) {
	case 0:
		step := s.rnd.Int64N(20_000) - 10_000
		s.time.nowMs.Add(step)
		s.did("the clock steps by %d", step)
	default:
		d := time.Duration(s.rnd.IntN(600)) * time.Millisecond
		s.time.pass(d)
		s.did("%v pass", d)
	}
	s.maxMs = max(s.maxMs, s.time.NowMs())
}

func (s *sim) tally() {
	for _, e := range s.o.entries {
		switch e.fate {
		case acked:
			s.counts.Acked++
		case refused:
			s.counts.Refused++
		case unknown:
			s.counts.Unknown++
		}
		if e.storedID != 0 {
			s.counts.Seen++
			if e.delay {
				s.counts.Fired++
			}
		}
	}
	s.counts.Answers += int(s.o.acks)
}
