package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"time"
	"unicode/utf8"

	"smss/codec"
	"smss/storage"
)

var dumpCommand = &command{
	name:    "dump",
	args:    "DATA_DIR",
	summary: "print the records of the binlog or of a topic",
	text: "Prints the records of the binlog of DATA_DIR, or with -topic those of a topic, one\n" +
		"line each: event id, time, place (file:offset), then what it holds. Writes nothing,\n" +
		"and may be used beside a running server. Damaged places are stepped over and told on\n" +
		"standard error; then the exit code is 1.",
	examples: []string{
		"smss dump data",
		"smss dump -topic order -from 1000 -count 20 data",
		"smss dump -since 2026-11-30T12:00:00Z -json data",
	},
	offline:       true,
	interruptible: true,
	define: func(flags *flag.FlagSet) runFunc {
		d := new(dump)
		flags.StringVar(&d.topic, "topic", "", "print this topic's log `NAME`; default is the binlog")
		flags.Int64Var(&d.from, "from", 0, "begin at this event `ID`")
		flags.StringVar(&d.since, "since", "", "begin at this `TIME`, as 2006-01-02T15:04:05Z")
		flags.Int64Var(&d.count, "count", 0, "print at most `N` records; 0 = all")
		flags.BoolVar(&d.json, "json", false, "print one JSON object a line")
		return d.run
	},
}

// dump is one run of the command.
type dump struct {
	topic, since string
	from, count  int64
	json         bool

	printed int64
	damages int
}

var errEnough = errors.New("enough")

func (d *dump) run(s *session, args []string) error {
	o, err := openDirectory(args)
	if err != nil {
		return err
	}
	start := storage.WalkStart{EventID: d.from}
	if d.since != "" {
		at, err := time.Parse(time.RFC3339, d.since)
		if err != nil {
			return usagef("-since %q is not a time such as 2006-01-02T15:04:05Z", d.since)
		}
		start.AtMs = at.UnixMilli()
	}
	log := o.Binlog()
	if d.topic != "" {
		if log, err = o.Topic(d.topic); err != nil {
			return err
		}
	}
	out := bufio.NewWriter(s.out)
	err = o.Walk(log, start, storage.WalkSeen{
		Entry: func(e *storage.Entry) error {
			if s.ctx.Err() != nil || (d.count > 0 && d.printed >= d.count) {
				return errEnough
			}
			d.printed++
			return d.print(out, e)
		},
		Damage: func(at storage.Pos) {
			d.damages++
			fmt.Fprintf(s.errOut, "smss dump: damaged record in file %d.log at offset %d, stepped over\n", at.File, at.Off)
		},
	})
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if d.damages > 0 {
		return fmt.Errorf("%w: %d places", errDamaged, d.damages)
	}
	return nil
}

// dumpEntry is one line of the JSON form.
type dumpEntry struct {
	EventID      int64         `json:"eventId"`
	At           string        `json:"at"`
	Position     string        `json:"position"`
	Command      string        `json:"command,omitempty"`
	Topic        string        `json:"topic,omitempty"`
	ExpireAt     string        `json:"expireAt,omitempty"`
	TriggerAt    string        `json:"triggerAt,omitempty"`
	DelayEventID int64         `json:"delayEventId,omitempty"`
	Source       string        `json:"source,omitempty"`
	Checksum     bool          `json:"checksum"`
	Messages     []dumpMessage `json:"messages,omitempty"`
}

type dumpMessage struct {
	Headers    []jsonHeader `json:"headers,omitempty"`
	Body       *string      `json:"body,omitempty"`
	BodyBase64 []byte       `json:"bodyBase64,omitempty"`
}

const msLayout = "2006-01-02T15:04:05.000Z07:00"

func (d *dump) print(w *bufio.Writer, e *storage.Entry) error {
	line := dumpEntry{
		EventID: e.EventID, At: time.UnixMilli(e.AtMs).UTC().Format(msLayout), Position: e.Pos.String(), Checksum: e.Checksummed(),
	}
	if e.Message != nil {
		line.Source = e.Message.Source.String()
		line.addMessages(e.Message.Message)
	} else {
		line.describe(e.Binlog)
	}
	if d.json {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		return enc.Encode(&line)
	}
	return line.writeText(w)
}

func (l *dumpEntry) describe(r *codec.BinlogRecord) {
	l.Command, l.Topic = r.Command.String(), string(r.Topic)
	switch r.Command {
	case codec.CreateTopic:
		if at := r.ExpireAtMs(); at != 0 {
			l.ExpireAt = msTime(at)
		}
	case codec.Delay, codec.DelayApply:
		at, id := r.DelayKey()
		l.TriggerAt, l.DelayEventID = msTime(at), id
	}
	l.addMessages(r.Messages())
}

// addMessages adds what can be read of a payload.
func (l *dumpEntry) addMessages(payload []byte) {
	for len(payload) > 0 {
		m, size, ok := codec.ParseMessage(payload)
		if !ok {
			l.Messages = append(l.Messages, dumpMessage{BodyBase64: payload})
			return
		}
		payload = payload[size:]
		var out dumpMessage
		for _, h := range m.Headers {
			out.Headers = append(out.Headers, jsonHeader(h))
		}
		if body := string(m.Body); utf8.ValidString(body) {
			out.Body = &body
		} else {
			out.BodyBase64 = m.Body
		}
		l.Messages = append(l.Messages, out)
	}
}

func (l *dumpEntry) writeText(w *bufio.Writer) error {
	fmt.Fprintf(w, "%d\t%s\t%s", l.EventID, l.At, l.Position)
	if l.Command != "" {
		fmt.Fprintf(w, "\t%s\t%s", l.Command, printable(l.Topic))
	}
	if l.ExpireAt != "" {
		fmt.Fprintf(w, "\texpires %s", l.ExpireAt)
	}
	if l.TriggerAt != "" {
		fmt.Fprintf(w, "\tdue %s as event %d", l.TriggerAt, l.DelayEventID)
	}
	for _, m := range l.Messages {
		body := string(m.BodyBase64)
		if m.Body != nil {
			body = *m.Body
		}
		fmt.Fprintf(w, "\t%s", printable(body))
		for _, h := range m.Headers {
			fmt.Fprintf(w, " [%s=%s]", printable(h.Key), printable(h.Value))
		}
	}
	return w.WriteByte('\n')
}
