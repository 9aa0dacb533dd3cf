package test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gopkg.in/yaml.v3"
)

type removed struct{}

func (removed) String() string { return "absent" }

// absent as a configuration value removes the key.
var absent = removed{}

// baseConfig is the configuration that the existing server ships, key for
// key: its files must work here unchanged.
func baseConfig() map[string]any {
	return map[string]any{
		"host":                           "127.0.0.1",
		"log.path":                       "stdout",
		"log.sample":                     10000,
		"log.withGid":                    false,
		"log.rotate.maxSize":             500,
		"log.rotate.maxBackups":          10,
		"log.rotate.maxAge":              14,
		"store.path":                     "data",
		"store.maxLogSize":               1 << 30,
		"store.flushLevel":               1,
		"store.maxDays":                  7,
		"store.clearInterval":            7200,
		"store.waitDelLockTimeoutMs":     3000,
		"store.noCache":                  false,
		"store.folderCount":              10,
		"worker.buffSize":                1000,
		"worker.waitMsgTimeout":          1000,
		"worker.waitMsgTimeoutLogSample": 30,
		"timeout.net.write":              1000,
		"timeout.server.alive":           30000,
		"background.defaultScanSecond":   7200,
		"background.firstExecSecond":     1,
	}
}

// config overrides keys of baseConfig; keys are dotted paths.
type config map[string]any

// options say how a server is started; the zero value is a master with the
// base configuration on an empty directory.
type options struct {
	config config
	env    []string
	args   []string
	nofile int      // ulimit -n, hard and soft, when not 0
	dir    string   // working directory; empty = a fresh one
	noFile bool     // neither a configuration file nor -config
	first  bool     // run as process 1 of a PID namespace of its own
	uid    int      // run as this user and group when not 0; needs root
	wrap   []string // a command that runs the server, as which it keeps the process id
	host   string   // address to bind and to be reached at when not 127.0.0.1
}

// server is one server under test; restart starts it again on its directory.
type server struct {
	t    testing.TB
	opts options
	dir  string
	port int

	cmd    *exec.Cmd
	pid    int // of the server itself, also when it runs below a wrapper
	log    *logBuffer
	exited chan struct{} // closed after Wait
}

// logBuffer collects what the processes of one server print.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// ports remembers every port handed out, so that two servers of one run never
// get the same one, not even while one of them is being restarted.
var ports = struct {
	sync.Mutex
	used map[int]bool
}{used: map[int]bool{}}

// freePort picks below the kernel's ephemeral range, from which the many
// client sockets of the suite take theirs.
func freePort(t testing.TB) int {
	t.Helper()
	ports.Lock()
	defer ports.Unlock()
	for range 200 {
		p := 15000 + rand.IntN(17000)
		if ports.used[p] {
			continue
		}
		l, err := net.Listen("tcp", ":"+strconv.Itoa(p))
		if err != nil {
			continue
		}
		l.Close()
		ports.used[p] = true
		return p
	}
	t.Fatal("no free port")
	return 0
}

// startServer starts a server, waits until it answers ALIVE and stops it when
// the test ends, where a stop that is not clean fails the test.
func startServer(t testing.TB, opts options) *server {
	t.Helper()
	s := newServer(t, opts)
	for try := 0; ; try++ {
		s.port = freePort(t)
		err := s.start()
		if err == nil {
			break
		}
		// Another process took the port between the probe and the bind.
		if try < 3 && strings.Contains(s.log.String(), "address already in use") {
			continue
		}
		t.Fatalf("start: %v\n%s", err, s.log)
	}
	return s
}

// newServer prepares a directory; the caller starts the process.
func newServer(t testing.TB, opts options) *server {
	t.Helper()
	dir := opts.dir
	if dir == "" {
		dir = t.TempDir()
	}
	s := &server{t: t, opts: opts, dir: dir, log: &logBuffer{}}
	t.Cleanup(func() {
		t.Helper()
		if s.running() {
			s.stop()
		}
		s.checkLog()
		if t.Failed() {
			t.Logf("log of the server in %s:\n%s", filepath.Base(dir), tail(s.log.String(), 150))
		}
	})
	return s
}

func (s *server) configPath() string { return filepath.Join(s.dir, "config", "config.yaml") }
func (s *server) addr() string {
	return net.JoinHostPort(cmp.Or(s.opts.host, "127.0.0.1"), strconv.Itoa(s.port))
}

// dataDir is where store.path of the base configuration leads.
func (s *server) dataDir() string { return filepath.Join(s.dir, "data") }

// writeConfig writes the configuration file of the next start.
func (s *server) writeConfig() error {
	values := baseConfig()
	values["port"] = s.port
	values["host"] = cmp.Or(s.opts.host, "127.0.0.1")
	if !peer {
		values["admin.port"] = 0 // the servers of all tests would meet at the default
	}
	for k, v := range s.opts.config {
		values[k] = v
	}
	root := map[string]any{}
	for key, v := range values {
		if _, gone := v.(removed); gone {
			continue
		}
		node := root
		parts := strings.Split(key, ".")
		for _, p := range parts[:len(parts)-1] {
			next, ok := node[p].(map[string]any)
			if !ok {
				next = map[string]any{}
				node[p] = next
			}
			node = next
		}
		node[parts[len(parts)-1]] = v
	}
	text, err := yaml.Marshal(root)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.configPath()), 0o755); err != nil {
		return err
	}
	return os.WriteFile(s.configPath(), text, 0o644)
}

// command builds the process: the binary itself, or a shell that lowers a
// limit and becomes it, or unshare that makes it process 1.
func (s *server) command() *exec.Cmd {
	args := append([]string{serverBinary}, s.opts.args...)
	if !s.opts.noFile && !peer {
		args = append(args, "-config", s.configPath())
	}
	if s.opts.nofile > 0 {
		script := fmt.Sprintf(`ulimit -n %d && exec "$@"`, s.opts.nofile)
		args = append([]string{"sh", "-c", script, "sh"}, args...)
	}
	args = append(slices.Clone(s.opts.wrap), args...)
	if s.opts.first {
		args = append([]string{"unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = s.dir
	// A test process that dies must not leave servers behind.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if s.opts.uid != 0 {
		id := uint32(s.opts.uid)
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: id, Gid: id}
	}
	// Settings in the caller's environment are not part of a test.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "SMSS_") })
	cmd.Env = append(cmd.Env, s.opts.env...)
	cmd.Stdout, cmd.Stderr = s.log, s.log
	return cmd
}

// launch starts the process without waiting for it to serve.
func (s *server) launch() error {
	if !s.opts.noFile {
		if err := s.writeConfig(); err != nil {
			return err
		}
	}
	cmd := s.command()
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	s.cmd, s.pid, s.exited = cmd, cmd.Process.Pid, exited
	go func() {
		// The status is read from ProcessState; Wait's error repeats it.
		_ = cmd.Wait()
		close(exited)
	}()
	return nil
}

// start launches the process and waits until it answers ALIVE.
func (s *server) start() error {
	if err := s.launch(); err != nil {
		return err
	}
	deadline := time.Now().Add(slack(20 * time.Second))
	for {
		select {
		case <-s.exited:
			return fmt.Errorf("ended at start with %v", s.cmd.ProcessState)
		default:
		}
		c, err := dialErr(s.addr())
		if err == nil {
			c.limit = time.Second
			r, err := c.do(reqAlive(""))
			c.conn.Close()
			if err == nil && r.code == codeAlive {
				return s.findPID()
			}
		}
		if time.Now().After(deadline) {
			return errors.New("does not answer ALIVE")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// findPID looks below the unshare wrapper for the server's own process.
func (s *server) findPID() error {
	if !s.opts.first {
		return nil
	}
	p := s.cmd.Process.Pid
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", p, p))
	if err != nil {
		return err
	}
	s.pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
	return err
}

func (s *server) running() bool {
	if s.cmd == nil {
		return false
	}
	select {
	case <-s.exited:
		return false
	default:
		return true
	}
}

func (s *server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := syscall.Kill(s.pid, sig); err != nil {
		s.t.Fatalf("signal %v: %v; the last line of the log is\n%s", sig, err, lastLine(s.log.String()))
	}
}

// freeze stops the process without ending it, and waits until every thread of
// it stands: until then it still answers.
func (s *server) freeze() {
	s.t.Helper()
	s.signal(syscall.SIGSTOP)
	await(s.t, slack(10*time.Second), "the process stands", func() bool {
		states, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.pid))
		for _, name := range states {
			b, err := os.ReadFile(name)
			if _, rest, ok := strings.Cut(string(b), ") "); err == nil && (!ok || !strings.HasPrefix(rest, "T")) {
				return false
			}
		}
		return len(states) > 0
	})
}

// wait waits for the end of the process and returns its exit status, −1 when
// a signal ended it.
func (s *server) wait(limit time.Duration) int {
	s.t.Helper()
	select {
	case <-s.exited:
		return s.cmd.ProcessState.ExitCode()
	case <-time.After(limit):
		// Fatal would leave it running: the cleanup would then wait again.
		_ = syscall.Kill(s.pid, syscall.SIGQUIT) // the dump shows where it hangs
		select {
		case <-s.exited:
		case <-time.After(5 * time.Second):
			_ = s.cmd.Process.Kill()
			<-s.exited
		}
		s.t.Fatalf("still running after %v", limit)
		return -1
	}
}

// stop ends the server by SIGTERM and expects status 0.
func (s *server) stop() {
	s.t.Helper()
	s.signal(syscall.SIGTERM)
	status := s.wait(slack(5 * time.Second))
	if status != 0 && !peer {
		s.t.Errorf("exit status after SIGTERM is %d, want 0", status)
	}
}

// kill ends the server as a crash of the process would.
func (s *server) kill() {
	s.t.Helper()
	s.signal(syscall.SIGKILL)
	s.wait(10 * time.Second)
}

// restart starts the server again on the same directory and port.
func (s *server) restart() {
	s.t.Helper()
	fmt.Fprintln(s.log, "--- restart ---")
	if err := s.start(); err != nil {
		s.t.Fatalf("restart: %v\n%s", err, tail(s.log.String(), 80))
	}
}

var crashMark = regexp.MustCompile(`panic|fatal error|DATA RACE`)

// checkLog fails the test on the marks of a crash or a data race.
func (s *server) checkLog() {
	s.t.Helper()
	if m := crashMark.FindString(s.log.String()); m != "" {
		s.t.Errorf("the server's log contains %q", m)
	}
}

// refusesToStart runs a server that must end by itself with a status other
// than 0, and returns what it printed. No crash may be the reason.
func (s *server) refusesToStart() string {
	s.t.Helper()
	if s.port == 0 {
		s.port = freePort(s.t)
	}
	before := len(s.log.String())
	if err := s.launch(); err != nil {
		s.t.Fatal(err)
	}
	select {
	case <-s.exited:
	case <-time.After(slack(10 * time.Second)):
		s.kill()
		s.t.Fatalf("the server started, it should have refused to")
	}
	out := s.log.String()[before:]
	if code := s.cmd.ProcessState.ExitCode(); code <= 0 {
		s.t.Errorf("exit status %d, want one above 0; output:\n%s", code, out)
	}
	return out
}

// procStatus reads a kB figure such as VmRSS from /proc.
func (s *server) procStatus(key string) int64 {
	s.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.pid))
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, key+":"); ok {
			n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				s.t.Fatal(err)
			}
			return n << 10
		}
	}
	s.t.Fatalf("no %s in /proc status", key)
	return 0
}

func (s *server) rss() int64 { s.t.Helper(); return s.procStatus("VmRSS") }

// openFiles counts the server's descriptors.
func (s *server) openFiles() int {
	s.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.pid))
	if err != nil {
		s.t.Fatal(err)
	}
	return len(entries)
}

// tail returns the last n lines.
func tail(text string, n int) string {
	lines := strings.Split(text, "\n")
	if len(lines) > n {
		lines = append([]string{"…"}, lines[len(lines)-n:]...)
	}
	return strings.Join(lines, "\n")
}

// lastLine returns the last line that is not empty.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return lines[len(lines)-1]
}
