package bench

import (
	"errors"
	"flag"
	"fmt"
	"runtime"
	"strings"
	"time"
)

// outputFlags are those of everything that writes figures.
func (s *settings) outputFlags(fs *flag.FlagSet) {
	fs.StringVar(&s.json, "json", "", "also write parameters and figures to `FILE`")
	fs.StringVar(&s.html, "html", "", "also write a page with plots to `FILE`")
	fs.StringVar(&s.out, "out", "", "write both into `DIRECTORY`, under names that carry the parameters")
	fs.BoolVar(&s.quiet, "quiet", false, "no progress on stderr")
}

// serverFlags are those of every mode that measures.
func (s *settings) serverFlags(fs *flag.FlagSet, env func(string) string) {
	fs.StringVar(&s.Addr, "addr", env("SMSS_ADDR"), "measure the server at `HOST:PORT` instead of starting one (or SMSS_ADDR)")
	fs.IntVar(&s.PID, "pid", 0, "with -addr: process `ID` of that server, to report its CPU and memory")
	fs.TextVar(&s.Server, "server", program{}, "start this `[NAME=]PATH` instead of this binary: a server that reads config/config.yaml in its working directory")
	fs.TextVar(&s.Against, "against", program{}, "measure also the server `[NAME=]PATH`, alternately, and print ratios to it; bare is the bare server")
	fs.IntVar(&s.Rounds, "rounds", 0, "repeat everything `N` times and print medians (default 1, of a comparison 5)")
	fs.IntVar(&s.Flush, "flush", 1, "store.flushLevel of the started server, `LEVEL` 0, 1 or 2")
	fs.Var(&s.Set, "set", "further configuration of the started server, `KEY=VALUE` with a dotted key; repeatable")
	fs.StringVar(&s.dir, "dir", "", "`DIRECTORY` to make the started server's temporary directory in (default: the system's)")
	fs.TextVar(&s.Timeout, "timeout", duration(30*time.Second), "give up when no reply comes for this `TIME`")
	s.outputFlags(fs)
}

func (s *settings) ballastFlags(fs *flag.FlagSet) {
	fs.IntVar(&s.BallastSubscribers, "with-subscribers", 0, "`N` idle subscribers are connected meanwhile, to a topic of their own")
	fs.IntVar(&s.BallastTopics, "with-topics", 0, "`N` other topics exist meanwhile")
}

func loopCount() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// loadFlags are those of pub, limit and levels.
func (s *settings) loadFlags(fs *flag.FlagSet, env func(string) string) {
	s.serverFlags(fs, env)
	s.ballastFlags(fs)
	fs.IntVar(&s.Threads, "threads", 256, "connections")
	fs.IntVar(&s.Requests, "requests", 400, "requests per connection")
	fs.TextVar(&s.Duration, "duration", duration(0), "send for this `TIME` instead of -requests; a comparison sends for 2s unless told otherwise")
	fs.TextVar(&s.Warmup, "warmup", duration(0), "send unmeasured for this `TIME` first; 500ms with a duration unless told otherwise")
	fs.IntVar(&s.Size, "size", 200, "bytes of a message's body")
	fs.Var((*listFlag)(&s.Pipelines), "pipeline", "requests in flight per connection, `K` or a list (default 1; with -compare 1,16)")
	fs.IntVar(&s.Batch, "batch", 1, "messages per request")
	fs.StringVar(&s.Topic, "topic", "bench", "topic `NAME`; created if missing")
	fs.IntVar(&s.Topics, "topics", 1, "spread over this many topics, -topic being the prefix of their names")
	fs.IntVar(&s.Loops, "loops", loopCount(), "event loops of the generator")
	fs.IntVar(&s.BareLoops, "bare-loops", bareLoops(), "event loops of the bare server")
	switch s.Mode {
	case "limit":
		fs.BoolVar(&s.compare, "compare", false, "run bare and real server alternately and print medians and ratios")
	case "pub":
		fs.BoolVar(&s.compare, "compare-limit", false, "the same as -against bare, at 1 and at 16 in flight")
	case "levels":
		s.Levels = []int{0, 1, 2}
		fs.Var((*listFlag)(&s.Levels), "levels", "flush levels to alternate between, a `LIST`; ratios are to the first")
	}
}

func (s *settings) idleFlags(fs *flag.FlagSet, env func(string) string) {
	s.serverFlags(fs, env)
	fs.IntVar(&s.Subscribers, "subscribers", 10000, "quiet subscribers")
	fs.StringVar(&s.Topic, "topic", "bench-idle", "topic `NAME`; created if missing, should be empty")
	fs.TextVar(&s.Duration, "duration", duration(10*time.Second), "`TIME` over which the server's CPU is measured")
	fs.TextVar(&s.Settle, "settle", duration(2*time.Second), "`TIME` to wait before memory is read")
}

func (s *settings) subFlags(fs *flag.FlagSet, env func(string) string) {
	s.serverFlags(fs, env)
	s.ballastFlags(fs)
	s.Batches = []int{1, 16, 255}
	fs.Var((*listFlag)(&s.Batches), "batch", "messages a push at most, `N` or a list")
	fs.IntVar(&s.Subscribers, "subscribers", 1, "subscribers that drain at the same time, each the whole topic")
	fs.IntVar(&s.Messages, "messages", 1_000_000, "messages to put into the topic first")
	fs.IntVar(&s.Size, "size", 200, "bytes of a message's body")
	fs.TextVar(&s.Duration, "duration", duration(5*time.Second), "end a drain after this `TIME`; 0s = when the topic is drained")
	fs.StringVar(&s.Topic, "topic", "bench-sub", "prefix of the topic's `NAME`; it is made and deleted")
	fs.IntVar(&s.Loops, "loops", loopCount(), "event loops of the generator")
}

func (s *settings) latencyFlags(fs *flag.FlagSet, env func(string) string) {
	s.serverFlags(fs, env)
	s.ballastFlags(fs)
	s.Batches = []int{16}
	fs.IntVar(&s.Rate, "rate", 1000, "publishes a second, sent on time whatever the server does")
	fs.IntVar(&s.Threads, "threads", 1, "connections that publish, in turn")
	fs.IntVar(&s.Subscribers, "subscribers", 1, "waiting subscribers; 0 = publish only")
	fs.Var((*listFlag)(&s.Batches), "batch", "messages a push at most, `N` or a list")
	fs.IntVar(&s.Size, "size", 200, "bytes of a message's body")
	fs.TextVar(&s.Duration, "duration", duration(10*time.Second), "publish for this `TIME`")
	fs.TextVar(&s.Warmup, "warmup", duration(time.Second), "publish unmeasured for this `TIME` first")
	fs.StringVar(&s.Topic, "topic", "bench-latency", "prefix of the topic's `NAME`; it is made and deleted")
}

func (s *settings) fanoutFlags(fs *flag.FlagSet, env func(string) string) {
	s.serverFlags(fs, env)
	s.ballastFlags(fs)
	s.Batches = []int{1, 16, 255}
	fs.IntVar(&s.Subscribers, "subscribers", 100, "subscribers of the topic")
	fs.Var((*listFlag)(&s.Batches), "batch", "messages a push at most, `N` or a list")
	fs.IntVar(&s.Rate, "rate", 0, "publishes a second; 0 = the next when the reply to the last has come")
	fs.IntVar(&s.Threads, "threads", 1, "connections that publish")
	fs.Var((*listFlag)(&s.Pipelines), "pipeline", "publishes in flight on each connection, `K`, where there is no -rate (default 1)")
	fs.IntVar(&s.Size, "size", 200, "bytes of a message's body")
	fs.TextVar(&s.Duration, "duration", duration(5*time.Second), "publish for this `TIME`")
	fs.TextVar(&s.Warmup, "warmup", duration(500*time.Millisecond), "publish unmeasured for this `TIME` first")
	fs.StringVar(&s.Topic, "topic", "bench-fanout", "prefix of the topic's `NAME`; it is made and deleted")
	fs.IntVar(&s.Loops, "loops", loopCount(), "event loops that receive")
}

func (s *settings) delayFlags(fs *flag.FlagSet, env func(string) string) {
	s.serverFlags(fs, env)
	s.Forms = forms
	fs.IntVar(&s.Delays, "delays", 100_000, "delayed messages that are pending at the same time")
	fs.Var((*wordsFlag)(&s.Forms), "form", "spread: -rate of them fall due each second; at-once: all at one moment; or both")
	fs.IntVar(&s.Rate, "rate", 1000, "messages due a second in the form spread")
	fs.TextVar(&s.Duration, "duration", duration(30*time.Second), "end the form spread after this `TIME` of firing; 0s = when all have fired")
	fs.TextVar(&s.Lead, "lead", duration(0), "`TIME` from the first publish until the first is due; 0s = long enough at 10,000 a second")
	fs.IntVar(&s.Size, "size", 200, "bytes of a message's body")
	fs.IntVar(&s.Threads, "threads", 16, "connections that publish")
	fs.StringVar(&s.Topic, "topic", "bench-delay", "prefix of the topic's `NAME`; it is made and deleted")
}

// storeFlags are those of restart and seek.
func (s *settings) storeFlags(fs *flag.FlagSet, env func(string) string) {
	s.serverFlags(fs, env)
	fs.Float64Var(&s.Gigabytes, "gigabytes", 1, "10^9 bytes to fill one topic with; the disk needs twice as many, for binlog and topic")
	fs.IntVar(&s.Size, "size", 1000, "bytes of a message's body")
	fs.IntVar(&s.Batch, "fill-batch", 100, "messages per request while filling")
	fs.IntVar(&s.Seeks, "seeks", 200, "subscriptions at random event ids")
	fs.StringVar(&s.Topic, "topic", "bench-store", "prefix of the topic's `NAME`")
	if s.Mode == "seek" {
		return
	}
	fs.IntVar(&s.Kills, "kills", 5, "kills, each in the middle of publishes, and starts")
	fs.TextVar(&s.Duration, "duration", duration(time.Second), "publish for this `TIME` around each kill")
	fs.IntVar(&s.Threads, "threads", 64, "connections that publish until the kill")
}

func (s *settings) topicsFlags(fs *flag.FlagSet, env func(string) string) {
	s.serverFlags(fs, env)
	fs.IntVar(&s.Topics, "topics", 20_000, "topics, each with one message")
	fs.IntVar(&s.Size, "size", 200, "bytes of a message's body")
	fs.StringVar(&s.Topic, "topic", "bench-topics", "prefix of the topics' `NAME`s")
	fs.TextVar(&s.Settle, "settle", duration(2*time.Second), "`TIME` to wait before memory is read")
}

func (s *settings) interferenceFlags(fs *flag.FlagSet, env func(string) string) {
	s.serverFlags(fs, env)
	s.By = disturbances
	fs.Var((*wordsFlag)(&s.By), "by", "what goes on meanwhile: none, large (another client publishes -large-size messages), delete (a topic of -gigabytes is deleted), retention (as many, with write times of a month ago, are removed; needs a started server and a -duration of 3s, and is left out of the default without); a list")
	fs.IntVar(&s.Rate, "rate", 1000, "small publishes a second")
	fs.IntVar(&s.Threads, "threads", 16, "connections for them, in turn")
	fs.IntVar(&s.Size, "size", 200, "bytes of a small message's body")
	fs.IntVar(&s.LargeSize, "large-size", 8_000_000, "bytes of a large message's body")
	fs.Float64Var(&s.Gigabytes, "gigabytes", 1, "10^9 bytes in the topic that is deleted or that retention empties")
	fs.TextVar(&s.Duration, "duration", duration(5*time.Second), "publish for this `TIME`")
	fs.TextVar(&s.Warmup, "warmup", duration(500*time.Millisecond), "publish unmeasured for this `TIME` first")
	fs.StringVar(&s.Topic, "topic", "bench-interference", "prefix of the topics' `NAME`s")
}

func (s *settings) replicaFlags(fs *flag.FlagSet, env func(string) string) {
	s.serverFlags(fs, env)
	s.MinAcks, s.Topics = []int{0, 1}, 1
	fs.Var((*listFlag)(&s.MinAcks), "min-acks", "replication.minAcks of the master, 0 or 1, or a `LIST` to alternate between; ratios are to the first, with which alone a new slave is measured")
	fs.IntVar(&s.Threads, "threads", 256, "connections that publish to the master")
	fs.TextVar(&s.Duration, "duration", duration(5*time.Second), "publish for this `TIME`")
	fs.TextVar(&s.Warmup, "warmup", duration(500*time.Millisecond), "publish unmeasured for this `TIME` first")
	fs.IntVar(&s.Size, "size", 200, "bytes of a message's body")
	fs.Var((*listFlag)(&s.Pipelines), "pipeline", "requests in flight per connection, `K` (default 1)")
	fs.IntVar(&s.Batch, "batch", 1, "messages per request")
	fs.Float64Var(&s.Gigabytes, "gigabytes", 1, "10^9 bytes that a new slave copies at least, what the load has left among them, timed from its exec; the disk needs four times as many, for binlog and topic on both servers")
	fs.StringVar(&s.Topic, "topic", "bench-replica", "topic `NAME`")
	fs.IntVar(&s.Loops, "loops", loopCount(), "event loops of the generator")
}

func (s *settings) bareFlags(fs *flag.FlagSet, _ func(string) string) {
	fs.StringVar(&s.host, "host", "127.0.0.1", "`ADDRESS` to listen on")
	fs.IntVar(&s.port, "port", 12301, "port to listen on")
	fs.IntVar(&s.BareLoops, "bare-loops", bareLoops(), "event loops")
}

// setFlag gathers KEY=VALUE.
type setFlag []string

func (f *setFlag) String() string { return "" }

func (f *setFlag) Set(v string) error {
	if key, _, ok := strings.Cut(v, "="); !ok || key == "" {
		return errors.New("want KEY=VALUE")
	}
	*f = append(*f, v)
	return nil
}

// listFlag is a list of numbers separated by commas.
type listFlag []int

func (f *listFlag) String() string { return strings.Join(texts(*f), ",") }

func (f *listFlag) Set(v string) error {
	*f = nil
	for _, part := range strings.Split(v, ",") {
		var n int
		if _, err := fmt.Sscanf(part+"\n", "%d\n", &n); err != nil {
			return errors.New("want a number, or numbers separated by commas")
		}
		*f = append(*f, n)
	}
	return nil
}

// wordsFlag is a list of words separated by commas.
type wordsFlag []string

func (f *wordsFlag) String() string { return strings.Join(*f, ",") }

func (f *wordsFlag) Set(v string) error {
	*f = strings.Split(v, ",")
	return nil
}
