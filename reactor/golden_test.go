package reactor

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"smss/codec"
	"smss/storage"
)

// step is one line of a transcript in ../test/testdata/golden.
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

var transcripts = []transcript{
	{name: "alive"},
	{name: "deleted-under-a-subscriber"},
	{name: "heartbeat", heartbeat: 800 * time.Millisecond},
	{name: "publish"},
	{name: "subscribe"},
	{name: "topics"},
	{name: "unknown-commands"},
	// These take longer, so only some of the places are tried.
	{name: "delay", badger: true, passes: 4},
	{name: "large", passes: 4},
	{name: "replica", heartbeat: 3 * time.Second, badger: true, feeds: true, passes: 4},
}

type transcript struct {
	name      string
	heartbeat time.Duration
	badger    bool
	feeds     bool // the server goes on sending: the transcript ends before
	passes    int  // 0 = as many as that takes
}

func readSteps(t *testing.T, name string) []step {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "test", "testdata", "golden", name+".jsonl"))
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

// TestGoldenEverySplit plays each transcript once for each place at which its
// longest request can be cut in two: shorter ones are cut at the same place
// modulo their length.
func TestGoldenEverySplit(t *testing.T) {
	for _, g := range transcripts {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			steps := readSteps(t, g.name)
			longest := 0
			for _, s := range steps {
				longest = max(longest, len(s.Send)/2)
			}
			passes, stride := longest-1, 1
			if g.passes > 0 {
				stride = max(longest/g.passes, 1)
			}
			if testing.Short() {
				stride = max(stride, 8)
			}
			for at := 1; at <= passes; at += stride {
				play(t, g, steps, func(c *fakeConn, b []byte) {
					c.split(b, 1+(at-1)%max(len(b)-1, 1))
				})
			}
		})
	}
}

// TestGoldenByteByByte sends every byte alone, and TestGoldenPieces in pieces
// of pseudo-random sizes.
func TestGoldenByteByByte(t *testing.T) {
	for _, g := range transcripts {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			size := 1
			if g.name == "large" {
				size = 1 << 10
			}
			play(t, g, readSteps(t, g.name), func(c *fakeConn, b []byte) {
				for len(b) > 0 {
					n := min(size, len(b))
					c.put(b[:n])
					b = b[n:]
				}
			})
		})
	}
}

func TestGoldenPieces(t *testing.T) {
	for _, g := range transcripts {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(3) {
				random := rand.New(rand.NewPCG(seed, 1))
				play(t, g, readSteps(t, g.name), func(c *fakeConn, b []byte) {
					for len(b) > 0 {
						n := 1 + random.IntN(len(b))
						c.put(b[:n])
						b = b[n:]
					}
				})
			}
		})
	}
}

// play plays a transcript against a fresh engine.
func play(t *testing.T, g transcript, steps []step, send func(*fakeConn, []byte)) {
	t.Helper()
	// A harness that is done is stopped at once and not at the end of the test.
	t.Run("", func(t *testing.T) {
		h := newHarness(t, setup{badger: g.badger, cfg: func(c *Config) {
			if g.heartbeat > 0 {
				c.Heartbeat = g.heartbeat
			}
			feed := &Replication{Refuses: func(net.Addr) string { return "" }, MaxReplicas: 3, SendTimeout: time.Minute}
			c.Replication = func() *Replication { return feed }
		}})
		conns := map[string]*fakeConn{}
		for i, s := range steps {
			if err := h.step(conns, s, send); err != nil {
				t.Fatalf("line %d: %v", i+1, err)
			}
		}
		for name, c := range conns {
			h.settle()
			if len(c.sent) > 0 && !g.feeds {
				t.Errorf("connection %s was sent %d bytes too many: %.60x", name, len(c.sent), c.sent)
			}
		}
	})
}

func (h *harness) step(conns map[string]*fakeConn, s step, send func(*fakeConn, []byte)) error {
	c := conns[s.Conn]
	switch {
	case s.Open:
		conns[s.Conn] = h.open()
	case s.Send != "":
		b, err := hex.DecodeString(s.Send)
		if err != nil {
			return err
		}
		send(c, b)
	case s.Recv != "":
		return c.expect(s)
	case s.Closed:
		delete(conns, s.Conn)
		for range 100 {
			if h.settle(); c.closed {
				return nil
			}
			h.advance(20 * time.Millisecond)
		}
		return fmt.Errorf("the connection is open")
	case s.Close:
		delete(conns, s.Conn)
		c.halfClose() // a close looks the same at first
		if len(c.sent) > 0 {
			return fmt.Errorf("%d bytes too many", len(c.sent))
		}
	default: // a note, or a pause that waits for what settle waits for
		h.settle()
	}
	return nil
}

// full takes n bytes. Where nothing is under way, time must bring them: the
// loop's, or the scheduler's, which looks at the clock from time to time.
func (c *fakeConn) full(n int) []byte {
	h := c.h
	for end := time.Now().Add(20 * time.Second); len(c.sent) < n && time.Now().Before(end); {
		if h.settle(); len(c.sent) < n {
			h.advance(20 * time.Millisecond)
			if h.delays {
				h.within(2*time.Millisecond, func() bool { return len(c.sent) >= n })
			}
		}
	}
	return c.take(n)
}

func (c *fakeConn) expect(s step) error {
	got := c.full(len(s.Recv) / 2)
	for i := range got {
		if want := s.Recv[2*i : 2*i+2]; want != ".." && want != hex.EncodeToString(got[i:i+1]) {
			return fmt.Errorf("byte %d is %02x, want %s\ngot  %.400x\nwant %.400s", i, got[i], want, got, s.Recv)
		}
	}
	if s.JSON == nil {
		return nil
	}
	if len(got) == storage.RecordFrameOverhead {
		return c.expectRecord(s, int(binary.LittleEndian.Uint32(got[codec.ReplyHeaderSize:])))
	}
	text := c.full(int(binary.LittleEndian.Uint32(got[2:])))
	var gotValue, wantValue any
	if err := decodeJSON(text, &gotValue); err != nil {
		return err
	}
	if err := decodeJSON(s.JSON, &wantValue); err != nil {
		return err
	}
	if !matchJSON(wantValue, gotValue) {
		return fmt.Errorf("JSON differs\ngot  %s\nwant %s", text, s.JSON)
	}
	return nil
}

// expectRecord takes a record of size bytes and compares it with the first
// fields of its command line, of which "*" is a time, and its payload.
func (c *fakeConn) expectRecord(s step, size int) error {
	var want struct {
		Line    []string `json:"line"`
		Payload string   `json:"payload"`
	}
	if err := json.Unmarshal(s.JSON, &want); err != nil {
		return err
	}
	raw := c.full(size)
	n := 4 + int(binary.LittleEndian.Uint32(raw))
	if n > size {
		return fmt.Errorf("record %.100q of %d bytes", raw, size)
	}
	fields := strings.Split(strings.TrimSuffix(string(raw[4:n]), "\n"), "\t")
	for i, w := range want.Line {
		if i >= len(fields) || w != fields[i] && (w != "*" || len(fields[i]) != 13) {
			return fmt.Errorf("line %q, want %q", fields, want.Line)
		}
	}
	payload := hex.EncodeToString(raw[n:])
	if len(payload) != len(want.Payload) {
		return fmt.Errorf("payload %s, want %s", payload, want.Payload)
	}
	for i := 0; i < len(payload); i += 2 {
		if w := want.Payload[i : i+2]; w != ".." && w != payload[i:i+2] {
			return fmt.Errorf("payload %s, want %s", payload, want.Payload)
		}
	}
	return nil
}

func decodeJSON(text []byte, v *any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%w in %s", err, text)
	}
	return nil
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
