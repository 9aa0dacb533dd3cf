package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"smss/replication"
	"smss/storage"
)

// A full copy of the master is made by a start, before the data directory is
// opened: a running slave that needs one writes the order for it into the
// directory, stops in order and starts itself anew.

// errAgain says that the server has stopped in order to start anew.
var errAgain = errors.New("starting anew")

// orderCopy is called by the slave that needs a copy.
func (s *server) orderCopy(store *storage.Store, o storage.CopyOrder) error {
	if err := store.OrderCopy(o); err != nil {
		return fmt.Errorf("ordering a full copy: %w", err)
	}
	s.log.Warn().Str("master", o.Master).Str("reason", o.Reason).Bool("discard", o.Discard).Msg("a full copy of the master is to be made: starting anew")
	select {
	case s.again <- struct{}{}:
	default: // it is known
	}
	return nil
}

// startAgain replaces the process by a new one of the same binary, arguments
// and environment. It returns only where that fails.
func startAgain() error {
	name, err := os.Executable()
	if err == nil {
		err = syscall.Exec(name, os.Args, os.Environ())
	}
	return fmt.Errorf("starting anew: %w; the next start makes the full copy", err)
}

// makeCopy makes the full copy that was ordered, if one was, and finishes one
// that was interrupted while it was put in place. Signals end the process
// meanwhile: what is copied is kept.
func (s *server) makeCopy(opt storage.Options) error {
	st, err := storage.OpenStaging(opt)
	if err != nil || st == nil {
		return err
	}
	defer st.Close() // nothing in it is open any more once the copy is in place
	order := st.Order()
	if err := s.becomeSlaveOf(order.Master); err != nil {
		return err
	}
	s.log.Warn().Str("master", order.Master).Str("reason", order.Reason).
		Msg("making a full copy of the master; remove reseed.json from the data directory to go on with what that holds instead")
	c := s.cfg
	cp := replication.NewCopy(replication.CopyConfig{
		Staging: st, Silence: heartbeatsMissed * time.Duration(c.Timeout.ServerAliveMs) * time.Millisecond,
		RetryFirst: retryFirst, RetryMax: time.Duration(c.Replication.RetryMaxMs) * time.Millisecond, MinFree: c.Store.MinFreeBytes,
		Events: replication.CopyEvents{
			Note: s.note,
			Progress: func(done, total, rate int64) {
				s.log.Info().Int64("done", done).Int64("of", total).Int64("bytesPerSecond", rate).Msg("full copy")
			},
			Failed: func(err error, pause time.Duration) {
				s.warn("copy").Err(err).Dur("pause", pause).Msg("the full copy is interrupted and goes on later")
			},
		},
	})
	adm, err := s.startAdmin(copying(cp))
	if err != nil {
		return err
	}
	defer adm.Stop() // before the server's own needs the port
	return cp.Run(context.Background())
}

// becomeSlaveOf makes the server that of the order, whatever the configuration
// says: it can have been turned into a slave, or to another master, while it
// ran.
func (s *server) becomeSlaveOf(master string) error {
	host, text, err := net.SplitHostPort(master)
	port, portErr := strconv.Atoi(text)
	if err = errors.Join(err, portErr); err != nil {
		return fmt.Errorf("reseed.json names the master %q: %w; it is given as host:port", master, err)
	}
	c := s.cfg
	if s.slave() && c.Master.Host == host && c.Master.Port == port {
		return nil
	}
	s.log.Warn().Str("role", c.Role).Str("master", master).Msg("the order for a full copy makes this server a slave of the master that it names, other than the configuration")
	c.Role, c.Master.Host, c.Master.Port, c.Master.EventID = "slave", host, port, 0
	return nil
}
