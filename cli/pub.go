package cli

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"smss/client"
	"smss/codec"
)

// maxLine is the longest line of standard input that pub takes.
const maxLine = 64 << 20

var pubCommand = &command{
	name:    "pub",
	args:    "TOPIC MESSAGE...",
	summary: "publish messages",
	text: "Publishes each MESSAGE, all in one request: all are stored, or none. A single -\n" +
		"stands for standard input, of which each line is one message, published as it\n" +
		"comes; empty lines are skipped. A message that begins with - goes behind --.",
	examples: []string{
		"smss pub order 'number 17'",
		"smss pub -header kind=created -trace request-4711 order '{\"order\": 17}'",
		"smss pub -delay 10m reminder 'call back'",
		"tail -f access.log | smss pub access -",
	},
	define: func(flags *flag.FlagSet) runFunc {
		var headers headerFlags
		delay := flags.Duration("delay", 0, "`TIME` after which the messages are published, 1s at least; 0 = now")
		flags.Var(&headers, "header", "`KEY=VALUE` header of the messages; may be given more than once")
		trace := traceFlag(flags)
		return func(s *session, args []string) error {
			switch {
			case len(args) == 0:
				return usageError("the name of a topic is missing")
			case len(args) == 1:
				return usageError("a message is missing; - reads messages from standard input")
			case *delay < 0:
				return usagef("-delay %v: it cannot be negative", *delay)
			}
			p := &publisher{session: s, topic: args[0], headers: headers, delay: *delay, trace: client.Trace(*trace)}
			if len(args) == 2 && args[1] == "-" {
				return p.publishLines()
			}
			return p.publishAll(args[1:])
		}
	},
}

// headerFlags collects -header flags.
type headerFlags []codec.Header

func (h *headerFlags) String() string { return "" }

func (h *headerFlags) Set(v string) error {
	key, value, ok := strings.Cut(v, "=")
	if !ok || key == "" {
		return errors.New("not KEY=VALUE")
	}
	*h = append(*h, codec.Header{Key: key, Value: value})
	return nil
}

// publisher runs one pub.
type publisher struct {
	*session
	topic   string
	headers []codec.Header
	delay   time.Duration
	trace   client.CallOption
	stored  int
}

func (p *publisher) message(body []byte) *codec.Message {
	return &codec.Message{Headers: p.headers, Body: body}
}

func (p *publisher) publishAll(bodies []string) error {
	messages := make([]*codec.Message, len(bodies))
	for i, b := range bodies {
		if messages[i] = p.message([]byte(b)); b == "" && len(p.headers) == 0 {
			return usagef("message %d is empty and has no -header", i+1)
		}
	}
	return p.request(p.topic, func(c *client.Conn) error {
		var err error
		if p.delay > 0 {
			err = c.PublishDelay(p.topic, p.delay, messages, p.trace)
		} else {
			err = c.PublishBatch(p.topic, messages, p.trace)
		}
		if err != nil {
			return unknown(err)
		}
		p.stored = len(messages)
		p.tell()
		return nil
	})
}

// tell says what has been done.
func (p *publisher) tell() {
	noun := "messages"
	if p.stored == 1 {
		noun = "message"
	}
	when := ""
	if p.delay > 0 {
		when = ", due in " + p.delay.String()
	}
	fmt.Fprintf(p.out, "published %d %s to %s%s\n", p.stored, noun, printable(p.topic), when)
}

// unknown warns where an error leaves open what the server did.
func unknown(err error) error {
	var refusal *client.ServerError
	if errors.As(err, &refusal) || !errors.Is(err, client.ErrBroken) {
		return err
	}
	return &hint{err, "whether it was stored is not known"}
}

// publishLines publishes standard input line by line. Lines that are there at
// once travel together; one that comes alone is answered before the next is
// read. The first line that fails ends it, once the fate of the lines sent
// with it is known.
func (p *publisher) publishLines() error {
	return p.request(p.topic, func(c *client.Conn) error {
		l := &lines{publisher: p, pipeline: c.Pipeline(0)}
		if err := l.run(bufio.NewReaderSize(p.in, 64<<10)); err != nil {
			return &hint{err, fmt.Sprintf("%d other lines were stored", p.stored)}
		}
		p.tell()
		return nil
	})
}

// lines publishes standard input.
type lines struct {
	*publisher
	pipeline *client.Pipeline
	sent     []int // line numbers that have no reply yet, oldest first
	failed   error // of the first line that failed
}

func (l *lines) run(in *bufio.Reader) error {
	for number := 1; ; number++ {
		body, err := readLine(in)
		over := errors.Is(err, io.EOF)
		if err != nil && !over {
			l.fail(number, err)
		} else if len(body) > 0 || len(l.headers) > 0 && !over {
			l.send(number, body)
		}
		if err != nil || l.failed != nil || in.Buffered() == 0 {
			l.settle(0)
		}
		if l.failed != nil || over {
			return l.failed
		}
	}
}

func (l *lines) fail(number int, err error) {
	if l.failed == nil {
		l.failed = &about{fmt.Sprintf("line %d", number), unknown(err)}
	}
}

func (l *lines) send(number int, body []byte) {
	for l.failed == nil {
		var err error
		if m := l.message(body); l.delay > 0 {
			err = l.pipeline.PublishDelay(l.topic, l.delay, []*codec.Message{m}, l.trace)
		} else {
			err = l.pipeline.Publish(l.topic, m, l.trace)
		}
		switch {
		case err == nil:
			l.sent = append(l.sent, number)
			return
		case !errors.Is(err, client.ErrWindowFull):
			l.fail(number, err)
			return
		}
		l.settle(l.pipeline.Outstanding() - 1)
	}
}

// settle receives replies until no more than rest are outstanding, or none
// can be received any more.
func (l *lines) settle(rest int) {
	for len(l.sent) > rest {
		err := l.pipeline.Receive()
		if err != nil {
			l.fail(l.sent[0], err)
		} else {
			l.stored++
		}
		if errors.Is(err, client.ErrBroken) {
			return
		}
		l.sent = l.sent[1:]
	}
}

// readLine returns the next line without its end, or what is left at the end
// with io.EOF.
func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxLine {
			return nil, fmt.Errorf("longer than %d bytes", maxLine)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r")), err
	}
}
