package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"smss/storage"
)

// TestCopyDelaysInPages: every pending delayed message up to the event comes
// once, whatever its size, also many of one millisecond.
func TestCopyDelaysInPages(t *testing.T) {
	r := newRig(t, nil)
	const asOf = 3000
	var b storage.MetaBatch
	want := map[storage.DelayKey]int{}
	put := func(trigger, id int64, size int) {
		k := storage.DelayKey{TriggerAtMs: trigger, EventID: id, Topic: "t"}
		b.PutDelay(k, make([]byte, size))
		if id <= asOf && size <= storage.MaxDelayPayload+delayRoom {
			want[k] = size
		}
	}
	for id := int64(1); id <= asOf+100; id++ {
		put(1000+id%3, id, int(id))
	}
	put(1001, 17<<20, 5) // younger
	put(1500, 900, storage.MaxDelayPayload+delayRoom)
	put(1500, 901, storage.MaxDelayPayload+delayRoom+1)
	if err := r.meta.Commit(&b); err != nil {
		t.Fatal(err)
	}
	pages, skipped := 0, 0
	var last *storage.DelayKey
	for {
		page, left, next, err := r.e.CopyDelays(asOf, last)
		if err != nil {
			t.Fatal(err)
		}
		pages, skipped = pages+1, skipped+left
		size := 0
		for _, d := range page {
			if n, ok := want[d.DelayKey]; !ok || n != len(d.Payload) {
				t.Fatalf("%v with %d bytes: %v, %d expected", d.DelayKey, len(d.Payload), ok, n)
			}
			delete(want, d.DelayKey)
			size += len(d.Payload)
		}
		if size > copyDelayBytes && len(page) > 1 {
			t.Errorf("a page of %d messages has %d bytes", len(page), size)
		}
		if next == nil {
			break
		}
		if last != nil && !last.StoredBefore(next) {
			t.Fatalf("behind %v comes %v", last, next)
		}
		last = next
	}
	if len(want) > 0 || skipped != 1 || pages < 5 {
		t.Errorf("%d are missing, %d left out, in %d pages", len(want), skipped, pages)
	}
}

// TestCopyTopicsInPages: the topics as of an event, each once with all of its
// files, whichever way the pages fall.
func TestCopyTopicsInPages(t *testing.T) {
	r := newRig(t, func(r *rig) { r.opt.MaxLogSize = 1 }) // a file for each message
	var names []string
	for i := range copyTopics + 100 {
		names = append(names, fmt.Sprintf("t%04d", i))
		r.create(names[i])
	}
	const many = copyFiles + 10
	body := strings.Repeat("m", 5)
	for left := many; left > 0; left -= 200 {
		r.ok(r.pushPublish(names[3], slices.Repeat([]string{body}, min(left, 200))...))
	}
	r.ok(r.pushDelete(names[7]))
	asOf := r.e.LastEventID()
	r.create("younger")
	r.ok(r.pushPublish(names[3], body))
	names = slices.Delete(names, 7, 8)
	var got []string
	files := map[string]int64{}
	after, from, pages := "", int64(0), 0
	for done := false; !done; pages++ {
		page, last, err := r.e.CopyTopics(asOf, after, from)
		if err != nil || len(page) > copyTopics {
			t.Fatal(len(page), err)
		}
		for _, c := range page {
			name := c.Topic.Meta.Name
			if len(got) == 0 || got[len(got)-1] != name {
				got = append(got, name)
			}
			for _, f := range c.Files {
				if f.File != files[name] {
					t.Fatalf("%s: file %d where %d is expected", name, f.File, files[name])
				}
				files[name]++
			}
			after, from = name, 0
			if c.More {
				from = c.Files[len(c.Files)-1].File + 1
			}
		}
		done = last
	}
	if !slices.Equal(got, names) || files[names[3]] != many || pages < 3 {
		t.Errorf("%d topics of %d, %d files of %d, in %d pages", len(got), len(names), files[names[3]], many, pages)
	}
}

// TestCopyWaitsForADeletion: while a topic's deletion is being written, what
// lies under its name may be another's and is not read.
func TestCopyWaitsForADeletion(t *testing.T) {
	r := newRig(t, nil)
	r.create("t")
	r.ok(r.pushPublish("t", "m"))
	topic := r.e.Lookup([]byte("t"))
	piece := func() <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := r.e.CopyPiece([]byte("t"), topic.Meta.CreateEventID, 0, 0, make([]byte, 10))
			done <- err
		}()
		return done
	}
	topic.leaving.Store(true)
	done := piece()
	select {
	case err := <-done:
		t.Fatalf("read while the deletion is being written: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	topic.leaving.Store(false) // it was undone
	if err := <-done; err != nil {
		t.Error(err)
	}
	topic.leaving.Store(true)
	done = piece()
	topic.ended.Store(true)
	if err := <-done; !errors.Is(err, ErrCopyGone) {
		t.Errorf("deleted: %v", err)
	}
	topic.ended.Store(false)
	topic.leaving.Store(false)
	if _, err := r.e.CopyPiece([]byte("t"), topic.Meta.CreateEventID+1, 0, 0, make([]byte, 10)); !errors.Is(err, ErrCopyGone) {
		t.Errorf("another life: %v", err)
	}
}
