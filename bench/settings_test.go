package bench

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	addr := func(name string) string {
		if name == "SMSS_ADDR" {
			return "127.0.0.1:9"
		}
		return ""
	}
	tests := []struct {
		args string
		env  func(string) string
		want string // of the usage error
		ok   func(s *settings) bool
	}{
		{args: "pub", ok: func(s *settings) bool {
			return s.Threads == 256 && s.Requests == 400 && s.Size == 200 && s.Pipelines[0] == 1 && s.Batch == 1 &&
				s.Addr == "" && s.Flush == 1 && s.Duration == 0 && s.Warmup == 0 && s.Loops >= 1
		}},
		{args: "pub -duration 3s", ok: func(s *settings) bool {
			return s.Requests == 0 && s.Duration == duration(3*time.Second) && s.Warmup == duration(500*time.Millisecond)
		}},
		{args: "pub -duration 3s -warmup 0s", ok: func(s *settings) bool { return s.Warmup == 0 }},
		{args: "pub -set a.b=c -set d=e=f", ok: func(s *settings) bool { return len(s.Set) == 2 && s.Set[1] == "d=e=f" }},
		{args: "pub", env: addr, ok: func(s *settings) bool { return s.Addr == "127.0.0.1:9" }},
		{args: "pub -addr=", env: addr, ok: func(s *settings) bool { return s.Addr == "" }},
		{args: "pub -compare-limit", ok: func(s *settings) bool {
			return s.Against.name == bareName && len(s.Pipelines) == 2 && s.Pipelines[1] == 16 && s.Duration > 0 && s.Rounds == 5
		}},
		{args: "limit -compare -requests 10 -pipeline 4", ok: func(s *settings) bool {
			return s.Against.name == bareName && len(s.Pipelines) == 1 && s.Pipelines[0] == 4 && s.Requests == 10 && s.Duration == 0
		}},
		{args: "idle -subscribers 7", ok: func(s *settings) bool {
			return s.Subscribers == 7 && s.Duration == duration(10*time.Second)
		}},
		{args: "bare-server -port 1", ok: func(s *settings) bool { return s.port == 1 && s.host == "127.0.0.1" }},

		{args: "pub -pipeline 1,16 -server old=dir/smss", ok: func(s *settings) bool {
			return len(s.Pipelines) == 2 && s.Rounds == 1 && s.Server == program{"old", "dir/smss"} && s.serverName() == "old"
		}},
		{args: "pub -against dir/smss-ref", ok: func(s *settings) bool {
			return s.Against == program{"smss-ref", "dir/smss-ref"} && s.Rounds == 5 && s.Duration > 0
		}},
		{args: "levels", ok: func(s *settings) bool { return len(s.Levels) == 3 && s.Rounds == 5 && s.Duration > 0 }},

		{args: "pub -nonsense", want: "not defined"},
		{args: "pub extra", want: `unexpected argument "extra"`},
		{args: "pub -threads 0", want: "-threads 0 is out of range: 1 to"},
		{args: "pub -requests 0", want: "-requests 0 is out of range"},
		{args: "pub -requests 5 -duration 1s", want: "exclude each other"},
		{args: "pub -size 0", want: "-size 0"},
		{args: "pub -pipeline 0", want: "-pipeline 0"},
		{args: "pub -pipeline 1,x", want: "separated by commas"},
		{args: "pub -server a/b=c", want: "NAME=PATH"},
		{args: "pub -against x -server x", want: "both servers are called"},
		{args: "pub -against old=x -addr y:1", want: "starts a second server"},
		{args: "idle -against bare", want: "only answers publishes"},
		{args: "levels -addr x:1", want: "start and stop the server"},
		{args: "levels -levels 0,3", want: "-levels 3"},
		{args: "pub -rounds 1001", want: "-rounds 1001"},
		{args: "pub -flush 3", want: "-flush 3"},
		{args: "pub -pid 1", want: "-pid belongs to -addr"},
		{args: "pub -addr x:1 -flush 2", want: "-flush configures a started server"},
		{args: "limit", env: addr, want: "belongs to -compare"},
		{args: "pub -topic a/b", want: "no valid topic name"},
		{args: "pub -topics 100 -topic " + strings.Repeat("x", 128), want: "too long to be a prefix"},
		{args: "pub -size 1000000 -batch 1000 -topics 2", want: "prebuilt"},
		{args: "pub -set x", want: "want KEY=VALUE"},
		{args: "pub -set port.x=1", want: "below a value"},
		{args: "pub -set store=1", want: "section elsewhere"},
		{args: "pub -timeout 0s", want: "-timeout"},
		{args: "sub", ok: func(s *settings) bool { return len(s.Batches) == 3 && s.Messages == 1_000_000 && s.Rounds == 1 }},
		{args: "sub -batch 256", want: "-batch 256 is out of range: 1 to 255"},
		{args: "sub -batch 0", want: "-batch 0"},
		{args: "sub -messages 0", want: "-messages 0"},
		{args: "sub -subscribers 0", want: "-subscribers 0"},
		{args: "sub -topic " + strings.Repeat("x", 120), want: "too long to be a prefix"},
		{args: "latency -subscribers 0 -rate 5", ok: func(s *settings) bool { return s.Subscribers == 0 && s.Rate == 5 && s.Batches[0] == 16 }},
		{args: "latency -rate 0", want: "-rate 0"},
		{args: "latency -size 7", want: "carry a time"},
		{args: "latency -duration 0s", want: "-duration must not be 0s"},
		{args: "fanout -pipeline 1,2", want: "one number"},
		{args: "fanout -duration -1s", want: "not be negative"},
		{args: "delay -form late", want: `-form "late" is none of: spread, at-once`},
		{args: "delay -lead 500ms", want: "no delays under 1s"},
		{args: "delay -delays 0", want: "-delays 0"},
		{args: "restart -gigabytes 0", want: "-gigabytes 0"},
		{args: "restart -kills 0", want: "-kills 0"},
		{args: "restart -addr x:1", want: "start and stop the server"},
		{args: "topics -addr x:1", want: "start and stop the server"},
		{args: "seek -kills 1", want: "not defined"},
		{args: "seek -seeks 0", want: "-seeks 0"},
		{args: "topics -topics 0", want: "-topics 0"},
		{args: "interference -by noise", want: "none of: none, large, delete, retention"},
		{args: "interference", ok: func(s *settings) bool { return len(s.By) == 4 && s.By[3] == byRetention }},
		{args: "interference -duration 1s", ok: func(s *settings) bool { return len(s.By) == 3 && len(disturbances) == 4 }},
		{args: "interference -addr x:1", ok: func(s *settings) bool { return len(s.By) == 3 }},
		{args: "interference -by retention -duration 2s", want: "-by retention: -duration must be 3s or more"},
		{args: "interference -by none,retention -addr x:1", want: "does not go with -addr"},
		{args: "interference -large-size 0", want: "-large-size 0"},
		{args: "replica", ok: func(s *settings) bool {
			return len(s.MinAcks) == 2 && s.Rounds == 5 && s.Pipelines[0] == 1 && s.Requests == 0 && s.Duration > 0
		}},
		{args: "replica -min-acks 1 -against old=x", ok: func(s *settings) bool { return len(s.MinAcks) == 1 && s.Against.name == "old" }},
		{args: "replica -against old=x", want: "-against belongs to one -min-acks"},
		{args: "replica -min-acks 2", want: "-min-acks 2 is out of range: 0 to 1"},
		{args: "replica -addr x:1", want: "start and stop the server"},
		{args: "replica -pipeline 1,2", want: "one number"},
		{args: "replica -gigabytes 0", want: "-gigabytes 0"},
		{args: "replica -duration 0s", want: "-duration must not be 0s"},
		{args: "pub -with-topics -1", want: "-with-topics -1"},
		{args: "idle -threads 1", want: "not defined"},
		{args: "idle -subscribers 0", want: "-subscribers 0"},
		{args: "bare-server -port 0", want: "-port 0"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			env := noEnv
			if tt.env != nil {
				env = tt.env
			}
			args := strings.Fields(tt.args)
			s, err := parse(modeForTest(t, args[0]), args[1:], &bytes.Buffer{}, env)
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if !tt.ok(s) {
					t.Fatalf("settings: %+v", s)
				}
				return
			}
			if _, usage := err.(*usageError); !usage || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want a usage error with %q", err, tt.want)
			}
		})
	}
}

func modeForTest(t *testing.T, name string) *mode {
	t.Helper()
	for _, m := range append(modes(), bareMode) {
		if m.name == name {
			return &m
		}
	}
	t.Fatalf("no mode %s", name)
	return nil
}

func TestServerConfig(t *testing.T) {
	s := &settings{Flush: 2, Set: setFlag{"store.path=/elsewhere", "limits.window=128", "log.path=a b", "log.rotate.maxAge=3"}}
	got, err := serverConfig(s, "/data", 4711)
	if err != nil {
		t.Fatal(err)
	}
	want := `host: 127.0.0.1
limits:
  window: 128
log:
  path: "a b"
  rotate:
    maxAge: 3
port: 4711
store:
  flushLevel: 2
  path: /elsewhere
`
	if string(got) != want {
		t.Fatalf("config:\n%s", got)
	}
}

// The command in a report repeats the run, and names no place.
func TestRepetition(t *testing.T) {
	args := strings.Fields("-threads 3 -pipeline 1,16 -set a.b=c -set d=e -dir /x -json /y -out /z -quiet -server old=/bin/x -against /bin/y -batch 2")
	s, err := parse(modeForTest(t, "pub"), args, &bytes.Buffer{}, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	if want := "smss bench pub -against y=PATH -batch 2 -pipeline 1,16 -server old=PATH -set a.b=c -set d=e -threads 3"; s.command != want {
		t.Errorf("%q, want %q", s.command, want)
	}
	s, err = parse(modeForTest(t, "limit"), []string{"-compare", "-addr", "10.0.0.1:5"}, &bytes.Buffer{}, noEnv)
	if err != nil || s.command != "smss bench limit -addr ADDRESS -compare" {
		t.Errorf("%v %q", err, s.command)
	}
}

// What -out writes is named for its parameters.
func TestFileNames(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for args, want := range map[string]string{
		"pub": "smss-pub-256c-1p-200b", "pub -batch 3 -topics 2 -against bare": "smss-pub-256c-1p-3m-200b-2t-against-bare",
		"limit -compare": "smss-limit-256c-1p-200b-256c-16p-200b-against-bare", "sub": "smss-sub-drain-1s-1+16+255batch-200b",
		"latency": "smss-latency-1000ps-1c-1s-16batch-200b", "idle": "smss-idle-10000s", "seek -gigabytes 2.5": "smss-seek-2.5g-1000b",
		"delay -form at-once": "smss-delay-at-once-100000-200b", "topics": "smss-topics-20000t",
		"replica -gigabytes 2":   "smss-replica-256c-1p-200b-2g-acks-0+1",
		"interference -by large": "smss-interference-large-8000000b-1000ps-16c-200b",
	} {
		words := append(strings.Fields(args), "-out", "d")
		s, err := parse(modeForTest(t, words[0]), words[1:], &bytes.Buffer{}, noEnv)
		if err != nil {
			t.Fatal(err)
		}
		files := s.files(at)
		if len(files) != 2 || files[0] != "d/"+want+"-20260102T030405Z.json" || files[1] != "d/"+want+"-20260102T030405Z.html" {
			t.Errorf("%s: %v, want %s", args, files, want)
		}
	}
}

// The existing server takes 0 for what it is not told, this one refuses what
// it does not know: the file for another binary is for both.
func TestForeignConfig(t *testing.T) {
	s := &settings{Flush: 2, Set: setFlag{"worker.buffSize=7"}}
	got, err := foreignConfig(s, "/data", 4711)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"port: 4711\n", "flushLevel: 2\n", "path: /data\n", "buffSize: 7\n", "waitMsgTimeout: 1000\n"} {
		if !strings.Contains(string(got), want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}
