package codec

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestMessageRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(genMessage, 1, 5).Draw(t, "messages")
		b := wireMessages(want...)
		if n, ok := CountMessages(b); !ok || n != len(want) {
			t.Fatalf("counted %d of %d, %v", n, len(want), ok)
		}
		for _, m := range want {
			got, size, ok := ParseMessage(b)
			if !ok || !reflect.DeepEqual(got.Headers, m.Headers) || !bytes.Equal(got.Body, m.Body) {
				t.Fatalf("parsed %+v, want %+v", got, m)
			}
			b = b[size:]
		}
		if len(b) > 0 {
			t.Fatalf("%d bytes left over", len(b))
		}
	})
}

// A payload that is cut anywhere but between messages is refused.
func TestCountMessagesRefusesCuts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first, second := genMessage.Draw(t, "first"), genMessage.Draw(t, "second")
		border := len(wireMessages(first))
		b := wireMessages(first, second)
		for i := range len(b) {
			n, ok := CountMessages(b[:i:i])
			if ok != (i == border) || ok && n != 1 {
				t.Fatalf("cut at %d of %d, border %d: %d %v", i, len(b), border, n, ok)
			}
		}
	})
}

// rawMessage is a message whose lengths say what they are told to.
func rawMessage(content, headers uint32, rest string) []byte {
	b := binary.LittleEndian.AppendUint32(nil, content)
	b = binary.LittleEndian.AppendUint32(b, headers)
	return append(b, rest...)
}

func TestCountMessagesLies(t *testing.T) {
	kv := "\x01\x00\x00\x00k\x01\x00\x00\x00v"
	good := rawMessage(1, 0, "x")
	for name, b := range map[string][]byte{
		"content 0":                       rawMessage(0, 0, ""),
		"content 0, more behind":          append(rawMessage(0, 0, ""), good...),
		"content one too long":            rawMessage(2, 0, "x"),
		"content 2 GiB":                   rawMessage(0x7FFFFFFF, 0, "x"),
		"content 4 GiB":                   rawMessage(0xFFFFFFFF, 0, "x"),
		"1 byte left over":                append(rawMessage(1, 0, "x"), 1),
		"7 bytes left over":               append(rawMessage(1, 0, "x"), 1, 0, 0, 0, 0, 0, 0),
		"8 bytes left over":               append(rawMessage(1, 0, "x"), 1, 0, 0, 0, 0, 0, 0, 0),
		"one header, none there":          rawMessage(1, 1, "x"),
		"two headers, one there":          rawMessage(10, 2, kv),
		"two headers, one and a half":     rawMessage(15, 2, kv+"\x01\x00\x00\x00k"),
		"4 Gi headers":                    rawMessage(10, 0xFFFFFFFF, kv),
		"2 Gi headers, twice which is 0":  rawMessage(10, 0x80000000, kv),
		"headers whose product is small":  rawMessage(10, 0x20000001, kv),
		"key longer than the content":     rawMessage(10, 1, "\x07\x00\x00\x00k\x01\x00\x00\x00v"),
		"key of 4 GiB":                    rawMessage(10, 1, "\xff\xff\xff\xffk\x01\x00\x00\x00v"),
		"value longer than the content":   rawMessage(10, 1, "\x01\x00\x00\x00k\x02\x00\x00\x00v"),
		"value that is the next message":  append(rawMessage(10, 1, "\x01\x00\x00\x00k\x02\x00\x00\x00v"), good...),
		"a lie in the second of messages": append(rawMessage(1, 0, "x"), rawMessage(1, 1, "x")...),
		"nothing":                         nil,
	} {
		if n, ok := CountMessages(b); ok || n != 0 {
			t.Errorf("%s: counted %d", name, n)
		}
	}
	for name, b := range map[string][]byte{
		"headers fill the content":  rawMessage(10, 1, kv),
		"empty key and empty value": rawMessage(8, 1, strings.Repeat("\x00", 8)),
		"many empty headers":        rawMessage(800, 100, strings.Repeat("\x00", 800)),
	} {
		if n, ok := CountMessages(b); !ok || n != 1 {
			t.Errorf("%s: %d %v", name, n, ok)
		}
	}
}

func TestCountManyMessages(t *testing.T) {
	b := bytes.Repeat(rawMessage(1, 0, "x"), 65000)
	if n, ok := CountMessages(b); !ok || n != 65000 {
		t.Errorf("%d %v", n, ok)
	}
}

func TestPushedRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "messages")
		push := AppendPushHeader(nil)
		var want []Pushed
		var messages [][]byte
		for range n {
			p := Pushed{rapid.Int64().Draw(t, "ts"), rapid.Int64().Draw(t, "id"), rapid.Int64().Draw(t, "file"), rapid.Int64().Draw(t, "pos")}
			m := AppendMessage(nil, genMessage.Draw(t, "message"))
			push = AppendPushed(push, p, m)
			want, messages = append(want, p), append(messages, m)
		}
		FinishPush(push, n)
		h := ParseReplyHeader(push)
		if h.Code != CodeOK || h.Messages != n || int(h.PushSize) != len(push)-ReplyHeaderSize {
			t.Fatalf("header %+v of %d messages in %d bytes", h, n, len(push))
		}
		b := push[ReplyHeaderSize:]
		for i := range n {
			for cut := range len(want) { // a few prefixes, never whole
				if _, _, _, ok := ParsePushed(b[:cut]); ok {
					t.Fatalf("parsed a prefix of %d bytes", cut)
				}
			}
			p, m, size, ok := ParsePushed(b)
			if !ok || p != want[i] || !bytes.Equal(m, messages[i]) {
				t.Fatalf("message %d: %+v %x %v", i, p, m, ok)
			}
			b = b[size:]
		}
		if len(b) > 0 {
			t.Fatalf("%d bytes left over", len(b))
		}
	})
}

func TestErrorTextIsCutBetweenCharacters(t *testing.T) {
	for n, want := range map[int]int{0: 0, MaxErrorText - 1: MaxErrorText - 1, MaxErrorText: MaxErrorText, MaxErrorText + 1: MaxErrorText, 1 << 17: MaxErrorText} {
		b := AppendError(nil, strings.Repeat("e", n))
		if h := ParseReplyHeader(b); h.TextSize != want || len(b) != ReplyHeaderSize+want {
			t.Errorf("text of %d: size %d in %d bytes", n, h.TextSize, len(b))
		}
	}
	b := AppendError(nil, strings.Repeat("€", 20000))
	text := b[ReplyHeaderSize:]
	if h := ParseReplyHeader(b); h.TextSize != len(text) || len(text) != 32766 || !utf8.Valid(text) {
		t.Errorf("size %d, %d bytes, valid %v", h.TextSize, len(text), utf8.Valid(text))
	}
}

func FuzzCountMessages(f *testing.F) {
	f.Add(wireMessages(textMessage("hello", "traceId", "t-1"), textMessage("b")))
	f.Add(rawMessage(10, 0xFFFFFFFF, "\x01\x00\x00\x00k\x01\x00\x00\x00v"))
	f.Add(rawMessage(0x7FFFFFFF, 0, "x"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		n, ok := CountMessages(b)
		var parsed int
		var again []byte
		for rest := b; len(rest) > 0; parsed++ {
			m, size, whole := ParseMessage(rest)
			if !whole {
				parsed = -1
				break
			}
			again = AppendMessage(again, &m)
			rest = rest[size:]
		}
		if ok != (parsed > 0) || ok && parsed != n {
			t.Fatalf("counted %d %v, parsed %d", n, ok, parsed)
		}
		if ok && !bytes.Equal(again, b) {
			t.Fatalf("appended again %x, was %x", again, b)
		}
	})
}

func FuzzParsePushed(f *testing.F) {
	f.Add(AppendPushed(nil, Pushed{1, 2, 3, 4}, wireMessages(textMessage("p1", "k", "v"))))
	f.Add(AppendPushed(nil, Pushed{-1, -2, -3, -4}, rawMessage(0xFFFFFFFF, 0, "x")))
	f.Add(make([]byte, PushedMessageOverhead+MessageOverhead))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, m, size, ok := ParsePushed(b)
		if !ok {
			if p != (Pushed{}) || m != nil || size != 0 {
				t.Fatalf("refused, and yet %+v, %d bytes, size %d", p, len(m), size)
			}
			return
		}
		if size > len(b) || !bytes.Equal(AppendPushed(nil, p, m), b[:size]) {
			t.Fatalf("size %d of %d, %+v", size, len(b), p)
		}
	})
}
