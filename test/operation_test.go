package test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gopkg.in/yaml.v3"
)

// These are the cases about configuration, containers and operation.

// TestCase81LogSampleZero: 0 means no such lines, and nothing else changes.
func TestCase81LogSampleZero(t *testing.T) {
	t.Parallel()
	lines := func(sample int) int {
		s := startServer(t, options{config: config{"log.sample": sample}})
		c := dial(t, s)
		c.ok(reqCreate("t", 0))
		x := dial(t, s)
		x.sub(sub{topic: "t", who: "w", batch: 1, ack: time.Minute})
		const n = 200
		for i := range n {
			c.ok(reqPub("t", message(fmt.Sprint(i))))
			x.one(fmt.Sprint(i))
			x.send(ackNext)
		}
		s.stop()
		return strings.Count(s.log.String(), "\n")
	}
	none, all := lines(0), lines(1)
	if none > 100 {
		t.Errorf("%d log lines with log.sample 0", none)
	}
	if all < 200 {
		t.Errorf("%d log lines with log.sample 1, want one for each of 200 publishes at least", all)
	}
}

// TestCase83Layout: settings that shape the data directory may not silently
// hide what is in it.
func TestCase83Layout(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{config: config{"store.folderCount": 10}})
	c := dial(t, s)
	topics := []string{"order", "订单", "t1", "t2"}
	for _, topic := range topics {
		c.ok(reqCreate(topic, 0))
		c.ok(reqPub(topic, message(strings.Repeat("x", 500))))
	}
	s.stop()
	for _, n := range []int{100, 11, 1} {
		s.opts.config["store.folderCount"] = n
		if out := s.refusesToStart(); !strings.Contains(out, "folderCount") {
			t.Errorf("folderCount %d: the output does not name the key:\n%s", n, out)
		}
	}
	// Not given: what the directory was made with.
	for i, values := range []config{{"store.folderCount": absent}, {"store.folderCount": 10}, {"store.maxLogSize": 1 << 10},
		{"store.maxLogSize": 64}, {"store.maxLogSize": 1 << 30}} {
		s.opts.config = values
		s.restart()
		c := dial(t, s)
		for _, topic := range topics {
			c.ok(reqPub(topic, message(fmt.Sprint(i))))
			if got := len(drain(t, s, topic)); got != 2+i {
				t.Errorf("%v: %d messages in %s, want %d", values, got, topic, 2+i)
			}
		}
		s.stop()
	}
}

// TestStorePath: a relative store.path counts from the working directory, an
// absolute one stands for itself.
func TestStorePath(t *testing.T) {
	t.Parallel()
	elsewhere := filepath.Join(t.TempDir(), "deep", "data")
	for _, path := range []string{"data", "other/deep", elsewhere} {
		s := startServer(t, options{config: config{"store.path": path}})
		dial(t, s).ok(reqCreate("t", 0))
		dir := path
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(s.dir, dir)
		}
		for _, sub := range []string{"binlog", "meta"} {
			if _, err := os.Stat(filepath.Join(dir, sub)); err != nil {
				t.Errorf("store.path %q: %v", path, err)
			}
		}
	}
}

// TestCase84Stop: a signal ends the server within 2 s with status 0, in
// whatever state it is, and everything acknowledged is there afterwards.
func TestCase84Stop(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		for _, state := range []string{"idle", "load", "subscribers", "twice"} {
			t.Run(fmt.Sprintf("%v/%s", sig, state), func(t *testing.T) {
				t.Parallel()
				s := startServer(t, options{config: config{"store.flushLevel": 1}})
				stopUnder(t, s, sig, state)
			})
		}
	}
}

func stopUnder(t *testing.T, s *server, sig syscall.Signal, state string) {
	t.Helper()
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	c.ok(reqPub("t", message("first")))
	acked := make(chan []string, 4)
	publishers := 0
	switch state {
	case "load":
		publishers = cap(acked)
		for i := range publishers {
			x := dial(t, s)
			go func() {
				var mine []string
				for n := 0; ; n++ {
					body := fmt.Sprintf("%d-%d", i, n)
					if x.doOK(reqPub("t", message(body))) != nil {
						acked <- mine
						return
					}
					mine = append(mine, body)
				}
			}()
		}
		time.Sleep(300 * time.Millisecond) // some load before the signal
	case "subscribers":
		for i := range 100 {
			x := dial(t, s)
			x.sub(sub{topic: "t", who: fmt.Sprint("w", i), ack: time.Minute})
			x.one("first")
			if i%2 == 0 {
				x.send(ackNext)
			}
		}
	}
	start := time.Now()
	s.signal(sig)
	if state == "twice" {
		// The process may be gone already.
		_ = syscall.Kill(s.pid, sig)
	}
	status := s.wait(slack(5 * time.Second))
	if took := time.Since(start); took > slack(2*time.Second) {
		t.Errorf("the stop took %v", took)
	}
	// A second signal that comes before the end ends it at once, by status 1.
	if status != 0 && (state != "twice" || status != 1) {
		t.Errorf("exit status %d, want 0", status)
	}
	s.restart()
	have := map[string]int{}
	for _, m := range drain(t, s, "t") {
		have[m.body]++
	}
	if have["first"] != 1 {
		t.Errorf("the first message is there %d times", have["first"])
	}
	for range publishers {
		for _, body := range <-acked {
			if have[body] != 1 {
				t.Errorf("acknowledged message %s is there %d times", body, have[body])
			}
		}
	}
}

// TestCase84ProcessOne: as process 1 of a container there is no default
// action for SIGTERM; the server must handle it itself.
func TestCase84ProcessOne(t *testing.T) {
	t.Parallel()
	probe := exec.Command("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "true")
	if out, err := probe.CombinedOutput(); err != nil {
		lacking(t, "a PID namespace of its own, in which it would be process 1, cannot be made here by unshare: %v: %s", err, out)
	}
	s := startServer(t, options{first: true})
	stopUnder(t, s, syscall.SIGTERM, "idle")
}

// TestCase89StartFailure: what cannot start says why in its last line and
// ends with a status above 0.
func TestCase89StartFailure(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { busy.Close() }) // after the subtests, which run when this function has returned
	port := strconv.Itoa(busy.Addr().(*net.TCPAddr).Port)
	cases := map[string]struct {
		o    options
		says string
	}{
		"port in use":         {options{env: []string{"SMSS_PORT=" + port}}, port},
		"data is a file":      {options{config: config{"store.path": file}}, file},
		"data below a file":   {options{config: config{"store.path": file + "/x"}}, file},
		"log below a file":    {options{config: config{"log.path": file + "/x"}}, file},
		"unknown key":         {options{config: config{"store.flushLevle": 1}}, "flushLevle"},
		"unknown section":     {options{config: config{"strore.path": "x"}}, "strore"},
		"out of range":        {options{config: config{"store.flushLevel": 3}}, "flushLevel"},
		"negative port":       {options{env: []string{"SMSS_PORT=-1"}}, "port"},
		"not a number":        {options{config: config{"store.maxLogSize": "big"}}, "maxLogSize"},
		"unknown variable":    {options{env: []string{"SMSS_PROT=1"}}, "SMSS_PROT"},
		"unknown role":        {options{args: []string{"-role", "boss"}}, "boss"},
		"unknown flag":        {options{args: []string{"-frob"}}, "frob"},
		"no such config file": {options{noFile: true, args: []string{"-config", "nowhere.yaml"}}, "nowhere.yaml"},
		"host of no machine":  {options{config: config{"host": "192.0.2.1"}}, "192.0.2.1"},
		"metadata is a file":  {options{config: config{"store.path": dataWith(t, "meta")}}, "meta"},
		"binlog is a file":    {options{config: config{"store.path": dataWith(t, "binlog")}}, "binlog"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, c.o)
			out := s.refusesToStart()
			if line := lastLine(out); !strings.Contains(line, c.says) {
				t.Errorf("the last line does not say %q:\n%s", c.says, out)
			}
		})
	}
}

// dataWith makes a data directory in which a file stands in the place of a
// sub-directory.
func dataWith(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestConfigAllProblemsAtOnce: one start names every mistake of a file, and
// none of them is made good in silence.
func TestConfigAllProblemsAtOnce(t *testing.T) {
	t.Parallel()
	s := newServer(t, options{config: config{"store.flushLevel": 7, "log.sample": -1, "worker.bufSize": 10, "timeout.server.alive": "soon"}})
	out := s.refusesToStart()
	for _, key := range []string{"store.flushLevel", "log.sample", "worker.bufSize", "timeout.server.alive"} {
		if !strings.Contains(out, key) {
			t.Errorf("the output does not name %s:\n%s", key, out)
		}
	}
	if _, err := os.Stat(s.dataDir()); !os.IsNotExist(err) {
		t.Errorf("a data directory was made all the same: %v", err)
	}
}

// TestConfigDuplicate: a key given twice is refused by name.
func TestConfigDuplicate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "twice.yaml"), []byte("store:\n  maxDays: 7\n  maxDays: 8\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := newServer(t, options{dir: dir, noFile: true, args: []string{"-config", "twice.yaml"}})
	if out := s.refusesToStart(); !strings.Contains(out, "maxDays") {
		t.Errorf("the output does not name the key:\n%s", out)
	}
}

// TestConfigSources: no file at all, variables over a file, both spellings of
// a key, and the file in its usual place.
func TestConfigSources(t *testing.T) {
	t.Parallel()
	t.Run("built-in defaults and variables", func(t *testing.T) {
		t.Parallel()
		s := newServer(t, options{noFile: true})
		s.port = freePort(t)
		s.opts.env = []string{"SMSS_PORT=" + strconv.Itoa(s.port), "SMSS_HOST=127.0.0.1", "SMSS_STORE_PATH=elsewhere"}
		if err := s.start(); err != nil {
			t.Fatalf("%v\n%s", err, s.log)
		}
		dial(t, s).ok(reqCreate("t", 0))
		if _, err := os.Stat(filepath.Join(s.dir, "elsewhere", "binlog")); err != nil {
			t.Error(err)
		}
	})
	t.Run("file in its usual place", func(t *testing.T) {
		t.Parallel()
		s := newServer(t, options{noFile: true})
		s.port = freePort(t)
		if err := s.writeConfig(); err != nil {
			t.Fatal(err)
		}
		if err := s.start(); err != nil {
			t.Fatalf("%v\n%s", err, s.log)
		}
	})
	t.Run("variable over file", func(t *testing.T) {
		t.Parallel()
		s := startServer(t, options{config: config{"timeout.server.alive": 30000}, env: []string{"SMSS_TIMEOUT_SERVER_ALIVE=200"}})
		heartbeatWithin(t, s, 3*time.Second)
	})
	t.Run("other spelling", func(t *testing.T) {
		t.Parallel()
		s := startServer(t, options{config: config{"timeout.server.alive": absent, "time.server.alive": 200,
			"background.defaultScanSecond": absent, "background.life.defaultScanSec": 7200,
			"background.firstExecSecond": absent, "background.delay.firstExec": 1}})
		heartbeatWithin(t, s, 3*time.Second)
	})
	t.Run("minimal file", func(t *testing.T) {
		t.Parallel()
		only := config{}
		for key := range baseConfig() {
			if key != "host" {
				only[key] = absent
			}
		}
		s := startServer(t, options{config: only})
		dial(t, s).ok(reqCreate("t", 0))
	})
}

func heartbeatWithin(t *testing.T, s *server, limit time.Duration) {
	t.Helper()
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	c.sub(sub{topic: "t", who: "w"})
	c.limit = slack(limit)
	if f, err := c.frame(); err != nil || f.code != codeAlive {
		t.Fatalf("%d, %v; want 201", f.code, err)
	}
}

// TestConfigLogged: the effective configuration is in the log once.
func TestConfigLogged(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{config: config{"store.clearInterval": 4321}})
	if n := strings.Count(s.log.String(), "4321"); n != 1 {
		t.Errorf("a value of the configuration is in the log %d times, want once", n)
	}
}

// TestBaseConfig keeps the harness honest: what it writes is YAML with the
// nesting that the keys say.
func TestBaseConfig(t *testing.T) {
	s := &server{t: t, dir: t.TempDir(), port: 1, opts: options{config: config{"log.rotate.maxAge": absent, "admin.port": absent, "store.maxDays": 3}}}
	if err := s.writeConfig(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(s.configPath())
	if err != nil {
		t.Fatal(err)
	}
	var root map[string]any
	if err := yaml.Unmarshal(text, &root); err != nil {
		t.Fatal(err)
	}
	flat := config{}
	flatten(flat, "", root)
	if _, ok := flat["log.rotate.maxAge"]; ok || flat["store.maxDays"] != 3 || flat["port"] != 1 || len(flat) != len(baseConfig()) {
		t.Errorf("wrote\n%s", text)
	}
}
