package test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What follows makes trouble for a server: small file systems, limits, system
// calls that fail, damaged copies of a data directory.

// mountSmall mounts a tmpfs of so many bytes on dir, which it makes. It must be
// called before the server is made: clean-ups run in the opposite order, and
// the server has to be gone before the file system is.
func mountSmall(t testing.TB, dir string, bytes int) {
	t.Helper()
	if os.Getuid() != 0 {
		lacking(t, "a small disk is a tmpfs, and mounting one needs root")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("smss-test", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=755", bytes)); err != nil {
		lacking(t, "a small disk is a tmpfs, and root may not mount one here (CAP_SYS_ADMIN is missing?): %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
}

// fill takes all space of dir's file system but leave bytes; the function that
// it returns gives it back.
func fill(t testing.TB, dir string, leave int64) (free func()) {
	t.Helper()
	name := filepath.Join(dir, "filler")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, page := int64(0), make([]byte, 4096)
	for err == nil {
		var n int
		n, err = f.Write(page)
		size += int64(n)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling: %v", err)
	}
	if err := f.Truncate(max(0, size-leave)); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

// stracer runs strace on a server.
type stracer struct {
	cmd  *exec.Cmd
	path string // of its output
}

func needStrace(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("strace"); err != nil {
		lacking(t, "strace, which makes system calls fail, is not installed")
	}
}

// strace attaches to the running server, so that a fault begins at a chosen
// moment, and returns when every thread is traced. Numbers in inject
// expressions count for each thread by itself.
func strace(t testing.TB, s *server, args ...string) *stracer {
	t.Helper()
	needStrace(t)
	x := &stracer{path: filepath.Join(t.TempDir(), "strace.out")}
	x.cmd = exec.Command("strace", append([]string{"-f", "-y", "-s", "256", "-o", x.path, "-p", strconv.Itoa(s.pid)}, args...)...)
	said := &logBuffer{}
	x.cmd.Stdout, x.cmd.Stderr = said, said
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := x.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = x.cmd.Wait() // it ends with the server's status or by our signal
		close(ended)
	}()
	t.Cleanup(func() {
		_ = x.cmd.Process.Kill() // it may be gone with the server
		<-ended
	})
	deadline := time.Now().Add(10 * time.Second)
	for !traced(s.pid) {
		select {
		case <-ended:
			if strings.Contains(said.String(), "Operation not permitted") {
				lacking(t, "strace may not trace here (CAP_SYS_PTRACE is missing?): %s", said)
			}
			t.Fatalf("strace ended: %s", said)
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("strace does not attach: %s", said)
		}
	}
	return x
}

// traced reports whether every thread of a process has a tracer.
func traced(pid int) bool {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(tasks) == 0 {
		return false
	}
	for _, name := range tasks {
		text, err := os.ReadFile(name)
		if err == nil && strings.Contains(string(text), "TracerPid:\t0\n") {
			return false
		}
	}
	return true
}

// detach ends the faults.
func (x *stracer) detach(t testing.TB, s *server) {
	t.Helper()
	if err := x.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	await(t, 10*time.Second, "strace lets go", func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.pid))
		return err != nil || strings.Contains(string(text), "TracerPid:\t0\n")
	})
}

// cpuTime returns the processor time that the server has used.
func (s *server) cpuTime() time.Duration {
	s.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.pid))
	if err != nil {
		s.t.Fatal(err)
	}
	// The second field is the program's name, which may hold anything.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	ticks := 0
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			s.t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100 // USER_HZ is 100 on every Linux
}

// copyData copies the working directory of a server, which should not run,
// and returns the copy's path. Badger's files are sparse and stay so.
func copyData(t testing.TB, from string) string {
	t.Helper()
	to := t.TempDir()
	err := filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		return copySparse(p, target)
	})
	if err != nil {
		t.Fatal(err)
	}
	return to
}

func copySparse(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	const seekData, seekHole = 3, 4
	for at := int64(0); at < info.Size(); {
		data, err := in.Seek(at, seekData)
		if errors.Is(err, syscall.ENXIO) {
			break // only a hole is left
		}
		if err != nil {
			return err
		}
		hole, err := in.Seek(data, seekHole)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.NewOffsetWriter(out, data), io.NewSectionReader(in, data, hole-data)); err != nil {
			return err
		}
		at = hole
	}
	return out.Truncate(info.Size())
}

// damage changes a file in place.
func damage(t testing.TB, name string, change func(b []byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, change(b), 0o644); err != nil {
		t.Fatal(err)
	}
}

// cut, zeros, flip and the like are changes for damage.
func cut(n int) func([]byte) []byte {
	return func(b []byte) []byte { return b[:max(0, len(b)-n)] }
}

func addZeros(n int) func([]byte) []byte {
	return func(b []byte) []byte { return append(b, make([]byte, n)...) }
}

// zeroTail puts zeros in place of the last n bytes.
func zeroTail(n int) func([]byte) []byte {
	return func(b []byte) []byte {
		clear(b[max(0, len(b)-n):])
		return b
	}
}

// flip inverts one bit.
func flip(bit int) func([]byte) []byte {
	return func(b []byte) []byte {
		b[bit/8] ^= 1 << (bit % 8)
		return b
	}
}

// topicFile returns the path of a topic's log file; the server must run.
func topicFile(t testing.TB, s *server, topic string, n int) string {
	t.Helper()
	root := filepath.FromSlash(dial(t, s).info(topic).TopicRoot)
	return filepath.Join(s.dataDir(), "topic", root, fmt.Sprint(n, ".log"))
}

// tool runs a subcommand of the binary under test on the server's data.
func (s *server) tool(args ...string) (status int, out string) {
	s.t.Helper()
	cmd := exec.Command(serverBinary, append(args, s.dataDir())...)
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(text)
}

// verified expects that the data directory is whole by smss verify.
func (s *server) verified() {
	s.t.Helper()
	if status, out := s.tool("verify", "-quiet"); status != 0 {
		s.t.Errorf("verify ends with %d:\n%s", status, out)
	}
}

// logs expects the server to have printed text, which may still be on its way.
func (s *server) logs(text string) {
	s.t.Helper()
	await(s.t, 3*time.Second, fmt.Sprintf("the log says %q", text), func() bool { return strings.Contains(s.log.String(), text) })
}

// nowhere expects that no log file holds text.
func (s *server) nowhere(text string) {
	s.t.Helper()
	for _, name := range logFiles(s.t, s) {
		b, err := os.ReadFile(name)
		if err != nil {
			s.t.Fatal(err)
		}
		if strings.Contains(string(b), text) {
			s.t.Errorf("%s holds %.40q, which was refused", filepath.Base(filepath.Dir(name)), text)
		}
	}
}

var rebuildCommand = regexp.MustCompile(`mv [^\s;)"\\]+ [^\s;)"\\]+`)

// rebuild does what the refusal of a start says and starts again.
func (s *server) rebuild(refusal string) {
	s.t.Helper()
	command := rebuildCommand.FindString(refusal)
	if command == "" {
		s.t.Fatalf("the refusal names no command that rebuilds:\n%s", refusal)
	}
	shell := exec.Command("sh", "-c", command)
	shell.Dir = s.dir
	if out, err := shell.CombinedOutput(); err != nil {
		s.t.Fatalf("%s: %v: %s", command, err, out)
	}
	s.restart()
}

// startOrRefuse starts a server and returns "", or what it printed when it
// refused to.
func (s *server) startOrRefuse() string {
	s.t.Helper()
	if s.port == 0 {
		s.port = freePort(s.t)
	}
	before := len(s.log.String())
	err := s.start()
	if err == nil {
		return ""
	}
	out := s.log.String()[before:]
	if s.running() {
		s.t.Fatalf("start: %v\n%s", err, tail(out, 40))
	}
	if code := s.cmd.ProcessState.ExitCode(); code <= 0 {
		s.t.Errorf("exit status %d, want one above 0; output:\n%s", code, out)
	}
	return out
}
