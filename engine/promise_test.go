package engine

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What each flush level promises, at every operation of the disk in a workload
// that rolls files, creates and deletes topics and fires delays: nothing that
// was acknowledged is lost when the process is killed, at any level; when the
// power goes, nothing at level 2, at most about a second at level 1, and at level
// 0 nothing of what a synced checkpoint covers.
//
//	SMSS_TEST_LONG=1   every operation, and more seeds, instead of a sample

// promised is a rig that stops at one of its operations.
type promised struct {
	*rig
	stopAt, ops int
	stopped     bool
	acks        []ack
	// safe is how many of acks must survive a power cut.
	safe int
}

// ack is a request that was sent; done says that it was acknowledged.
type ack struct {
	kind        Kind
	topic, body string
	at          time.Time
	done        bool
}

func newPromised(t *testing.T, lvl, stopAt int) *promised {
	p := &promised{stopAt: stopAt}
	p.rig = newRig(t, func(r *rig) {
		r.cfg.FlushLevel = lvl
		r.opt.MaxLogSize = 400
		r.opt.MaxOpenTopics = 2
	})
	p.disk.fail = func(op, _ string) error { return p.op() }
	p.meta.fail = func(string) error { return p.op() }
	return p
}

// op counts an operation. A write at which everything stops leaves its first
// half.
func (p *promised) op() error {
	if p.ops++; p.ops == p.stopAt {
		p.stopped = true
		return unix.ENOSPC
	}
	if p.stopped {
		return unix.EIO
	}
	return nil
}

// do sends a request and lets the engine go on until it is answered.
func (p *promised) do(cmd *Command, body string) {
	if p.stopped {
		return
	}
	p.acks = append(p.acks, ack{kind: cmd.Kind, topic: string(cmd.Topic()), body: body})
	a := &p.acks[len(p.acks)-1]
	p.push(cmd)
	for turns := 0; !a.done && !p.stopped; turns++ {
		if turns > 100 {
			p.t.Fatal("never answered")
		}
		p.turn()
		for _, s := range p.drain(0) {
			if s == any(cmd) {
				a.done, a.at = cmd.Err == nil, p.time.now()
				if !a.done && !p.stopped {
					p.t.Fatalf("refused: %v", cmd.Err)
				}
			}
		}
	}
	if p.cfg.FlushLevel == 2 {
		p.safe = len(p.acks)
	}
}

func (p *promised) pub(topic, body string) { p.do(p.command(Publish, topic, payload(body)), body) }

func (p *promised) delay(topic, body string, inMs int64) {
	c := p.command(Delay, topic, payload(body))
	c.TriggerAtMs = c.ReceivedAtMs + inMs
	p.do(c, body)
}

// pass lets time pass and does what is due by then.
func (p *promised) pass(d time.Duration) {
	if p.stopped {
		return
	}
	p.time.pass(d)
	for range 3 {
		p.turn()
		p.checkpoint()
	}
	if p.fireAll(); p.stopped || p.cfg.FlushLevel != 1 {
		return
	}
	for p.safe < len(p.acks) && p.time.now().Sub(p.acks[p.safe].at) >= syncEvery {
		p.safe++
	}
}

// firm takes the checkpoint that comes before retention.
func (p *promised) firm() {
	if p.stopped {
		return
	}
	n := len(p.acks)
	if p.settle(); !p.stopped {
		p.safe = max(p.safe, n)
	}
}

func (p *promised) workload() {
	body := 0
	pubs := func(topics ...string) {
		for _, topic := range topics {
			body++
			p.pub(topic, fmt.Sprintf("m%02d-%s", body, strings.Repeat("x", body*37%150)))
		}
	}
	for _, topic := range []string{"a", "b", "c"} {
		p.do(p.command(Create, topic, nil), "")
	}
	pubs("a", "b", "a", "c")
	p.delay("a", "delayed 1", 3000)
	p.delay("c", "delayed 2", 60_000)
	p.pass(600 * time.Millisecond)
	pubs("b", "b", "c")
	p.pass(700 * time.Millisecond)
	pubs("a", "b", "c", "a")
	p.do(p.command(Delete, "b", nil), "")
	pubs("a", "c")
	p.firm()
	p.do(p.command(Create, "b", nil), "")
	p.delay("b", "delayed 3", 500)
	pubs("b", "a")
	p.pass(time.Second)
	pubs("a", "b", "c")
	p.do(p.command(Delete, "c", nil), "")
	p.pass(1500 * time.Millisecond)
	pubs("a")
	p.pass(300 * time.Millisecond)
}

// check compares what a start finds with what was acknowledged, of which the
// first safe must be there.
func (p *promised) check(safe int, what string) {
	p.t.Helper()
	lives := map[string]int{} // where each topic's last life begins
	ended := map[string]bool{}
	for i, a := range p.acks {
		switch a.kind {
		case Create:
			lives[a.topic], ended[a.topic] = i, false
		case Delete:
			ended[a.topic] = true
			if a.done && i < safe && p.e.Lookup([]byte(a.topic)) != nil && !p.createdAgain(i) {
				p.t.Fatalf("%s: %s is there, it was deleted", what, a.topic)
			}
		}
	}
	for name, from := range lives {
		topic := p.e.Lookup([]byte(name))
		must := func(i int) bool { return p.acks[i].done && i < safe && !ended[name] }
		if topic == nil {
			if must(from) {
				p.t.Fatalf("%s: there is no topic %s", what, name)
			}
			continue
		}
		have, last := map[string]bool{}, int64(0)
		for _, m := range p.read(name) {
			if have[m.body] || m.id <= last {
				p.t.Fatalf("%s: %s: %q with id %d follows %d, seen before: %v", what, name, m.body, m.id, last, have[m.body])
			}
			have[m.body], last = true, m.id
		}
		known := 0
		for i, a := range p.acks {
			if a.topic != name || a.body == "" {
				continue
			}
			if have[a.body] {
				known++
			}
			if i < from || !must(i) {
				continue
			}
			if pending := a.kind == Delay && p.isPending(a.body); have[a.body] == pending {
				p.t.Fatalf("%s: %s: %q is delivered %v, pending %v", what, name, a.body, have[a.body], pending)
			}
		}
		if known != len(have) {
			p.t.Fatalf("%s: %s holds what was never published: %v", what, name, have)
		}
	}
}

func (p *promised) createdAgain(deleted int) bool {
	for _, a := range p.acks[deleted+1:] {
		if a.kind == Create && a.topic == p.acks[deleted].topic {
			return true
		}
	}
	return false
}

func (p *promised) isPending(body string) bool {
	p.meta.mu.Lock()
	defer p.meta.mu.Unlock()
	for k, v := range p.meta.keys {
		if strings.HasPrefix(k, delayPrefix) && strings.Contains(v, body) {
			return true
		}
	}
	return false
}

func TestPromiseOfEachLevel(t *testing.T) {
	step, seeds := 5, uint64(1)
	switch {
	case os.Getenv("SMSS_TEST_LONG") != "":
		step, seeds = 1, 10
	case raceEnabled:
		step = 23
	}
	for lvl := range 3 {
		whole := newPromised(t, lvl, 0)
		whole.workload()
		if whole.check(len(whole.acks), "without a stop"); whole.safe < len(whole.acks)/2 {
			t.Fatalf("level %d: only %d of %d are promised", lvl, whole.safe, len(whole.acks))
		}
		for at := 1 + lvl; at <= whole.ops; at += step {
			for seed := range seeds + 1 {
				p := newPromised(t, lvl, at)
				p.workload()
				what := fmt.Sprintf("level %d, stop at operation %d of %d, seed %d", lvl, at, whole.ops, seed)
				p.disk.fail, p.meta.fail = nil, nil
				safe := len(p.acks)
				if seed > 0 { // else the process is killed
					p.cutPower(rand.New(rand.NewPCG(seed, uint64(at))))
					safe = p.safe
				}
				p.open()
				p.check(safe, what)
			}
		}
	}
}
