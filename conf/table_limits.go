package conf

func sizeLimitTable() []entry {
	return []entry{
		{key: "limits.maxConnections", def: "0", max: 1048576, unit: "connections",
			meaning: "connections at the same time; 0 = as many as file descriptors allow, up to 65536",
			field:   func(c *Config) any { return &c.Limits.MaxConnections }},
		{key: "limits.maxMessageSize", def: "16MiB", min: 1 << 10, max: 1 << 30, unit: unitBytes,
			meaning: "payload of one publish",
			field:   func(c *Config) any { return &c.Limits.MaxMessageSize }},
		{key: "limits.maxBatchMessages", def: "65536", min: 1, max: 1048576, unit: "messages",
			meaning: "messages in one publish",
			field:   func(c *Config) any { return &c.Limits.MaxBatchMessages }},
		{key: "limits.maxWhoLength", def: "1024", min: 1, max: 65535, unit: unitBytes,
			meaning: "name a subscriber gives itself",
			field:   func(c *Config) any { return &c.Limits.MaxWhoLength }},
		{key: "limits.maxTopics", def: "100000", min: 1, max: 10000000, unit: "topics",
			meaning: "topics that can exist at the same time",
			field:   func(c *Config) any { return &c.Limits.MaxTopics }},
		{key: "limits.maxUnreadBytes", def: "8MiB", min: 64 << 10, max: 1 << 30, unit: unitBytes,
			meaning: "input a connection may have waiting unparsed; above it the connection is closed",
			field:   func(c *Config) any { return &c.Limits.MaxUnreadBytes }},
		{key: "limits.maxInflightBytes", def: "64MiB", min: 1 << 10, max: 1 << 40, unit: unitBytes,
			meaning: "request bodies held for all connections together; at least limits.maxMessageSize",
			field:   func(c *Config) any { return &c.Limits.MaxInflightBytes }},
		{key: "limits.maxInputBytes", def: "256MiB", min: 1 << 20, max: 1 << 40, unit: unitBytes,
			meaning: "input of all connections together that waits to become a whole request; the connection that passes it is closed",
			field:   func(c *Config) any { return &c.Limits.MaxInputBytes }},
		{key: "limits.maxPushBytes", def: "1MiB", min: 1 << 10, max: 1 << 30, unit: unitBytes,
			meaning: "messages sent to a subscriber in one go; one larger message still goes alone",
			field:   func(c *Config) any { return &c.Limits.MaxPushBytes }},
		{key: "limits.maxOutboundBytes", def: "1MiB", min: 1 << 10, max: 1 << 30, unit: unitBytes,
			meaning: "output waiting for a peer above which nothing more is produced for it",
			field:   func(c *Config) any { return &c.Limits.MaxOutboundBytes }},
		{key: "limits.memoryBytes", def: "0", max: 64 << 40, unit: unitBytes,
			meaning: "soft memory limit of the process, 16MiB or more; 0 = automatic; GOMEMLIMIT wins",
			field:   func(c *Config) any { return &c.Limits.MemoryBytes }},
	}
}

func loadLimitTable() []entry {
	return []entry{
		{key: "limits.pipelineWindow", def: "64", min: 1, max: 4096, unit: "commands",
			meaning: "commands of one connection in work at the same time",
			field:   func(c *Config) any { return &c.Limits.PipelineWindow }},
		{key: "limits.frameTimeoutMs", def: "30000", min: 100, max: 3600000, unit: "ms",
			meaning: "time without progress in the middle of a request after which the connection is closed",
			field:   func(c *Config) any { return &c.Limits.FrameTimeoutMs }},
		{key: "limits.idleTimeoutMs", def: "1800000", max: 604800000, unit: "ms",
			meaning: "time without any command after which a connection is closed; 0 = never",
			field:   func(c *Config) any { return &c.Limits.IdleTimeoutMs }},
		{key: "limits.maxDelayMs", def: "315360000000", min: 1, max: 3153600000000, unit: "ms",
			meaning: "longest delay of a delayed message (ten years of 365 days)",
			field:   func(c *Config) any { return &c.Limits.MaxDelayMs }},
		{key: "limits.eventLoops", def: "0", max: 64, unit: "threads",
			meaning: "network event loops; 0 = automatic",
			field:   func(c *Config) any { return &c.Limits.EventLoops }},
	}
}
