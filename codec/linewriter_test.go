package codec

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"
)

// TestLineWriterFields: what is remembered of the last value changes nothing
// of the text of the next.
func TestLineWriterFields(t *testing.T) {
	interesting := []int64{0, 1, 9, 10, 11, 98, 99, 100, 999_999, 1_000_000, math.MaxInt64 - 1, math.MaxInt64,
		-1, -2, -9, -10, -11, math.MinInt64, math.MinInt64 + 1}
	rnd := rand.New(rand.NewPCG(1, 2))
	var w LineWriter
	last := [maxLineFields]int64{}
	for i := range 200_000 {
		column := rnd.IntN(maxLineFields)
		v := last[column]
		switch rnd.IntN(8) {
		case 0:
			v = interesting[rnd.IntN(len(interesting))]
		case 1:
			v = rnd.Int64N(2000) - 1000
		case 2:
			v--
		case 3: // the same again
		default:
			v++
		}
		last[column] = v
		if got, want := w.AppendField(nil, column, v), AppendField(nil, v); !bytes.Equal(got, want) {
			t.Fatalf("step %d, column %d: %q, want %q", i, column, got, want)
		}
	}
}

// TestLineWriterRecords: one writer for a sequence of records gives what a new
// one for each does.
func TestLineWriterRecords(t *testing.T) {
	var w LineWriter
	for i := range int64(2000) {
		r := BinlogRecord{
			WrittenAtMs: 1_700_000_000_000 + i/7, Command: Pub, EventID: 95 + i, ReceivedAtMs: 1_700_000_000_000 + i/5,
			Topic: []byte("t"), Payload: make([]byte, 10+i%3),
		}
		if i%50 == 0 {
			r.Command, r.Payload = DeleteTopic, nil
		}
		tail := make([]byte, i%2)
		if got, want := w.AppendBinlogRecord(nil, &r, tail), AppendBinlogRecord(nil, &r, tail); !bytes.Equal(got, want) {
			t.Fatalf("record %d: %q, want %q", i, got, want)
		}
	}
}
