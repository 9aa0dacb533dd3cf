package bench

import (
	"os"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	c, err := parseStat([]byte("42 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 150 25 0 0 20 0 7 0 1"))
	if err != nil || c.user != 1500*time.Millisecond || c.system != 250*time.Millisecond || c.total != c.user+c.system {
		t.Fatalf("%+v, %v", c, err)
	}
	for _, bad := range []string{"", "42 (x", "42 (x) S 1 2", "42 (x) S 1 2 3 4 5 6 7 8 9 10 a b"} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestParseStatus(t *testing.T) {
	m, err := parseStatus([]byte("Name:\tx\nVmHWM:\t   300 kB\nVmRSS:\t     200 kB\nThreads:\t4\n"))
	if err != nil || m.resident != 200<<10 || m.peak != 300<<10 {
		t.Fatalf("%+v, %v", m, err)
	}
	if _, err := parseStatus([]byte("Name:\tx\nState:\tZ (zombie)\n")); err == nil {
		t.Fatal("a process without memory was taken")
	}
}

func TestOwnProcess(t *testing.T) {
	c, err := processCPU(os.Getpid())
	if err != nil || c.total <= 0 {
		t.Fatalf("%+v, %v", c, err)
	}
	m, err := processMemory(os.Getpid())
	if err != nil || m.resident <= 0 || m.peak < m.resident {
		t.Fatalf("%+v, %v", m, err)
	}
	if ownCPU().total <= 0 {
		t.Fatal("no CPU of our own")
	}
	if _, err := processCPU(1 << 30); err == nil {
		t.Fatal("a process that is not there was measured")
	}
}
