package client

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Defaults of PoolOptions.
const (
	DefaultPoolSize = 16
	DefaultPoolWait = 5 * time.Second
	DefaultIdleTest = time.Second
)

// PoolOptions are the options of a Pool. The zero value is good.
type PoolOptions struct {
	Options // of each connection
	// Size is how many connections are open at most, lent or idle. 0 and
	// less = DefaultPoolSize.
	Size int
	// Wait bounds how long Get waits while all are lent. 0 and less =
	// DefaultPoolWait.
	Wait time.Duration
	// IdleTest is how long a connection may have been idle to be lent without
	// asking the server whether it is alive. 0 = DefaultIdleTest, negative =
	// ask each time.
	IdleTest time.Duration
}

// Pool lends connections to one server. Any number of goroutines may use it.
type Pool struct {
	addr    string
	options PoolOptions
	idle    chan *Conn    // has room for all
	open    chan struct{} // one for each connection that exists
	done    chan struct{} // closed by Close
	closed  atomic.Bool
}

// NewPool returns a pool that connects to addr as connections are asked for.
func NewPool(addr string, o PoolOptions) *Pool {
	o.Options = o.Options.withDefaults()
	if o.Size <= 0 {
		o.Size = DefaultPoolSize
	}
	if o.Wait <= 0 {
		o.Wait = DefaultPoolWait
	}
	if o.IdleTest == 0 {
		o.IdleTest = DefaultIdleTest
	}
	return &Pool{
		addr:    addr,
		options: o,
		idle:    make(chan *Conn, o.Size),
		open:    make(chan struct{}, o.Size),
		done:    make(chan struct{}),
	}
}

// Get lends a connection, which goes back with Put. While all are lent it
// waits for ctx and PoolOptions.Wait, then fails with ErrPoolBusy.
func (p *Pool) Get(ctx context.Context) (*Conn, error) {
	for {
		if p.closed.Load() {
			return nil, ErrPoolClosed
		}
		select {
		case c := <-p.idle:
			if p.fit(c) {
				return c, nil
			}
			continue
		default:
		}
		c, err := p.await(ctx)
		if c != nil || err != nil {
			return c, err
		}
	}
}

// await waits for a connection to come back or for room to open one. Neither
// a connection nor an error means: look again.
func (p *Pool) await(ctx context.Context) (*Conn, error) {
	waiting, cancel := context.WithTimeout(ctx, p.options.Wait)
	defer cancel()
	select {
	case c := <-p.idle:
		if p.fit(c) {
			return c, nil
		}
		return nil, nil
	case p.open <- struct{}{}:
		c, err := Dial(ctx, p.addr, p.options.Options)
		if err != nil {
			<-p.open
			return nil, err
		}
		c.lender = p
		return c, nil
	case <-waiting.Done():
		if err := ctx.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", ErrPoolBusy, waiting.Err())
	case <-p.done:
		return nil, ErrPoolClosed
	}
}

// fit reports whether an idle connection can be lent; one that cannot is gone
// afterwards.
func (p *Pool) fit(c *Conn) bool {
	if c.refused || time.Since(c.lastUsed) >= p.options.IdleTest {
		if c.Alive() != nil {
			p.discard(c)
			return false
		}
	}
	c.lender = p
	return true
}

func (p *Pool) discard(c *Conn) {
	_ = c.Close()
	<-p.open
}

// Put takes back a connection that Get lent; the caller uses it no more. One
// that is broken or has replies outstanding is closed. A connection that is
// not lent by this pool is left alone.
func (p *Pool) Put(c *Conn) {
	if c.lender != p {
		return
	}
	c.lender = nil
	if c.Err() != nil || len(c.outstanding) > 0 {
		p.discard(c)
		return
	}
	c.lastUsed = time.Now()
	p.idle <- c
	if p.closed.Load() {
		p.drain() // Close may have looked before this one came back
	}
}

// Do lends a connection to f and takes it back.
func (p *Pool) Do(ctx context.Context, f func(*Conn) error) error {
	c, err := p.Get(ctx)
	if err != nil {
		return err
	}
	defer p.Put(c)
	return f(c)
}

// Close closes the idle connections now and those that are lent as they come
// back. Any goroutine may call it, more than once.
func (p *Pool) Close() error {
	if p.closed.Swap(true) {
		return nil
	}
	close(p.done)
	p.drain()
	return nil
}

func (p *Pool) drain() {
	for {
		select {
		case c := <-p.idle:
			p.discard(c)
		default:
			return
		}
	}
}
