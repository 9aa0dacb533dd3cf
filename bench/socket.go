package bench

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// dialer opens raw sockets, non-blocking once connected. The sockets stay
// outside of Go's network poller: the generator polls them itself.
type dialer struct {
	addr *net.TCPAddr
	// source counts through 127.0.0.1, 127.0.0.2 …: one address has less than
	// 65,536 ports, and by default Linux hands out 28,232 of them.
	source byte
}

func newDialer(addr string) (*dialer, error) {
	a, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", addr, err)
	}
	if a.IP == nil {
		a.IP = net.IPv4(127, 0, 0, 1)
	}
	return &dialer{addr: a}, nil
}

const connectTimeout = 10 * time.Second

func (d *dialer) dial() (int, error) {
	for {
		fd, err := d.connect()
		if err == nil {
			return fd, nil
		}
		switch {
		case errors.Is(err, unix.EADDRNOTAVAIL) && d.addr.IP.IsLoopback() && d.addr.IP.To4() != nil && d.source < 250:
			d.source = max(2, d.source+1) // 0 stands for the system's choice, 127.0.0.1
			continue
		case errors.Is(err, unix.EMFILE):
			return -1, errors.New("connect: out of file descriptors; raise the limit (ulimit -n) or use fewer connections")
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINPROGRESS):
			return -1, fmt.Errorf("connect to %s: no answer within %s", d.addr, connectTimeout)
		}
		return -1, fmt.Errorf("connect to %s: %w", d.addr, err)
	}
}

func (d *dialer) connect() (fd int, err error) {
	family, to := unix.AF_INET, unix.Sockaddr(nil)
	if ip4 := d.addr.IP.To4(); ip4 != nil {
		to = &unix.SockaddrInet4{Port: d.addr.Port, Addr: [4]byte(ip4)}
	} else {
		family, to = unix.AF_INET6, &unix.SockaddrInet6{Port: d.addr.Port, Addr: [16]byte(d.addr.IP)}
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM, 0)
	if err != nil {
		return -1, err
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	unix.CloseOnExec(fd)
	if d.source > 0 {
		if err = bindSource(fd, [4]byte{127, 0, 0, d.source}); err != nil {
			return -1, err
		}
	}
	// On Linux the send timeout also bounds connect.
	timeout := unix.NsecToTimeval(int64(connectTimeout))
	if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout); err != nil {
		return -1, err
	}
	for {
		if err = unix.Connect(fd, to); err != unix.EINTR {
			break
		}
	}
	if err != nil && err != unix.EISCONN { // EISCONN: done while a signal interrupted
		return -1, err
	}
	if err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return -1, err
	}
	return fd, unix.SetNonblock(fd, true)
}

// reserveDescriptors raises the limit of open files to n and some, as far as
// the system lets it; a limit that stays too low shows when dialing.
func reserveDescriptors(n int) {
	want := uint64(n) + 256
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &lim) != nil || uint64(lim.Cur) >= want {
		return
	}
	higher := unix.Rlimit{Cur: want, Max: max(want, lim.Max)} // above Max only root may
	if unix.Setrlimit(unix.RLIMIT_NOFILE, &higher) != nil {
		lim.Cur = lim.Max
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &lim)
	}
}

// closedText is why a read of 0 bytes or a failed one ended a connection.
func closedText(err error) string {
	if err == nil {
		return "connection closed by the server"
	}
	return "connection: " + err.Error()
}

// isTerminal reports whether w is one.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	_, err = unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}
