package codec

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"
)

const testMaxPayload = 1 << 20

// genRecord draws a record and its payload in two parts.
func genRecord(t *rapid.T) (r *BinlogRecord, tail []byte) {
	messages, _ := genPayload(t)
	r = &BinlogRecord{
		WrittenAtMs:  rapid.Int64().Draw(t, "written"),
		EventID:      rapid.Int64().Draw(t, "event"),
		ReceivedAtMs: rapid.Int64().Draw(t, "received"),
		Topic:        []byte(rapid.StringMatching(`[a-z0-9.é-]{1,60}`).Draw(t, "topic")),
		Command:      rapid.SampledFrom([]Command{Pub, CreateTopic, DeleteTopic, Delay, DelayApply}).Draw(t, "command"),
		Checksummed:  true,
	}
	switch r.Command {
	case Pub:
		r.Payload = messages
		cut := rapid.IntRange(0, len(messages)).Draw(t, "cut")
		r.Payload, tail = messages[:cut], messages[cut:]
	case CreateTopic:
		r.Payload = AppendDelayPrefix(nil, rapid.Int64().Draw(t, "expire"), 0)[:8]
	case Delay, DelayApply:
		r.Payload = AppendDelayPrefix(nil, rapid.Int64().Draw(t, "trigger"), rapid.Int64().Draw(t, "delayed"))
		tail = messages
	}
	return r, tail
}

func TestBinlogRecordRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want, tail := genRecord(t)
		prefix := []byte("before")
		b := AppendBinlogRecord(prefix, want, tail)
		if !bytes.HasPrefix(b, prefix) {
			t.Fatal("what stood before is gone")
		}
		b = b[len(prefix):]
		want.Payload = append(want.Payload[:len(want.Payload):len(want.Payload)], tail...)
		var got BinlogRecord
		size, err := ParseBinlogRecord(append(b[:len(b):len(b)], "next"...), testMaxPayload, &got)
		if err != nil || size != len(b) || !equalRecords(&got, want) {
			t.Fatalf("size %d of %d, error %v\nparsed %+v\nwant   %+v", size, len(b), err, got, want)
		}
		known := 0
		for i := range len(b) {
			n, err := ParseBinlogRecord(b[:i:i], testMaxPayload, &got)
			if err != ErrRecordShort || n <= i || n > len(b) || n < known {
				t.Fatalf("prefix %d of %d: size %d after %d, error %v", i, len(b), n, known, err)
			}
			known = n
		}
	})
}

func TestBinlogRecordContent(t *testing.T) {
	messages := wireMessages(textMessage("a"), textMessage("b", "k", "v"))
	delayed := append(AppendDelayPrefix(nil, 1700, 5), messages...)
	for _, v := range []struct {
		record   BinlogRecord
		messages []byte
		ids      int64
	}{
		{BinlogRecord{Command: Pub, Payload: messages}, messages, 2},
		{BinlogRecord{Command: Delay, Payload: delayed}, messages, 1},
		{BinlogRecord{Command: DelayApply, Payload: delayed}, messages, 2},
		{BinlogRecord{Command: CreateTopic, Payload: delayed[:8]}, nil, 1},
		{BinlogRecord{Command: DeleteTopic}, nil, 1},
	} {
		r := &v.record
		if !bytes.Equal(r.Messages(), v.messages) || r.IDs() != v.ids {
			t.Errorf("%v: %d bytes of messages, %d ids", r.Command, len(r.Messages()), r.IDs())
		}
	}
	r := BinlogRecord{Command: Delay, Payload: delayed}
	if trigger, id := r.DelayKey(); trigger != 1700 || id != 5 {
		t.Errorf("delay key %d, %d", trigger, id)
	}
	r = BinlogRecord{Command: CreateTopic, Payload: delayed[:8]}
	if r.ExpireAtMs() != 1700 {
		t.Errorf("expires at %d", r.ExpireAtMs())
	}
	for n := range 18 {
		if m, ok := DelayMessages(make([]byte, n)); ok != (n > 16) || len(m) != max(0, n-16) {
			t.Errorf("payload of %d: %d bytes, %v", n, len(m), ok)
		}
	}
}

// sampleRecords has one of each command, as this project writes them.
func sampleRecords() map[string][]byte {
	messages := wireMessages(textMessage("hello", "traceId", "t-1"), textMessage("b"))
	out := map[string][]byte{}
	for _, r := range []BinlogRecord{
		{Command: Pub, Payload: messages},
		{Command: CreateTopic, Payload: make([]byte, 8)},
		{Command: DeleteTopic},
		{Command: Delay, Payload: append(AppendDelayPrefix(nil, 1796073091860, 7), messages...)},
		{Command: DelayApply, Payload: append(AppendDelayPrefix(nil, 1796073091860, 7), messages...)},
	} {
		r.WrittenAtMs, r.EventID, r.ReceivedAtMs, r.Topic = 1796073091860, 1234, 1796073091859, []byte("order")
		out[r.Command.String()] = AppendBinlogRecord(nil, &r, nil)
	}
	return out
}

// extend puts further fields behind the checksum.
func extend(record []byte, lineEnd int, fields string) []byte {
	b := append([]byte{}, record[:lineEnd]...)
	b = append(b, fields...)
	b = append(b, record[lineEnd:]...)
	b[0] += byte(len(fields))
	return b
}

func lineEnd(record []byte) int { return 4 + bytes.IndexByte(record[4:], '\n') }

// Whatever single bit flips, the record is refused or tells the same as
// before: no change is accepted. What follows it may be long.
func TestEverySingleBitFlipIsSeen(t *testing.T) {
	for name, b := range sampleRecords() {
		for variant, record := range map[string][]byte{"": b, " with further fields": extend(b, lineEnd(b), "\t77\tzstd")} {
			var want BinlogRecord
			if _, err := ParseBinlogRecord(record, testMaxPayload, &want); err != nil {
				t.Fatalf("%s%s: %v", name, variant, err)
			}
			for _, after := range [][]byte{nil, record, bytes.Repeat([]byte{'\n'}, 2*testMaxPayload)} {
				damaged := append(append([]byte{}, record...), after...)
				for bit := range 8 * len(record) {
					damaged[bit/8] ^= 1 << (bit % 8)
					var got BinlogRecord
					size, err := ParseBinlogRecord(damaged, testMaxPayload, &got)
					if err == nil && (size != len(record) || !equalRecords(&got, &want)) {
						t.Errorf("%s%s: bit %d of byte %d: accepted as %+v", name, variant, bit%8, bit/8, got)
					}
					if err != nil && !errors.Is(err, ErrRecordDamaged) && err != ErrRecordShort {
						t.Errorf("%s%s: bit %d of byte %d: error %v", name, variant, bit%8, bit/8, err)
					}
					damaged[bit/8] ^= 1 << (bit % 8)
				}
			}
		}
	}
}

func TestFurtherFieldsBehindTheChecksum(t *testing.T) {
	for name, b := range sampleRecords() {
		var want, got BinlogRecord
		if _, err := ParseBinlogRecord(b, testMaxPayload, &want); err != nil {
			t.Fatal(err)
		}
		for _, fields := range []string{"\t", "\t1", "\tx\ty\tz", "\t\t\t"} {
			longer := extend(b, lineEnd(b), fields)
			size, err := ParseBinlogRecord(longer, testMaxPayload, &got)
			if err != nil || size != len(longer) || !equalRecords(&got, &want) {
				t.Errorf("%s with %q: size %d of %d, error %v", name, fields, size, len(longer), err)
			}
		}
	}
}

// plainRecord is a record without a checksum, its line as given.
func plainRecord(line, payload string) []byte {
	return append([]byte{byte(len(line)), byte(len(line) >> 8), 0, 0}, line+payload...)
}

func TestRecordsWithoutChecksum(t *testing.T) {
	messages := string(wireMessages(textMessage("x")))
	b := plainRecord(fmt.Sprintf("1\t1\t7\t2\tt\t%d\n", len(messages)+1), messages+"\n")
	var got BinlogRecord
	size, err := ParseBinlogRecord(b, testMaxPayload, &got)
	if err != nil || size != len(b) || got.Checksummed || got.EventID != 7 || string(got.Payload) != messages {
		t.Fatalf("size %d, error %v, %+v", size, err, got)
	}
}

func TestDamagedRecords(t *testing.T) {
	m := string(wireMessages(textMessage("x"))) // 9 bytes
	long := make([]byte, MaxRecordLine)
	for i := range long {
		long[i] = 'n'
	}
	for name, b := range map[string][]byte{
		"zeros":                          make([]byte, 64),
		"line length 11":                 plainRecord("1\t1\t7\t2\tt\t\n", m+"\n"),
		"line length over the limit":     {0xfd, 0x01, 0, 0},
		"line length 4 GiB":              {0xff, 0xff, 0xff, 0xff},
		"line of one field":              plainRecord(string(long[:40])+"\n", ""),
		"line ends early":                plainRecord("1\t1\t7\t2\tt\t10\n..", m+"\n"),
		"line does not end":              plainRecord("1\t1\t7\t2\tt\t10.", m+"\n"),
		"empty field":                    plainRecord("1\t1\t\t2\tt\t10\n", m+"\n"),
		"plus sign":                      plainRecord("1\t1\t+7\t2\tt\t10\n", m+"\n"),
		"leading zero":                   plainRecord("1\t1\t07\t2\tt\t10\n", m+"\n"),
		"minus zero":                     plainRecord("1\t1\t-0\t2\tt\t10\n", m+"\n"),
		"hex":                            plainRecord("1\t1\t0x7\t2\tt\t10\n", m+"\n"),
		"number over 64 bits":            plainRecord("1\t1\t9223372036854775808\t2\tt\t10\n", m+"\n"),
		"number under 64 bits":           plainRecord("1\t1\t-9223372036854775809\t2\tt\t10\n", m+"\n"),
		"unknown command":                plainRecord("1\t4\t7\t2\tt\t10\n", m+"\n"),
		"a command that is never stored": plainRecord("1\t17\t7\t2\tt\t0\n", ""),
		"command 257":                    plainRecord("1\t257\t7\t2\tt\t10\n", m+"\n"),
		"command -1":                     plainRecord("1\t-1\t7\t2\tt\t10\n", m+"\n"),
		"payload length -1":              plainRecord("1\t1\t7\t2\tt\t-1\n", m+"\n"),
		"payload length 1":               plainRecord("1\t1\t7\t2\tt\t1\n", "\n"),
		"delete with an empty payload":   plainRecord("1\t3\t7\t2\tt\t1\n", "\n"),
		"payload over the limit":         plainRecord(fmt.Sprintf("1\t1\t7\t2\tt\t%d\n", testMaxPayload+2), m+"\n"),
		"payload length of 2^63-1":       plainRecord("1\t1\t7\t2\tt\t9223372036854775807\n", m+"\n"),
		"payload does not end":           plainRecord("1\t1\t7\t2\tt\t10\n", m+"."),
		"publish of nothing":             plainRecord("1\t1\t7\t2\tt\t0\n", ""),
		"create with 9 bytes":            plainRecord("1\t2\t7\t2\tt\t10\n", m+"\n"),
		"delete with a payload":          plainRecord("1\t3\t7\t2\tt\t10\n", m+"\n"),
		"delay with 16 bytes":            plainRecord("1\t16\t7\t2\tt\t17\n", "0123456789abcdef\n"),
		"apply with 16 bytes":            plainRecord("1\t101\t7\t2\tt\t17\n", "0123456789abcdef\n"),
		"checksum of 7 digits":           plainRecord("1\t1\t7\t2\tt\t10\t1234567\n", m+"\n"),
		"checksum of 9 digits":           plainRecord("1\t1\t7\t2\tt\t10\t123456789\n", m+"\n"),
		"checksum in capitals":           plainRecord("1\t1\t7\t2\tt\t10\tABCDEF01\n", m+"\n"),
		"no checksum behind the tab":     plainRecord("1\t1\t7\t2\tt\t10\t\n", m+"\n"),
		"wrong checksum":                 plainRecord("1\t1\t7\t2\tt\t10\t00000000\n", m+"\n"),
	} {
		var r BinlogRecord
		size, err := ParseBinlogRecord(b, testMaxPayload, &r)
		if !errors.Is(err, ErrRecordDamaged) || size != 0 {
			t.Errorf("%s: size %d, error %v", name, size, err)
		}
	}
}

// A checksum has one spelling: without its leading zeros it is another.
func TestShortenedChecksum(t *testing.T) {
	for id := range int64(1000) {
		b := AppendBinlogRecord(nil, &BinlogRecord{Command: DeleteTopic, EventID: id, Topic: []byte("t")}, nil)
		at := lineEnd(b) - ChecksumDigits
		if b[at] != '0' {
			continue
		}
		b = append(b[:at], b[at+1:]...)
		b[0]--
		var r BinlogRecord
		if size, err := ParseBinlogRecord(b, testMaxPayload, &r); !errors.Is(err, ErrRecordDamaged) || size != 0 {
			t.Errorf("event %d: size %d, error %v", id, size, err)
		}
		return
	}
	t.Error("no checksum begins with a zero")
}

func TestPayloadLimitOfRecords(t *testing.T) {
	for size, fits := range map[int]bool{9: true, 99: true, 100: true, 101: false} {
		b := AppendBinlogRecord(nil, &BinlogRecord{Command: Pub, Topic: []byte("t"), Payload: payloadOf(size)}, nil)
		var r BinlogRecord
		n, err := ParseBinlogRecord(b, 100, &r)
		if fits != (err == nil) || fits && n != len(b) {
			t.Errorf("payload of %d: size %d, error %v", size, n, err)
		}
	}
}

// The longest line that can be written is one that existing readers hold.
func TestLongestLineFits(t *testing.T) {
	r := BinlogRecord{WrittenAtMs: math.MinInt64, EventID: math.MinInt64, ReceivedAtMs: math.MinInt64, Command: DelayApply,
		Topic: bytes.Repeat([]byte("n"), MaxTopicName), Payload: make([]byte, testMaxPayload), Checksummed: true}
	b := AppendBinlogRecord(nil, &r, nil)
	if lineEnd(b)+1-4 > MaxRecordLine {
		t.Errorf("line of %d bytes", lineEnd(b)+1-4)
	}
	var got BinlogRecord
	if _, err := ParseBinlogRecord(b, testMaxPayload, &got); err != nil || !equalRecords(&got, &r) {
		t.Errorf("error %v, event %d", err, got.EventID)
	}
}

func FuzzParseBinlogRecord(f *testing.F) {
	for _, b := range sampleRecords() {
		f.Add(b)
		f.Add(extend(b, lineEnd(b), "\t77"))
	}
	f.Add(plainRecord("1796073091870\t3\t9\t1796073091869\torder\t0\n", ""))
	f.Add(plainRecord("1\t1\t7\t2\tt\t10\t00000000\n", "\x01\x00\x00\x00\x00\x00\x00\x00x\n"))
	f.Add(make([]byte, 64))
	const maxPayload = 4096
	f.Fuzz(func(t *testing.T, b []byte) {
		var r BinlogRecord
		size, err := ParseBinlogRecord(b, maxPayload, &r)
		switch {
		case err == ErrRecordShort:
			if size <= len(b) || size > maxPayload+1+MaxRecordLine+4 {
				t.Fatalf("short, takes %d, have %d", size, len(b))
			}
		case err != nil:
			if size != 0 || !errors.Is(err, ErrRecordDamaged) {
				t.Fatalf("size %d, error %v", size, err)
			}
		default:
			if size > len(b) {
				t.Fatalf("size %d of %d", size, len(b))
			}
			r.Messages()
			if n := r.IDs(); n < 1 {
				t.Fatalf("takes %d ids", n)
			}
			checkSameRecord(t, b[:size], &r)
		}
	})
}

// checkSameRecord fails unless appending r gives b again, apart from further
// fields behind the checksum, or from the checksum that b lacks.
func checkSameRecord(t *testing.T, b []byte, r *BinlogRecord) {
	again := AppendBinlogRecord(nil, r, nil)
	fields := lineEnd(again)
	if !r.Checksummed {
		fields -= 1 + ChecksumDigits
	}
	if len(b) < fields || !bytes.Equal(b[4:fields], again[4:fields]) || !bytes.Equal(b[lineEnd(b):], again[lineEnd(again):]) {
		t.Fatalf("appended again\n%q, was\n%q", again, b)
	}
}
