package replication

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"smss/codec"
	"smss/storage"
)

// CopyConfig says how a full copy is made. All durations are positive.
type CopyConfig struct {
	Staging *storage.Staging
	// Silence is how long the master may be silent before it counts as lost.
	Silence time.Duration
	// RetryFirst and RetryMax bound the pauses between two attempts.
	RetryFirst, RetryMax time.Duration
	MinFree              int64 // bytes that have to stay free
	// Dial connects to the master; nil = TCP.
	Dial   func(ctx context.Context, address string) (net.Conn, error)
	Events CopyEvents
}

// CopyEvents receives notable moments. Nil functions are not called.
type CopyEvents struct {
	Note func(what string, err error)
	// Progress is called about once a second, and at the end: done of total
	// bytes, so many of them in a second.
	Progress func(done, total, rate int64)
	// Failed is an attempt that has failed; another one follows after pause.
	Failed func(err error, pause time.Duration)
}

func (e *CopyEvents) note(what string, err error) {
	if e.Note != nil {
		e.Note(what, err)
	}
}

// Copy makes a full copy of a master, into the staging area of a directory that
// no server has open, and puts it in place. One goroutine runs it; Status may be
// called by any.
type Copy struct {
	cfg    CopyConfig
	dialer copyDialer
	order  storage.CopyOrder
	since  time.Time

	done, total atomic.Int64 // bytes
	failed      atomic.Pointer[error]

	// The rest belongs to the goroutine that runs it.
	state    storage.CopyState
	own      string                // name of the directory's present history
	checked  map[string]checkedLog // by topic
	progress bool                  // this attempt has brought something
	told     time.Time             // when Progress was called last
	toldDone int64                 // and with what
}

// NewCopy returns a copy as the staging area's order says.
func NewCopy(cfg CopyConfig) *Copy {
	if cfg.Dial == nil {
		cfg.Dial = dialTCP
	}
	return &Copy{
		cfg: cfg, dialer: copyDialer{cfg.Dial, cfg.Silence}, order: cfg.Staging.Order(), since: time.Now(),
		checked: map[string]checkedLog{},
	}
}

// Status returns what is known now, as a slave's.
func (c *Copy) Status() Status {
	l := &LinkInfo{
		Master: c.order.Master, State: LinkCopying.String(), SinceMs: c.since.UnixMilli(),
		CopiedBytes: c.done.Load(), CopyBytes: c.total.Load(), Error: c.order.Reason,
	}
	if err := c.failed.Load(); err != nil {
		l.Error = (*err).Error()
	}
	return Status{Role: "slave", Link: l}
}

// Run copies until the copy is in place, trying again after whatever goes
// wrong: what was copied is kept. Its only error is that ctx has ended.
func (c *Copy) Run(ctx context.Context) error {
	pauses := backoff{first: c.cfg.RetryFirst, max: c.cfg.RetryMax}
	for {
		c.progress = false
		err := c.attempt(ctx)
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		if c.progress {
			pauses.reset()
		}
		c.failed.Store(&err)
		pause := pauses.next()
		if c.cfg.Events.Failed != nil {
			c.cfg.Events.Failed(err, pause)
		}
		sleep(ctx, pause)
	}
}

// attempt is one connection, and the installation if it gets so far.
func (c *Copy) attempt(ctx context.Context) (err error) {
	if c.own, err = c.cfg.Staging.Node(); err != nil {
		return err
	}
	l, err := c.dialer.open(ctx, c.order.Master)
	if err != nil {
		return err
	}
	defer l.close()
	if err := c.begin(l); err != nil {
		return err
	}
	f := fetching{c: c, st: c.cfg.Staging, link: l, state: &c.state}
	if err := f.plan(); err != nil {
		return err
	}
	if err := c.room(); err != nil {
		return err
	}
	if err := f.fetch(ctx); err != nil {
		return err
	}
	if err := c.finish(l, f.topics()); err != nil {
		return err
	}
	c.tell(true)
	if err := c.cfg.Staging.Complete(); err != nil {
		return err
	}
	return c.cfg.Staging.Install()
}

// begin asks where the master is. A copy that was begun goes on if the master
// still is what it is a copy of; otherwise another one begins.
func (c *Copy) begin(l *copyLink) error {
	start, err := l.start(c.own)
	if err != nil {
		return err
	}
	state, begun := c.cfg.Staging.State()
	if begun {
		why := belongs(start, &state)
		if why == nil {
			c.state = state
			return nil
		}
		c.cfg.Events.note("what was copied cannot be used, the copy begins anew", why)
	}
	clear(c.checked)
	c.state = storage.CopyState{
		Node: start.Node, Epochs: start.Epochs, EventID: start.EventID, Binlog: storage.Pos{File: start.File, Off: start.Off},
		IncompleteFrom: start.IncompleteFrom,
	}
	c.cfg.Events.note(fmt.Sprintf("copying the master %s as of event %d", c.order.Master, start.EventID), nil)
	return c.cfg.Staging.Begin(c.state)
}

// belongs returns nil if a copy can be completed from, and then follow, a
// master that answers start.
func belongs(start *codec.CopyStart, state *storage.CopyState) error {
	if start.Node != state.Node {
		return fmt.Errorf("it is of another data directory, node %s, and the master's is %s", state.Node, start.Node)
	}
	if err := compare(start.Epochs, state.Epochs, start.EventID, state.EventID); err != nil {
		return err
	}
	if start.OldestFile > state.Binlog.File {
		return fmt.Errorf("the master's binlog does not reach back to it (event %d)", state.EventID)
	}
	return nil
}

// room looks for space for what is missing, and makes it from what need not be
// kept.
func (c *Copy) room() error {
	for {
		free, err := c.cfg.Staging.FreeBytes()
		if err != nil {
			return err
		}
		need := c.total.Load() - c.done.Load()
		if free-c.cfg.MinFree >= need {
			return nil
		}
		some, err := c.cfg.Staging.MakeRoom()
		if err != nil {
			return err
		}
		if !some {
			return &RoomError{need, free, c.cfg.MinFree}
		}
	}
}

// finish makes a data directory of the files, and asks once more whether the
// stream can go on behind it.
func (c *Copy) finish(l *copyLink, topics []storage.CopiedTopic) error {
	skipped := 0
	err := c.cfg.Staging.Finish(topics, func(put func(storage.DelayKey, []byte) error) (err error) {
		skipped, err = l.delays(c.state.EventID, put)
		return err
	})
	if err != nil {
		return err
	}
	if skipped > 0 {
		c.cfg.Events.note(fmt.Sprintf("%d delayed messages of the master are too large to be kept for a promotion", skipped), nil)
	}
	start, err := l.start(c.own)
	if err != nil {
		return err
	}
	return belongs(start, &c.state)
}

// tell reports progress, not too often.
func (c *Copy) tell(now bool) {
	passed := time.Since(c.told)
	if c.cfg.Events.Progress == nil || !now && passed < time.Second {
		return
	}
	done, rate := c.done.Load(), int64(0)
	if !c.told.IsZero() && passed > 0 {
		rate = int64(float64(done-c.toldDone) / passed.Seconds())
	}
	c.told, c.toldDone = time.Now(), done
	c.cfg.Events.Progress(done, c.total.Load(), max(0, rate))
}

// checkedLog is a staged log that was read and found good.
type checkedLog struct {
	what   string // which life of the topic, and which files
	lastID int64
}

var errCopyShort = errors.New("the master's file is shorter than it said")
