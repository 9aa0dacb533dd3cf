package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/panjf2000/gnet/v2/pkg/logging"
	"github.com/rs/zerolog"

	"smss/conf"
)

var (
	_ logging.Logger = libraryLog{}
	_ badger.Logger  = libraryLog{}
)

func logConfig(path, format, level string) *conf.Config {
	c := conf.Default()
	c.Log.Path, c.Log.Format, c.Log.Level = path, format, level
	return &c
}

// logged runs write with a logger on two plain files and returns what reached them.
func logged(t *testing.T, cfg *conf.Config, write func(zerolog.Logger)) (stdout, stderr string) {
	t.Helper()
	dir := t.TempDir()
	var streams [2]*os.File
	for i := range streams {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		streams[i] = f
	}
	log, closer, err := newLogger(cfg, streams[0], streams[1])
	if err != nil {
		t.Fatal(err)
	}
	write(log)
	if err := closer.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	for i, f := range streams {
		if _, err := f.WriteString(""); err != nil {
			t.Errorf("stream %d after Close: %v, want it still open", i, err)
		}
	}
	return readAll(t, streams[0].Name()), readAll(t, streams[1].Name())
}

func readAll(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// jsonLines decodes text as one JSON object a line.
func jsonLines(t *testing.T, text string) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range strings.Lines(text) {
		fields := make(map[string]any)
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		all = append(all, fields)
	}
	return all
}

func TestLogIsJSONWhenNoTerminalWatches(t *testing.T) {
	before := time.Now().Truncate(time.Millisecond)
	stdout, stderr := logged(t, logConfig("stdout", "auto", "info"), func(log zerolog.Logger) {
		log.Debug().Msg("hidden")
		log.Info().Str("topic", "a\nb").Msg("seen")
	})
	lines := jsonLines(t, stdout)
	if len(lines) != 1 || stderr != "" {
		t.Fatalf("stdout %q, stderr %q; want one line on stdout", stdout, stderr)
	}
	if l := lines[0]; l["level"] != "info" || l["message"] != "seen" || l["topic"] != "a\nb" {
		t.Errorf("line %v", l)
	}
	written, _ := lines[0]["time"].(string)
	at, err := time.Parse(time.RFC3339, written)
	if err != nil || at.Before(before) || at.After(time.Now()) {
		t.Errorf("time %q, want RFC 3339 and now", written)
	}
	if _, fraction, _ := strings.Cut(written, "."); len(strings.TrimRight(fraction, "Z+-:0123456789")) != 0 || len(fraction) < 4 {
		t.Errorf("time %q has no milliseconds", written)
	}
}

func TestLogConsoleFormat(t *testing.T) {
	stdout, stderr := logged(t, logConfig("stderr", "console", "debug"), func(log zerolog.Logger) {
		log.Debug().Int("n", 3).Msg("seen")
	})
	if stdout != "" || !strings.Contains(stderr, " DBG seen n=3\n") {
		t.Errorf("stdout %q, stderr %q; want a console line on stderr", stdout, stderr)
	}
	if strings.Contains(stderr, "\x1b") {
		t.Errorf("%q has colours although no terminal watches", stderr)
	}
	if _, err := time.Parse(logTimeFormat, strings.Fields(stderr)[0]); err != nil {
		t.Errorf("console time: %v", err)
	}
}

func TestLogOnATerminal(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		lacking(t, "no pseudo terminal can be opened here: %v", err)
	}
	defer terminal.Close()
	if !isTerminal(terminal) {
		t.Error("a pseudo terminal is not seen as a terminal")
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if isTerminal(null) {
		t.Error("the null device is seen as a terminal")
	}
	for _, test := range []struct {
		format string
		json   bool
	}{{"auto", false}, {"json", true}} {
		log, _, err := newLogger(logConfig("stdout", test.format, "info"), terminal, null)
		if err != nil {
			t.Fatal(err)
		}
		log.Info().Msg("hello")
		echo, err := bufio.NewReader(terminal).ReadString('\n') // a new terminal echoes its input
		if err != nil {
			lacking(t, "the pseudo terminal does not echo what is written to it: %v", err)
		}
		if got := strings.HasPrefix(echo, "{"); got != test.json || !strings.Contains(echo, "hello") {
			t.Errorf("format %s: %q, want JSON %v", test.format, echo, test.json)
		}
	}
}

func TestLogFileNames(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "old.log"), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, file := range map[string]string{
		"a/b":      "a/b/out.log",
		"a":        "a/out.log",
		"c/x.log":  "c/x.log",
		"d/X.LOG":  "d/X.LOG",
		"old.log":  "old.log/out.log",
		"v1.2/log": "v1.2/log/out.log",
	} {
		for range 2 { // the second time everything exists
			logged(t, logConfig(filepath.Join(dir, path), "auto", "info"), func(log zerolog.Logger) { log.Info().Msg(path) })
		}
		if lines := jsonLines(t, readAll(t, filepath.Join(dir, file))); len(lines) != 2 || lines[1]["message"] != path {
			t.Errorf("path %s: %v, want two lines in %s", path, lines, file)
		}
	}
}

func TestLogFileProblems(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{plain, filepath.Join(plain, "below"), filepath.Join(plain, "x.log")} {
		_, _, err := newLogger(logConfig(path, "auto", "info"), os.Stdout, os.Stderr)
		if err == nil || !strings.HasPrefix(err.Error(), fmt.Sprintf("log.path %q: ", path)) {
			t.Errorf("%s: error %v, want one that names the key and the path", path, err)
		}
	}
	if _, _, err := newLogger(logConfig("stdout", "auto", "loud"), os.Stdout, os.Stderr); err == nil {
		t.Error("level loud is accepted")
	}
}

func TestLogFileRotates(t *testing.T) {
	dir := t.TempDir()
	cfg := logConfig(dir, "auto", "info")
	cfg.Log.Rotate.MaxSize = 1
	logged(t, cfg, func(log zerolog.Logger) {
		long := strings.Repeat("x", 300<<10)
		for range 4 {
			log.Info().Msg(long)
		}
	})
	files, err := filepath.Glob(filepath.Join(dir, "out*.log"))
	if err != nil || len(files) != 2 {
		t.Fatalf("files %v, %v; want out.log and one set aside", files, err)
	}
	lines := 0
	for _, f := range files {
		lines += len(jsonLines(t, readAll(t, f)))
	}
	if lines != 4 {
		t.Errorf("%d lines in all files, want 4", lines)
	}
}

func TestLibraryLogLevels(t *testing.T) {
	var out bytes.Buffer
	log := newLibraryLog(zerolog.New(&out), "gnet", newRepeatLog(time.Now))
	log.Debugf("d %d", 1)
	log.Infof("i %d\n", 2)
	log.Warnf("w %d", 3)
	log.Warningf("v %d", 4)
	log.Errorf("e %d", 5)
	log.Fatalf("f %d", 6) // returns
	lines := jsonLines(t, out.String())
	want := [][2]string{{"debug", "d 1"}, {"debug", "i 2"}, {"warn", "w 3"}, {"warn", "v 4"}, {"error", "e 5"}, {"error", "f 6"}}
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d: %s", len(lines), len(want), &out)
	}
	for i, l := range lines {
		if l["level"] != want[i][0] || l["message"] != want[i][1] || l["part"] != "gnet" {
			t.Errorf("line %v, want %v", l, want[i])
		}
	}
	if lines[5]["fatal"] != true {
		t.Errorf("line %v does not say fatal", lines[5])
	}
}

func TestLibraryLogHoldsRepeatsBack(t *testing.T) {
	var out bytes.Buffer
	clock := time.Unix(1000, 0)
	repeat := newRepeatLog(func() time.Time { return clock })
	network := newLibraryLog(zerolog.New(&out), "gnet", repeat)
	badgerLog := newLibraryLog(zerolog.New(&out), "badger", repeat)
	for i := range 5 {
		network.Errorf("accept: %d", i)
	}
	badgerLog.Errorf("accept: %d", 9) // same words, other library
	network.Fatalf("accept: %d", 7)
	network.Fatalf("accept: %d", 8)
	clock = clock.Add(repeatInterval)
	network.Errorf("accept: %d", 5)
	var got []string
	for _, l := range jsonLines(t, out.String()) {
		got = append(got, fmt.Sprint(l["message"], " ", l["suppressed"]))
	}
	want := "accept: 0 <nil>|accept: 9 <nil>|accept: 7 <nil>|accept: 8 <nil>|accept: 5 4"
	if strings.Join(got, "|") != want {
		t.Errorf("lines %q, want %q", strings.Join(got, "|"), want)
	}
}

func TestLinesBelowTheLevelAreNotCounted(t *testing.T) {
	repeat := newRepeatLog(time.Now)
	log := newLibraryLog(zerolog.New(&bytes.Buffer{}).Level(zerolog.ErrorLevel), "gnet", repeat)
	log.Warnf("w")
	if len(repeat.causes) != 0 {
		t.Errorf("causes %v, want none", repeat.causes)
	}
}

func TestRepeatLogInterval(t *testing.T) {
	clock := time.Unix(0, 0)
	l := newRepeatLog(func() time.Time { return clock })
	for i, step := range []struct {
		after      time.Duration
		emit       bool
		suppressed int
	}{
		{0, true, 0}, {0, false, 0}, {repeatInterval - 1, false, 0}, {1, true, 2}, {repeatInterval - 1, false, 0}, {time.Hour, true, 1}, {repeatInterval, true, 0},
	} {
		clock = clock.Add(step.after)
		if emit, suppressed := l.Allow("disk"); emit != step.emit || suppressed != step.suppressed {
			t.Errorf("step %d: %v %d, want %v %d", i, emit, suppressed, step.emit, step.suppressed)
		}
	}
	if emit, suppressed := l.Allow("net"); !emit || suppressed != 0 {
		t.Errorf("another cause: %v %d, want it written", emit, suppressed)
	}
}

func TestRepeatLogIsBounded(t *testing.T) {
	clock := time.Unix(0, 0)
	l := newRepeatLog(func() time.Time { return clock })
	l.Allow("0")
	l.Allow("0") // one held back
	clock = clock.Add(time.Second)
	emitted := 0
	for i := range 10 * maxRepeatCauses {
		if emit, _ := l.Allow(fmt.Sprint(i + 1)); emit {
			emitted++
		}
	}
	if len(l.causes) != maxRepeatCauses {
		t.Errorf("%d causes kept, want %d", len(l.causes), maxRepeatCauses)
	}
	if emitted != maxRepeatCauses { // 1023 of their own and one for the rest
		t.Errorf("%d lines in one second, want %d", emitted, maxRepeatCauses)
	}
	heldBack := 1 + 10*maxRepeatCauses - emitted

	clock = clock.Add(repeatInterval - time.Second) // only "0" has expired: one place
	if emit, _ := l.Allow("new"); !emit {
		t.Error("a new cause is held back although a place is free")
	}
	if emit, _ := l.Allow("newer"); emit {
		t.Error("a further cause is written although the rest had its line 9 s ago")
	}
	heldBack++
	clock = clock.Add(time.Second)
	for i := range maxRepeatCauses - 1 { // all but "new" have expired
		if emit, suppressed := l.Allow(fmt.Sprint("again", i)); !emit || suppressed != 0 {
			t.Fatalf("cause %d after the interval: %v %d, want a fresh entry", i, emit, suppressed)
		}
	}
	if emit, suppressed := l.Allow("rest"); !emit || suppressed != heldBack {
		t.Errorf("the rest: %v %d, want a line with all %d held back", emit, suppressed, heldBack)
	}
}

func TestRepeatLogCountsEveryCall(t *testing.T) {
	clock := time.Unix(0, 0)
	l := newRepeatLog(func() time.Time { return clock })
	const workers, calls = 8, 500
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range calls {
				l.Allow("same")
			}
		})
	}
	wg.Wait()
	clock = clock.Add(repeatInterval)
	if emit, suppressed := l.Allow("same"); !emit || suppressed != workers*calls-1 {
		t.Errorf("%v %d, want %d held back", emit, suppressed, workers*calls-1)
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
