package replication

import (
	"context"
	"errors"
	"fmt"
	"time"

	"smss/codec"
	"smss/engine"
	"smss/storage"
)

// A slave that cannot go on from its master's binlog is copied anew. That is
// done by a start of the server, before it opens its directory (see Copy): here
// it is found out whether it is possible, and ordered.

// probeTimeout bounds how long finding that out may take.
const probeTimeout = time.Minute

// refused makes an error of the master's word that it does not send.
func (f *Follower) refused(text string) error {
	if gone, ok := engine.ParseGone(text); ok {
		return &IncompleteError{gone.Oldest, f.n.position() + 1}
	}
	return &RefusedError{text}
}

// copyInstead orders a full copy where the reason why following has ended asks
// for one, and returns the state of the link and its reason.
func (f *Follower) copyInstead(state LinkState, err error) (LinkState, error) {
	var gone *IncompleteError
	if !errors.As(err, &gone) {
		return state, err
	}
	if !f.n.cfg.AutoCopy || f.n.cfg.OrderCopy == nil {
		return state, fmt.Errorf("%w; replication.autoCopy is off: order it by hand", err)
	}
	if failed := f.n.orderCopy(f.ctx, storage.CopyOrder{Master: f.address, Reason: err.Error()}); failed != nil {
		return state, fmt.Errorf("%w, which cannot be made: %w", err, failed)
	}
	return LinkCopying, err
}

// orderCopy orders a copy if the master can be copied and there is room for it.
func (n *Node) orderCopy(ctx context.Context, o storage.CopyOrder) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	d := copyDialer{n.cfg.Dial, n.cfg.Silence}
	l, err := d.open(ctx, o.Master)
	if err != nil {
		return err
	}
	defer l.close()
	start, err := l.start(n.History().Node)
	if err != nil {
		return err
	}
	need := start.Off
	err = l.topics(start.EventID, func(t *codec.CopyTopic) {
		for _, f := range t.Files {
			need += f.Size
		}
	})
	if err != nil {
		return err
	}
	// With Discard the directory is emptied first if it must be: how much that
	// gives is seen then.
	if !o.Discard && n.cfg.FreeBytes != nil {
		free, err := n.cfg.FreeBytes()
		if err != nil {
			return err
		}
		if free-n.cfg.MinFree < need {
			return &RoomError{need, free, n.cfg.MinFree}
		}
	}
	// Before the order: a change of the role that comes now must not be made, as
	// the start that follows would undo it and take its events away.
	n.copying.Store(true)
	err = n.cfg.OrderCopy(o)
	if err != nil {
		n.copying.Store(false)
	}
	return err
}

// RoomError says that there is no room for a copy.
type RoomError struct{ Need, Free, Keep int64 }

func (e *RoomError) Error() string {
	return fmt.Sprintf("a full copy takes %d bytes beside what the directory holds; %d are free, of which store.minFreeBytes keeps %d: make room (old-* of an earlier copy can go), or have what it holds discarded", e.Need, e.Free, e.Keep)
}

var (
	errMasterReseed = errors.New("a master is not copied anew: make it a slave first")
	errNoReseed     = errors.New("this server cannot be copied anew: it does not know how to start again")
)

// Reseed has this slave copied anew from its master, whatever it holds. That
// is put aside, or with discard thrown away, before the copy is made if there is
// no room for both. The server starts anew soon after Reseed has returned nil.
func (n *Node) Reseed(discard bool) error {
	if err := n.begin(); err != nil {
		return err
	}
	defer n.mu.Unlock()
	switch {
	case n.cfg.OrderCopy == nil:
		return errNoReseed
	case n.Role() == engine.Master:
		return errMasterReseed
	}
	master := n.link.Load().master
	if master == "" {
		return errors.New("this slave has no master yet: try again")
	}
	return n.orderCopy(n.changes, storage.CopyOrder{Master: master, Reason: "ordered", Discard: discard})
}
