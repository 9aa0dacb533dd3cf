package codec

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

func genCopyRequest(t *rapid.T) CopyRequest {
	if rapid.IntRange(0, 3).Draw(t, "ask") == 0 {
		return CopyRequest{}
	}
	q := CopyRequest{
		Ask:     rapid.SampledFrom([]CopyAsk{AskTopics, AskPiece, AskDelays}).Draw(t, "what"),
		EventID: rapid.Int64Min(0).Draw(t, "event"), File: rapid.Int64Min(0).Draw(t, "file"),
		Off: rapid.Int64Min(0).Draw(t, "off"), Max: rapid.Int64Range(1, MaxCopyPiece).Draw(t, "max"),
	}
	if b := rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "topic"); len(b) > 0 {
		q.Topic = b
	}
	if rapid.Bool().Draw(t, "behind") {
		q.After = &CopyDelay{TriggerAtMs: rapid.Int64().Draw(t, "trigger"), EventID: rapid.Int64().Draw(t, "id"), Topic: []byte("a\xff")}
	}
	return q
}

func TestCopyRequestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := genCopyRequest(t)
		b, err := AppendCopy(nil, "trace", &want)
		if err != nil {
			t.Fatal(err)
		}
		var req Request
		if n, err := ParseRequest(append(bytes.Clone(b), 17), &Limits{MaxMessageSize: 1}, &req); err != nil || n != len(b) {
			t.Fatalf("%d of %d bytes, %v", n, len(b), err)
		}
		got, err := ParseCopy(req.Payload)
		if err != nil || req.Command != Copy || !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v, %v, want %+v", got, err, want)
		}
		if want.Ask == AskStart && len(req.Payload) > 0 {
			t.Fatal("the first request has a body, which an existing server would read as commands")
		}
	})
}

func TestCopyRequestRefused(t *testing.T) {
	for _, text := range []string{
		`{`, `{}`, `{"ask":"else"}`, `{"ask":"piece"}`, `{"ask":"piece","max":1048577}`, `{"ask":"piece","max":-1}`,
		`{"ask":"topics","event":-1}`, `{"ask":"piece","max":1,"off":-1}`, `{"ask":"topics","file":-1}`, `[]`,
	} {
		if _, err := ParseCopy([]byte(text)); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
	var req Request
	var frame *FrameError
	long := append([]byte{byte(Copy), 0, 0, 0, 0, 1, 0}, make([]byte, 13)...)
	if _, err := ParseRequest(long, &Limits{MaxMessageSize: 1 << 20}, &req); !errors.As(err, &frame) {
		t.Errorf("64 KiB of request: %v", err)
	}
	if _, err := AppendCopy(nil, "", &CopyRequest{Ask: AskTopics, Topic: make([]byte, MaxCopyRequest)}); err == nil {
		t.Error("a request over the limit is made")
	}
}

func TestCopyAnswerRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := CopyTopics{Done: rapid.Bool().Draw(t, "done")}
		for range rapid.IntRange(0, 3).Draw(t, "topics") {
			topic := CopyTopic{Name: []byte{0xff, 'a'}, CreateEventID: rapid.Int64().Draw(t, "create"), More: rapid.Bool().Draw(t, "more")}
			for range rapid.IntRange(0, 3).Draw(t, "files") {
				topic.Files = append(topic.Files, CopyFile{rapid.Int64().Draw(t, "file"), rapid.Int64().Draw(t, "size")})
			}
			want.Topics = append(want.Topics, topic)
		}
		data := rapid.SliceOf(rapid.Byte()).Draw(t, "data")
		b, err := AppendCopyAnswer([]byte("before"), &want, data)
		if err != nil {
			t.Fatal(err)
		}
		b = b[len("before"):]
		h := ParseReplyHeader(b)
		if h.Code != CodeOK || int(h.JSONSize) != len(b)-ReplyHeaderSize {
			t.Fatalf("header %+v of %d bytes", h, len(b))
		}
		var got CopyTopics
		rest, err := ParseCopyAnswer(b[ReplyHeaderSize:], &got)
		if err != nil || !reflect.DeepEqual(got, want) || !bytes.Equal(rest, data) {
			t.Fatalf("%+v % x, %v, want %+v % x", got, rest, err, want, data)
		}
		// Whatever bit is another one is noticed.
		bit := rapid.IntRange(0, 8*(len(b)-ReplyHeaderSize)-1).Draw(t, "bit")
		b[ReplyHeaderSize+bit/8] ^= 1 << (bit % 8)
		if _, err := ParseCopyAnswer(b[ReplyHeaderSize:], &got); !errors.Is(err, ErrCopyDamaged) {
			t.Fatalf("bit %d is another one: %v", bit, err)
		}
	})
}

func FuzzParseCopy(f *testing.F) {
	f.Add([]byte(`{"ask":"piece","event":7,"topic":"dA==","file":1,"off":2,"max":3}`))
	f.Add([]byte(`{"ask":"delays","event":7,"after":{"trigger":1,"event":2,"topic":"dA=="}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		q, err := ParseCopy(b)
		if err != nil {
			return
		}
		if q.Max < 0 || q.Max > MaxCopyPiece || q.Off < 0 || q.File < 0 || q.EventID < 0 {
			t.Fatalf("accepted %+v", q)
		}
		var req Request
		raw, err := AppendCopy(nil, "", &q)
		if err != nil {
			return // longer than what was read, by its escapes
		}
		if _, err := ParseRequest(raw, &Limits{}, &req); err != nil {
			t.Fatal(err)
		}
		if again, err := ParseCopy(req.Payload); err != nil || !reflect.DeepEqual(again, q) {
			t.Fatalf("%+v, %v, then %+v", q, err, again)
		}
	})
}

func FuzzParseCopyAnswer(f *testing.F) {
	good, err := AppendCopyAnswer(nil, &CopyPiece{Gone: true, Oldest: 3}, []byte("data"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good[ReplyHeaderSize:])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var p CopyPiece
		data, err := ParseCopyAnswer(b, &p)
		if err == nil && len(data) > len(b)-copyPrefix {
			t.Fatalf("%d bytes of data in %d", len(data), len(b))
		}
	})
}
