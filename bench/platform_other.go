//go:build !linux

package bench

import (
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The generator is built on epoll and the figures on /proc. Elsewhere the
// package compiles, so that the rest of the binary is of use, and says no.
var errPlatform = errors.New("the load generator needs Linux")

type poller struct{}

func newPoller() (*poller, error)               { return nil, errPlatform }
func (*poller) add(int, int) error              { return errPlatform }
func (*poller) watchWrite(int, int, bool) error { return errPlatform }
func (*poller) wait(time.Duration) (int, error) { return 0, errPlatform }
func (*poller) event(int) (int, bool, bool)     { return 0, false, false }
func (*poller) close()                          {}

type timer struct{ fd int }

func newTimer() (*timer, error)        { return nil, errPlatform }
func (*timer) set(time.Duration) error { return errPlatform }
func (*timer) clear()                  {}
func (*timer) close()                  {}

func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
func bindSource(fd int, addr [4]byte) error { return unix.Bind(fd, &unix.SockaddrInet4{Addr: addr}) }
func cpuClock(int) (time.Duration, error)   { return 0, errPlatform }
