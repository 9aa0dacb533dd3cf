package main

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// resources is how the process divides what the system gives it.
type resources struct {
	loops       int // event loops
	connections int
	topicFiles  int // topic files kept open for appending
}

// The bounds of what is chosen automatically.
const (
	loopsMax       = 16
	connectionsMax = 65536
	// Descriptors beside connections and topic files: the binlog, Badger, the
	// loops, reads under way.
	ownReserve = 24
)

// raiseLimits raises the limit of descriptors as far as it goes, sets the
// memory limit, and divides both.
func (s *server) raiseLimits() resources {
	s.limitMemory()
	files := raiseDescriptors()
	var res resources
	res.loops = s.cfg.Limits.EventLoops
	if res.loops == 0 {
		res.loops = min(max(runtime.GOMAXPROCS(0)-1, 1), loopsMax)
	}
	addProcessor()
	res.topicFiles = min(s.cfg.Store.MaxOpenFiles, max(8, files/8))
	reserve := openDescriptors() + res.topicFiles + ownReserve + s.cfg.Worker.Readers*2 + res.loops*2
	room := max(files-reserve, 1)
	switch want := s.cfg.Limits.MaxConnections; {
	case want == 0:
		res.connections = min(room, connectionsMax)
	case want > room:
		s.log.Warn().Int("limits.maxConnections", want).Int("possible", room).Int("descriptors", files).
			Msg("the limit of file descriptors does not allow so many connections; raise it (ulimit -n)")
		res.connections = room
	default:
		res.connections = want
	}
	return res
}

// addProcessor gives the scheduler one processor more than there are cores, so
// that one is idle while loops and writer all have theirs. A write of a batch is
// a system call of some hundred microseconds. With no idle processor the
// runtime's monitor takes the writer's away after 20 and starts a thread for it,
// and looks again every 20, for as long as the server is busy; with one it lets
// the call be, and sleeps. GOMAXPROCS wins. A single core is better off with one
// thread at a time.
func addProcessor() {
	if n := runtime.GOMAXPROCS(0); n > 1 && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(n + 1)
	}
}

// raiseDescriptors raises the soft limit to the hard one and returns it.
func raiseDescriptors() int {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return 1024
	}
	if lim.Cur < lim.Max {
		raised := unix.Rlimit{Cur: lim.Max, Max: lim.Max}
		if unix.Setrlimit(unix.RLIMIT_NOFILE, &raised) == nil {
			lim = raised
		}
	}
	return int(min(lim.Cur, math.MaxInt32))
}

func openDescriptors() int {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 16
	}
	return len(names)
}

// limitMemory sets the soft memory limit: GOMEMLIMIT wins, then the setting,
// then most of the container's limit.
func (s *server) limitMemory() {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	if v := s.cfg.Limits.MemoryBytes; v > 0 {
		debug.SetMemoryLimit(v)
		return
	}
	if v, ok := containerMemory("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"); ok {
		debug.SetMemoryLimit(v / 10 * 8)
	}
}

// containerMemory reads the first of the files that holds a limit.
func containerMemory(files ...string) (int64, bool) {
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		v, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		if err == nil && v > 0 && v < 1<<50 { // version 1 says "none" by a huge number
			return v, true
		}
	}
	return 0, false
}
