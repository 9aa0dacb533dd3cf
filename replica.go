package main

import (
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"smss/conf"
	"smss/engine"
	"smss/reactor"
	"smss/replication"
	"smss/storage"
)

// slave reports whether the server starts as one.
func (s *server) slave() bool { return s.cfg.Role == "slave" }

// heartbeatsMissed is how many intervals a master may be silent.
const heartbeatsMissed = 2

// retryFirst is the first pause between two connections to a master.
const retryFirst = 200 * time.Millisecond

func (s *server) replicationConfig(store *storage.Store, e *engine.Engine, state *storage.State) replication.Config {
	c := s.cfg
	heartbeat := time.Duration(c.Timeout.ServerAliveMs) * time.Millisecond
	allow, _ := conf.ParseNetworks(c.Replication.Allow) // validated
	cfg := replication.Config{
		Engine: e, Store: store, Clock: engine.WallClock{}, Event: c.Master.EventID, Port: c.Port,
		Heartbeat: heartbeat, Silence: heartbeatsMissed * heartbeat,
		RetryFirst: retryFirst, RetryMax: time.Duration(c.Replication.RetryMaxMs) * time.Millisecond,
		Allow: allow, PowerLost: state.PowerLost,
		AutoCopy:  c.Replication.AutoCopy,
		OrderCopy: func(o storage.CopyOrder) error { return s.orderCopy(store, o) },
		FreeBytes: func() (int64, error) {
			free, _, err := store.FreeBytes()
			return free, err
		},
		MinFree: c.Store.MinFreeBytes,
		Events:  replication.Events{Note: s.note, Link: s.linkChanged},
	}
	if s.slave() {
		cfg.Master = net.JoinHostPort(c.Master.Host, strconv.Itoa(c.Master.Port))
	}
	return cfg
}

// linkLog is the trouble with the master that was logged last. It belongs to the
// follower, whose goroutine tells of changes.
type linkLog struct {
	trouble string
	at      time.Time
}

// linkRepeat is how long the same trouble with the master is not logged again: a
// slave that needs somebody, or a master that is away for a night, must not fill
// a disk.
const linkRepeat = time.Minute

// linkChanged logs how a slave stands with its master.
func (s *server) linkChanged(state replication.LinkState, master string, err error) {
	var line *zerolog.Event
	switch state {
	case replication.LinkStreaming:
		line = s.log.Info()
	case replication.LinkWaiting, replication.LinkRefused:
		trouble := fmt.Sprint(state, " ", err)
		if trouble == s.link.trouble && time.Since(s.link.at) < linkRepeat {
			return
		}
		if line = s.warn("link " + state.String()); line == nil {
			return
		}
		s.link = linkLog{trouble, time.Now()}
	default:
		line = s.log.Debug()
	}
	line.Err(err).Str("master", master).Stringer("state", state).Msg("link to the master")
}

// feeds returns what the event loops do for slaves: nothing on a slave, unless
// slaves may be chained.
func (s *server) feeds() func() *reactor.Replication {
	c := s.cfg
	feed := &reactor.Replication{
		MaxReplicas: c.Replication.MaxSlaves, SendTimeout: time.Duration(c.Replication.SendTimeoutMs) * time.Millisecond,
		Refuses: func(remote net.Addr) string { return s.node.Refuses(remote) },
		Greet:   func(r *engine.Read) { s.node.Greet(r) },
		Current: func(l *engine.Link) bool { return s.node.Current(l) },
		Copy:    func(r *engine.Read) { s.node.Copy(r) },
		Connected: func(r *engine.Replica) {
			s.log.Info().Str("slave", r.Remote).Str("node", r.Node).Bool("reports", r.Extended).Int64("after", r.Sent()).Msg("a slave copies this server")
		},
		Left: func(r *engine.Replica, why string) {
			s.log.Info().Str("slave", r.Remote).Str("node", r.Node).Int64("sent", r.Sent()).Msg("a slave has left: " + why)
		},
	}
	return func() *reactor.Replication {
		if s.node.Role() == engine.Slave && !c.Replication.Chain && !s.node.Feeds() {
			return nil
		}
		return feed
	}
}
