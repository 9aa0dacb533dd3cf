package engine

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

func noteOf(v any) *Note { return &Note{Subject: v} }

func drained(m *Mailbox) (out []any) {
	m.Drain(func(n *Note) { out = append(out, n.Subject) })
	return out
}

func TestMailboxOrderAndWakes(t *testing.T) {
	wakes := 0
	m := NewMailbox(func() { wakes++ })
	m.Post(noteOf(1))
	m.Post(noteOf(2))
	// A chain of the writer's comes as one.
	for i := 3; i <= 5; i++ {
		if first := m.add(noteOf(i)); first != (i == 3) {
			t.Errorf("add of %d says first %v", i, first)
		}
	}
	m.flush()
	m.Post(noteOf(6))
	if wakes != 1 {
		t.Errorf("%d wake-ups for one time of being not empty", wakes)
	}
	if got := drained(m); !slices.Equal(got, []any{1, 2, 3, 4, 5, 6}) {
		t.Errorf("drained %v", got)
	}
	if got := drained(m); got != nil {
		t.Errorf("drained %v twice", got)
	}
	m.add(noteOf(7))
	m.flush()
	if wakes != 2 {
		t.Errorf("%d wake-ups after the second time", wakes)
	}
}

// TestMailboxRepostWhileDraining: a note may be posted again as soon as it was
// taken, also by take itself, and comes with the next drain and its own
// wake-up.
func TestMailboxRepostWhileDraining(t *testing.T) {
	wakes := 0
	m := NewMailbox(func() { wakes++ })
	again := noteOf("again")
	m.Post(again)
	m.Post(noteOf("other"))
	var got []any
	m.Drain(func(n *Note) {
		got = append(got, n.Subject)
		if n == again {
			m.Post(n)
		}
	})
	if !slices.Equal(got, []any{"again", "other"}) || wakes != 2 {
		t.Fatalf("drained %v with %d wake-ups", got, wakes)
	}
	if got := drained(m); !slices.Equal(got, []any{"again"}) {
		t.Fatalf("then drained %v", got)
	}
}

// TestMailboxManyPosters: every note arrives once, each poster's in order, and
// the drainer, which sleeps until it is woken, is never left asleep.
func TestMailboxManyPosters(t *testing.T) {
	const posters, each = 6, 5000
	wake := make(chan struct{}, 1)
	m := NewMailbox(func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	type stamp struct{ poster, n int }
	var wg sync.WaitGroup
	for p := range posters {
		wg.Go(func() {
			for i := range each {
				m.Post(noteOf(stamp{p, i}))
			}
		})
	}
	var next [posters]int
	timeout := time.NewTimer(20 * time.Second)
	defer timeout.Stop()
	for n := 0; n < posters*each; {
		select {
		case <-wake:
		case <-timeout.C:
			t.Fatalf("asleep with %d of %d taken", n, posters*each)
		}
		m.Drain(func(note *Note) {
			s := note.Subject.(stamp)
			if next[s.poster] != s.n {
				panic(fmt.Sprintf("poster %d: got %d, want %d", s.poster, s.n, next[s.poster]))
			}
			next[s.poster]++
			n++
		})
	}
	wg.Wait()
}
