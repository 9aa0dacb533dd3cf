package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"smss/client"
)

// runReplica measures a master under the load of pub with a slave that follows
// it, and a new slave that copies all of it.
func runReplica(ctx context.Context, s *settings, out output) error {
	return runPlan(ctx, s, out, scenario{s.replicaTitle(), func(ctx context.Context, srv *server, p *progress) ([]Result, error) {
		return measureReplica(ctx, s, srv, p)
	}})
}

// ackSides are the same master with replies that wait for that many slaves.
func (s *settings) ackSides() []side {
	var all []side
	for _, n := range s.MinAcks {
		at := *s
		at.MinAcks = []int{n}
		all = append(all, side{ackName(n), func(ctx context.Context) (*server, error) {
			return startServer(ctx, &at, program{ackName(n), s.Server.path})
		}})
	}
	return all
}

func ackName(n int) string { return "min-acks " + strconv.Itoa(n) }

// ackConfig has replies wait for so many slaves, and for nothing less: a slave
// that is late shows as latency or as a failed request, where by default the
// master would go on without it and be measured as if it had waited.
func (s *settings) ackConfig() []string {
	if len(s.MinAcks) != 1 || s.MinAcks[0] == 0 {
		return nil
	}
	patience := min(max(time.Duration(s.Timeout).Milliseconds(), 1), time.Hour.Milliseconds())
	return []string{
		"replication.minAcks=" + strconv.Itoa(s.MinAcks[0]),
		"replication.onAckTimeout=refuse",
		"replication.ackTimeoutMs=" + strconv.FormatInt(patience, 10),
	}
}

// measureReplica returns what was measured until ctx ended. A master's
// replies do not matter to a slave that copies what is old: that is measured
// with the first of -min-acks alone.
func measureReplica(ctx context.Context, s *settings, srv *server, p *progress) ([]Result, error) {
	var all []Result
	var events int64
	again := len(s.MinAcks) == 1 || srv.name == ackName(s.MinAcks[0])
	err := withFollower(ctx, s, srv, func(f *follower) error {
		if err := f.begin(ctx, s.Topic); err != nil {
			return err
		}
		r, err := measureLoad(ctx, s, srv, "load-"+s.loadTitle(s.Pipelines[0]), s.Pipelines[0], p)
		if err != nil {
			return err
		}
		all = append(all, *r)
		if ctx.Err() != nil || r.Failed > 0 {
			again = false
			return nil
		}
		r.Figures["binlogBytes"] = float64(binlogSize(srv.dir))
		if events, err = lastEvent(ctx, s, srv, s.Topic+"-loaded"); err != nil {
			return err
		}
		r.Figures["lagMaxEvents"] = r.Figures[keyLagMax] / r.Figures["binlogBytes"] * float64(events)
		if !again {
			return nil
		}
		if missing := int64(s.Gigabytes*1e9) - binlogSize(srv.dir); missing > 0 {
			n := (missing + int64(s.Size) - 1) / int64(s.Size)
			if _, _, err = fill(ctx, s, srv, s.Topic, n, s.Size, fillBatch(s.Size), p); err != nil {
				return err
			}
		}
		events, err = lastEvent(ctx, s, srv, s.Topic+"-filled")
		return errors.Join(err, f.catchUp(ctx))
	})
	if err != nil || !again {
		return all, err
	}
	r := newResult(fmt.Sprintf("catch-up-%sg-%db", strconv.FormatFloat(s.Gigabytes, 'g', -1, 64), s.Size))
	p.say("starting a new slave")
	if err := measureCatchUp(ctx, s, srv, p, events, &r); err != nil {
		return all, err
	}
	return append(all, r), nil
}

// measureCatchUp starts a slave on an empty directory beside a master at rest,
// and takes the time from then until it has as many bytes.
func measureCatchUp(ctx context.Context, s *settings, srv *server, p *progress, events int64, r *Result) error {
	copied := binlogSize(srv.dir)
	p.unit, p.total, p.duration = "bytes", copied, 0
	start := time.Now()
	return withFollower(ctx, s, srv, func(f *follower) error {
		var took time.Duration
		w, err := observe(ctx, srv, p, func() int64 { return binlogSize(f.dir) }, func(ctx context.Context) error {
			err := f.catchUp(ctx)
			took = time.Since(start)
			return err
		})
		if err != nil {
			return err
		}
		w.describe(r, keyServerMessage, keyOwnMessage, events)
		r.Figures["binlogBytes"] = float64(copied)
		r.Figures[keySeconds] = took.Seconds()
		r.Figures["copiedMegabytesPerSecond"] = float64(copied) / 1e6 / took.Seconds()
		r.Figures["copiedEventsPerSecond"] = float64(events) / took.Seconds()
		return nil
	})
}

// lastEvent returns the id of the server's last event, by making one: a topic
// of a name that is not in use.
func lastEvent(ctx context.Context, s *settings, srv *server, name string) (int64, error) {
	if err := createTopics(ctx, srv.addr, time.Duration(s.Timeout), name, 1); err != nil {
		return 0, err
	}
	c, err := client.Dial(ctx, srv.addr, client.Options{Timeout: time.Duration(s.Timeout)})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	t, err := c.TopicInfo(name)
	return t.CreateEventID, err
}
