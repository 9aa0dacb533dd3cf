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
