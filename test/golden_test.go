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
	"strings"
	"testing"
	"time"
)

// goldenFiles names every transcript in testdata/golden, what its server
// needs, and whether it is replayed. replica and slave come in with
// replication.
var goldenFiles = []struct {
	name   string
	config config
	replay bool
	small  bool // small enough for one byte at a time
}{
	{name: "alive", replay: true, small: true},
	{name: "delay", replay: true, small: true},
	{name: "deleted-under-a-subscriber", replay: true, small: true},
	{name: "heartbeat", config: config{"timeout.server.alive": 800}, replay: true, small: true},
	{name: "large", replay: true},
	{name: "publish", replay: true, small: true},
	{name: "subscribe", replay: true, small: true},
	{name: "topics", replay: true, small: true},
	{name: "unknown-commands", replay: true, small: true},
	{name: "replica"},
	{name: "slave"},
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
		if !g.replay {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			replay(t, g.name, g.config, whole)
		})
	}
}

// TestGoldenSplit sends every request in pieces cut at pseudo-random places,
// with a pause between them that makes the server see them one by one.
func TestGoldenSplit(t *testing.T) {
	for _, g := range goldenFiles {
		if !g.replay {
			continue
		}
		for seed := range uint64(scale(2, 50)) {
			t.Run(fmt.Sprintf("%s/seed=%d", g.name, seed), func(t *testing.T) {
				t.Parallel()
				random := rand.New(rand.NewPCG(seed, 1))
				replay(t, g.name, g.config, func(b []byte) [][]byte {
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
		if !g.replay || !g.small {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			replay(t, g.name, g.config, func(b []byte) [][]byte {
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
func replay(t *testing.T, name string, c config, split func([]byte) [][]byte) {
	t.Helper()
	steps := readSteps(t, name)
	s := startServer(t, options{config: c})
	conns := map[string]*client{}
	for i, st := range steps {
		if err := playStep(t, s, conns, st, split); err != nil {
			t.Fatalf("line %d: %v", i+1, err)
		}
	}
	for name, c := range conns {
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
