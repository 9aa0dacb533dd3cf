package test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
)

// goldenFiles names every transcript in testdata/golden and what its server
// needs.
var goldenFiles = []golden{
	{name: "alive", small: true},
	{name: "delay", small: true},
	{name: "deleted-under-a-subscriber", small: true},
	{name: "heartbeat", config: config{"timeout.server.alive": 800}, small: true},
	{name: "large"},
	{name: "publish", small: true},
	{name: "subscribe", small: true},
	{name: "topics", small: true},
	{name: "unknown-commands", small: true},
	{name: "replica", config: config{"timeout.server.alive": 3000}, small: true, feeds: true},
	{name: "slave", small: true, start: goldenSlave},
}

type golden struct {
	name   string
	config config
	small  bool // small enough for one byte at a time
	// feeds says that the server goes on sending: the transcript ends before.
	feeds bool
	// start starts the server, where it is more than one on its own.
	start func(t *testing.T) *server
}

// goldenSlave starts a slave of a master that holds topic t with m0 m1 m2, and
// waits until it has them.
func goldenSlave(t *testing.T) *server {
	master := startServer(t, options{})
	c := dial(t, master)
	c.ok(reqCreate("t", 0))
	for i := range 3 {
		c.ok(reqPub("t", message(fmt.Sprint("m", i))))
	}
	slave := startServer(t, options{args: []string{"-role", "slave", "-host", "127.0.0.1", "-port", strconv.Itoa(master.port)}})
	await(t, slack(10*time.Second), "the slave has the topic's messages", func() bool {
		probe := dial(t, slave)
		defer probe.close()
		probe.send(sub{topic: "t", who: "probe", batch: 5}.request())
		head, err := probe.full(10)
		return err == nil && le.Uint16(head) == 200 && head[2] == 3
	})
	return slave
}

// TestGoldenTable keeps the table and the directory in step.
func TestGoldenTable(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("testdata", "golden", "*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, g := range goldenFiles {
		listed[g.name] = true
		if _, err := os.Stat(goldenPath(g.name)); err != nil {
			t.Error(err)
		}
	}
	for _, p := range paths {
		if name := strings.TrimSuffix(filepath.Base(p), ".jsonl"); !listed[name] {
			t.Errorf("%s is not in the table", p)
		}
	}
}

func goldenPath(name string) string {
	return filepath.Join("testdata", "golden", name+".jsonl")
}

func TestGolden(t *testing.T) {
	for _, g := range goldenFiles {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			replay(t, g, whole)
		})
	}
}

// TestGoldenSplit sends every request in pieces cut at pseudo-random places,
// with a pause between them that makes the server see them one by one.
func TestGoldenSplit(t *testing.T) {
	for _, g := range goldenFiles {
		for seed := range uint64(scale(2, 50)) {
			t.Run(fmt.Sprintf("%s/seed=%d", g.name, seed), func(t *testing.T) {
				t.Parallel()
				random := rand.New(rand.NewPCG(seed, 1))
				replay(t, g, func(b []byte) [][]byte {
					var pieces [][]byte
					for range 1 + random.IntN(4) {
						n := random.IntN(len(b) + 1)
						pieces = append(pieces, b[:n])
						b = b[n:]
					}
					return append(pieces, b)
				})
			})
		}
	}
}

func TestGoldenByteByByte(t *testing.T) {
	for _, g := range goldenFiles {
		if !g.small {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			replay(t, g, func(b []byte) [][]byte {
				var pieces [][]byte
				for i := range b {
					pieces = append(pieces, b[i:i+1])
				}
				return pieces
			})
		})
	}
}

func whole(b []byte) [][]byte { return [][]byte{b} }

// step is one line of a transcript.
type step struct {
	Note   string          `json:"note"`
	Conn   string          `json:"conn"`
	Open   bool            `json:"open"`
	Send   string          `json:"send"`
	Recv   string          `json:"recv"`
	JSON   json.RawMessage `json:"json"`
	Closed bool            `json:"closed"`
	Close  bool            `json:"close"`
	WaitMS int             `json:"wait_ms"`
}

func readSteps(t *testing.T, name string) []step {
	t.Helper()
	f, err := os.Open(goldenPath(name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var steps []step
	d := json.NewDecoder(bufio.NewReader(f))
	d.DisallowUnknownFields()
	for {
		var s step
		if err := d.Decode(&s); err == io.EOF {
			return steps
		} else if err != nil {
			t.Fatalf("line %d: %v", len(steps)+1, err)
		}
		steps = append(steps, s)
	}
}

// replay plays a transcript against a fresh server.
func replay(t *testing.T, g golden, split func([]byte) [][]byte) {
	t.Helper()
	steps := readSteps(t, g.name)
	var s *server
	if g.start != nil {
		s = g.start(t)
	} else {
		s = startServer(t, options{config: g.config})
	}
	conns := map[string]*client{}
	for i, st := range steps {
		if err := playStep(t, s, conns, st, split); err != nil {
			t.Fatalf("line %d: %v", i+1, err)
		}
	}
	for name, c := range conns {
		if g.feeds {
			break
		}
		if err := nothingLeft(c); err != nil {
			t.Errorf("connection %s at the end: %v", name, err)
		}
	}
}

func playStep(t *testing.T, s *server, conns map[string]*client, st step, split func([]byte) [][]byte) error {
	c := conns[st.Conn]
	if c == nil && st.Conn != "" && !st.Open {
		return fmt.Errorf("connection %s is not open", st.Conn)
	}
	switch {
	case st.Open:
		conns[st.Conn] = dial(t, s)
		// Each piece must leave at once.
		return conns[st.Conn].conn.SetNoDelay(true)
	case st.Send != "":
		b, err := hex.DecodeString(st.Send)
		if err != nil {
			return err
		}
		for i, piece := range split(b) {
			if i > 0 {
				// Without a pause the kernel hands neighbouring pieces to
				// the server in one read, and nothing is split.
				time.Sleep(300 * time.Microsecond)
			}
			if err := c.write(piece); err != nil {
				return err
			}
		}
		return nil
	case st.Recv != "":
		return expect(c, st)
	case st.Closed:
		delete(conns, st.Conn)
		c.closed()
		return nil
	case st.Close:
		delete(conns, st.Conn)
		defer c.close()
		return nothingLeft(c)
	case st.WaitMS > 0:
		time.Sleep(time.Duration(st.WaitMS) * time.Millisecond)
		return nil
	case st.Note != "":
		return nil
	}
	return fmt.Errorf("step %+v is not understood", st)
}

// expect reads the bytes of a recv step and the JSON after them.
func expect(c *client, st step) error {
	if len(st.Recv)%2 != 0 {
		return fmt.Errorf("recv of odd length")
	}
	got, err := c.full(len(st.Recv) / 2)
	if err != nil {
		return fmt.Errorf("want %.200s: %w", st.Recv, err)
	}
	for i := range got {
		want := st.Recv[2*i : 2*i+2]
		if want != ".." && want != hex.EncodeToString(got[i:i+1]) {
			return fmt.Errorf("byte %d is %02x, want %s\ngot  %.400x\nwant %.400s", i, got[i], want, got, st.Recv)
		}
	}
	if st.JSON == nil {
		return nil
	}
	if len(got) == 14 {
		return expectRecord(c, st, int(le.Uint32(got[10:])))
	}
	if len(got) != 10 {
		return fmt.Errorf("JSON after %d bytes", len(got))
	}
	text, err := c.full(int(le.Uint32(got[2:])))
	if err != nil {
		return err
	}
	gotValue, err := decodeJSON(text)
	if err != nil {
		return fmt.Errorf("%w in %s", err, text)
	}
	wantValue, err := decodeJSON(st.JSON)
	if err != nil {
		return err
	}
	if !matchJSON(wantValue, gotValue) {
		return fmt.Errorf("JSON differs\ngot  %s\nwant %s", text, st.JSON)
	}
	return nil
}

// expectRecord reads the record of a replication frame: the first fields of its
// command line, of which "*" is a time, and its payload.
func expectRecord(c *client, st step, size int) error {
	var want struct {
		Line    []string `json:"line"`
		Payload string   `json:"payload"`
	}
	if err := json.Unmarshal(st.JSON, &want); err != nil {
		return err
	}
	rec, err := c.full(size)
	if err != nil {
		return err
	}
	if size < 4 || int(le.Uint32(rec)) > size-4 {
		return fmt.Errorf("a record of %d bytes: %.100q", size, rec)
	}
	n := 4 + int(le.Uint32(rec))
	line, payload := strings.TrimSuffix(string(rec[4:n]), "\n"), rec[n:]
	fields := strings.Split(line, "\t")
	for i, w := range want.Line {
		if i >= len(fields) || (w != "*" && w != fields[i]) || (w == "*" && len(fields[i]) != 13) {
			return fmt.Errorf("line %q, want %q", line, want.Line)
		}
	}
	if 2*len(payload) != len(want.Payload) {
		return fmt.Errorf("payload %x, want %s", payload, want.Payload)
	}
	for i := range payload {
		if w := want.Payload[2*i : 2*i+2]; w != ".." && w != hex.EncodeToString(payload[i:i+1]) {
			return fmt.Errorf("payload %x, want %s", payload, want.Payload)
		}
	}
	return nil
}

// decodeJSON keeps numbers exact.
func decodeJSON(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if d.More() {
		return nil, fmt.Errorf("more than one JSON value")
	}
	return v, nil
}

// matchJSON compares values; "*" in want stands for any number.
func matchJSON(want, got any) bool {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok || len(g) != len(w) {
			return false
		}
		for k := range w {
			if v, ok := g[k]; !ok || !matchJSON(w[k], v) {
				return false
			}
		}
		return true
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return false
		}
		for i := range w {
			if !matchJSON(w[i], g[i]) {
				return false
			}
		}
		return true
	case string:
		if _, ok := got.(json.Number); ok && w == "*" {
			return true
		}
	}
	return reflect.DeepEqual(want, got)
}

// nothingLeft checks that the server has sent no more than the transcript
// says, as far as it has arrived.
func nothingLeft(c *client) error {
	if err := c.conn.SetReadDeadline(time.Now().Add(5 * time.Millisecond)); err != nil {
		return err
	}
	if b, err := c.br.Peek(1); err == nil {
		rest, _ := c.br.Peek(c.br.Buffered())
		return fmt.Errorf("%d bytes too many, first % x: %.100x", len(rest), b, rest)
	}
	return nil
}
