package conf

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestDefaultIsValid(t *testing.T) {
	c := Default()
	if err := c.Validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}
}

func TestDefaults(t *testing.T) {
	c := Default()
	for name, pair := range map[string][2]any{
		"role":             {c.Role, "master"},
		"port":             {c.Port, 12301},
		"master.port":      {c.Master.Port, 12301},
		"path":             {c.Store.Path, "data"},
		"maxLogSize":       {c.Store.MaxLogSize, int64(1 << 30)},
		"maxDays":          {c.Store.MaxDays, 7},
		"folderCount":      {c.Store.FolderCount, 0},
		"minFreeBytes":     {c.Store.MinFreeBytes, int64(128 << 20)},
		"alive":            {c.Timeout.ServerAliveMs, 30000},
		"maxMessageSize":   {c.Limits.MaxMessageSize, 16 << 20},
		"maxInflightBytes": {c.Limits.MaxInflightBytes, int64(64 << 20)},
		"maxDelayMs":       {c.Limits.MaxDelayMs, int64(10 * 365 * 24 * 3600 * 1000)},
	} {
		if pair[0] != pair[1] {
			t.Errorf("default %s is %v, want %v", name, pair[0], pair[1])
		}
	}
}

// Every exported field must be reached by exactly one row, or it could never be set.
func TestTableCoversConfig(t *testing.T) {
	var c Config
	rowOf := make(map[any]string)
	for _, e := range table() {
		p := e.field(&c)
		if other, ok := rowOf[p]; ok {
			t.Errorf("%s and %s share a field", other, e.key)
		}
		rowOf[p] = e.key
	}
	var visit func(path string, v reflect.Value)
	visit = func(path string, v reflect.Value) {
		for i := range v.NumField() {
			field := v.Type().Field(i)
			switch {
			case !field.IsExported():
			case field.Type.Kind() == reflect.Struct:
				visit(path+field.Name+".", v.Field(i))
			default:
				if _, ok := rowOf[v.Field(i).Addr().Interface()]; !ok {
					t.Errorf("no row for %s%s", path, field.Name)
				}
				delete(rowOf, v.Field(i).Addr().Interface())
			}
		}
	}
	visit("", reflect.ValueOf(&c).Elem())
	if len(rowOf) != 0 {
		t.Errorf("rows that point outside of the exported fields: %v", rowOf)
	}
}

// Each row accepts its bounds and refuses what lies next to them.
func TestRangesAreEnforced(t *testing.T) {
	for _, e := range table() {
		if e.meaning == "" {
			t.Errorf("%s has no meaning", e.key)
		}
		if _, ok := e.current(new(Config)).(int64); !ok {
			continue
		}
		if e.max <= e.min {
			t.Errorf("%s has no range", e.key)
		}
		for _, test := range []struct {
			text string
			ok   bool
		}{
			{fmt.Sprint(e.min), true}, {fmt.Sprint(e.max), true}, {fmt.Sprint(e.min - 1), false}, {fmt.Sprintf("%d0", e.max), false},
		} {
			if _, err := e.read(test.text); (err == nil) != test.ok {
				t.Errorf("%s = %s: %v, want accepted %v", e.key, test.text, err, test.ok)
			}
		}
	}
}

func TestValidateOfAConfigChangedInCode(t *testing.T) {
	c := Default()
	c.Store.MaxDays = -1
	c.Log.Format = "xml"
	c.Limits.MaxMessageSize = 1 << 30
	wantProblems(t, c.Validate(),
		`default: log.format = "xml"`,
		`store.maxDays = "-1": is out of range; allowed: 0..36500 days`,
		`limits.maxInflightBytes`)
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1": 1, "1k": 1 << 10, "2K": 2 << 10, "3KiB": 3 << 10, "4 MiB": 4 << 20, "5m": 5 << 20, "6G": 6 << 30, "7gib": 7 << 30, " 8 ": 8,
	} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("parseSize(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "k", "1T", "1kb", "1MB", "1.5G", "0x1K", "1e3", "9223372036854775807K", "-9223372036854775807K", "1 0", "+1"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("parseSize(%q) = %d, want it refused", text, got)
		}
	}
	for v, want := range map[int64]string{0: "0", 1: "1", 1000: "1000", 1024: "1KiB", 1536: "1536", 3 << 20: "3MiB", 256 << 30: "256GiB"} {
		if got := formatSize(v); got != want {
			t.Errorf("formatSize(%d) = %q, want %q", v, got, want)
		}
	}
}

func TestEffectiveNamesTheSource(t *testing.T) {
	c := mustLoad(t, []string{"-role=slave", "-host=m"}, []string{"SMSS_PORT=9"}, map[string]string{DefaultFile: "store: {maxLogSize: 2097152}"})
	got := make(map[string]Setting)
	for _, s := range c.Effective() {
		got[s.Key] = s
	}
	if len(got) != len(table()) {
		t.Errorf("%d settings, want %d", len(got), len(table()))
	}
	for _, want := range []Setting{
		{"role", "slave", FromFlag}, {"master.host", "m", FromFlag}, {"port", "9", FromEnvironment},
		{"store.maxLogSize", "2MiB", FromFile}, {"store.maxDays", "7", FromDefault}, {"store.folderCount", "not given", FromDefault},
	} {
		if got[want.Key] != want {
			t.Errorf("%+v, want %+v", got[want.Key], want)
		}
	}
}

func TestReferenceAndHelpShowEverySetting(t *testing.T) {
	help, markdown := Help(), Markdown()
	for _, r := range Reference() {
		if !strings.Contains(markdown, "`"+r.Env+"`") || !strings.Contains(markdown, r.Meaning) {
			t.Errorf("Markdown lacks %s", r.Key)
		}
		if r.InFile && !strings.Contains(help, "  "+r.Key+" ") || r.Flag != "" && !strings.Contains(help, "  -"+r.Flag+" ") {
			t.Errorf("Help lacks %s", r.Key)
		}
		if r.Range == "" {
			t.Errorf("%s has no range", r.Key)
		}
	}
	want := "| `timeout.server.alive`, also `time.server.alive` | `SMSS_TIMEOUT_SERVER_ALIVE` | 30000 | 100..3600000 ms |"
	if !strings.Contains(markdown, want) {
		t.Errorf("Markdown lacks the row %q", want)
	}
	if lines := strings.Count(markdown, "\n"); lines != len(table())+2 {
		t.Errorf("Markdown has %d lines, want one for each setting and two of heading", lines)
	}
}

func TestSuggest(t *testing.T) {
	known := []string{"port", "store.maxDays", "store.maxLogSize"}
	for name, want := range map[string]string{
		"prt": "port", "PORT": "port", "store.maxday": "store.maxDays", "store.maxLogsize": "store.maxLogSize", "xyz": "", "": "",
		strings.Repeat("p", 65): "",
	} {
		if got := suggest(name, known); got != want {
			t.Errorf("suggest(%q) = %q, want %q", name, got, want)
		}
	}
}
