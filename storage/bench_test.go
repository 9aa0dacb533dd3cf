package storage

import (
	"fmt"
	"testing"

	"smss/codec"
)

// benchWorld is a store on the real file system with messages of 200 bytes.
func benchWorld(b *testing.B, messages int) *world {
	w := opened(b, 1<<30)
	w.create("t")
	body := numbered("", 1, 200)[0]
	for n := 0; n < messages; n += 1000 {
		for range min(1000, messages-n) {
			w.stagePub("t", body)
		}
		must(b, w.s.Batch().Commit())
	}
	return w
}

func BenchmarkAppend1000(b *testing.B) {
	w := benchWorld(b, 0)
	p := message(numbered("", 1, 200)[0])
	b.ReportAllocs()
	b.SetBytes(1000 * int64(len(p)))
	for b.Loop() {
		for range 1000 {
			at := w.stageBinlog(codec.Pub, "t", w.nextID, p)
			w.s.Batch().Messages(w.topics["t"], w.nowMs, w.nowMs, w.nextID, at, p)
			w.nextID++
		}
		if err := w.s.Batch().Commit(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "records/s")
}

func BenchmarkReadPush255(b *testing.B) {
	w := benchWorld(b, 100_000)
	r, end := w.s.Reader("t"), w.topics["t"].End()
	var frame, scratch []byte
	from := Pos{}
	b.ReportAllocs()
	for b.Loop() {
		p, s, err := r.ReadPush(from, end, wide, frame, scratch)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(p.Frame)))
		if frame, scratch, from = p.Frame, s, p.Next; !from.Before(end) {
			from = Pos{}
		}
	}
}

func BenchmarkLocate(b *testing.B) {
	for _, messages := range []int{1000, 200_000} {
		b.Run(fmt.Sprint(messages), func(b *testing.B) {
			w := benchWorld(b, messages)
			r, end := w.s.Reader("t"), w.topics["t"].End()
			last := w.nextID - 1
			id := int64(2)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Locate(id, end); err != nil {
					b.Fatal(err)
				}
				if id += 7919; id > last {
					id = 2 + id%100
				}
			}
		})
	}
}
