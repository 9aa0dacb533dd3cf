package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"smss/codec"
)

// measureSeeks subscribes at random event ids of a topic whose n messages
// have consecutive ones, and takes the time from the request to the first
// message.
func measureSeeks(ctx context.Context, s *settings, srv *server, topic string, n int64, p *progress, r *Result) error {
	first, _, err := seek(ctx, s, srv, topic, 0)
	if err != nil {
		return fmt.Errorf("subscribe at the beginning: %w", err)
	}
	random := rand.New(rand.NewPCG(1, 2)) // the same places in every run
	times := newHistogram()
	p.say("subscribing at " + count(int64(s.Seeks)) + " event ids")
	for range s.Seeks {
		if ctx.Err() != nil {
			r.Interrupted = true
			break
		}
		after := first + random.Int64N(max(1, n-1))
		got, took, err := seek(ctx, s, srv, topic, after)
		if err != nil {
			return fmt.Errorf("subscribe after event %d: %w", after, err)
		}
		if got != after+1 {
			return fmt.Errorf("subscribed after event %d and got %d: somebody else uses this server", after, got)
		}
		_ = times.RecordValue(min(took.Microseconds(), times.HighestTrackableValue()))
	}
	r.addLatency("seek", "first message after SUB", times)
	m, err := srv.memory()
	if err == nil && srv.pid != 0 {
		r.Figures[keyResidentPeak], r.Figures[keyResidentEnd] = float64(m.peak), float64(m.resident)
	}
	return err
}

// seek subscribes behind an event and returns the first message's id, and how
// long that took once the connection stood.
func seek(ctx context.Context, s *settings, srv *server, topic string, after int64) (id int64, took time.Duration, err error) {
	c, err := dialControl(ctx, srv.addr, time.Duration(s.Timeout))
	if err != nil {
		return 0, 0, err
	}
	defer c.close()
	request := codec.AppendSub(nil, &codec.Subscription{Topic: topic, Who: "bench-seek-" + c.conn.LocalAddr().String(), EventID: after, Batch: 1})
	start := time.Now()
	code, text, err := c.exchange(request)
	switch {
	case err != nil:
		return 0, 0, err
	case code == codec.CodeError:
		return 0, 0, errors.New(text)
	case code != codec.CodeOK:
		return 0, 0, fmt.Errorf("code %d", code)
	}
	var head [messageHead]byte
	if _, err := io.ReadFull(c.conn, head[:]); err != nil {
		return 0, 0, withoutAddress(err)
	}
	took = time.Since(start)
	return int64(binary.LittleEndian.Uint64(head[8:])), took, nil
}
