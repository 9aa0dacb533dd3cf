package replication

import "smss/engine"

// Status is what operators see of replication. Times are Unix ms.
type Status struct {
	Role           string `json:"role"`
	Node           string `json:"node"`
	Epoch          string `json:"epoch,omitempty"`
	EpochFirst     int64  `json:"epochFirstEventId,omitempty"`
	LastEventID    int64  `json:"lastEventId"`
	IncompleteFrom int64  `json:"incompleteFromEventId,omitempty"`

	Link   *LinkInfo  `json:"link,omitempty"`   // of a slave
	Slaves []SlaveRow `json:"slaves,omitempty"` // that follow this server
}

// LinkInfo is a slave's view of its master.
type LinkInfo struct {
	Master  string `json:"master"`
	State   string `json:"state"`
	SinceMs int64  `json:"sinceMs"`
	Error   string `json:"error,omitempty"`
	// MasterEventID is the master's last event as far as it has said, 0 for an
	// existing server, which does not.
	MasterEventID int64 `json:"masterEventId,omitempty"`
	LagEvents     int64 `json:"lagEvents"`
	// LagMs is how far the last applied event lies behind the clock while there
	// is something to catch up with, else 0.
	LagMs int64 `json:"lagMs"`
	// CopiedBytes of CopyBytes have been copied, while the state is copying.
	CopiedBytes int64 `json:"copiedBytes,omitempty"`
	CopyBytes   int64 `json:"copyBytes,omitempty"`
}

// SlaveRow is a master's view of one slave.
type SlaveRow struct {
	Remote       string `json:"remote"`
	Address      string `json:"address,omitempty"`
	Node         string `json:"node,omitempty"`
	SinceMs      int64  `json:"sinceMs"`
	SentEventID  int64  `json:"sentEventId"`
	AckedEventID int64  `json:"ackedEventId,omitempty"` // 0 for an existing slave, which does not report
	LagEvents    int64  `json:"lagEvents"`
	LagBytes     int64  `json:"lagBytes"`
	LagMs        int64  `json:"lagMs"`
}

// Status returns what is known now. Any goroutine.
func (n *Node) Status() Status {
	h := n.History()
	s := Status{
		Role: n.cfg.Engine.Role().String(), Node: h.Node, Epoch: epochOf(&h), LastEventID: n.position(),
		IncompleteFrom: h.IncompleteFrom,
	}
	if len(h.Epochs) > 0 {
		s.EpochFirst = h.Epochs[len(h.Epochs)-1].First
	}
	now := n.cfg.Clock.NowMs()
	if n.cfg.Engine.Role() == engine.Slave {
		s.Link = n.linkInfo(now)
	}
	for _, r := range n.cfg.Engine.Replicas() {
		s.Slaves = append(s.Slaves, slaveRow(r, n.cfg.Engine.LagOf(r), now))
	}
	return s
}

func (n *Node) linkInfo(nowMs int64) *LinkInfo {
	l := n.link.Load()
	i := &LinkInfo{Master: l.master, State: l.state.String(), SinceMs: l.since.UnixMilli(), MasterEventID: n.masterLast.Load()}
	if l.err != nil {
		i.Error = l.err.Error()
	}
	if i.LagEvents = max(0, i.MasterEventID-n.position()); i.LagEvents > 0 {
		i.LagMs = max(0, nowMs-n.cfg.Engine.MasterMs())
	}
	return i
}

func slaveRow(r *engine.Replica, lag engine.Lag, nowMs int64) SlaveRow {
	return SlaveRow{
		Remote: r.Remote, Address: addressOf(r), Node: r.Node, SinceMs: r.Since.UnixMilli(),
		SentEventID: r.Sent(), AckedEventID: r.AckedID(), LagEvents: lag.Events, LagBytes: lag.Bytes,
		LagMs: lagMs(lag, nowMs),
	}
}

func lagMs(lag engine.Lag, nowMs int64) int64 {
	if lag.Events == 0 || lag.SinceMs == 0 {
		return 0
	}
	return max(0, nowMs-lag.SinceMs)
}
