package conf

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// shipped is the configuration the existing server comes with.
const shipped = `port: 12301
log:
  path: stdout
  sample: 10000
  withGid: true
  rotate:
    maxSize: 500
    maxBackups: 10
    maxAge: 14
store:
  path: data
  maxLogSize: 1073741824
  flushLevel: 1
  maxDays: 7
  clearInterval: 7200
  waitDelLockTimeoutMs: 3000
  noCache: false
  folderCount: 10
worker:
  buffSize: 1000
  waitMsgTimeout: 1000
  waitMsgTimeoutLogSample: 30
timeout:
  net:
    write: 1000
  server:
    alive: 30000
background:
    defaultScanSecond: 7200
    firstExecSecond: 1
`

// files answers readFile from memory.
func files(byPath map[string]string) func(string) ([]byte, error) {
	return func(path string) ([]byte, error) {
		if text, ok := byPath[path]; ok {
			return []byte(text), nil
		}
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
}

// loadText loads text as the default file.
func loadText(text string, environ ...string) (*Config, error) {
	return Load(nil, environ, files(map[string]string{DefaultFile: text}))
}

func mustLoad(t *testing.T, args, environ []string, byPath map[string]string) *Config {
	t.Helper()
	c, err := Load(args, environ, files(byPath))
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	return c
}

// values strips the bookkeeping so that two configurations can be compared.
func values(c Config) Config {
	c.origins, c.warnings, c.file = nil, nil, ""
	return c
}

// wantProblems checks that err is an *Error with exactly these problems; each
// wanted text lists fragments that must occur in its line, separated by " … ".
func wantProblems(t *testing.T, err error, want ...string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v, want an *Error with %d problems", err, len(want))
	}
	if len(e.Problems) != len(want) {
		t.Fatalf("%d problems, want %d:\n%v", len(e.Problems), len(want), err)
	}
	for i, p := range e.Problems {
		for _, fragment := range strings.Split(want[i], " … ") {
			if !strings.Contains(p.String(), fragment) {
				t.Errorf("problem %d is %q, want %q in it", i, p, fragment)
			}
		}
	}
}

func TestShippedFileLoadsWithoutRemark(t *testing.T) {
	c := mustLoad(t, nil, nil, map[string]string{DefaultFile: shipped})
	want := Default()
	want.Log.WithGid = true
	want.Store.FolderCount = 10
	want.Worker.BuffSize = 1000
	if got := values(*c); !reflect.DeepEqual(got, want) {
		t.Errorf("shipped file gives\n%+v\nwant the defaults with withGid and folderCount\n%+v", got, want)
	}
	if w := c.Warnings(); len(w) != 0 {
		t.Errorf("warnings %q, want none", w)
	}
	if c.File() != DefaultFile {
		t.Errorf("File() = %q, want %q", c.File(), DefaultFile)
	}
}

func TestEmptyFilesGiveDefaults(t *testing.T) {
	for _, text := range []string{"", "\n", "# nothing\n", "---\n", "~\n", "{}\n", "store:\n  # maxDays: 1\nlog: {}\n"} {
		c, err := loadText(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if !reflect.DeepEqual(values(*c), Default()) {
			t.Errorf("%q differs from the defaults: %+v", text, values(*c))
		}
	}
}

func TestNoFileGivesDefaults(t *testing.T) {
	c := mustLoad(t, nil, nil, nil)
	if c.File() != "" || !reflect.DeepEqual(values(*c), Default()) {
		t.Errorf("file %q, values %+v; want no file and the defaults", c.File(), values(*c))
	}
}

func TestLaterSourcesWin(t *testing.T) {
	byPath := map[string]string{DefaultFile: "port: 1\nhost: file\nstore: {maxDays: 3, path: f}\n"}
	c := mustLoad(t, []string{"-role", "slave", "--host=m1", "-port", "99", "-event", "7"},
		[]string{"SMSS_PORT=2", "SMSS_ROLE=master", "SMSS_STORE_PATH=e", "SMSS_MASTER_HOST=m2", "OTHER=x"}, byPath)
	if c.Role != "slave" || c.Master.Host != "m1" || c.Master.Port != 99 || c.Master.EventID != 7 {
		t.Errorf("role %q, master %+v; want the flags to win", c.Role, c.Master)
	}
	if c.Port != 2 || c.Store.Path != "e" {
		t.Errorf("port %d, path %q; want the environment to win over the file, and -port to be the master's", c.Port, c.Store.Path)
	}
	if c.Host != "file" || c.Store.MaxDays != 3 {
		t.Errorf("host %q, maxDays %d; want the file to win over the defaults", c.Host, c.Store.MaxDays)
	}
}

func TestFileLookup(t *testing.T) {
	byPath := map[string]string{DefaultFile: "port: 1", "env.yaml": "port: 2", "flag.yaml": "port: 3"}
	for _, test := range []struct {
		args, environ []string
		port          int
	}{
		{nil, nil, 1},
		{nil, []string{"SMSS_CONFIG=env.yaml"}, 2},
		{nil, []string{"SMSS_CONFIG="}, 1},
		{[]string{"-config", "flag.yaml"}, []string{"SMSS_CONFIG=env.yaml"}, 3},
		{[]string{"--config=flag.yaml"}, nil, 3},
	} {
		if c := mustLoad(t, test.args, test.environ, byPath); c.Port != test.port {
			t.Errorf("args %q, environment %q: port %d, want %d", test.args, test.environ, c.Port, test.port)
		}
	}
}

func TestNamedFileMustExist(t *testing.T) {
	_, err := Load([]string{"-config", "x.yaml"}, nil, files(nil))
	wantProblems(t, err, "x.yaml: cannot be read: … flag -config")
	_, err = Load(nil, []string{"SMSS_CONFIG=y.yaml"}, files(nil))
	wantProblems(t, err, "y.yaml: cannot be read: … SMSS_CONFIG")
	_, err = Load([]string{"-config="}, nil, files(nil))
	wantProblems(t, err, "flag -config: names no file")
}

func TestUnreadableDefaultFileIsAProblem(t *testing.T) {
	_, err := Load(nil, nil, func(path string) ([]byte, error) {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrPermission}
	})
	wantProblems(t, err, DefaultFile+": cannot be read: permission denied")
}

func TestFilesOnDisk(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if c, err := Load(nil, nil, nil); err != nil || c.Port != 12301 {
		t.Fatalf("no file: %v", err)
	}
	if err := os.WriteFile("config", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(nil, nil, nil); err != nil {
		t.Errorf("a file called config in the working directory: %v, want it passed over", err)
	}
	path := filepath.Join(dir, "smss.yaml")
	if err := os.WriteFile(path, []byte("port: 77"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := Load([]string{"-config", path}, nil, nil); err != nil || c.Port != 77 {
		t.Errorf("named file: %v", err)
	}
	_, err := Load([]string{"-config", dir}, nil, nil)
	wantProblems(t, err, dir+": cannot be read: ")
	large := "#" + strings.Repeat("x", maxFileSize)
	if err := os.WriteFile(path, []byte(large), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Load([]string{"-config", path}, nil, nil)
	wantProblems(t, err, "larger than 1MiB")
}

func TestAllProblemsOfAllSourcesAtOnce(t *testing.T) {
	text := "port: 70000\nstore:\n  maxDays: 7d\n  maxday: 3\n"
	_, err := Load([]string{"-role", "boss", "-prot", "1", "start"}, []string{"SMSS_WORKER_READERS=0", "SMSS_PROT=1"},
		files(map[string]string{DefaultFile: text}))
	wantProblems(t, err,
		`config/config.yaml:1: port = "70000": is out of range; allowed: 0..65535`,
		`config/config.yaml:3: store.maxDays = "7d": is not a plain whole number; allowed: 0..36500 days`,
		`config/config.yaml:4: store.maxday: is not a known key; did you mean store.maxDays?`,
		`environment SMSS_PROT = "1": names no setting; did you mean SMSS_PORT?`,
		`environment SMSS_WORKER_READERS: worker.readers = "0": is out of range; allowed: 1..64 goroutines`,
		`command line: flag provided but not defined: -prot`,
		`command line = "1": is not a flag`,
		`command line = "start": is not a flag`,
		`flag -role: role = "boss": is not one of the words known here; allowed: master, slave`)
	if lines := strings.Count(err.Error(), "\n") + 1; lines != 9 {
		t.Errorf("text has %d lines, want one for each of 9 problems:\n%v", lines, err)
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{"-h"}, {"-help"}, {"--help"}, {"-role", "x", "-help"}, {"-nonsense", "-h"}} {
		if c, err := Load(args, nil, files(nil)); !errors.Is(err, flag.ErrHelp) || c != nil {
			t.Errorf("%q: %v, want flag.ErrHelp", args, err)
		}
	}
}

func TestFlagProblems(t *testing.T) {
	for _, test := range []struct {
		args []string
		want []string
	}{
		{[]string{"-port"}, []string{"command line: flag needs an argument: -port"}},
		{[]string{"-port", "0", "-role", "slave", "-host", "m"}, []string{`flag -port: master.port = "0": is out of range; allowed: 1..65535`}},
		{[]string{"-event", "-1"}, []string{`flag -event: master.event = "-1": is out of range`}},
		{[]string{"-event", "9223372036854775808"}, []string{"master.event … is out of range"}},
		{[]string{"-host", "m:12301"}, []string{"flag -host … no port"}},
		{[]string{"--", "-role"}, []string{`command line = "-role": is not a flag`}},
		{[]string{"-role", "slave"}, []string{"flag -role: role = \"slave\": a slave must be told its master … -host"}},
		{[]string{"-role", "slave", "-host", ""}, []string{"a slave must be told its master"}},
		{[]string{"-role", "Master"}, []string{"flag -role: role"}},
	} {
		_, err := Load(test.args, nil, files(nil))
		wantProblems(t, err, test.want...)
	}
}

func TestMasterFlagsOnAMasterAreRemarkedOn(t *testing.T) {
	c := mustLoad(t, []string{"-host", "m", "-port", "1"}, []string{"SMSS_MASTER_EVENT=3"}, nil)
	w := c.Warnings()
	if len(w) != 3 {
		t.Fatalf("warnings %q, want three", w)
	}
	for i, where := range []string{"flag -host is ignored", "flag -port is ignored", "environment SMSS_MASTER_EVENT is ignored"} {
		if !strings.HasPrefix(w[i], where) {
			t.Errorf("warning %q, want it to begin with %q", w[i], where)
		}
	}
	w[0] = "changed"
	if c.Warnings()[0] == "changed" {
		t.Error("Warnings hands out its own slice")
	}
	if c := mustLoad(t, []string{"-role=slave", "-host", "m"}, nil, nil); len(c.Warnings()) != 0 {
		t.Errorf("slave with -host: warnings %q, want none", c.Warnings())
	}
}

func TestAliveLongerThanClientsWait(t *testing.T) {
	c := mustLoad(t, nil, []string{"SMSS_TIMEOUT_SERVER_ALIVE=35000"}, nil)
	if w := c.Warnings(); len(w) != 1 || !strings.Contains(w[0], "timeout.server.alive = 35000") {
		t.Errorf("warnings %q, want one on timeout.server.alive", w)
	}
	if c := mustLoad(t, nil, []string{"SMSS_TIMEOUT_SERVER_ALIVE=34999"}, nil); len(c.Warnings()) != 0 {
		t.Errorf("warnings %q, want none", c.Warnings())
	}
}
