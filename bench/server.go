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
	binary     string
	foreign    bool // another program than this one
	arguments  []string
	command    *exec.Cmd
	killed     bool          // by us, and not started again
	ended      chan struct{} // closed when the process has ended, exit then says how
	exit       error
	follower   *follower // a slave that is watched together with it, or nil
}

const (
	startTimeout = 60 * time.Second
	stopTimeout  = 15 * time.Second
)

// side is one of the servers that a run measures.
type side struct {
	name string
	open func(context.Context) (*server, error)
}

// sides are the servers that a run measures alternately; ratios are to the
// first.
func (s *settings) sides() []side {
	bare := side{bareName, func(ctx context.Context) (*server, error) { return openBare(ctx, s) }}
	main := side{s.serverName(), func(ctx context.Context) (*server, error) { return openServer(ctx, s) }}
	switch {
	case s.Mode == "levels":
		return s.levelSides()
	case len(s.MinAcks) > 1:
		return s.ackSides()
	case s.Mode == "limit" && !s.compare:
		return []side{bare}
	case s.Against.name == bareName:
		return []side{bare, main}
	case s.Against.name != "":
		return []side{{s.Against.name, func(ctx context.Context) (*server, error) {
			return startServer(ctx, s, s.Against)
		}}, main}
	}
	return []side{main}
}

// levelSides are the same server at each flush level.
func (s *settings) levelSides() []side {
	var all []side
	for _, level := range s.Levels {
		at := *s
		at.Flush = level
		name := "level " + strconv.Itoa(level)
		all = append(all, side{name, func(ctx context.Context) (*server, error) {
			srv, err := startServer(ctx, &at, program{name, s.Server.path})
			return srv, err
		}})
	}
	return all
}

// openServer starts this binary's server or the one that -server names, or
// takes the one that -addr names.
func openServer(ctx context.Context, s *settings) (*server, error) {
	if s.Addr == "" {
		return startServer(ctx, s, program{s.serverName(), s.Server.path})
	}
	srv := &server{name: s.Addr, addr: s.Addr, pid: s.PID}
	if err := ping(ctx, s.Addr, time.Duration(s.Timeout)); err != nil {
		return nil, err
	}
	if _, err := processCPU(s.PID); s.PID != 0 && err != nil {
		return nil, fmt.Errorf("process %d cannot be measured: %w", s.PID, err)
	}
	return srv, nil
}

// startServer starts a server with a configuration of its own. This binary is
// told where it is; another one finds it in its working directory, which is
// what the existing server and this one have in common. Both take more flags.
func startServer(ctx context.Context, s *settings, p program, more ...string) (*server, error) {
	return startChild(ctx, p, s.dir, func(dir string, port int) ([]string, error) {
		file, err := writeConfig(s, dir, port, p.path != "")
		if err != nil || p.path != "" {
			return more, err
		}
		return append([]string{"-config", file}, more...), nil
	})
}

// writeConfig writes the configuration file of a server to where another
// binary looks for it.
func writeConfig(s *settings, dir string, port int, foreign bool) (string, error) {
	of := serverConfig
	if foreign {
		of = foreignConfig
	}
	config, err := of(s, filepath.Join(dir, "data"), port)
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "config", "config.yaml")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return "", err
	}
	return file, os.WriteFile(file, config, 0o600)
}

// openBare starts the bare server in a process of its own, so that its CPU
// can be told from the generator's.
func openBare(ctx context.Context, s *settings) (*server, error) {
	return startChild(ctx, program{name: bareName}, s.dir, func(_ string, port int) ([]string, error) {
		return []string{"bench", "bare-server", "-port", strconv.Itoa(port), "-bare-loops", strconv.Itoa(s.BareLoops)}, nil
	})
}

// startChild starts a program, this binary where it has no path, with
// arguments made from a new temporary directory and a free port, and waits
// until it answers.
func startChild(ctx context.Context, p program, parent string, arguments func(dir string, port int) ([]string, error)) (*server, error) {
	for attempt := 1; ; attempt++ {
		srv, err := tryChild(ctx, p, parent, arguments)
		// Between our finding a port free and the server's binding it somebody
		// else may have taken it.
		if err == nil || attempt == 3 || !strings.Contains(err.Error(), "address already in use") {
			return srv, err
		}
	}
}

func tryChild(ctx context.Context, p program, parent string, arguments func(string, int) ([]string, error)) (*server, error) {
	binary, err := filepath.Abs(p.path)
	if p.path == "" {
		binary, err = os.Executable()
	}
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
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	srv := &server{name: p.name, dir: dir, binary: binary, foreign: p.path != "", addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
	srv.arguments, err = arguments(dir, port)
	if err == nil {
		err = srv.launch()
	}
	if err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("start %s server: %w", p.name, err)
	}
	if err := srv.awaitReady(ctx, 20*time.Millisecond, startTimeout); err != nil {
		err = fmt.Errorf("start %s server: %w%s", p.name, err, srv.logTail())
		_ = srv.stop()
		return nil, err
	}
	return srv, nil
}

// launch runs the binary with its output in a file. The environment's SMSS_…
// settings stay here: they would override the configuration just written.
func (srv *server) launch() error {
	log, err := os.OpenFile(filepath.Join(srv.dir, "server.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(srv.binary, srv.arguments...)
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
	ended := make(chan struct{})
	srv.command, srv.pid, srv.ended, srv.exit, srv.killed = cmd, cmd.Process.Pid, ended, nil, false
	go func() {
		srv.exit = cmd.Wait()
		close(ended)
	}()
	return nil
}

// awaitReady asks until the server answers, with pauses of that length.
func (srv *server) awaitReady(ctx context.Context, pause, within time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("no answer to ALIVE within %s", within))
	defer cancel()
	for {
		if ping(ctx, srv.addr, 10*time.Second) == nil {
			return nil
		}
		select {
		case <-srv.ended:
			return fmt.Errorf("it ended: %w", exitError(srv.exit))
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// kill ends a server that bench started as a crash does, and waits for it.
func (srv *server) kill() {
	srv.killed = true
	_ = srv.command.Process.Kill()
	<-srv.ended
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
	if srv.killed {
		return nil
	}
	_ = srv.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-srv.ended:
	case <-time.After(stopTimeout):
		_ = srv.command.Process.Kill()
		<-srv.ended
		return fmt.Errorf("%s server did not stop within %s of SIGTERM and was killed", srv.name, stopTimeout)
	}
	if srv.exit != nil && !(srv.foreign && endedBy(srv.exit, syscall.SIGTERM)) {
		return fmt.Errorf("%s server: %w%s", srv.name, srv.exit, srv.logTail())
	}
	return nil
}

// endedBy says whether a signal ended a process: how one stops that does not
// handle it.
func endedBy(err error, sig syscall.Signal) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	st, ok := exit.Sys().(syscall.WaitStatus)
	return ok && st.Signaled() && st.Signal() == sig
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
