package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"smss/codec"
)

// runForTest is Run with a time limit instead of signals.
func runForTest(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var o, e bytes.Buffer
	status = run(testContext(t), args, output{&o, &e}, noEnv)
	return status, o.String(), e.String()
}

func mustRead(t *testing.T, file string) *Report {
	t.Helper()
	r, err := readReport(file)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func mustBeEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Fatalf("left behind: %v, %v", left, err)
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-h"}, {"--help"}, {"help"}} {
		status, stdout, stderr := runForTest(t, args...)
		if status != 0 || stderr != "" || !strings.Contains(stdout, "compare A.json") && !strings.Contains(stdout, "compare before.json") || !strings.Contains(stdout, "Examples:") {
			t.Fatalf("%v: %d %q %q", args, status, stdout, stderr)
		}
	}
	for _, m := range modes() {
		status, stdout, stderr := runForTest(t, m.name, "-h")
		if status != 0 || stderr != "" || !strings.Contains(stdout, m.summary) || !strings.Contains(stdout, "Flags:\n  -") {
			t.Fatalf("%s: %d %q %q", m.name, status, stdout, stderr)
		}
	}
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	closed := "127.0.0.1:" + strconv.Itoa(port)
	dir := t.TempDir()
	for _, tt := range []struct {
		args   string
		status int
		want   string
	}{
		{"nonsense", 2, `no mode "nonsense"`},
		{"-threads 0", 2, "smss bench pub: -threads 0 is out of range"},
		{"pub -addr " + closed, 1, "connection refused"},
		{"pub -json /no/such/file", 1, "/no/such/file"},
		{"limit -dir /no/such/directory", 1, "/no/such/directory"},
		{"pub -set refuse=true -dir " + dir, 1, "start smss server: it ended: exit status 1: config: refuse: not allowed"},
		{"bare-server -host 192.0.2.1", 1, "bare server on 192.0.2.1:12301"},
	} {
		status, stdout, stderr := runForTest(t, strings.Fields(tt.args)...)
		if status != tt.status || stdout != "" || !strings.Contains(stderr, tt.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: %d %q %q, want %d %q", tt.args, status, stdout, stderr, tt.status, tt.want)
		}
	}
	mustBeEmpty(t, dir)
}

func TestPubStartsItsServer(t *testing.T) {
	t.Setenv("SMSS_PORT", "1") // must not reach the server
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "r.json")
	status, stdout, stderr := runForTest(t, "-threads", "8", "-requests", "250", "-batch", "2", "-size", "100", "-topics", "3", "-dir", dir, "-json", file)
	if status != 0 || !strings.Contains(stdout, "2,000") || !strings.Contains(stdout, "server CPU µs/request") {
		t.Fatalf("%d %q %q", status, stdout, stderr)
	}
	mustBeEmpty(t, dir)
	r := mustRead(t, file)
	if r.Tool != "smss bench pub" || r.Parameters.Threads != 8 || len(r.Results) != 1 {
		t.Fatalf("%+v", r)
	}
	got := r.Results[0]
	if got.Server != "smss" || got.Case != "8c-1p-2m-100b-3t" || got.Failed != 0 || got.Figures[keyRequests] != 2000 || got.Figures["messages"] != 4000 {
		t.Fatalf("%+v", got)
	}
	wantPositive(t, got.Figures, "latencyMaxMicros", keyServerCPU, keyOwnCPU, keyResidentPeak, keyResidentEnd, keyServerCores)
	if len(got.Latencies) != 1 || len(got.Latencies[0].Values) != len(percentiles) || len(got.Series) == 0 {
		t.Fatalf("%+v", got)
	}
}

// wantPositive fails for figures that are missing or not above zero.
func wantPositive(t *testing.T, f Figures, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if f[key] <= 0 {
			t.Errorf("%s is %g in %v", key, f[key], f)
		}
	}
}

func TestPubOnAForeignServer(t *testing.T) {
	t.Parallel()
	addr := bareForTest(t)
	status, stdout, stderr := runForTest(t, "pub", "-addr", addr, "-threads", "4", "-requests", "10", "-pipeline", "3", "-quiet")
	if status != 0 || stderr != "" || strings.Contains(stdout, "server CPU") || !strings.Contains(stdout, addr) {
		t.Fatalf("%d %q %q", status, stdout, stderr)
	}
	status, stdout, stderr = runForTest(t, "pub", "-addr", addr, "-pid", strconv.Itoa(os.Getpid()), "-threads", "4", "-duration", "10ms", "-warmup", "1ms")
	if status != 0 || !strings.Contains(stdout, "server CPU") || !strings.Contains(stdout, "server memory VmHWM") {
		t.Fatalf("%d %q %q", status, stdout, stderr)
	}
}

func TestComparison(t *testing.T) {
	t.Parallel()
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "r.json")
	status, stdout, stderr := runForTest(t, "limit", "-compare", "-rounds", "2", "-threads", "16", "-requests", "5", "-quiet", "-dir", dir, "-json", file)
	if status != 0 || stderr != "" || strings.Count(stdout, "target publish") != 0 || strings.Count(stdout, "medians of 2 rounds") != 2 {
		t.Fatalf("%d %q %q", status, stdout, stderr)
	}
	mustBeEmpty(t, dir)
	r := mustRead(t, file)
	var order []string
	for _, one := range r.Results {
		order = append(order, one.Server+" "+one.Case+" "+strconv.Itoa(one.Round))
		if one.Figures[keyRequests] != 16*5 {
			t.Errorf("%+v", one)
		}
	}
	if got := strings.Join(order, ", "); got != "bare 16c-1p-200b 1, smss 16c-1p-200b 1, bare 16c-16p-200b 1, smss 16c-16p-200b 1, "+
		"bare 16c-1p-200b 2, smss 16c-1p-200b 2, bare 16c-16p-200b 2, smss 16c-16p-200b 2" {
		t.Fatal(got)
	}
	if r.Base != bareName || len(r.Comparison) != 2 || r.Comparison[0].Ratios[keyServerCPU].Median <= 0 || r.Comparison[1].Ratios[keyRequestRate].Median <= 0 {
		t.Fatalf("%+v", r.Comparison)
	}
}

// cancelWriter ends a context when the text passes through it.
type cancelWriter struct {
	text   string
	cancel context.CancelFunc
	seen   bytes.Buffer
}

func (w *cancelWriter) Write(b []byte) (int, error) {
	w.seen.Write(b)
	if strings.Contains(w.seen.String(), w.text) {
		w.cancel()
	}
	return len(b), nil
}

func TestInterruptionPrintsWhatWasMeasured(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	var stdout bytes.Buffer
	stderr := &cancelWriter{text: "requests", cancel: cancel}
	status := run(ctx, strings.Fields("pub -duration 1h -warmup 0s -threads 4 -addr "+bareForTest(t)), output{&stdout, stderr}, noEnv)
	if status != 0 || !strings.Contains(stdout.String(), "interrupted: figures up to then") || !strings.Contains(stdout.String(), "requests/s") {
		t.Fatalf("%d %q %q", status, stdout.String(), stderr.seen.String())
	}
}

func TestInterruptionBeforeTheStart(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	dir := t.TempDir()
	for _, mode := range []string{"pub", "limit", "idle"} {
		var stdout, stderr bytes.Buffer
		status := run(ctx, []string{mode, "-dir", dir}, output{&stdout, &stderr}, noEnv)
		if status != 1 || stdout.Len() > 0 || !strings.Contains(stderr.String(), errInterrupted.Error()) {
			t.Errorf("%s: %d %q %q", mode, status, stdout.String(), stderr.String())
		}
	}
	mustBeEmpty(t, dir)
}

// A real process and a real signal to its whole group, as from a terminal:
// the server must outlive it until its figures have been read.
func TestCtrlC(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.CommandContext(testContext(t), os.Args[0], "bench", "limit", "-duration", "1h", "-warmup", "0s", "-threads", "4", "-dir", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var stdout bytes.Buffer
	interrupt := sync.OnceFunc(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) })
	stderr := &cancelWriter{text: "requests", cancel: interrupt}
	cmd.Stdout, cmd.Stderr = &stdout, stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v %q %q", err, stdout.String(), stderr.seen.String())
	}
	if !strings.Contains(stdout.String(), "interrupted") || !strings.Contains(stdout.String(), "server CPU") {
		t.Fatalf("%q %q", stdout.String(), stderr.seen.String())
	}
	mustBeEmpty(t, dir)
}

// quietServer accepts CREATE_TOPIC, ALIVE and SUB, and answers SUB with
// answer.
func quietServer(t *testing.T, answer []byte) string {
	return serve(t, func(c net.Conn) {
		for {
			header := make([]byte, codec.RequestHeaderSize)
			if _, err := io.ReadFull(c, header); err != nil {
				return
			}
			body := int64(binary.LittleEndian.Uint16(header[1:]))
			reply := codec.AppendCode(nil, codec.CodeOK)
			switch codec.Command(header[0]) {
			case codec.CreateTopic:
				body += 8
			case codec.Alive:
				reply = codec.AppendCode(nil, codec.CodeAlive)
			case codec.Sub:
				c.Write(answer)
				io.Copy(io.Discard, c)
				return
			}
			io.CopyN(io.Discard, c, body)
			c.Write(reply)
		}
	})
}

func TestIdle(t *testing.T) {
	t.Parallel()
	heartbeat := codec.AppendCode(nil, codec.CodeAlive)
	for _, tt := range []struct {
		name   string
		answer []byte
		status int
		want   string
	}{
		{"silence", nil, 0, ""},
		{"heartbeats", append(heartbeat, heartbeat...), 0, ""},
		{"refused", codec.AppendError(nil, "bench-1 regiester exist"), 1, "refused: bench-1 regiester exist"},
		{"not quiet", codec.AppendCode(nil, codec.CodeOK), 1, "the topic is not quiet"},
		{"over", codec.AppendCode(nil, codec.CodeEnd), 1, "got code 255"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "r.json")
			status, stdout, stderr := runForTest(t, "idle", "-addr", quietServer(t, tt.answer), "-pid", strconv.Itoa(os.Getpid()),
				"-subscribers", "40", "-duration", "50ms", "-settle", "70ms", "-quiet", "-json", file)
			if status != tt.status || !strings.Contains(stderr, tt.want) {
				t.Fatalf("%d %q %q", status, stdout, stderr)
			}
			if status != 0 {
				return
			}
			r := mustRead(t, file).Results[0]
			wantPositive(t, r.Figures, keyResidentBefore, keyResidentEnd, keySeconds, "connectSeconds")
			if r.Case != "40s" || r.Figures["subscribers"] != 40 {
				t.Fatalf("%+v", r)
			}
			if r.Figures["heartbeats"] != 0 { // what came before the window does not count
				t.Fatalf("%+v", r)
			}
			if !strings.Contains(stdout, "memory per subscriber") {
				t.Fatal(stdout)
			}
		})
	}
}
