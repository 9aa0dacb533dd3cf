package cli

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"time"

	"smss/client"
	"smss/codec"
)

const (
	defaultBatch      = 16
	defaultAckTimeout = 30 * time.Second
)

var subCommand = &command{
	name:    "sub",
	args:    "-name NAME TOPIC",
	summary: "subscribe and print messages",
	text: "Subscribes to a topic and prints its messages, each with its event id, until\n" +
		"Ctrl-C. What has been printed is acknowledged. The server keeps no position: to\n" +
		"go on another time, give the last event id that was printed to -from.\n\n" +
		"Formats: text is EVENT-ID, tab, body, with [KEY=VALUE ...] behind it if there are\n" +
		"headers, and unprintable characters escaped; json is one object a line, where a\n" +
		"body that is not UTF-8 is called bodyBase64; raw is the body as it is and a newline.\n\n" +
		"With -count and a -batch larger than 1, the last batch may hold more than is still\n" +
		"wanted; then the rest is not printed and that batch is not acknowledged.",
	examples: []string{
		"smss sub -name billing order",
		"smss sub -name billing -from 1042 -format json order",
		"smss sub -name peek -count 1 -format raw order",
	},
	interruptible: true,
	define: func(flags *flag.FlagSet) runFunc {
		v := new(subscription)
		flags.StringVar(&v.options.Who, "name", "", "`NAME` of the subscriber, unique among those of the topic (required)")
		flags.Int64Var(&v.options.EventID, "from", 0, "`EVENT-ID` of the last message consumed; 0 = from the oldest")
		flags.IntVar(&v.options.Batch, "batch", 0, fmt.Sprintf("`N` messages at once at most, 1 to %d (default %d, or 1 with -count)", codec.MaxBatch, defaultBatch))
		flags.IntVar(&v.count, "count", 0, "end after `N` messages; 0 = never")
		flags.StringVar(&v.format, "format", "text", "`FORMAT` of the output: text, json or raw")
		flags.DurationVar(&v.options.AckTimeout, "ack-timeout", defaultAckTimeout, "`TIME` that printing a batch may take")
		flags.StringVar(&v.options.Trace, "trace", "", "trace `ID` of up to 255 bytes, for the server's log")
		return v.run
	},
}

// subscription runs one sub.
type subscription struct {
	*session
	options client.SubscribeOptions
	count   int
	format  string
	write   writeFunc
	out     *bufio.Writer
	printed int
}

func (v *subscription) run(s *session, args []string) error {
	topic, err := topicName(args)
	if err != nil {
		return err
	}
	if err := v.check(); err != nil {
		return err
	}
	v.session, v.out = s, bufio.NewWriter(s.out)
	v.options.Topic, v.options.Timeout = topic, s.timeout
	sub, err := client.Subscribe(s.ctx, s.addr, v.options)
	switch {
	case err != nil && s.ctx.Err() != nil:
		return nil
	case refusedHere(err):
		return err
	case err != nil:
		return &dialError{err}
	}
	defer sub.Close()
	if err := v.print(sub); err != nil {
		err = &about{topic, err}
		if sub.Acked() > v.options.EventID && !errors.Is(err, client.ErrEnded) {
			err = &hint{err, fmt.Sprintf("go on with -from %d", sub.Acked())}
		}
		return err
	}
	return nil
}

// check completes the flags and refuses what makes no sense.
func (v *subscription) check() error {
	if v.options.Who == "" {
		return usageError("-name is missing")
	}
	if v.count < 0 {
		return usagef("-count %d: it cannot be negative", v.count)
	}
	if v.options.AckTimeout <= 0 {
		return usagef("-ack-timeout %v: it has to be more than 0", v.options.AckTimeout)
	}
	switch b := v.options.Batch; {
	case b == 0 && v.count > 0:
		v.options.Batch = 1
	case b == 0:
		v.options.Batch = defaultBatch
	case b < 0 || b > codec.MaxBatch:
		return usagef("-batch %d: allowed are 1 to %d", b, codec.MaxBatch)
	}
	if v.write = formats[v.format]; v.write == nil {
		return usagef("-format %q: allowed are text, json and raw", v.format)
	}
	return nil
}

// print prints batches until the count is reached or the context ends.
func (v *subscription) print(sub *client.Subscriber) error {
	for {
		batch, err := sub.Next(v.ctx)
		if err != nil {
			if v.ctx.Err() != nil && errors.Is(err, v.ctx.Err()) {
				return nil // all that was printed is acknowledged
			}
			return err
		}
		wanted := len(batch)
		if v.count > 0 {
			wanted = min(wanted, v.count-v.printed)
		}
		for i := range batch[:wanted] {
			if err := v.write(v.out, &batch[i]); err != nil {
				return fmt.Errorf("standard output: %w", err)
			}
		}
		if err := v.out.Flush(); err != nil {
			return fmt.Errorf("standard output: %w", err)
		}
		v.printed += wanted
		switch {
		case wanted < len(batch):
			return nil // closes without an ack
		case v.printed == v.count, v.ctx.Err() != nil:
			return sub.End()
		}
		if err := sub.Ack(); err != nil {
			return err
		}
	}
}
