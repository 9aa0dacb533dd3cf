package test

import (
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	// serverBinary is the server under test.
	serverBinary string
	// peer is true when that is the existing server, see doc.go.
	peer = os.Getenv("SMSS_TEST_PEER") != ""
	// long selects the big numbers of the cases.
	long = os.Getenv("SMSS_TEST_LONG") != ""
)

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

// run is TestMain with deferred clean-up, which os.Exit would skip.
func run(m *testing.M) int {
	// Most tests wait for the protocol's own times and leave the processor
	// idle, so more of them run at once than there are processors.
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		if err := f.Value.Set("8"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	if raceEnabled {
		// A process under the race detector sleeps a second before it ends.
		if err := os.Setenv("GORACE", strings.TrimSpace("atexit_sleep_ms=0 "+os.Getenv("GORACE"))); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	if serverBinary = os.Getenv("SMSS_TEST_BINARY"); serverBinary != "" {
		abs, err := filepath.Abs(serverBinary)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		serverBinary = abs
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "smss-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	// Some tests run the server as another user.
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	serverBinary = filepath.Join(dir, "smss")
	if err := build(serverBinary); err != nil {
		fmt.Fprintln(os.Stderr, "build the server:", err)
		return 1
	}
	return m.Run()
}

// build compiles the module's root package. The race detector needs cgo on
// Linux; without it the server is built static, as it is shipped.
func build(target string) error {
	args := []string{"build", "-o", target}
	env := os.Environ()
	if raceEnabled {
		args = append(args, "-race")
	} else {
		env = append(env, "CGO_ENABLED=0")
	}
	cmd := exec.Command("go", append(args, "smss")...)
	cmd.Dir = ".."
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// scale picks the small number of a scenario, or the big one in a long run.
func scale(small, big int) int {
	if long {
		return big
	}
	return small
}

// thinned leaves out three in four of the starts on damaged files where the
// race detector makes each of them dear. All of them are tried without it, and
// in a long run with it.
func thinned(t *testing.T) {
	t.Helper()
	name := fnv.New32a()
	_, _ = name.Write([]byte(t.Name()))
	if raceEnabled && !long && name.Sum32()%4 != 0 {
		t.Skip("one in four is tried under the race detector; SMSS_TEST_LONG=1 tries all")
	}
}

// slack stretches a time limit that is about the server's speed, not about
// the protocol, when the race detector slows everything down.
func slack(d time.Duration) time.Duration {
	if raceEnabled {
		return 5 * d
	}
	return d
}

// await polls cond until it holds and fails the test when it does not within
// the limit.
func await(t testing.TB, limit time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// lacking skips a test for want of something, said so that it can be seen to. In
// CI, which must have everything, it fails it.
func lacking(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}
