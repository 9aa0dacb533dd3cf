package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestCase85InterruptedStop: a kill at any moment of a clean stop under load
// loses nothing that was acknowledged, and a stop that is not interrupted is
// found to be one.
func TestCase85InterruptedStop(t *testing.T) {
	t.Parallel()
	for level := range 3 {
		t.Run(fmt.Sprint("flushLevel=", level), func(t *testing.T) {
			t.Parallel()
			s := startServer(t, options{config: config{"store.flushLevel": level, "store.maxLogSize": 50_000}})
			dial(t, s).ok(reqCreate("t", 0))
			o := newOracle()
			for round := range scale(10, 100) {
				interruptedStop(t, s, o, round)
			}
			o.check(t, "t", drain(t, s, "t"))
			s.stop()
			s.verified()
		})
	}
}

func interruptedStop(t *testing.T, s *server, o *oracle, round int) {
	t.Helper()
	var wg sync.WaitGroup
	for p := range 2 {
		x := dial(t, s)
		wg.Go(func() {
			for n := 0; ; n++ {
				body := fmt.Sprintf("%d-%d-%d%s", round, p, n, strings.Repeat("x", n%3*500))
				o.sent("t", body)
				if x.doOK(reqPub("t", message(body))) != nil {
					return
				}
				o.acked("t", fmt.Sprint(p), body)
			}
		})
	}
	x := dial(t, s)
	for i := range 20 { // Badger has something to write at its end
		x.ok(reqDelay("t", tenYears, message(fmt.Sprint(round, i, strings.Repeat("d", 2000)))))
	}
	// The moments of the two signals are the subject.
	time.Sleep(100 * time.Millisecond)
	s.signal(syscall.SIGTERM)
	time.Sleep(time.Duration(round) * 10 * time.Millisecond)
	if s.running() {
		_ = syscall.Kill(s.pid, syscall.SIGKILL) // it may just have ended
	}
	s.wait(10 * time.Second)
	wg.Wait()
	s.restart()
	if round%3 == 2 {
		s.stop()
		want := 20 * (round + 1)
		if got := countDelays(t, s); got != want {
			t.Errorf("round %d: %d delays pending, want %d", round, got, want)
		}
		s.restart()
	}
}

// TestCase35SlowStart: signals at any moment of a start that has much to read
// change nothing: no delay is taken for due or applied twice, none is lost.
func TestCase35SlowStart(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{config: config{"store.flushLevel": 0, "store.maxLogSize": 1 << 20}})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	n := scale(200, 3000)
	for i := range n {
		c.ok(reqPub("t", message(fmt.Sprint(i, "-", strings.Repeat("x", 20_000)))))
	}
	for i := range 20 {
		c.ok(reqDelay("t", 1000+int64(i), message(fmt.Sprint("delayed ", i))))
	}
	far := 50
	for range far {
		c.ok(reqDelay("t", tenYears, message("far")))
	}
	s.kill()
	// All has to be read again: as if the machine had gone down.
	if err := os.RemoveAll(filepath.Join(s.dataDir(), "meta")); err != nil {
		t.Fatal(err)
	}
	for step := range scale(12, 60) {
		if err := s.launch(); err != nil {
			t.Fatal(err)
		}
		// The moment of the signal is the subject.
		time.Sleep(time.Duration(step) * 15 * time.Millisecond)
		s.signal([]syscall.Signal{syscall.SIGKILL, syscall.SIGTERM}[step%2])
		s.wait(slack(5 * time.Second))
	}
	s.restart()
	all := read(t, s, "t", 0, n+20)
	for i, m := range all {
		want := fmt.Sprint(i, "-")
		if i >= n {
			want = fmt.Sprint("delayed ", i-n)
		}
		if !strings.HasPrefix(m.body, want) {
			t.Fatalf("message %d is %.20q", i, m.body)
		}
	}
	if got := drain(t, s, "t"); len(got) != n+20 {
		t.Errorf("%d messages, want %d", len(got), n+20)
	}
	s.stop()
	if got := countDelays(t, s); got != far {
		t.Errorf("%d delays pending, want %d", got, far)
	}
}
