package client

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"smss/client/clienttest"
	"smss/codec"
)

var ctx = context.Background()

// answer answers PUB and ALIVE until the client closes, and counts both.
func answer(published, alive *atomic.Int64) func(*clienttest.Session) {
	return func(s *clienttest.Session) {
		for r := s.Next(); r != nil; r = s.Next() {
			switch r.Command {
			case codec.Pub:
				published.Add(1)
				s.OK()
			case codec.Alive:
				alive.Add(1)
				s.Alive()
			}
		}
	}
}

func newPool(t *testing.T, s *clienttest.Server, o PoolOptions) *Pool {
	t.Helper()
	p := NewPool(s.Addr(), o)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func TestPoolIsShared(t *testing.T) {
	var published, alive atomic.Int64
	s := clienttest.Serve(t, answer(&published, &alive))
	p := newPool(t, s, PoolOptions{Size: 3, IdleTest: time.Hour})
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for range 20 {
				err := p.Do(ctx, func(c *Conn) error { return c.Publish("t", clienttest.Text("x")) })
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if published.Load() != 400 || alive.Load() != 0 || s.Accepted() > 3 {
		t.Errorf("%d published, %d asked alive, %d connections", published.Load(), alive.Load(), s.Accepted())
	}
}

func TestPoolIsBounded(t *testing.T) {
	var published, alive atomic.Int64
	s := clienttest.Serve(t, answer(&published, &alive))
	p := newPool(t, s, PoolOptions{Size: 1, Wait: 20 * time.Millisecond, IdleTest: time.Hour})
	c, err := p.Get(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Get(ctx); !errors.Is(err, ErrPoolBusy) {
		t.Errorf("second: %v", err)
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := p.Get(canceled); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	p.Put(c)
	again, err := p.Get(ctx)
	if err != nil || again != c {
		t.Errorf("got %p, want %p, error %v", again, c, err)
	}
	p.Put(again)
	p.Put(again) // the second time is without effect
	if x, err := p.Get(ctx); err != nil || x != c {
		t.Error(err)
	} else if _, err := p.Get(ctx); !errors.Is(err, ErrPoolBusy) {
		t.Errorf("a connection given back twice is lent twice: %v", err)
	} else {
		p.Put(x)
	}
}

func TestGetWaitsForPut(t *testing.T) {
	var published, alive atomic.Int64
	s := clienttest.Serve(t, answer(&published, &alive))
	p := newPool(t, s, PoolOptions{Size: 1, IdleTest: time.Hour})
	c, err := p.Get(ctx)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan *Conn)
	go func() {
		c, err := p.Get(ctx)
		if err != nil {
			t.Error(err)
		}
		got <- c
	}()
	p.Put(c)
	if x := <-got; x != c {
		t.Errorf("got %p, want %p", x, c)
	} else {
		p.Put(x)
	}
}

func TestBrokenConnectionsAreReplaced(t *testing.T) {
	var published, alive atomic.Int64
	s := clienttest.Serve(t, func(s *clienttest.Session) { s.Expect(codec.Pub) }, answer(&published, &alive))
	p := newPool(t, s, PoolOptions{Size: 1})
	publish := func(c *Conn) error { return c.Publish("t", clienttest.Text("x")) }
	if err := p.Do(ctx, publish); !errors.Is(err, ErrBroken) {
		t.Errorf("first: %v", err)
	}
	if err := p.Do(ctx, publish); err != nil {
		t.Errorf("second: %v", err)
	}
	if s.Accepted() != 2 {
		t.Errorf("%d connections", s.Accepted())
	}
}

func TestOutstandingRepliesAreNotLent(t *testing.T) {
	var published, alive atomic.Int64
	s := clienttest.Serve(t, func(s *clienttest.Session) { s.Expect(codec.Pub); s.OK(); s.Closed() }, answer(&published, &alive))
	p := newPool(t, s, PoolOptions{Size: 1})
	err := p.Do(ctx, func(c *Conn) error {
		pl := c.Pipeline(0)
		if err := pl.Publish("t", clienttest.Text("x")); err != nil {
			return err
		}
		return pl.Flush()
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Do(ctx, func(c *Conn) error { return c.Alive() }); err != nil || s.Accepted() != 2 {
		t.Errorf("error %v, %d connections", err, s.Accepted())
	}
}

// A connection that has been idle is asked whether it lives; one that does
// not is replaced without the borrower seeing it.
func TestIdleConnectionsAreTested(t *testing.T) {
	var published, alive atomic.Int64
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		s.Expect(codec.Pub)
		s.OK()
		s.Expect(codec.Alive)
		s.Alive()
		s.Expect(codec.Pub)
		s.OK()
		s.Expect(codec.Alive)
		s.Reset()
	}, answer(&published, &alive))
	p := newPool(t, s, PoolOptions{Size: 1, IdleTest: -1})
	for i := range 3 {
		if err := p.Do(ctx, func(c *Conn) error { return c.Publish("t", clienttest.Text("x")) }); err != nil {
			t.Errorf("publish %d: %v", i, err)
		}
	}
	if s.Accepted() != 2 || published.Load() != 1 {
		t.Errorf("%d connections, %d published on the second", s.Accepted(), published.Load())
	}
}

// A server may close behind a refusal, so that the connection is asked even
// if it was in use just now.
func TestConnectionsAreTestedAfterARefusal(t *testing.T) {
	var published, alive atomic.Int64
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		s.Expect(codec.Pub)
		s.Refuse("too large")
	}, answer(&published, &alive))
	p := newPool(t, s, PoolOptions{Size: 1, IdleTest: time.Hour})
	publish := func(c *Conn) error { return c.Publish("t", clienttest.Text("x")) }
	if err := p.Do(ctx, publish); errors.Is(err, ErrBroken) || err == nil {
		t.Errorf("first: %v", err)
	}
	if err := p.Do(ctx, publish); err != nil {
		t.Errorf("second: %v", err)
	}
}

func TestPoolCloses(t *testing.T) {
	s := clienttest.Serve(t, func(s *clienttest.Session) { s.Closed() })
	p := newPool(t, s, PoolOptions{Size: 2, IdleTest: time.Hour})
	idle, err := p.Get(ctx)
	if err != nil {
		t.Fatal(err)
	}
	lent, err := p.Get(ctx)
	if err != nil {
		t.Fatal(err)
	}
	p.Put(idle)
	waiting := make(chan error)
	full := newPool(t, s, PoolOptions{Size: 1})
	only, err := full.Get(ctx)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, err := full.Get(ctx); waiting <- err }()
	_ = full.Close()
	if err := <-waiting; !errors.Is(err, ErrPoolClosed) {
		t.Errorf("waiting: %v", err)
	}
	full.Put(only)
	for range 2 {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if lent.Err() != nil {
		t.Errorf("lent: %v", lent.Err())
	}
	p.Put(lent)
	for name, c := range map[string]*Conn{"idle": idle, "lent": lent, "only": only} {
		if !errors.Is(c.Err(), ErrClosed) {
			t.Errorf("%s: %v", name, c.Err())
		}
	}
	if _, err := p.Get(ctx); !errors.Is(err, ErrPoolClosed) {
		t.Errorf("get: %v", err)
	}
}
