package codec

import "testing"

// The event loops and the writer call these once or more for each request.
func TestHotPathAllocatesNothing(t *testing.T) {
	messages := wireMessages(textMessage("hello", "traceId", "t-1"), textMessage("b"))
	pub := AppendPub(nil, "t", "trace", messages)
	sub := AppendSub(nil, &Subscription{Topic: "t", Who: "who", Batch: 10, AckTimeoutNs: 1e9})
	bad := AppendPub(nil, "t", "trace", append(messages[:len(messages):len(messages)], 0))
	unknown := AppendPlain(nil, 7, "t", "trace")
	record := BinlogRecord{WrittenAtMs: 1796073091860, Command: Pub, EventID: 1 << 40, ReceivedAtMs: 1796073091860,
		Topic: []byte("topic"), Payload: messages}
	stored := AppendBinlogRecord(nil, &record, nil)
	damaged := append([]byte{}, stored...)
	damaged[len(damaged)-2] ^= 1
	large := make([]byte, 0, 4096)
	var r Request
	var b BinlogRecord
	for name, f := range map[string]func(){
		"ParseRequest of PUB":               func() { _, _ = ParseRequest(pub, &testLimits, &r) },
		"ParseRequest of SUB":               func() { _, _ = ParseRequest(sub, &testLimits, &r) },
		"ParseRequest of a prefix":          func() { _, _ = ParseRequest(pub[:len(pub)-1], &testLimits, &r) },
		"ParseRequest of an invalid PUB":    func() { _, _ = ParseRequest(bad, &testLimits, &r) },
		"ParseRequest of an unknown one":    func() { _, _ = ParseRequest(unknown, &testLimits, &r) },
		"CountMessages":                     func() { CountMessages(messages) },
		"ParseBinlogRecord":                 func() { _, _ = ParseBinlogRecord(stored, 1<<20, &b) },
		"ParseBinlogRecord of a damaged":    func() { _, _ = ParseBinlogRecord(damaged, 1<<20, &b) },
		"AppendBinlogRecord":                func() { AppendBinlogRecord(large, &record, messages) },
		"AppendPub":                         func() { AppendPub(large, "t", "trace", messages) },
		"AppendPushed":                      func() { AppendPushed(large, Pushed{}, messages) },
		"AppendError":                       func() { AppendError(large, TextTopicNotExist) },
		"ValidTopicName":                    func() { ValidTopicName(record.Topic) },
		"ValidTopicName of a long and wide": func() { ValidTopicName([]byte("订单订单订单订单订单订单\u2028")) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func BenchmarkParseRequest(b *testing.B) {
	pub := AppendPub(nil, "topic", "trace", payloadOf(200))
	var r Request
	b.SetBytes(int64(len(pub)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseRequest(pub, &testLimits, &r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkBinlogRecord(b *testing.B) {
	record := BinlogRecord{WrittenAtMs: 1796073091860, Command: Pub, EventID: 1 << 40, ReceivedAtMs: 1796073091860,
		Topic: []byte("topic"), Payload: payloadOf(200)}
	var buf []byte
	var r BinlogRecord
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendBinlogRecord(buf[:0], &record, nil)
		if _, err := ParseBinlogRecord(buf, 1<<20, &r); err != nil {
			b.Fatal(err)
		}
	}
}
