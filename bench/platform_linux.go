package bench

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// poller is a level-triggered epoll instance whose file descriptors are known
// by an index that the caller chooses.
type poller struct {
	fd     int
	events [256]unix.EpollEvent
}

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	return &poller{fd: fd}, err
}

func (p *poller) add(fd, index int) error {
	return unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(index)})
}

// watchWrite says whether to report fd when it takes bytes again.
func (p *poller) watchWrite(fd, index int, on bool) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(index)}
	if on {
		ev.Events |= unix.EPOLLOUT
	}
	return unix.EpollCtl(p.fd, unix.EPOLL_CTL_MOD, fd, &ev)
}

// wait returns how many events there are, 0 after timeout.
func (p *poller) wait(timeout time.Duration) (int, error) {
	n, err := unix.EpollWait(p.fd, p.events[:], int(timeout.Milliseconds()))
	if err == unix.EINTR {
		return 0, nil
	}
	return n, err
}

// event returns the i-th event of the last wait. A broken connection is
// readable: the read tells why.
func (p *poller) event(i int) (index int, readable, writable bool) {
	ev := &p.events[i]
	return int(ev.Fd), ev.Events&^unix.EPOLLOUT != 0, ev.Events&unix.EPOLLOUT != 0
}

func (p *poller) close() { unix.Close(p.fd) }

// timer is a descriptor that becomes readable at a time, to the microsecond,
// where epoll waits in whole milliseconds.
type timer struct{ fd int }

func newTimer() (*timer, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	return &timer{fd}, err
}

// set makes it readable in d.
func (t *timer) set(d time.Duration) error {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(1, d.Nanoseconds()))}
	return unix.TimerfdSettime(t.fd, 0, &spec, nil)
}

// clear takes what made it readable.
func (t *timer) clear() {
	var b [8]byte
	_, _ = unix.Read(t.fd, b[:])
}

func (t *timer) close() { unix.Close(t.fd) }

// childAttributes puts a started server into a process group of its own, so
// that Ctrl-C on the terminal reaches bench alone, and lets the kernel end it
// should bench be killed.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

// bindSource chooses a connection's source address, the port being left to
// connect, which may use one port for several destinations.
func bindSource(fd int, addr [4]byte) error {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
		return err
	}
	return unix.Bind(fd, &unix.SockaddrInet4{Addr: addr})
}

// cpuClock reads the CPU time of a process, exact where /proc/PID/stat has
// ticks of 10 ms. The clock's number is made of the process id as
// clock_getcpuclockid(3) does it.
func cpuClock(pid int) (time.Duration, error) {
	const scheduled = 2
	var ts unix.Timespec
	err := unix.ClockGettime(int32(^pid<<3|scheduled), &ts)
	return time.Duration(ts.Nano()), err
}
