package storage

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"smss/codec"
)

// A damaged separator is damage, whatever the digits of the checksum are: the
// whole records behind it stay. Were the checksum taken for the length, all of
// them would be cut as the inside of a torn one.
func TestDamagedSeparator(t *testing.T) {
	binlog := func(n int) []byte {
		return codec.AppendBinlogRecord(nil, &codec.BinlogRecord{
			WrittenAtMs: 1_700_000_000_000, Command: codec.Pub, EventID: 7, ReceivedAtMs: 1_700_000_000_000,
			Topic: []byte("t"), Payload: payload(fmt.Sprint("m", n)),
		}, nil)
	}
	topic := func(n int) []byte {
		return AppendTopicRecord(nil, &TopicRecord{
			StoredAtMs: 1_700_000_000_000, EventID: 7, SavedAtMs: 1_700_000_000_000, Message: message(fmt.Sprint("m", n)),
		})
	}
	var b codec.BinlogRecord
	var r TopicRecord
	for name, c := range map[string]struct {
		kind  recordKind
		make  func(int) []byte
		parse func([]byte) (int, error)
	}{
		"binlog": {binlogKind, binlog, func(x []byte) (int, error) { return codec.ParseBinlogRecord(x, maxStoredPayload, &b) }},
		"topic":  {topicKind, topic, func(x []byte) (int, error) { return ParseTopicRecord(x, maxStoredPayload, &r) }},
	} {
		first := decimalSum(t, c.make)
		whole := append(append(bytes.Clone(first), c.make(1)...), c.make(2)...)
		line := first[4 : 4+bytes.IndexByte(first[4:], '\n')]
		for at := range line {
			if line[at] != '\t' {
				continue
			}
			for bit := range 8 {
				damaged := bytes.Clone(whole)
				damaged[4+at] ^= 1 << bit
				file := filepath.Join(t.TempDir(), "0.log")
				must(t, os.WriteFile(file, damaged, 0o644))
				f, err := OS{}.Open(file)
				must(t, err)
				found, err := scanTail(f, 0, c.kind, c.parse, nil)
				must(t, err)
				if found.good != int64(len(whole)) || len(found.damaged) != 1 || found.damaged[0] != 0 {
					t.Errorf("%s, separator at %d, bit %d: good up to %d of %d, damaged at %v", name, at, bit, found.good, len(whole), found.damaged)
				}
				must(t, f.Close())
			}
		}
	}
}

// decimalSum returns a record whose checksum could be read as a number.
func decimalSum(t *testing.T, record func(int) []byte) []byte {
	for n := 100; n < 100_000; n++ {
		rec := record(n)
		end := 4 + bytes.IndexByte(rec[4:], '\n')
		sum := rec[end-8 : end]
		if sum[0] != '0' && len(bytes.Trim(sum, "0123456789")) == 0 {
			return rec
		}
	}
	t.Fatal("no record with such a checksum")
	return nil
}
