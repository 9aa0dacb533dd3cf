package conf

import "math"

func replicationTable() []entry {
	return []entry{
		{key: "replication.allow", def: "", shape: "IP addresses and networks (10.0.0.0/8), separated by commas", syntax: networks,
			meaning: "who may copy this server; empty = everybody who can connect",
			field:   func(c *Config) any { return &c.Replication.Allow }},
		{key: "replication.maxSlaves", def: "16", min: 0, max: 64, unit: "slaves",
			meaning: "slaves that can be connected at the same time; 0 = none",
			field:   func(c *Config) any { return &c.Replication.MaxSlaves }},
		{key: "replication.chain", def: "false",
			meaning: "whether a slave feeds slaves of its own",
			field:   func(c *Config) any { return &c.Replication.Chain }},
		{key: "replication.sendTimeoutMs", def: "120000", min: 1000, max: 3600000, unit: "ms",
			meaning: "time without any progress after which a slave that takes nothing is dropped",
			field:   func(c *Config) any { return &c.Replication.SendTimeoutMs }},
		{key: "replication.minAcks", def: "0", max: 16, unit: "slaves",
			meaning: "slaves that must hold an event before its reply leaves and subscribers see it; 0 = none. Existing slaves do not report and do not count",
			field:   func(c *Config) any { return &c.Replication.MinAcks }},
		{key: "replication.ackTimeoutMs", def: "1000", min: 1, max: 3600000, unit: "ms",
			meaning: "how long a reply waits for replication.minAcks",
			field:   func(c *Config) any { return &c.Replication.AckTimeoutMs }},
		{key: "replication.onAckTimeout", def: "reply", oneOf: []string{"reply", "refuse"},
			meaning: "then: reply = answer all the same, and wait no more until the slaves have caught up; refuse = answer with an error (the event is stored and may be lost with this server), and refuse what comes while too few slaves are connected",
			field:   func(c *Config) any { return &c.Replication.OnAckTimeout }},
		{key: "replication.autoCopy", def: "true",
			meaning: "whether a slave whose next events the master does not have any more starts anew to make a full copy of the master; only where what it holds is the beginning of the master's history, or nothing",
			field:   func(c *Config) any { return &c.Replication.AutoCopy }},
		{key: "replication.retryMaxMs", def: "30000", min: 100, max: math.MaxInt32, unit: "ms",
			meaning: "longest pause of a slave between two attempts to reach its master; pauses grow up to it, with jitter",
			field:   func(c *Config) any { return &c.Replication.RetryMaxMs }},
	}
}
