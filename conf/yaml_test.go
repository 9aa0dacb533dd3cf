package conf

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestKeysIgnoreCaseAndMayBeFlat(t *testing.T) {
	for _, text := range []string{
		"timeout:\n  net:\n    write: 1234\n",
		"TIMEOUT:\n  Net:\n    WRITE: 1234\n",
		"timeout.net.write: 1234\n",
		"timeout.NET: {write: 1234}\n",
		"timeout:\n  net.write: 1234\n",
		"timeout.net.write: \"1234\"\n",
	} {
		c, err := loadText(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		} else if c.Timeout.NetWriteMs != 1234 {
			t.Errorf("%q: %d, want 1234", text, c.Timeout.NetWriteMs)
		}
	}
}

func TestAnchorsWork(t *testing.T) {
	c, err := loadText("limits:\n  maxPushBytes: &size 2MiB\n  maxOutboundBytes: *size\nbackground: &b {firstExecSecond: 3}\n")
	if err != nil {
		t.Fatal(err)
	}
	if c.Limits.MaxOutboundBytes != 2<<20 || c.Background.FirstExecSecond != 3 {
		t.Errorf("outbound %d, first %d", c.Limits.MaxOutboundBytes, c.Background.FirstExecSecond)
	}
}

func TestDocumentationNamesOfKeys(t *testing.T) {
	c, err := loadText("time: {server: {alive: 111}}\nbackground:\n  life: {defaultScanSec: 222}\n  delay.firstExec: 333\n")
	if err != nil {
		t.Fatal(err)
	}
	if c.Timeout.ServerAliveMs != 111 || c.Background.DefaultScanSecond != 222 || c.Background.FirstExecSecond != 333 {
		t.Errorf("alive %d, scan %d, first %d", c.Timeout.ServerAliveMs, c.Background.DefaultScanSecond, c.Background.FirstExecSecond)
	}
	if len(c.Warnings()) != 0 {
		t.Errorf("warnings %q, want none", c.Warnings())
	}
}

func TestCodeKeyBeatsDocumentationKey(t *testing.T) {
	const code, documentation = "timeout.server.alive: 1000\n", "time.server.alive: 2000\n"
	for _, text := range []string{code + documentation, documentation + code} {
		c, err := loadText(text)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if c.Timeout.ServerAliveMs != 1000 {
			t.Errorf("%q: %d, want 1000", text, c.Timeout.ServerAliveMs)
		}
		if w := c.Warnings(); len(w) != 1 || !strings.Contains(w[0], "two names") {
			t.Errorf("%q: warnings %q, want one", text, w)
		}
	}
	c, err := loadText("timeout.server.alive: 1000\ntime.server.alive: 1000\n")
	if err != nil || len(c.Warnings()) != 0 {
		t.Errorf("equal values: %v, warnings %q, want neither", err, c.Warnings())
	}
	_, err = loadText("timeout.server.alive: 1000\ntime.server.alive: soon\n")
	wantProblems(t, err, `:2 (time.server.alive): timeout.server.alive = "soon"`)
}

func TestFileProblems(t *testing.T) {
	for _, test := range []struct {
		text string
		want []string
	}{
		{"port: 1\nPORT: 2\n", []string{":2: PORT: is given twice, first in line 1"}},
		{"timeout.net.write: 1\ntimeout: {net: {write: 2}}\n", []string{":2: timeout.net.write: is given twice, first in line 1"}},
		{"log: {}\nlog: {}\n", []string{":2: log: is given twice"}},
		{"prot: 1\n", []string{":1: prot: is not a known key; did you mean port?"}},
		{"maxDays: 1\n", []string{"maxDays: is not a known key; did you mean store.maxDays?"}},
		{"zebra: 1\n", []string{"zebra: is not a known key"}},
		{"store: 1\n", []string{`:1: store = "1": is a section`}},
		{"store: [a]\n", []string{"store: is a section"}},
		{"port: {a: 1}\n", []string{"port: needs a single value"}},
		{"port: [1]\n", []string{"port: needs a single value"}},
		{"store:\n  maxDays:\n", []string{":2: store.maxDays: has no value … 0..36500 days"}},
		{"store: {maxDays: 0.5}\n", []string{`store.maxDays = "0.5": is not a plain whole number`}},
		{"store: {maxDays: -1}\n", []string{`store.maxDays = "-1": is out of range`}},
		{"store: {maxDays: 99999999}\n", []string{`store.maxDays = "99999999": is out of range`}},
		{"store: {maxDays: 99999999999999999999}\n", []string{"is out of range"}},
		{"store: {maxDays: 0x10}\n", []string{"is not a plain whole number"}},
		{"store: {maxDays: 010}\n", []string{"is not a plain whole number"}},
		{"store: {noCache: yes}\n", []string{`store.noCache = "yes": is not true or false`}},
		{"store: {folderCount: 0}\n", []string{"store.folderCount = \"0\": is out of range; allowed: 1..1000"}},
		{"store: {maxLogSize: 63}\n", []string{"store.maxLogSize … allowed: 64..256GiB"}},
		{"store: {maxLogSize: 1GB}\n", []string{"unknown size suffix"}},
		{"store: {maxLogSize: 9999999999G}\n", []string{"is out of range"}},
		{"store: {path: ' '}\n", []string{`store.path = " ": is empty`}},
		{"log: {path: \"a\\tb\"}\n", []string{"control character"}},
		{"log: {level: loud}\n", []string{"log.level … allowed: debug, info, warn, error"}},
		{"host: '[::1]'\n", []string{"no brackets"}},
		{"role: slave\n", []string{":1: role = \"slave\": cannot be set in the file; use the flag -role or SMSS_ROLE"}},
		{"master: {host: a}\n", []string{"master.host … use the flag -host or SMSS_MASTER_HOST"}},
		{"- a\n", []string{":1: is not a list of keys and values"}},
		{"hello\n", []string{":1: is not a list of keys and values"}},
		{"port: 1\n---\nport: 2\n", []string{":2: a second document begins here"}},
		{"port: 1\n---\n", []string{"a second document begins here"}},
		{"port: 1\n bad\n  : x: y\n", []string{"is not valid YAML"}},
		{"port: 1\n---\n{", []string{"is not valid YAML"}},
		{"port: *nothing\n", []string{"is not valid YAML: unknown anchor"}},
		{"? [a]\n: 1\n", []string{"a key must be a word"}},
		{"port: \xff\n", []string{"is not valid YAML"}},
		{"port: \x00\n", []string{"is not valid YAML"}},
	} {
		t.Run(test.text, func(t *testing.T) {
			_, err := loadText(test.text)
			wantProblems(t, err, test.want...)
		})
	}
}

func TestHostForms(t *testing.T) {
	for _, host := range []string{"", "0.0.0.0", "::1", "fe80::1%eth0", "smss_master_1", "a.example.com"} {
		c, err := loadText(fmt.Sprintf("host: %q\n", host))
		if err != nil || c.Host != host {
			t.Errorf("host %q: %v", host, err)
		}
	}
}

func TestRelations(t *testing.T) {
	_, err := loadText("limits:\n  maxMessageSize: 128MiB\n")
	wantProblems(t, err, `:2: limits.maxInflightBytes = "64MiB": must be at least limits.maxMessageSize, which is 128MiB`)
	_, err = loadText("limits:\n  maxMessageSize: 128MiB\n  maxInflightBytes: lots\n")
	wantProblems(t, err, `limits.maxInflightBytes = "lots"`) // and no complaint on the default of 64MiB
	_, err = loadText("limits: {memoryBytes: 1MiB}\n")
	wantProblems(t, err, "limits.memoryBytes … at least 16MiB")
	if _, err = loadText("limits: {memoryBytes: 16MiB, maxMessageSize: 64MiB}\n"); err != nil {
		t.Errorf("at the edge: %v", err)
	}
}

// An alias bomb must neither be expanded nor reported a million times.
func TestAliasBomb(t *testing.T) {
	var b strings.Builder
	b.WriteString("a0: &a0 {store: {maxDays: 1}}\n")
	for i := 1; i < 40; i++ {
		fmt.Fprintf(&b, "a%d: &a%d {store: *a%d, log: *a%d, worker: *a%d}\n", i, i, i-1, i-1, i-1)
	}
	b.WriteString("store: *a39\nlog: *a39\ntimeout: &t {net: *t}\n")
	_, err := loadText(b.String())
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v, want an *Error", err)
	}
	if n := len(e.Problems) + e.More; n > 60 {
		t.Errorf("%d problems for 42 keys", n)
	}
}

func TestProblemsAreBounded(t *testing.T) {
	var b strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&b, "k%d: 1\n", i)
	}
	_, err := loadText(b.String())
	var e *Error
	if !errors.As(err, &e) || len(e.Problems) != maxProblems || e.More != 20000-maxProblems {
		t.Fatalf("want %d problems and the rest counted", maxProblems)
	}
	if !strings.HasSuffix(err.Error(), "and 19900 more problems") {
		t.Errorf("text ends %q", err.Error()[len(err.Error())-60:])
	}
}

func TestProblemsStayOnOneLine(t *testing.T) {
	_, err := loadText("\"a\\nb\\e[31m\": 1\nport: \"1\\n2\"\n")
	wantProblems(t, err, ":1: a\ufffdb\ufffd[31m: is not a known key", `port = "1\n2"`)
}

func TestLongValuesAreShortened(t *testing.T) {
	_, err := loadText("port: " + strings.Repeat("é", 5000) + "\n" + strings.Repeat("k", 5000) + ".\u20ac: 1\n")
	if n := len(err.Error()); n > 1000 {
		t.Errorf("text of %d bytes", n)
	}
}

// FuzzYAML: whatever the file says, loading ends, never panics, and gives either
// a configuration that validates and survives being written out and read again,
// or an *Error of bounded length.
func FuzzYAML(f *testing.F) {
	for _, seed := range []string{shipped, "", "a: &a [*a]", "store: &s {maxDays: 1}\nlog: *s", "<<: {port: 1}", "port: !!binary aGk=",
		"time.server.alive: 100\ntimeout: {server: {alive: 5}}", "? \n: ~", "port: 1\n---\n", "limits: {maxMessageSize: 1G, maxInflightBytes: 1g}"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Load(nil, nil, func(string) ([]byte, error) { return data, nil })
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || len(e.Problems) == 0 || len(e.Problems) > maxProblems {
				t.Fatalf("error %T %v", err, err)
			}
			for _, p := range e.Problems {
				if line := p.String(); strings.Contains(line, "\n") || len(line) > 2000 {
					t.Fatalf("problem is not one short line: %q", line)
				}
			}
			return
		}
		if err := c.Validate(); err != nil {
			t.Fatalf("loaded but not valid: %v", err)
		}
		again, err := loadText(fileOf(c))
		if err != nil {
			t.Fatalf("written out and read again: %v", err)
		}
		if !reflect.DeepEqual(values(*again), values(*c)) {
			t.Fatalf("written out and read again:\n%+v\n%+v", values(*again), values(*c))
		}
	})
}

// fileOf writes the values in force as a flat file.
func fileOf(c *Config) string {
	inFile := make(map[string]bool)
	for _, r := range Reference() {
		inFile[r.Key] = r.InFile
	}
	var b strings.Builder
	for _, s := range c.Effective() {
		if inFile[s.Key] && s.Value != "not given" {
			fmt.Fprintf(&b, "%s: '%s'\n", s.Key, strings.ReplaceAll(s.Value, "'", "''"))
		}
	}
	return b.String()
}
