package cli

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"text/tabwriter"
	"time"
)

var statusCommand = &command{
	name:    "status",
	summary: "role, lag and health of a server",
	admin:   true,
	text: "Tells what a server is, how healthy, and how far slaves are behind: what they hold,\n" +
		"by their own word where they are of this project, else what was sent. Exits with 0\n" +
		"only if the server takes writes or follows its master.",
	examples: []string{"smss status", "smss status -admin 10.0.0.2:12302 -json"},
	define: func(flags *flag.FlagSet) runFunc {
		asJSON := jsonFlag(flags)
		return func(s *session, args []string) error {
			if err := noArguments(args); err != nil {
				return err
			}
			body, err := s.ask(http.MethodGet, "/status", nil)
			if err != nil {
				return err
			}
			var st serverStatus
			if err := json.Unmarshal(body, &st); err != nil {
				return fmt.Errorf("%s answers what cannot be read: %w", s.addr, err)
			}
			if *asJSON {
				_, err = s.out.Write(body)
			} else {
				err = st.write(s)
			}
			if err == nil {
				err = st.trouble()
			}
			return err
		}
	},
}

// serverStatus is what of an answer is printed.
type serverStatus struct {
	Version     string
	SinceMs     int64
	Healthy     bool
	Unhealthy   string `json:"unhealthyBecause"`
	Replication struct {
		Role, Node, Epoch string
		EpochFirst        int64 `json:"epochFirstEventId"`
		LastEventID       int64
		IncompleteFrom    int64 `json:"incompleteFromEventId"`
		Link              *struct {
			Master, State, Error string
			SinceMs              int64
			MasterEventID        int64
			LagEvents, LagMs     int64
			CopiedBytes          int64
			CopyBytes            int64
		}
		Slaves []struct {
			Remote, Address, Node      string
			SinceMs                    int64
			SentEventID, AckedEventID  int64
			LagEvents, LagBytes, LagMs int64
		}
	}
	Engine struct {
		AckWaits, AckTimeouts int64
		AckLapsed             bool
	}
}

// trouble is why the server does not do what it is there for.
func (st *serverStatus) trouble() error {
	switch l := st.Replication.Link; {
	case !st.Healthy:
		return fmt.Errorf("the server does not take writes: %s", st.Unhealthy)
	case l != nil && l.State == "refused":
		return fmt.Errorf("%s: somebody has to see to it", l.Error)
	case l != nil && l.State != "streaming":
		return fmt.Errorf("the server does not follow its master %s now", l.Master)
	}
	return nil
}

func (st *serverStatus) write(s *session) error {
	r := &st.Replication
	table := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(table, name+":\t%s\n", printable(fmt.Sprintf(format, args...)))
	}
	row("role", "%s", r.Role)
	if r.Epoch != "" {
		row("epoch", "%s, from event %d on", r.Epoch, r.EpochFirst)
	}
	row("node", "%s, smss %s, up since %s", r.Node, st.Version, at(st.SinceMs))
	row("last event", "%d", r.LastEventID)
	if r.IncompleteFrom > 0 {
		row("history", "incomplete, from event %d on", r.IncompleteFrom)
	}
	if st.Healthy {
		row("health", "ok")
	} else {
		row("health", "%s", st.Unhealthy)
	}
	if e := &st.Engine; e.AckWaits > 0 {
		row("confirmations", "%d batches waited for slaves, %d in vain", e.AckWaits, e.AckTimeouts)
	}
	if st.Engine.AckLapsed {
		row("", "replies do not wait now, until slaves have caught up")
	}
	if l := r.Link; l != nil {
		row("master", "%s, %s since %s", l.Master, l.State, at(l.SinceMs))
		if l.CopyBytes > 0 {
			row("copied", "%d of %d bytes", l.CopiedBytes, l.CopyBytes)
		}
		row("behind", "%d events, %v", l.LagEvents, ms(l.LagMs))
		if l.Error != "" {
			row("trouble", "%s", l.Error)
		}
	}
	if err := table.Flush(); err != nil || len(r.Slaves) == 0 {
		return err
	}
	fmt.Fprintln(s.out)
	table = tabwriter.NewWriter(s.out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "SLAVE\tNODE\tSINCE\tHOLDS\tBEHIND\tBYTES\tTIME")
	for _, v := range r.Slaves {
		name, node, holds := v.Address, v.Node, fmt.Sprint(v.AckedEventID)
		if name == "" {
			name = v.Remote
		}
		if node == "" {
			node, holds = "-", fmt.Sprintf("%d sent", v.SentEventID)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%d\t%v\n", printable(name), printable(node), at(v.SinceMs), holds, v.LagEvents, v.LagBytes, ms(v.LagMs))
	}
	return table.Flush()
}

func at(unixMs int64) string { return timestamp(time.UnixMilli(unixMs)) }

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
