package bench

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every step is a command that the modes take, and its cases have the names
// that the targets ask for.
func TestStepsParse(t *testing.T) {
	t.Parallel()
	for _, full := range []bool{false, true} {
		s := &suiteSettings{full: full, rounds: 3, existing: program{existingName, "x"}, dir: "d"}
		for _, st := range steps {
			args := s.arguments(st)
			got, err := parse(modeForTest(t, args[0]), args[1:], &bytes.Buffer{}, noEnv)
			if err != nil {
				t.Errorf("%s: %v", st.name, err)
				continue
			}
			if st.rounds && got.Rounds != 3 || !st.rounds && got.Kills != 3 || st.existing != (got.Against.name == existingName) {
				t.Errorf("%s: %+v", st.name, got)
			}
		}
	}
}

// The long form of the suite has a case for every target.
func TestTargetsHaveTheirSteps(t *testing.T) {
	t.Parallel()
	cases := map[string]bool{}
	s := &suiteSettings{full: true, rounds: 5}
	for _, st := range steps {
		args := s.arguments(st)
		got, err := parse(modeForTest(t, args[0]), args[1:], &bytes.Buffer{}, noEnv)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range casesForTest(got) {
			cases[got.Mode+" "+name] = true
		}
	}
	for _, b := range bars {
		found := false
		for _, mode := range b.mode {
			found = found || cases[mode+" "+b.name]
		}
		if !found {
			t.Errorf("no step measures %q: %s", b.text, b.name)
		}
		if known(b.key).label == b.key {
			t.Errorf("%q: there is no quantity %s", b.text, b.key)
		}
	}
}

// casesForTest are the names of the cases that settings lead to.
func casesForTest(s *settings) []string {
	var all []string
	switch s.Mode {
	case "pub", "limit", "levels":
		for _, k := range s.Pipelines {
			all = append(all, s.loadTitle(k))
		}
	case "sub", "latency", "fanout":
		for _, b := range texts(s.Batches) {
			all = append(all, s.streamTitle(b))
		}
	case "delay":
		for _, form := range s.Forms {
			all = append(all, s.delayTitle(form))
		}
	case "restart":
		all = append(all, "seek-"+s.storeTitle(), "ready-"+s.storeTitle())
	case "interference":
		for _, by := range s.By {
			all = append(all, s.interferenceTitle(by))
		}
	default:
		all = append(all, s.title())
	}
	return all
}

func TestSuiteRunsOnAfterAFailure(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "results")
	s, err := parseSuite([]string{"-out", dir, "-rounds", "2", "-quiet", "-dir", t.TempDir(), "-server", "real=" + smssForTest(t)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	err = s.run(testContext(t), []step{
		{"broken", "pub -threads 2 -requests 5 -set port=x", "", false, true},
		{"small", "pub -threads 2 -requests 20", "", false, true},
	}, output{&stdout, &stderr})
	if err == nil || !strings.Contains(err.Error(), "1 of 2 steps failed: broken") || !strings.Contains(stderr.String(), "start real server") {
		t.Fatalf("%v %q", err, stderr.String())
	}
	files, err := filepath.Glob(filepath.Join(dir, "smss-pub-2c-1p-200b-*"))
	if err != nil || len(files) != 2 {
		t.Fatalf("%v, %v", files, err)
	}
	status, text, problem := runForTest(t, "report", "-o", "-", dir)
	if status != 0 || problem != "" {
		t.Fatalf("%d %q", status, problem)
	}
	for _, want := range []string{"medians of 2", "smss bench pub -requests 20 -rounds 2 -server real=PATH -threads 2", "not measured"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, t.TempDir()) || strings.Contains(text, buildDirectory) {
		t.Errorf("a path of this machine is in\n%s", text)
	}
}

func TestSuiteInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var stdout, stderr bytes.Buffer
	status := run(ctx, []string{"suite", "-out", t.TempDir()}, output{&stdout, &stderr}, noEnv)
	if status != 0 || !strings.Contains(stdout.String(), "interrupted after 1 of ") {
		t.Fatalf("%d %q %q", status, stdout.String(), stderr.String())
	}
}

func TestToolMistakes(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "x.json")
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args   string
		status int
		want   string
	}{
		{"suite", 2, "-out DIRECTORY must be given"},
		{"suite -out x -only nothing", 2, `-only "nothing" is none of`},
		{"suite -out x -only idle -skip idle", 2, "exclude each other"},
		{"suite -out x -rounds 0", 2, "-rounds 0"},
		{"suite -out x extra", 2, `unexpected argument "extra"`},
		{"compare", 2, "want two JSON files"},
		{"compare " + file + " " + file, 1, "it has no results"},
		{"report", 2, "want JSON files"},
		{"report -o - " + t.TempDir(), 1, "holds no JSON file"},
		{"report -nonsense", 2, "not defined"},
	} {
		status, _, stderr := runForTest(t, strings.Fields(tt.args)...)
		if status != tt.status || !strings.Contains(stderr, tt.want) {
			t.Errorf("%s: %d %q, want %d %q", tt.args, status, stderr, tt.status, tt.want)
		}
	}
	for _, name := range []string{"suite", "compare", "report"} {
		if status, stdout, _ := runForTest(t, name, "-h"); status != 0 || !strings.Contains(stdout, "Examples:") {
			t.Errorf("%s -h: %d %q", name, status, stdout)
		}
	}
}
