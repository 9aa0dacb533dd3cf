package replication

import (
	"context"
	"strings"
	"testing"
	"time"

	"smss/codec"
	"smss/engine"
)

// TestListsThatGoBack: a master whose pages do not go on is not asked for ever.
func TestListsThatGoBack(t *testing.T) {
	t.Parallel()
	m := newServer(t, t.TempDir(), engine.Master)
	defer m.stop()
	answers := func(head any) {
		m.onAsk(func(*codec.CopyRequest, func() []byte) []byte {
			b, err := codec.AppendCopyAnswer(nil, head, nil)
			if err != nil {
				t.Error(err)
			}
			return b
		})
	}
	d := copyDialer{dialTCP, time.Second}
	l, err := d.open(context.Background(), m.ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	var pages int
	file := []codec.CopyFile{{File: 3}}
	for _, page := range []codec.CopyTopics{
		{Topics: []codec.CopyTopic{{Name: []byte("t")}}},
		{Topics: []codec.CopyTopic{{Name: []byte("t"), Files: file, More: true}}},
		{Topics: []codec.CopyTopic{{Name: []byte("t")}, {Name: []byte{}}}},
	} {
		pages = 0
		answers(page)
		err := l.topics(1, func(*codec.CopyTopic) { pages++ })
		if err == nil || !strings.Contains(err.Error(), "list of topics goes back") || pages > 2 {
			t.Errorf("%d topics, %v", pages, err)
		}
	}
	// One topic on three pages, the last of which does not say that it is.
	m.onAsk(func(q *codec.CopyRequest, _ func() []byte) []byte {
		page := codec.CopyTopics{Topics: []codec.CopyTopic{{Name: []byte("t"), Files: []codec.CopyFile{{File: q.File}}, More: q.File < 2}}}
		if len(q.Topic) > 0 && q.File == 0 {
			page = codec.CopyTopics{Done: true}
		}
		b, err := codec.AppendCopyAnswer(nil, &page, nil)
		if err != nil {
			t.Error(err)
		}
		return b
	})
	pages = 0
	if err := l.topics(1, func(*codec.CopyTopic) { pages++ }); err != nil || pages != 3 {
		t.Errorf("%d pages, %v", pages, err)
	}
	answers(codec.CopyDelays{Next: &codec.CopyDelay{TriggerAtMs: 5, EventID: 1, Topic: []byte("t")}})
	if _, err := l.delays(1, nil); err == nil || !strings.Contains(err.Error(), "list of delayed messages goes back") {
		t.Error(err)
	}
}
