package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// server is what is measured. One that bench started has a process and a
// directory, both of which end with stop.
type server struct {
	name, addr string
	pid        int // 0: not known, no figures of the process
	dir        string
	command    *exec.Cmd
	ended      chan struct{} // closed when the process has ended, exit then says how
	exit       error
}

const (
	startTimeout = 60 * time.Second
	stopTimeout  = 15 * time.Second
)

// openServer starts this binary's server, or takes the one that -addr names.
func openServer(ctx context.Context, s *settings) (*server, error) {
	if s.Addr != "" {
		srv := &server{name: s.Addr, addr: s.Addr, pid: s.PID}
		if err := ping(ctx, s.Addr, time.Duration(s.Timeout)); err != nil {
			return nil, err
		}
		if _, err := processCPU(s.PID); s.PID != 0 && err != nil {
			return nil, fmt.Errorf("process %d cannot be measured: %w", s.PID, err)
		}
		return srv, nil
	}
	return startChild(ctx, "smss", s.dir, func(dir string, port int) ([]string, error) {
		config, err := serverConfig(s, filepath.Join(dir, "data"), port)
		if err != nil {
			return nil, err
		}
		file := filepath.Join(dir, "config.yaml")
		return []string{"-config", file}, os.WriteFile(file, config, 0o600)
	})
}

// openBare starts the bare server in a process of its own, so that its CPU
// can be told from the generator's.
func openBare(ctx context.Context, s *settings) (*server, error) {
	return startChild(ctx, "bare", s.dir, func(_ string, port int) ([]string, error) {
		return []string{"bench", "bare-server", "-port", strconv.Itoa(port), "-loops", strconv.Itoa(s.BareLoops)}, nil
	})
}

// startChild starts this binary with arguments made from a new temporary
// directory and a free port, and waits until it answers.
func startChild(ctx context.Context, name, parent string, arguments func(dir string, port int) ([]string, error)) (*server, error) {
	for attempt := 1; ; attempt++ {
		srv, err := tryChild(ctx, name, parent, arguments)
		// Between our finding a port free and the server's binding it somebody
		// else may have taken it.
		if err == nil || attempt == 3 || !strings.Contains(err.Error(), "address already in use") {
			return srv, err
		}
	}
}

func tryChild(ctx context.Context, name, parent string, arguments func(string, int) ([]string, error)) (*server, error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(parent, "smss-bench-")
	if err != nil {
		return nil, err
	}
	srv := &server{name: name, dir: dir, addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), ended: make(chan struct{})}
	args, err := arguments(dir, port)
	if err == nil {
		err = srv.launch(binary, args)
	}
	if err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("start %s server: %w", name, err)
	}
	if err := srv.awaitReady(ctx); err != nil {
		err = fmt.Errorf("start %s server: %w%s", name, err, srv.logTail())
		_ = srv.stop()
		return nil, err
	}
	return srv, nil
}

// launch runs the binary with its output in a file. The environment's SMSS_…
// settings stay here: they would override the configuration just written.
func (srv *server) launch(binary string, args []string) error {
	log, err := os.Create(filepath.Join(srv.dir, "server.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(binary, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = srv.dir, log, log
	cmd.SysProcAttr = childAttributes()
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "SMSS_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	srv.command, srv.pid = cmd, cmd.Process.Pid
	go func() {
		srv.exit = cmd.Wait()
		close(srv.ended)
	}()
	return nil
}

func (srv *server) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("no answer to ALIVE within %s", startTimeout))
	defer cancel()
	for {
		if ping(ctx, srv.addr, time.Second) == nil {
			return nil
		}
		select {
		case <-srv.ended:
			return fmt.Errorf("it ended: %w", exitError(srv.exit))
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func exitError(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// logTail is the end of the server's output, to follow an error message.
func (srv *server) logTail() string {
	b, _ := os.ReadFile(filepath.Join(srv.dir, "server.log"))
	b = bytes.TrimSpace(b)
	if i := len(b) - 1000; i > 0 {
		b = b[i:]
	}
	if len(b) == 0 {
		return ""
	}
	return ": " + string(b)
}

// stop ends a server that bench started and removes its directory.
func (srv *server) stop() error {
	if srv.command == nil {
		return nil
	}
	defer os.RemoveAll(srv.dir)
	_ = srv.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-srv.ended:
	case <-time.After(stopTimeout):
		_ = srv.command.Process.Kill()
		<-srv.ended
		return fmt.Errorf("%s server did not stop within %s of SIGTERM and was killed", srv.name, stopTimeout)
	}
	if srv.exit != nil {
		return fmt.Errorf("%s server: %w%s", srv.name, srv.exit, srv.logTail())
	}
	return nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
