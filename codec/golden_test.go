package codec

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"strings"
	"testing"
)

// unhex reads a hex literal; blanks group its parts for the reader.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatalf("bad literal %q: %v", s, err)
	}
	return b
}

func wireMessages(ms ...*Message) []byte {
	var b []byte
	for _, m := range ms {
		b = AppendMessage(b, m)
	}
	return b
}

func textMessage(body string, keysAndValues ...string) *Message {
	m := &Message{Body: []byte(body)}
	for i := 0; i < len(keysAndValues); i += 2 {
		m.Headers = append(m.Headers, Header{keysAndValues[i], keysAndValues[i+1]})
	}
	return m
}

var testLimits = Limits{MaxMessageSize: 1 << 20, MaxBatchMessages: 1000, MaxWhoLength: 1024}

// The literals are requests that existing clients sent to the existing server.
var goldenRequests = []struct {
	name    string
	literal string
	built   []byte
	want    Request
}{
	{"alive", "11 0000 000000000000000000000000000000 00 00",
		AppendPlain(nil, Alive, "", ""),
		Request{Command: Alive}},
	{"alive with a trace id", "11 0000 000000000000000000000000000000 00 09 74726163652d78797a",
		AppendPlain(nil, Alive, "", "trace-xyz"),
		Request{Command: Alive, Trace: []byte("trace-xyz")}},
	{"alive with the longest trace id", "11 0000 000000000000000000000000000000 00 ff" + strings.Repeat("74", 255),
		AppendPlain(nil, Alive, "", strings.Repeat("t", 255)),
		Request{Command: Alive, Trace: bytes.Repeat([]byte("t"), 255)}},
	{"list", "64 0000 000000000000000000000000000000 00 02 7472",
		AppendPlain(nil, List, "", "tr"),
		Request{Command: List, Trace: []byte("tr")}},
	{"create", "02 0500 000000000000000000000000000000 00 04 6f72646572 74722d31 0000000000000000",
		AppendCreateTopic(nil, "order", "tr-1", 0),
		Request{Command: CreateTopic, Topic: []byte("order"), Trace: []byte("tr-1")}},
	{"create, name of two characters beyond ASCII", "02 0600 000000000000000000000000000000 00 04 e8aea2e58d95 74722d31 0000000000000000",
		AppendCreateTopic(nil, "订单", "tr-1", 0),
		Request{Command: CreateTopic, Topic: []byte("订单"), Trace: []byte("tr-1")}},
	{"create with a negative expiry", "02 0300 000000000000000000000000000000 00 00 657870 ffffffffffffffff",
		AppendCreateTopic(nil, "exp", "", -1),
		Request{Command: CreateTopic, Topic: []byte("exp"), ExpireAtMs: -1}},
	{"create with an expiry", "02 0300 000000000000000000000000000000 00 00 657870 0068e5cf8b010000",
		AppendCreateTopic(nil, "exp", "", 1700000000000),
		Request{Command: CreateTopic, Topic: []byte("exp"), ExpireAtMs: 1700000000000}},
	{"delete", "03 0500 000000000000000000000000000000 00 02 6f72646572 7472",
		AppendPlain(nil, DeleteTopic, "order", "tr"),
		Request{Command: DeleteTopic, Topic: []byte("order"), Trace: []byte("tr")}},
	{"topic info", "41 0500 000000000000000000000000000000 00 02 6f72646572 7472",
		AppendPlain(nil, TopicInfo, "order", "tr"),
		Request{Command: TopicInfo, Topic: []byte("order"), Trace: []byte("tr")}},
	{"valid list", "63 0000 000000000000000000000000000000 00 00 6300000000000000",
		AppendEventRequest(nil, ValidList, "", 99),
		Request{Command: ValidList, EventID: 99}},
	{"replica", "40 0000 000000000000000000000000000000 00 00 fdffffffffffffff",
		AppendEventRequest(nil, Replica, "", -3),
		Request{Command: Replica, EventID: -3}},
	{"publish with a header", "01 0100 1f000000 0000000000000000000000 00 04 74 74722d37" +
		"17000000 01000000 07000000 74726163654964 03000000 742d31 68656c6c6f",
		AppendPub(nil, "t", "tr-7", wireMessages(textMessage("hello", "traceId", "t-1"))),
		Request{Command: Pub, Topic: []byte("t"), Trace: []byte("tr-7"), Messages: 1,
			Payload: wireMessages(textMessage("hello", "traceId", "t-1"))}},
	{"publish of three messages", "01 0100 32000000 0000000000000000000000 00 00 74" +
		"02000000 00000000 6231" +
		"16000000 02000000 01000000 6b 01000000 76 02000000 6b32 00000000 6232" +
		"02000000 00000000 6233",
		AppendPub(nil, "t", "", wireMessages(textMessage("b1"), textMessage("b2", "k", "v", "k2", ""), textMessage("b3"))),
		Request{Command: Pub, Topic: []byte("t"), Messages: 3,
			Payload: wireMessages(textMessage("b1"), textMessage("b2", "k", "v", "k2", ""), textMessage("b3"))}},
	{"delay", "10 0100 16000000 0000000000000000000000 00 00 74 dc05000000000000" +
		"0e000000 01000000 01000000 6b 01000000 76 6c617465",
		AppendDelay(nil, "t", "", 1500, wireMessages(textMessage("late", "k", "v"))),
		Request{Command: Delay, Topic: []byte("t"), DelayMs: 1500, Messages: 1,
			Payload: wireMessages(textMessage("late", "k", "v"))}},
	{"delay, negative", "10 0100 09000000 0000000000000000000000 00 00 74 ffffffffffffffff 01000000 00000000 78",
		AppendDelay(nil, "t", "", -1, wireMessages(textMessage("x"))),
		Request{Command: Delay, Topic: []byte("t"), DelayMs: -1, Messages: 1,
			Payload: wireMessages(textMessage("x"))}},
	{"subscribe without an ack timeout", "00 0100 01 00 0000000000000000000000000000 00 74 0000000000000000 03000000 6f6e65",
		AppendSub(nil, &Subscription{Topic: "t", Who: "one", Batch: 1}),
		Request{Command: Sub, Topic: []byte("t"), Who: []byte("one"), Batch: 1}},
	{"subscribe with an ack timeout", "00 0100 04 01 0000000000000000000000000000 00 74 0300000000000000 0094357700000000 03000000 74776f",
		AppendSub(nil, &Subscription{Topic: "t", Who: "two", Batch: 4, EventID: 3, AckTimeoutNs: 2e9}),
		Request{Command: Sub, Topic: []byte("t"), Who: []byte("two"), Batch: 4, EventID: 3, AckTimeoutNs: 2e9}},
	{"subscribe after a negative id", "00 0100 01 01 0000000000000000000000000000 00 74 fbffffffffffffff 00ca9a3b00000000 01000000 77",
		AppendSub(nil, &Subscription{Topic: "t", Who: "w", Batch: 1, EventID: -5, AckTimeoutNs: 1e9}),
		Request{Command: Sub, Topic: []byte("t"), Who: []byte("w"), Batch: 1, EventID: -5, AckTimeoutNs: 1e9}},
	{"subscribe with the largest batch", "00 0100 ff 01 0000000000000000000000000000 00 74 0000000000000000 005ed0b200000000 01000000 77",
		AppendSub(nil, &Subscription{Topic: "t", Who: "w", Batch: 255, AckTimeoutNs: 3e9}),
		Request{Command: Sub, Topic: []byte("t"), Who: []byte("w"), Batch: 255, AckTimeoutNs: 3e9}},
}

func TestGoldenRequests(t *testing.T) {
	for _, v := range goldenRequests {
		t.Run(v.name, func(t *testing.T) {
			literal := unhex(t, v.literal)
			if !bytes.Equal(v.built, literal) {
				t.Errorf("built   %x\nliteral %x", v.built, literal)
			}
			var got Request
			n, err := ParseRequest(append(literal, "next request"...), &testLimits, &got)
			if err != nil || n != len(literal) {
				t.Fatalf("parsed %d of %d bytes, error %v", n, len(literal), err)
			}
			if !equalRequests(&got, &v.want) {
				t.Errorf("parsed %+v\nwant   %+v", got, v.want)
			}
		})
	}
}

// equalRequests compares by content: nil and empty slices are the same.
func equalRequests(a, b *Request) bool {
	x, y := *a, *b
	for _, r := range []*Request{&x, &y} {
		for _, f := range []*[]byte{&r.Topic, &r.Trace, &r.Payload, &r.Who} {
			if len(*f) == 0 {
				*f = nil
			}
		}
	}
	return reflect.DeepEqual(x, y)
}

// Requests that no Append function builds, as recorded, and how they end.
func TestGoldenRefusedRequests(t *testing.T) {
	for _, v := range []struct {
		name, literal string
		invalid       *RequestError
	}{
		{"zeros instead of messages", "01 0100 1e000000 0000000000000000000000 00 00 74" + strings.Repeat("00", 30), errPubPayload},
		{"content longer than the payload", "01 0100 18000000 0000000000000000000000 00 00 74 e8030000" + strings.Repeat("00", 20), errPubPayload},
		{"three bytes left over", "01 0100 0e000000 0000000000000000000000 00 00 74 03000000 00000000 616263 010203", errPubPayload},
		{"delay payload of 8 bytes", "10 0100 08000000 0000000000000000000000 00 00 74 d007000000000000 0000000000000000", errDelayRequest},
	} {
		var got Request
		literal := unhex(t, v.literal)
		n, err := ParseRequest(literal, &testLimits, &got)
		if err != nil || n != len(literal) || got.Invalid != v.invalid {
			t.Errorf("%s: n %d of %d, error %v, invalid %v, want %v", v.name, n, len(literal), err, got.Invalid, v.invalid)
		}
	}
	// Batch 0 counts as 1.
	var got Request
	b := unhex(t, "00 0100 00 01 0000000000000000000000000000 00 74 0000000000000000 0094357700000000 04000000 7a65726f")
	if n, err := ParseRequest(b, &testLimits, &got); err != nil || n != len(b) || got.Batch != 1 || string(got.Who) != "zero" {
		t.Errorf("batch 0: %d %v %+v", n, err, got)
	}
}

func TestGoldenReplies(t *testing.T) {
	push := AppendPushHeader(nil)
	push = AppendPushed(push, Pushed{StoredAtMs: 1, EventID: 2, NextFile: 3, NextPos: 4}, wireMessages(textMessage("p1")))
	push = AppendPushed(push, Pushed{StoredAtMs: 1, EventID: 3, NextFile: 3, NextPos: 5}, wireMessages(textMessage("p2")))
	FinishPush(push, 2)
	for _, v := range []struct {
		name, literal string
		built         []byte
	}{
		{"done", "c800 0000000000000000", AppendCode(nil, CodeOK)},
		{"alive", "c900 0000000000000000", AppendCode(nil, CodeAlive)},
		{"subscription over", "ff00 0000000000000000", AppendCode(nil, CodeEnd)},
		{"error", "9001 0f00 000000000000 746f706963206e6f74206578697374", AppendError(nil, TextTopicNotExist)},
		{"error, unknown command", "9001 1400 000000000000 646f6e277420737570706f727420616374696f6e", AppendError(nil, TextUnknownCommand)},
		{"error, name taken", "9001 1300 000000000000 74776f20726567696573746572206578697374", AppendError(nil, "two"+TextSubscriberExists)},
		{"empty list", "c800 00000000 00000000", AppendJSON(nil, nil)},
		{"list", "c800 02000000 00000000 5b5d", AppendJSON(nil, []byte("[]"))},
		{"push", "c800 02 00 54000000 0000" +
			"0100000000000000 0200000000000000 0300000000000000 0400000000000000 02000000 00000000 7031" +
			"0100000000000000 0300000000000000 0300000000000000 0500000000000000 02000000 00000000 7032", push},
		{"ack", "0000", AppendAck(nil, AckNext)},
		{"ack and end", "0100", AppendAck(nil, AckEnd)},
	} {
		if want := unhex(t, v.literal); !bytes.Equal(v.built, want) {
			t.Errorf("%s:\nbuilt   %x\nliteral %x", v.name, v.built, want)
		}
	}
	h := ParseReplyHeader(push)
	if h.Code != CodeOK || h.Messages != 2 || int(h.PushSize) != len(push)-ReplyHeaderSize {
		t.Errorf("push header %+v", h)
	}
	if h := ParseReplyHeader(AppendError(nil, "text")); h.Code != CodeError || h.TextSize != 4 {
		t.Errorf("error header %+v", h)
	}
	if h := ParseReplyHeader(AppendJSON(nil, make([]byte, 70000))); h.Code != CodeOK || h.JSONSize != 70000 {
		t.Errorf("JSON header %+v", h)
	}
}

// Records as the existing server writes them, without a checksum.
func TestGoldenBinlogRecords(t *testing.T) {
	pub := wireMessages(textMessage("hello", "traceId", "t-1"))
	for _, v := range []struct {
		name string
		b    []byte
		want BinlogRecord
	}{
		{"create", append([]byte("\x28\x00\x00\x001796073091854\t2\t1\t1796073091854\torder\t9\n"), "\x00\x00\x00\x00\x00\x00\x00\x00\n"...),
			BinlogRecord{WrittenAtMs: 1796073091854, Command: CreateTopic, EventID: 1, ReceivedAtMs: 1796073091854,
				Topic: []byte("order"), Payload: make([]byte, 8)}},
		{"publish", append(append([]byte("\x29\x00\x00\x001796073091860\t1\t3\t1796073091860\torder\t32\n"), pub...), '\n'),
			BinlogRecord{WrittenAtMs: 1796073091860, Command: Pub, EventID: 3, ReceivedAtMs: 1796073091860,
				Topic: []byte("order"), Payload: pub}},
		{"delete", []byte("\x28\x00\x00\x001796073091870\t3\t9\t1796073091869\torder\t0\n"),
			BinlogRecord{WrittenAtMs: 1796073091870, Command: DeleteTopic, EventID: 9, ReceivedAtMs: 1796073091869,
				Topic: []byte("order")}},
	} {
		var got BinlogRecord
		size, err := ParseBinlogRecord(append(v.b, "next"...), 1<<20, &got)
		if err != nil || size != len(v.b) {
			t.Errorf("%s: size %d of %d, error %v", v.name, size, len(v.b), err)
			continue
		}
		if !equalRecords(&got, &v.want) {
			t.Errorf("%s: parsed %+v\nwant %+v", v.name, got, v.want)
		}
	}
}

func equalRecords(a, b *BinlogRecord) bool {
	return a.WrittenAtMs == b.WrittenAtMs && a.Command == b.Command && a.EventID == b.EventID &&
		a.ReceivedAtMs == b.ReceivedAtMs && bytes.Equal(a.Topic, b.Topic) && bytes.Equal(a.Payload, b.Payload) &&
		a.Checksummed == b.Checksummed
}
