package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"smss/admin"
	"smss/codec"
	"smss/conf"
	"smss/engine"
	"smss/reactor"
	"smss/replication"
	"smss/storage"
)

// server wires the rooms together.
type server struct {
	cfg    *conf.Config
	log    zerolog.Logger
	repeat *repeatLog
	broken chan error        // writing has stopped for good
	again  chan struct{}     // a full copy was ordered: stop and start anew
	node   *replication.Node // set before connections come
	ready  atomic.Bool
	link   linkLog
}

func newServer(cfg *conf.Config, log zerolog.Logger) *server {
	return &server{cfg: cfg, log: log, repeat: newRepeatLog(time.Now), broken: make(chan error, 1), again: make(chan struct{}, 1)}
}

// stopWait is how long a stop waits for what was asked for already.
const stopWait = time.Second

// run serves until a signal, or until it cannot.
func (s *server) run() error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	stop := make(chan os.Signal, 1)
	go s.watchSignals(signals, stop)

	s.announce()
	res := s.raiseLimits()
	if err := s.makeCopy(s.storageOptions(res)); err != nil {
		return err
	}
	store, state, err := storage.Open(s.storageOptions(res))
	if err != nil {
		return err
	}
	r := reactor.New(s.reactorConfig(res))
	last, err := store.BinlogReader().Last(store.BinlogEnd())
	if err != nil {
		return errors.Join(fmt.Errorf("the end of the binlog: %w", err), store.Close(state.NextEventID, false))
	}
	e := engine.New(s.engineConfig(r, replication.Base(store.History(), last, s.cfg.Master.EventID, s.slave())), store, state)
	s.node = replication.New(s.replicationConfig(store, e, state))
	addr := net.JoinHostPort(s.cfg.Host, strconv.Itoa(s.cfg.Port))
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return errors.Join(fmt.Errorf("port %d: %w", s.cfg.Port, err), store.Close(state.NextEventID, false))
	}
	e.Start()
	err = s.node.Start()
	var adm *admin.Server
	if err == nil {
		adm, err = s.startAdmin(s.serving(e))
	}
	if err == nil {
		err = r.Start(ln, e, engine.WallClock{}, newLibraryLog(s.log, "gnet", s.repeat))
	}
	if err != nil {
		adm.Stop()
		s.node.Stop()
		next, broken := e.Stop()
		return errors.Join(err, ln.Close(), store.Close(next, broken))
	}
	s.ready.Store(true)
	s.log.Info().Str("address", ln.Addr().String()).Int("topics", len(state.Topics)).
		Int64("nextEventId", state.NextEventID).Int64("replayed", state.Replayed).
		Int("maxConnections", res.connections).Msg("smss is ready")
	return s.serveUntil(stop, store, e, r, adm)
}

// serveUntil waits for a reason to stop, and stops.
func (s *server) serveUntil(stop <-chan os.Signal, store *storage.Store, e *engine.Engine, r *reactor.Reactor, adm *admin.Server) error {
	var cause error
	for waiting := true; waiting; {
		select {
		case sig := <-stop:
			s.log.Info().Stringer("signal", sig).Msg("stopping")
			waiting = false
		case <-s.again:
			cause, waiting = errAgain, false
		case err := <-s.broken:
			if s.cfg.Store.ExitOnSyncError {
				cause, waiting = err, false
			}
		}
	}
	// The listeners and the follower first, so that nothing new comes; then the
	// engine writes what is left; then the store syncs and closes. A change of the
	// role that is under way is told to end, because it waits for slaves that the
	// reactor will have dropped.
	s.node.Interrupt()
	adm.Stop()
	err := r.Stop(stopWait)
	s.node.Stop()
	next, broken := e.Stop()
	err = errors.Join(err, store.Close(next, broken))
	if cause == errAgain && err != nil {
		s.log.Warn().Err(err).Msg("the stop was not in order; what the directory holds is replaced all the same")
	}
	if cause != nil {
		return errors.Join(cause, err)
	}
	if err == nil {
		st := e.Stats()
		s.log.Info().Int64("nextEventId", next).Int64("published", st.Published).Int64("batches", st.Batches).
			Int64("refused", st.Refused).Msg("smss has stopped")
	}
	return err
}

// watchSignals passes the first signal on. One that comes before the server is
// ready, and a second one, end the process as a kill would: recovery is made
// for that.
func (s *server) watchSignals(in <-chan os.Signal, out chan<- os.Signal) {
	first := <-in
	if !s.ready.Load() {
		s.log.Info().Stringer("signal", first).Msg("stopped before it was ready")
		os.Exit(0)
	}
	out <- first
	second := <-in
	s.log.Warn().Stringer("signal", second).Msg("stopped at once by a second signal")
	os.Exit(1)
}

// announce logs the configuration, once.
func (s *server) announce() {
	line := s.log.Info().Str("version", version())
	if f := s.cfg.File(); f != "" {
		line = line.Str("file", f)
	}
	for _, v := range s.cfg.Effective() {
		line = line.Str(v.Key, v.Value)
	}
	line.Msg("smss starts")
	for _, w := range s.cfg.Warnings() {
		s.log.Warn().Msg(w)
	}
}

func (s *server) storageOptions(res resources) storage.Options {
	return storage.Options{
		Path: s.cfg.Store.Path, MaxLogSize: s.cfg.Store.MaxLogSize, FolderCount: s.cfg.Store.FolderCount,
		MaxOpenTopics: res.topicFiles,
		FS:            storage.OS{NoCache: s.cfg.Store.NoCache},
		BadgerLog:     newLibraryLog(s.log, "badger", s.repeat),
		Events: storage.Events{
			Note:   s.note,
			Damage: func(d *storage.DamageError) { s.damage("", d) },
			Progress: func(what string, done, total int64) {
				s.log.Info().Int64("done", done).Int64("of", total).Msg(what)
			},
		},
	}
}

func (s *server) engineConfig(r *reactor.Reactor, lastEventID int64) engine.Config {
	c := s.cfg
	role := engine.Master
	if s.slave() {
		role = engine.Slave
	}
	return engine.Config{
		Loops: len(r.Mailboxes()), Mailboxes: r.Mailboxes(), RingSize: c.Worker.BuffSize, Readers: c.Worker.Readers,
		MaxInflightBytes: c.Limits.MaxInflightBytes, MaxPushBytes: c.Limits.MaxPushBytes, ReadAhead: readAhead, MaxTopics: c.Limits.MaxTopics,
		FlushLevel: c.Store.FlushLevel, MinFreeBytes: c.Store.MinFreeBytes,
		RetentionMs:    int64(c.Store.MaxDays) * (24 * time.Hour).Milliseconds(),
		RetentionEvery: time.Duration(c.Store.ClearInterval) * time.Second,
		FirstScanAfter: time.Duration(c.Background.FirstExecSecond) * time.Second,
		SampleEvery:    c.Log.Sample,
		Role:           role, LastEventID: lastEventID,
		MinAcks:     c.Replication.MinAcks,
		AckTimeout:  time.Duration(c.Replication.AckTimeoutMs) * time.Millisecond,
		RequireAcks: c.Replication.OnAckTimeout == "refuse",
		Clock:       engine.WallClock{},
		Events: engine.Events{
			Published: func(cmd *engine.Command) {
				s.log.Info().Bytes("topic", cmd.Topic()).Bytes("trace", cmd.Trace()).Int64("eventId", cmd.EventID).Msg("published, sampled")
			},
			Skipped: func(topic string, from, to storage.Pos) {
				s.warn("skipped "+topic).Str("topic", topic).Stringer("from", from).Stringer("to", to).
					Msg("retention removed messages before a subscriber read them")
			},
			Damage: func(topic string, d *storage.DamageError) { s.damage(topic, d) },
			ReadFailed: func(topic string, err error) {
				s.warn("read "+topic).Str("topic", topic).Err(err).Msg("reading failed")
			},
			WriteFail: func(err error) { s.warn("write").Err(err).Msg("writing failed, nothing of the batch is stored") },
			Broken: func(err error) {
				s.log.Error().Err(err).Msg("writing has stopped for good: restart once the disk is in order")
				select {
				case s.broken <- err:
				default:
				}
			},
			Note: s.note,
		},
	}
}

func (s *server) reactorConfig(res resources) reactor.Config {
	c := s.cfg
	return reactor.Config{
		Loops: res.loops, MaxConnections: res.connections,
		Codec: codec.Limits{
			MaxMessageSize: c.Limits.MaxMessageSize, MaxBatchMessages: c.Limits.MaxBatchMessages, MaxWhoLength: c.Limits.MaxWhoLength,
		},
		MaxDelayMs: c.Limits.MaxDelayMs, MaxDelayPayload: storage.MaxDelayPayload, Window: c.Limits.PipelineWindow, MaxUnread: c.Limits.MaxUnreadBytes,
		MaxInput: c.Limits.MaxInputBytes, MaxOutbound: c.Limits.MaxOutboundBytes,
		FrameTimeout: time.Duration(c.Limits.FrameTimeoutMs) * time.Millisecond,
		IdleTimeout:  time.Duration(c.Limits.IdleTimeoutMs) * time.Millisecond,
		WriteTimeout: max(time.Duration(c.Timeout.NetWriteMs)*time.Millisecond, writeTimeoutFloor),
		Heartbeat:    time.Duration(c.Timeout.ServerAliveMs) * time.Millisecond,
		ReadOnly:     func() bool { return s.node.Role() == engine.Slave },
		Replication:  s.feeds(),
		Events: reactor.Events{
			Refused: func(remote net.Addr, why string) {
				s.warn("refused "+why).Stringer("remote", remote).Msg("connection refused: " + why)
			},
			AcceptFailed: func(err error) {
				s.warn("accept").Err(err).Msg("accepting a connection failed, most often for want of descriptors; trying again")
			},
		},
	}
}

// readAhead is how much is read at once for a subscriber that is behind.
const readAhead = 128 << 10

// writeTimeoutFloor keeps a small timeout.net.write, which the existing server
// used for one reply only, from cutting off subscribers on slow links.
const writeTimeoutFloor = 5 * time.Second

func (s *server) note(what string, err error) {
	if err != nil {
		s.warn("note " + what).Err(err).Msg(what)
		return
	}
	s.log.Info().Msg(what)
}

func (s *server) damage(topic string, d *storage.DamageError) {
	line := s.log.Error()
	if topic != "" {
		line = line.Str("topic", topic)
	}
	line.Err(d).Stringer("position", d.Pos).Int64("afterEventId", d.After).Msg("stored data is damaged")
}

// warn begins a warning, or nothing where the same cause has been logged
// lately.
func (s *server) warn(cause string) *zerolog.Event {
	emit, suppressed := s.repeat.Allow(cause)
	if !emit {
		return nil // zerolog takes a nil event as one that is off
	}
	line := s.log.Warn()
	if suppressed > 0 {
		line = line.Int("suppressed", suppressed)
	}
	return line
}
