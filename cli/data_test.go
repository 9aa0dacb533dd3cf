package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"smss/codec"
	"smss/storage"
)

// dataDirectory writes a directory with a topic of three messages by hand and
// returns it with where the second message's record begins and ends.
func dataDirectory(t *testing.T) (dir string, second [2]int) {
	t.Helper()
	dir = t.TempDir()
	binlog := codec.AppendBinlogRecord(nil, &codec.BinlogRecord{
		WrittenAtMs: 1_700_000_000_000, Command: codec.CreateTopic, EventID: 1, ReceivedAtMs: 1, Topic: []byte("order"), Payload: make([]byte, 8),
	}, nil)
	var topic []byte
	for i, body := range []string{"one", "two", "six"} {
		m := codec.AppendMessage(nil, &codec.Message{Headers: []codec.Header{{Key: "k", Value: "v"}}, Body: []byte(body)})
		at, source := int64(1_700_000_001_000+1000*i), storage.Pos{Off: int64(len(binlog))}
		binlog = codec.AppendBinlogRecord(binlog, &codec.BinlogRecord{
			WrittenAtMs: at, Command: codec.Pub, EventID: int64(2 + i), ReceivedAtMs: at, Topic: []byte("order"), Payload: m,
		}, nil)
		before := len(topic)
		topic = storage.AppendTopicRecord(topic, &storage.TopicRecord{StoredAtMs: at, EventID: int64(2 + i), SavedAtMs: at, Source: source, Message: m})
		if i == 1 {
			second = [2]int{before, len(topic)}
		}
	}
	writeFile(t, filepath.Join(dir, "binlog", "0.log"), binlog)
	writeFile(t, filepath.Join(dir, "topic", "3", "3", "order", "0.log"), topic)
	return dir, second
}

func writeFile(t *testing.T, name string, b []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestVerifyGoodDirectory(t *testing.T) {
	dir, _ := dataDirectory(t)
	got := runLine(context.Background(), "", "", "verify", dir)
	if got.exit != exitDone || !strings.Contains(got.out, "2 logs, 7 records, 0 damaged places") {
		t.Fatalf("%+v", got)
	}
	if got := runLine(context.Background(), "", "", "verify", "-topic", "order", dir); !strings.Contains(got.out, "1 logs, 3 records") {
		t.Fatalf("%+v", got)
	}
}

func TestVerifyFindsDamageInTheMiddle(t *testing.T) {
	dir, second := dataDirectory(t)
	name := filepath.Join(dir, "topic", "3", "3", "order", "0.log")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b[second[1]-2] ^= 1 // the second record's body
	writeFile(t, name, b)
	got := runLine(context.Background(), "", "", "verify", "-json", dir)
	if got.exit != exitFailed {
		t.Fatalf("%+v", got)
	}
	var report storage.LogReport
	lines := strings.Split(strings.TrimSpace(got.out), "\n")
	if err := json.Unmarshal([]byte(lines[1]), &report); err != nil {
		t.Fatal(err)
	}
	want := storage.Finding{Pos: storage.Pos{Off: int64(second[0])}, What: "damaged record", After: 2, Before: 4}
	if report.Records != 2 || len(report.Damages) != 1 || report.Damages[0] != want {
		t.Fatalf("%+v", report)
	}
}

func TestVerifyTellsAnIncompleteTailFromDamage(t *testing.T) {
	dir, _ := dataDirectory(t)
	name := filepath.Join(dir, "binlog", "0.log")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, name, b[:len(b)-5])
	got := runLine(context.Background(), "", "", "verify", dir)
	if got.exit != exitDone || !strings.Contains(got.out, "bytes of an incomplete record at the end") {
		t.Fatalf("%+v", got)
	}
	// The same record with all of its bytes, one of them another, is damage.
	b[len(b)-3] ^= 1
	writeFile(t, name, b)
	got = runLine(context.Background(), "", "", "verify", dir)
	if got.exit != exitFailed || strings.Contains(got.out, "incomplete record") || !strings.Contains(got.out, "damaged record") {
		t.Fatalf("%+v", got)
	}
}

func TestVerifyChangesNothing(t *testing.T) {
	dir, _ := dataDirectory(t)
	before := tree(t, dir)
	runLine(context.Background(), "", "", "verify", dir)
	runLine(context.Background(), "", "", "dump", dir)
	if after := tree(t, dir); after != before {
		t.Fatalf("before:\n%s\nafter:\n%s", before, after)
	}
}

// tree is every file of a directory with its content.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b bytes.Buffer
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		b.WriteString(path + " " + string(content) + "\n")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestDump(t *testing.T) {
	dir, _ := dataDirectory(t)
	for _, c := range []struct {
		args []string
		want []string // what the lines hold
	}{
		{[]string{dir}, []string{"1\t2023-11-14T22:13:20.000Z\t0:0\tCREATE_TOPIC\torder", "\tPUB\torder\tone [k=v]", "two", "six"}},
		{[]string{"-from", "3", dir}, []string{"3\t", "4\t"}},
		{[]string{"-from", "3", "-count", "1", dir}, []string{"3\t"}},
		{[]string{"-topic", "order", dir}, []string{"2\t", "3\t", "4\t"}},
		{[]string{"-topic", "order", "-since", "2023-11-14T22:13:22Z", dir}, []string{"3\t", "4\t"}},
		{[]string{"-topic", "order", "-json", "-from", "4", dir}, []string{`{"eventId":4,"at":"2023-11-14T22:13:23.000Z"`}},
	} {
		got := runLine(context.Background(), "", "", append([]string{"dump"}, c.args...)...)
		lines := strings.Split(strings.TrimSuffix(got.out, "\n"), "\n")
		if got.exit != exitDone || len(lines) != len(c.want) {
			t.Fatalf("%v: %+v", c.args, got)
		}
		for i, want := range c.want {
			if !strings.Contains(lines[i], want) {
				t.Errorf("%v: line %d is %q, want %q in it", c.args, i, lines[i], want)
			}
		}
	}
}

func TestDirectoryErrors(t *testing.T) {
	dir, _ := dataDirectory(t)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"verify"}, exitUsage, "data directory is missing"},
		{[]string{"verify", dir, "more"}, exitUsage, "more"},
		{[]string{"verify", t.TempDir()}, exitFailed, "is no data directory"},
		{[]string{"dump", "-topic", "gone", dir}, exitFailed, `no topic "gone"`},
		{[]string{"dump", "-since", "noon", dir}, exitUsage, "noon"},
	} {
		got := runLine(context.Background(), "", "", c.args...)
		if got.exit != c.code || !strings.Contains(got.err, c.says) {
			t.Errorf("%v: %+v", c.args, got)
		}
	}
}
