package bench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime is what a process has used. User and system come from
// /proc/PID/stat in ticks of 10 ms; the total is exact where the system lets
// us read the process's clock.
type cpuTime struct{ total, user, system time.Duration }

func (c cpuTime) since(start cpuTime) cpuTime {
	return cpuTime{c.total - start.total, c.user - start.user, c.system - start.system}
}

func processCPU(pid int) (cpuTime, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return cpuTime{}, err
	}
	c, err := parseStat(b)
	if err != nil {
		return cpuTime{}, err
	}
	if exact, err := cpuClock(pid); err == nil {
		c.total = exact
	}
	return c, nil
}

// clockTick is the unit of /proc/PID/stat: USER_HZ is 100 on every platform
// that Go runs on.
const clockTick = 10 * time.Millisecond

// parseStat reads utime and stime, fields 14 and 15. The name in field 2 may
// contain anything, so that counting starts behind its closing bracket.
func parseStat(stat []byte) (cpuTime, error) {
	_, rest, ok := bytes.Cut(stat[max(0, bytes.LastIndexByte(stat, ')')):], []byte(") "))
	f := bytes.Fields(rest)
	if !ok || len(f) < 13 {
		return cpuTime{}, errors.New("process statistics have an unknown form")
	}
	user, err1 := strconv.ParseInt(string(f[11]), 10, 64)
	system, err2 := strconv.ParseInt(string(f[12]), 10, 64)
	c := cpuTime{user: time.Duration(user) * clockTick, system: time.Duration(system) * clockTick}
	c.total = c.user + c.system
	return c, errors.Join(err1, err2)
}

// ownCPU is what this process has used, children apart.
func ownCPU() cpuTime {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return cpuTime{}
	}
	c := cpuTime{user: time.Duration(u.Utime.Nano()), system: time.Duration(u.Stime.Nano())}
	c.total = c.user + c.system
	return c
}

// memory is in bytes; peak is the highest resident size since the process
// started.
type memory struct{ resident, peak int64 }

func processMemory(pid int) (memory, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return memory{}, err
	}
	return parseStatus(b)
}

func parseStatus(status []byte) (memory, error) {
	var m memory
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		var kib int64
		if _, err := fmt.Sscanf(value, "%d kB", &kib); err != nil {
			continue
		}
		switch name {
		case "VmRSS":
			m.resident = kib << 10
		case "VmHWM":
			m.peak = kib << 10
		}
	}
	if m.resident == 0 {
		return m, errors.New("process has no memory figures (has it ended?)")
	}
	return m, nil
}
