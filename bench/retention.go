package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"smss/codec"
)

// Retention takes files whose records are at least a day old, and nothing
// published gets that old in a run. Hence a server of the bench's own starts
// on a binlog that says so: its records have the form that replication sends,
// and a server that finds nothing else in its directory makes all else from
// them, the topic with its files included.

const (
	oldFiles = 16                  // that the old records are spread over, of which the newest stays
	oldAge   = 30 * 24 * time.Hour // store.maxDays is 7 unless -set says otherwise
	// leastRetention is the shortest window that retention surely falls into:
	// its interval has whole seconds, and the server looks once a second
	// whether it is over.
	leastRetention = 3 * time.Second
	// readyPerGigabyte bounds the start on old records, on a slow disk too.
	readyPerGigabyte = time.Minute
)

// prepareRetention starts srv anew on -gigabytes of old records and returns
// what waits for their end, which comes when a part of the measurement is over.
func prepareRetention(ctx context.Context, s *settings, srv *server, p *progress) (func(context.Context, Figures) error, error) {
	at := *s
	at.Set = slices.Concat(s.retentionConfig(), s.Set)
	_, port, err := net.SplitHostPort(srv.addr)
	if err != nil {
		return nil, err
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return nil, err
	}
	srv.kill()
	data := filepath.Join(srv.dir, "data")
	if err := os.RemoveAll(data); err != nil {
		return nil, err
	}
	p.say("writing old records")
	if err := writeOld(ctx, data, s.Topic+"-old", int64(s.Gigabytes*1e9)); err != nil {
		return nil, err
	}
	if _, err := writeConfig(&at, srv.dir, number, srv.foreign); err != nil {
		return nil, err
	}
	p.say("starting on old records")
	if err := srv.launch(); err != nil {
		return nil, err
	}
	within := startTimeout + time.Duration(s.Gigabytes*float64(readyPerGigabyte))
	if err := srv.awaitReady(ctx, time.Millisecond, within); err != nil {
		return nil, fmt.Errorf("start on old records: %w%s", err, srv.logTail())
	}
	stored := directorySize(data)
	return func(runCtx context.Context, f Figures) error {
		if directorySize(data) < stored/2 {
			return errors.New("retention was over before the measurement began: use a longer -duration")
		}
		<-runCtx.Done()
		removed := stored - directorySize(data)
		if f["removedBytes"] = float64(removed); removed < stored/2 && ctx.Err() == nil {
			return fmt.Errorf("retention has removed no more than %s of %s by the end: use a longer -duration", size(float64(max(0, removed))), size(float64(stored)))
		}
		return nil
	}, nil
}

// retentionProblem says why retention cannot be measured, or nothing.
func (s *settings) retentionProblem() string {
	switch {
	case s.Addr != "":
		return "the server has to be started on old records; it does not go with -addr"
	case time.Duration(s.Duration) < leastRetention:
		return fmt.Sprintf("-duration must be %s or more", leastRetention)
	}
	return ""
}

// retentionConfig spreads the old records over files, and has retention come
// after a fifth of -duration or up to two seconds later.
func (s *settings) retentionConfig() []string {
	after := time.Duration(s.Warmup) + time.Duration(s.Duration)/5
	return []string{
		"store.maxLogSize=" + strconv.FormatInt(s.oldFileSize(), 10),
		"store.clearInterval=" + strconv.Itoa(max(1, int(math.Ceil(after.Seconds())))),
	}
}

func (s *settings) oldFileSize() int64 { return int64(s.Gigabytes * 1e9 / oldFiles) }

// writeOld makes a binlog of a topic and n bytes of bodies, all of them old.
func writeOld(ctx context.Context, data, topic string, n int64) error {
	dir := filepath.Join(data, "binlog")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if free, err := freeDisk(dir); err == nil && free < 2*n+minFreeDisk {
		return fmt.Errorf("%s free where the server stores are too few for %s in binlog and topic: use -dir or fewer -gigabytes", size(float64(free)), size(float64(n)))
	}
	at := time.Now().Add(-oldAge).UnixMilli()
	record := codec.BinlogRecord{WrittenAtMs: at, ReceivedAtMs: at, Topic: []byte(topic), EventID: 1,
		Command: codec.CreateTopic, Payload: make([]byte, 8)} // it has no end of life
	begin := codec.AppendBinlogRecord(nil, &record, nil)
	record.Command, record.Payload = codec.Pub, newPayload(deletedSize, 1)
	each := max(1, n/deletedSize/oldFiles)
	for file := range oldFiles {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := writeOldFile(filepath.Join(dir, strconv.Itoa(file)+".log"), begin, &record, each); err != nil {
			return err
		}
		begin = nil
	}
	return nil
}

// writeOldFile writes begin and n times a record, whose event id goes on.
func writeOldFile(name string, begin []byte, record *codec.BinlogRecord, n int64) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	_, err = w.Write(begin)
	var b []byte
	for i := int64(0); i < n && err == nil; i++ {
		record.EventID++
		b = codec.AppendBinlogRecord(b[:0], record, nil)
		_, err = w.Write(b)
	}
	return errors.Join(err, w.Flush(), f.Close())
}
