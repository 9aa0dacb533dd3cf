package codec

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func genGreeting(t *rapid.T) Greeting {
	g := Greeting{
		Node: rapid.StringMatching(`[0-9a-f]{0,16}`).Draw(t, "node"), LastEventID: rapid.Int64().Draw(t, "last"),
		OldestEventID: rapid.Int64().Draw(t, "oldest"), Complete: rapid.Bool().Draw(t, "complete"),
		Port: rapid.IntRange(0, 65535).Draw(t, "port"), HeartbeatMs: rapid.Int64Range(0, 1<<40).Draw(t, "heartbeat"),
	}
	for range rapid.IntRange(0, 4).Draw(t, "epochs") {
		g.Epochs = append(g.Epochs, Epoch{rapid.StringMatching(`[0-9a-f]{16}`).Draw(t, "id"), rapid.Int64().Draw(t, "first")})
	}
	return g
}

func TestGreetingRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := genGreeting(t)
		b, err := AppendGreeting(nil, &want)
		if err != nil {
			t.Fatal(err)
		}
		h := ParseReplyHeader(b)
		if h.Code != CodeGreeting || int(h.JSONSize) != len(b)-ReplyHeaderSize {
			t.Fatalf("header %+v of %d bytes", h, len(b))
		}
		got, err := ParseGreeting(b[ReplyHeaderSize:])
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v, %v, want %+v", got, err, want)
		}
	})
}

func TestReportAndOrderRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id, promoted := rapid.Int64Min(0).Draw(t, "id"), rapid.Bool().Draw(t, "promoted")
		b := AppendReport(nil, id, promoted)
		if got, p := ParseReport(b); got != id || p != promoted || len(b) != ReportSize {
			t.Fatalf("%d %v, want %d %v", got, p, id, promoted)
		}
		order := AppendTakeOver(nil, id)
		if len(order) != ReplyHeaderSize || ParseReplyHeader(order).Code != CodeTakeOver || ParseEventFrame(order) != id {
			t.Fatalf("order % x for %d", order, id)
		}
	})
}

// An existing master reads 28 bytes of the request and throws the rest away:
// up to there nothing but the mark may differ from what existing slaves send.
func TestExtendedReplicaBeginsLikeTheOther(t *testing.T) {
	b, err := AppendReplica(nil, "", 77, &Greeting{Node: "n"})
	if err != nil {
		t.Fatal(err)
	}
	plain := AppendEventRequest(nil, Replica, "", 77)
	plain[3] = 1
	if !bytes.HasPrefix(b, plain) {
		t.Errorf("% x\nbegins not with\n% x", b, plain)
	}
}

func TestGreetingTooLong(t *testing.T) {
	g := Greeting{Node: strings.Repeat("n", MaxGreeting)}
	if _, err := AppendReplica(nil, "", 0, &g); err == nil {
		t.Error("a request with it was made")
	}
	if _, err := AppendGreeting(nil, &g); err == nil {
		t.Error("a greeting with it was made")
	}
	b, _ := AppendReplica(nil, "", 0, &Greeting{})
	b[RequestHeaderSize+8+2] = 2 // a length of more than 128 KiB
	var req Request
	var frame *FrameError
	if _, err := ParseRequest(b, &testLimits, &req); !errors.As(err, &frame) {
		t.Errorf("it is taken: %v", err)
	}
}
