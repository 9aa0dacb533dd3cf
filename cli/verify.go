package cli

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"smss/storage"
)

var verifyCommand = &command{
	name:    "verify",
	args:    "DATA_DIR",
	summary: "check every record of a data directory, without changing anything",
	text: "Reads every record of the binlog and of all topics in DATA_DIR, checks the\n" +
		"checksums and that event ids grow, and lists every place that is damaged. Writes\n" +
		"nothing, and may be used beside a running server. Exits with 0 if all is well, with\n" +
		"1 if something is damaged or cannot be read. Records of the existing smss carry no\n" +
		"checksum; their form is checked.",
	examples:      []string{"smss verify data", "smss verify -json data >report.json", "smss verify -topic order data"},
	offline:       true,
	interruptible: true,
	define: func(flags *flag.FlagSet) runFunc {
		asJSON := flags.Bool("json", false, "print one JSON object for each log")
		quiet := flags.Bool("quiet", false, "no progress on standard error")
		topic := flags.String("topic", "", "check this `NAME` only, and not the binlog")
		return func(s *session, args []string) error {
			return s.verify(args, *topic, *asJSON, *quiet)
		}
	},
}

var errDamaged = errors.New("the data is damaged")

func (s *session) verify(args []string, topic string, asJSON, quiet bool) error {
	o, err := openDirectory(args)
	if err != nil {
		return err
	}
	logs, err := logsToVerify(o, topic)
	if err != nil {
		return err
	}
	p := &progressLine{w: s.errOut, quiet: quiet}
	defer p.end()
	total, damages := storage.LogReport{}, int64(0)
	for _, log := range logs {
		r, err := o.Verify(log, func(done, all int64) { p.show(log.String(), done, all) })
		if err != nil {
			return err
		}
		if s.ctx.Err() != nil {
			return s.ctx.Err()
		}
		p.end()
		total.Records += r.Records
		total.Messages += r.Messages
		found := int64(len(r.Damages)) + r.More()
		damages += found
		if err := printReport(s.out, r, found, asJSON); err != nil {
			return err
		}
	}
	if !asJSON {
		fmt.Fprintf(s.out, "%d logs, %d records, %d damaged places\n", len(logs), total.Records, damages)
	}
	if damages > 0 {
		return fmt.Errorf("%w: %d places", errDamaged, damages)
	}
	return nil
}

func logsToVerify(o *storage.Offline, topic string) ([]storage.LogName, error) {
	if topic != "" {
		log, err := o.Topic(topic)
		return []storage.LogName{log}, err
	}
	topics, err := o.Topics()
	return append([]storage.LogName{o.Binlog()}, topics...), err
}

func printReport(w io.Writer, r *storage.LogReport, found int64, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	fmt.Fprintf(w, "%s: %d records", printable(r.Log), r.Records)
	if r.Records > 0 {
		fmt.Fprintf(w, ", event ids %d to %d, %s to %s", r.FirstID, r.LastID, msTime(r.FirstAtMs), msTime(r.LastAtMs))
	}
	if r.Unchecked > 0 {
		fmt.Fprintf(w, ", %d without checksum", r.Unchecked)
	}
	if r.TailBytes > 0 {
		fmt.Fprintf(w, ", %d bytes of an incomplete record at the end", r.TailBytes)
	}
	fmt.Fprintln(w)
	for _, d := range r.Damages {
		fmt.Fprintf(w, "  %s at file %d.log, offset %d (after event %d, before event %d)\n", d.What, d.Pos.File, d.Pos.Off, d.After, d.Before)
	}
	if more := r.More(); more > 0 {
		fmt.Fprintf(w, "  and %d more\n", more)
	}
	return nil
}

// openDirectory opens the data directory that is the only argument.
func openDirectory(args []string) (*storage.Offline, error) {
	switch {
	case len(args) == 0:
		return nil, usageError("the data directory is missing")
	case len(args) > 1:
		return nil, usagef("unexpected argument %q", args[1])
	}
	return storage.OpenOffline(args[0])
}

func msTime(ms int64) string { return timestamp(time.UnixMilli(ms)) }

// progressLine shows how far long work is, once a second.
type progressLine struct {
	w     io.Writer
	quiet bool
	last  time.Time
	shown bool
}

func (p *progressLine) show(what string, done, total int64) {
	if p.quiet || total <= 0 || time.Since(p.last) < time.Second {
		return
	}
	if p.last.IsZero() {
		p.last = time.Now() // short work shows nothing
		return
	}
	p.last, p.shown = time.Now(), true
	fmt.Fprintf(p.w, "\r%s: %d of %d MiB, %d %%   ", printable(what), done>>20, total>>20, done*100/total)
}

func (p *progressLine) end() {
	if p.shown {
		fmt.Fprintln(p.w)
		p.shown = false
	}
}
