package main

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"smss/conf"
)

// The rules of the house, as tests: which package may import which, which
// files may start goroutines or hold a lock, and what no file may contain. A
// rule that is in the way is changed here, where the change is seen.

var update = flag.Bool("update", false, "write the configuration table into README.md")

// room is what a package may import, beside the standard library.
type room struct {
	smss     []string // packages of this module
	modules  []string // other modules, by the beginning of their path
	never    []string // packages of the standard library that are not for it
	testOnly []string // further packages of this module, in tests
}

const (
	unixCalls = "golang.org/x/sys/unix"
	gnet      = "github.com/panjf2000/gnet/v2"
	badgerDB  = "github.com/dgraph-io/badger/v4"
	mapping   = "github.com/dgraph-io/ristretto/v2" // the type that Badger maps its files with
)

// rooms is the order of imports, lowest first. A package that is not in it
// fails TestImports: it has to be given its place.
var rooms = map[string]room{
	"codec": {
		never: []string{"context", "io", "io/fs", "log", "log/slog", "net", "net/http", "os", "runtime", "sync", "sync/atomic", "time"},
	},
	"storage": {
		smss: []string{"codec"}, modules: []string{badgerDB, mapping, unixCalls},
		never: []string{"log", "log/slog", "net", "net/http"},
	},
	"engine": {
		smss: []string{"codec", "storage"}, modules: []string{unixCalls},
		never: []string{"log", "log/slog", "net", "net/http", "os"},
	},
	"reactor": {
		smss: []string{"codec", "engine"}, modules: []string{gnet, unixCalls},
		never:    []string{"log", "log/slog", "net/http", "os"},
		testOnly: []string{"storage"}, // to open an engine's store
	},
	"replication": {
		smss:  []string{"codec", "engine", "storage"},
		never: []string{"log", "log/slog", "net/http"},
	},
	"admin": {smss: []string{"codec", "engine"}, never: []string{"os"}},
	"conf": {
		modules: []string{"gopkg.in/yaml.v3"},
		never:   []string{"log", "log/slog", "net", "net/http"},
	},
	"client": {
		smss: []string{"codec"}, testOnly: []string{"client", "client/clienttest"},
		never: []string{"log", "log/slog", "net/http"},
	},
	"client/clienttest": {smss: []string{"codec"}},
	"cli": {
		// net/http to talk to the admin listener, whose answers need no client of
		// their own: they are JSON, and few.
		smss: []string{"client", "codec", "storage"}, testOnly: []string{"client/clienttest"},
		never: []string{"log", "log/slog"},
	},
	"bench": {
		smss: []string{"client", "codec"}, modules: []string{gnet, unixCalls, "github.com/HdrHistogram/hdrhistogram-go"},
	},
	// The black-box suite has a protocol client of its own, as a second opinion
	// on the bytes. A data directory is looked at with the libraries that wrote it.
	"test": {},
	// Main alone reads the configuration and knows every room.
	".": {
		smss: []string{"admin", "bench", "cli", "codec", "conf", "engine", "reactor", "replication", "storage"},
		modules: []string{
			"github.com/rs/zerolog", "gopkg.in/natefinch/lumberjack.v2", "github.com/mattn/go-isatty", unixCalls,
		},
	},
}

// testModules are what the tests of any package may use beside what its code
// does.
var testModules = []string{"pgregory.net/rapid", "go.uber.org/goleak", "gopkg.in/yaml.v3", badgerDB, gnet}

// startsGoroutines lists the files with go statements. An event-driven server
// has few goroutines, and each has an owner in ORDER.md or its package's doc.go.
var startsGoroutines = []string{
	"admin/server.go",             // the HTTP server
	"bench/bare.go",               // the control connection of the bare server
	"bench/latency.go",            // the receivers, while the publisher runs
	"bench/measure.go",            // the sampler of the server's CPU and memory
	"bench/server.go",             // the wait for the server's process
	"client/clienttest/server.go", // a server of scripts, for tests
	"engine/engine.go",            // writer, readers, scheduler, janitor
	"engine/writer.go",            // syncer, checkpointer
	"reactor/reactor.go",          // the acceptor
	"replication/follower.go",     // the reading of the master's stream
	"replication/node.go",         // the follower
	"server.go",                   // the watch for signals
}

// holdsLocks lists the files with a mutex. What two threads share travels
// through the ring, atomics and mailboxes.
var holdsLocks = []string{
	"logging.go",          // repeatLog, which any goroutine may ask
	"replication/node.go", // changes of the role, one at a time
}

// Longest files, in lines.
const (
	maxLines     = 600
	maxTestLines = 800
)

// source is one Go file, parsed with its comments.
type source struct {
	path  string // from the module's root, with slashes
	dir   string // "." for main
	test  bool
	lines int
	set   *token.FileSet
	file  *ast.File
}

func (s *source) at(n ast.Node) string { return s.set.Position(n.Pos()).String() }

// walk calls visit for every file of the project. Names that begin with zz_
// are somebody's own and are not part of it.
func walk(t *testing.T, visit func(path string)) {
	t.Helper()
	skip := []string{".git", "testdata", "data", "logs"}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains(skip, d.Name()):
			return fs.SkipDir
		case d.Type().IsRegular() && !strings.HasPrefix(d.Name(), "zz_"):
			visit(filepath.ToSlash(path))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func sources(t *testing.T) []*source {
	t.Helper()
	var all []*source
	walk(t, func(path string) {
		if !strings.HasSuffix(path, ".go") {
			return
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		s := &source{path: path, dir: filepath.ToSlash(filepath.Dir(path)), test: strings.HasSuffix(path, "_test.go"),
			lines: bytes.Count(text, []byte("\n")), set: token.NewFileSet()}
		s.test = s.test || s.dir == "test"
		if s.file, err = parser.ParseFile(s.set, path, text, parser.ParseComments|parser.SkipObjectResolution); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	})
	if len(all) < 50 {
		t.Fatalf("only %d files found: is this the module's root?", len(all))
	}
	return all
}

// TestImports: packages import downwards only, and each no more than it needs.
func TestImports(t *testing.T) {
	for _, s := range sources(t) {
		r, ok := rooms[s.dir]
		if !ok {
			t.Errorf("%s: package %s has no place in the order of imports; give it one in house_test.go", s.path, s.dir)
			continue
		}
		for _, spec := range s.file.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if why := s.mayNotImport(&r, path); why != "" {
				t.Errorf("%s: %s may not import %s: %s", s.at(spec), s.dir, path, why)
			}
		}
	}
}

// mayNotImport returns what is wrong with an import, or "".
func (s *source) mayNotImport(r *room, path string) string {
	if inner, ok := strings.CutPrefix(path, "smss/"); ok {
		if slices.Contains(r.smss, inner) || s.test && slices.Contains(r.testOnly, inner) {
			return ""
		}
		return "it stands above, or beside"
	}
	first, _, _ := strings.Cut(path, "/")
	if !strings.Contains(first, ".") { // the standard library
		if !s.test && slices.Contains(r.never, path) {
			return "that is not this package's business"
		}
		return ""
	}
	allowed := r.modules
	if s.test {
		allowed = slices.Concat(allowed, testModules)
	}
	if slices.ContainsFunc(allowed, func(m string) bool { return path == m || strings.HasPrefix(path, m+"/") }) {
		return ""
	}
	return "it is not among the package's modules"
}

// TestYAMLInOneFile: the library is archived and may have to be replaced.
func TestYAMLInOneFile(t *testing.T) {
	for _, s := range sources(t) {
		for _, spec := range s.file.Imports {
			if spec.Path.Value == `"gopkg.in/yaml.v3"` && !s.test && s.path != "conf/yaml.go" {
				t.Errorf("%s: YAML belongs into conf/yaml.go", s.at(spec))
			}
		}
	}
}

// TestGoroutinesAndLocks: both are rare, and the places are known.
func TestGoroutinesAndLocks(t *testing.T) {
	starts, locks := map[string]bool{}, map[string]bool{}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				starts[s.path] = true
			case *ast.SelectorExpr:
				if isPackage(n.X, "sync") && slices.Contains([]string{"Mutex", "RWMutex", "Cond", "NewCond"}, n.Sel.Name) {
					locks[s.path] = true
				}
			}
			return true
		})
	}
	compare(t, "starts goroutines", starts, startsGoroutines)
	compare(t, "holds a lock", locks, holdsLocks)
}

func isPackage(x ast.Expr, name string) bool {
	id, ok := x.(*ast.Ident)
	return ok && id.Name == name
}

func compare(t *testing.T, what string, found map[string]bool, listed []string) {
	t.Helper()
	for path := range found {
		if !slices.Contains(listed, path) {
			t.Errorf("%s %s and is not on the list in house_test.go", path, what)
		}
	}
	for _, path := range listed {
		if !found[path] {
			t.Errorf("%s is on the list of what %s, and does not: take it off", path, what)
		}
	}
}

// TestFileLength: a file is about one thing.
func TestFileLength(t *testing.T) {
	for _, s := range sources(t) {
		limit := maxLines
		if s.test {
			limit = maxTestLines
		}
		if s.lines > limit {
			t.Errorf("%s has %d lines, more than %d", s.path, s.lines, limit)
		}
	}
}

// TestSkipsSayWhy: a test that does not run tells what it would have needed.
func TestSkipsSayWhy(t *testing.T) {
	for _, s := range sources(t) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !s.test {
				return true
			}
			if sel.Sel.Name == "SkipNow" || (sel.Sel.Name == "Skip" && len(call.Args) == 0) {
				t.Errorf("%s: a skip without a reason", s.at(call))
			}
			return true
		})
	}
}

// TestPackages: a package is named for what it is about and says so in doc.go.
func TestPackages(t *testing.T) {
	empty := []string{"base", "common", "helper", "helpers", "manager", "misc", "shared", "util", "utils"}
	documented := map[string]bool{".": true} // main.go speaks for itself
	var dirs []string
	for _, s := range sources(t) {
		dirs = append(dirs, s.dir)
		if name := strings.TrimSuffix(s.file.Name.Name, "_test"); slices.Contains(empty, name) {
			t.Errorf("%s: package %s is named for nothing in particular", s.path, name)
		}
		if filepath.Base(s.path) != "doc.go" {
			continue
		}
		if s.file.Doc == nil || !strings.HasPrefix(s.file.Doc.Text(), "Package "+s.file.Name.Name+" ") {
			t.Errorf("%s does not begin with // Package %s", s.path, s.file.Name.Name)
			continue
		}
		documented[s.dir] = true
	}
	slices.Sort(dirs)
	for _, dir := range slices.Compact(dirs) {
		if !documented[dir] {
			t.Errorf("package %s has no doc.go", dir)
		}
	}
}

// TestText: no marks of unfinished work, and no path of somebody's machine. The
// needles are put together so that this file does not contain them.
func TestText(t *testing.T) {
	unfinished := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`)
	machine := regexp.MustCompile(`(^|[^A-Za-z0-9_.$}])/(wo` + `rk|ro` + `ot|ho` + `me)/`)
	temporary := regexp.MustCompile(`(^|[^A-Za-z0-9_.$}])/t` + `mp\b`)
	kinds := []string{".go", ".md", ".yaml", ".yml", ".mod"}
	names := []string{"Makefile", "Dockerfile", ".dockerignore", ".gitignore", ".ci/run"}
	walk(t, func(path string) {
		if !slices.Contains(kinds, filepath.Ext(path)) && !slices.Contains(names, path) {
			return
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		inTest := strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "test/")
		for i, line := range strings.Split(string(text), "\n") {
			switch {
			case unfinished.MatchString(line):
				t.Errorf("%s:%d: a mark of unfinished work: %s", path, i+1, line)
			case machine.MatchString(line), !inTest && temporary.MatchString(line):
				t.Errorf("%s:%d: a path of some machine: %s", path, i+1, line)
			}
		}
	})
}

// TestLinks: what a document refers to in the repository is there.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	walk(t, func(path string) {
		if filepath.Ext(path) != ".md" {
			return
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", path, m[1], err)
			}
		}
	})
}

// The table in README.md stands between these lines.
const (
	tableBegin = "<!-- settings: written by make readme -->\n"
	tableEnd   = "<!-- end of settings -->\n"
)

// TestReadmeSettings: the table in README.md is what package conf says.
// With -update it writes it.
func TestReadmeSettings(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), tableBegin)
	_, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		t.Fatalf("README.md lacks one of the lines\n%s%s", tableBegin, tableEnd)
	}
	want := before + tableBegin + "\n" + conf.Markdown() + "\n" + tableEnd + after
	if want == string(text) {
		return
	}
	if !*update {
		t.Fatal("the table of settings in README.md is not what package conf says: make readme")
	}
	if err := os.WriteFile("README.md", []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// withoutEffect are the settings that nothing reads. README.md names them.
var withoutEffect = map[string]string{
	"Log.WithGid":                    "log.withGid",
	"Store.WaitDelLockTimeoutMs":     "store.waitDelLockTimeoutMs",
	"Worker.WaitMsgTimeout":          "worker.waitMsgTimeout",
	"Worker.WaitMsgTimeoutLogSample": "worker.waitMsgTimeoutLogSample",
	"Background.DefaultScanSecond":   "background.defaultScanSecond",
}

// TestSettingsAreUsed: a setting that can be given changes something, or is
// known to change nothing and README.md says so.
func TestSettingsAreUsed(t *testing.T) {
	read := map[string]bool{}
	for _, s := range sources(t) {
		if s.dir != "." || s.test {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			path := sel.Sel.Name
			read[path] = true
			for x, ok := sel.X.(*ast.SelectorExpr); ok; x, ok = x.X.(*ast.SelectorExpr) {
				path = x.Sel.Name + "." + path
				read[path] = true
			}
			return true
		})
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	table, _, _ := strings.Cut(string(readme), tableBegin)
	_, rest, _ := strings.Cut(string(readme), tableEnd)
	prose := table + rest
	for _, path := range leaves(reflect.TypeFor[conf.Config](), "") {
		name, listed := withoutEffect[path]
		switch {
		case !read[path] && !listed:
			t.Errorf("nothing reads the setting %s of conf.Config", path)
		case read[path] && listed:
			t.Errorf("%s is used now: take it out of withoutEffect in house_test.go and out of README.md's list", path)
		case listed && !strings.Contains(prose, "`"+name+"`"):
			t.Errorf("README.md does not say that %s has no effect", name)
		}
	}
}

// leaves returns the exported fields of a struct and of the structs in it.
func leaves(of reflect.Type, prefix string) []string {
	var all []string
	for i := range of.NumField() {
		f := of.Field(i)
		switch {
		case !f.IsExported():
		case f.Type.Kind() == reflect.Struct:
			all = append(all, leaves(f.Type, prefix+f.Name+".")...)
		default:
			all = append(all, prefix+f.Name)
		}
	}
	return all
}

// TestHouseRules keeps the rules themselves honest: each is seen to fail on
// what it is there for.
func TestHouseRules(t *testing.T) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "x.go", "package x", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		dir, path string
		test, ok  bool
	}{
		{"codec", "bytes", false, true},
		{"codec", "time", false, false},
		{"codec", "smss/storage", false, false},
		{"codec", "pgregory.net/rapid", true, true},
		{"codec", "pgregory.net/rapid", false, false},
		{"storage", badgerDB + "/options", false, true},
		{"storage", "smss/engine", true, false},
		{"engine", "net", false, false},
		{"engine", gnet, false, false},
		{"engine", "smss/storage", false, true},
		{"reactor", "smss/storage", false, false},
		{"reactor", "smss/storage", true, true},
		{"reactor", "smss/conf", false, false},
		{"client", "smss/engine", false, false},
		{"bench", "smss/conf", true, false},
		{"test", "smss/codec", true, false},
		{".", "smss/conf", false, true},
	} {
		s := &source{dir: c.dir, test: c.test, set: set, file: file}
		r := rooms[c.dir]
		if got := s.mayNotImport(&r, c.path) == ""; got != c.ok {
			t.Errorf("%s importing %s (test %v): allowed is %v, want %v", c.dir, c.path, c.test, got, c.ok)
		}
	}
	if got, want := fmt.Sprint(leaves(reflect.TypeFor[struct {
		A int
		B struct{ C, d int }
	}](), "")), "[A B.C]"; got != want {
		t.Errorf("leaves are %s, want %s", got, want)
	}
}
