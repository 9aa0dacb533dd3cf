package conf

import "math"

// table is the one list of settings, in the order of the reference. It is built
// on each call so that nobody can change it for others.
func table() []entry {
	var all []entry
	for _, part := range [][]entry{
		serverTable(), logTable(), storeTable(), workerTable(), timeTable(), replicationTable(), adminTable(), sizeLimitTable(), loadLimitTable(),
	} {
		all = append(all, part...)
	}
	return all
}

func serverTable() []entry {
	return []entry{
		{key: "role", flag: "role", noFile: true, def: "master", oneOf: []string{"master", "slave"},
			meaning: "what this server is; a slave copies a master and refuses writes",
			field:   func(c *Config) any { return &c.Role }},
		{key: "host", def: "", shape: "IP address or host name", syntax: hostOrNothing,
			meaning: "address to bind; empty = all interfaces",
			field:   func(c *Config) any { return &c.Host }},
		{key: "port", def: "12301", max: 65535,
			meaning: "TCP port to listen on; 0 = any free port, for tests",
			field:   func(c *Config) any { return &c.Port }},
		{key: "master.host", flag: "host", noFile: true, def: "", shape: "IP address or host name", syntax: hostOrNothing,
			meaning: "the master's address; a slave must have it, a master ignores it",
			field:   func(c *Config) any { return &c.Master.Host }},
		{key: "master.port", flag: "port", noFile: true, def: "12301", min: 1, max: 65535,
			meaning: "the master's port (not the own one)",
			field:   func(c *Config) any { return &c.Master.Port }},
		{key: "master.event", flag: "event", noFile: true, def: "0", max: math.MaxInt64,
			meaning: "event id after which an empty slave starts copying; 0 = from the beginning",
			field:   func(c *Config) any { return &c.Master.EventID }},
	}
}

func logTable() []entry {
	return []entry{
		{key: "log.path", def: "stdout", shape: "stdout, stderr, a directory (out.log inside) or a file name ending in .log", syntax: notEmpty,
			meaning: "where log lines go; missing directories are made",
			field:   func(c *Config) any { return &c.Log.Path }},
		{key: "log.sample", def: "10000", max: math.MaxInt32,
			meaning: "one line for every N publishes, pushes and replicated records; 0 = no such lines, 1 = all",
			field:   func(c *Config) any { return &c.Log.Sample }},
		{key: "log.withGid", def: "false",
			meaning: "accepted, no effect: goroutine ids are not printed any more",
			field:   func(c *Config) any { return &c.Log.WithGid }},
		{key: "log.level", def: "info", oneOf: []string{"debug", "info", "warn", "error"},
			meaning: "least important lines that are written",
			field:   func(c *Config) any { return &c.Log.Level }},
		{key: "log.format", def: "auto", oneOf: []string{"auto", "json", "console"},
			meaning: "form of a line; auto = console on a terminal, JSON elsewhere",
			field:   func(c *Config) any { return &c.Log.Format }},
		{key: "log.rotate.maxSize", def: "500", min: 1, max: 102400, unit: "MiB",
			meaning: "size at which a log file is set aside and a new one begun",
			field:   func(c *Config) any { return &c.Log.Rotate.MaxSize }},
		{key: "log.rotate.maxBackups", def: "10", max: 10000, unit: "files",
			meaning: "log files set aside that are kept; 0 = no limit",
			field:   func(c *Config) any { return &c.Log.Rotate.MaxBackups }},
		{key: "log.rotate.maxAge", def: "14", max: 36500, unit: "days",
			meaning: "age up to which log files set aside are kept; 0 = no limit",
			field:   func(c *Config) any { return &c.Log.Rotate.MaxAge }},
	}
}

func storeTable() []entry {
	return []entry{
		{key: "store.path", def: "data", shape: "a directory", syntax: notEmpty,
			meaning: "data directory; relative to the working directory",
			field:   func(c *Config) any { return &c.Store.Path }},
		{key: "store.maxLogSize", def: "1GiB", min: 64, max: 256 << 30, unit: unitBytes,
			meaning: "size from which a binlog or topic file takes no more records",
			field:   func(c *Config) any { return &c.Store.MaxLogSize }},
		{key: "store.flushLevel", def: "1", max: 2,
			meaning: "when written data is forced to disk: 0 never, 1 each second, 2 before each reply",
			field:   func(c *Config) any { return &c.Store.FlushLevel }},
		{key: "store.maxDays", def: "7", max: 36500, unit: "days",
			meaning: "days of 24 hours after its last record for which a file is kept; 0 = for ever",
			field:   func(c *Config) any { return &c.Store.MaxDays }},
		{key: "store.clearInterval", def: "7200", min: 1, max: 31536000, unit: "s",
			meaning: "time between two looks for files that are too old",
			field:   func(c *Config) any { return &c.Store.ClearInterval }},
		{key: "store.waitDelLockTimeoutMs", def: "3000", max: math.MaxInt32, unit: "ms",
			meaning: "accepted, no effect: nothing waits for that lock any more",
			field:   func(c *Config) any { return &c.Store.WaitDelLockTimeoutMs }},
		{key: "store.noCache", def: "false",
			meaning: "drop file pages from the system's cache once they are synced, for machines whose memory others need",
			field:   func(c *Config) any { return &c.Store.NoCache }},
		{key: "store.folderCount", def: "", absent: "not given", min: 1, max: 1000,
			meaning: "folders on each of the two levels above a topic; fixed for the life of a data directory; not given = what the directory was made with, 10 for a new one",
			field:   func(c *Config) any { return &c.Store.FolderCount }},
		{key: "store.minFreeBytes", def: "128MiB", max: 64 << 40, unit: unitBytes,
			meaning: "free disk space below which publishes are refused; 0 = off",
			field:   func(c *Config) any { return &c.Store.MinFreeBytes }},
		{key: "store.maxOpenFiles", def: "256", min: 8, max: 65536, unit: "files",
			meaning: "topic files kept open for appending at the same time",
			field:   func(c *Config) any { return &c.Store.MaxOpenFiles }},
		{key: "store.exitOnSyncError", def: "false",
			meaning: "end the process when forcing data to disk fails; false = stay up and refuse writes",
			field:   func(c *Config) any { return &c.Store.ExitOnSyncError }},
	}
}

func workerTable() []entry {
	return []entry{
		{key: "worker.buffSize", def: "4096", min: 1, max: 1048576, unit: "commands",
			meaning: "commands that can wait for the writer",
			field:   func(c *Config) any { return &c.Worker.BuffSize }},
		{key: "worker.waitMsgTimeout", def: "1000", max: math.MaxInt32, unit: "ms",
			meaning: "accepted, no effect: the writer sleeps until there is work",
			field:   func(c *Config) any { return &c.Worker.WaitMsgTimeout }},
		{key: "worker.waitMsgTimeoutLogSample", def: "30", max: math.MaxInt32,
			meaning: "accepted, no effect: an idle writer logs nothing",
			field:   func(c *Config) any { return &c.Worker.WaitMsgTimeoutLogSample }},
		{key: "worker.readers", def: "4", min: 1, max: 64, unit: "goroutines",
			meaning: "goroutines that read files for subscribers and slaves",
			field:   func(c *Config) any { return &c.Worker.Readers }},
	}
}

func timeTable() []entry {
	return []entry{
		{key: "timeout.net.write", def: "1000", min: 1, max: 3600000, unit: "ms",
			meaning: "time without any progress after which a peer that does not read is dropped; values below 5000 count as 5000",
			field:   func(c *Config) any { return &c.Timeout.NetWriteMs }},
		{key: "timeout.server.alive", aliases: []string{"time.server.alive"}, def: "30000", min: 100, max: 3600000, unit: "ms",
			meaning: "time without new data after which a subscriber or slave gets an alive frame",
			field:   func(c *Config) any { return &c.Timeout.ServerAliveMs }},
		{key: "background.defaultScanSecond", aliases: []string{"background.life.defaultScanSec"}, def: "7200", min: 1, max: 31536000, unit: "s",
			meaning: "accepted, no effect: what is due is looked for forty times a second",
			field:   func(c *Config) any { return &c.Background.DefaultScanSecond }},
		{key: "background.firstExecSecond", aliases: []string{"background.delay.firstExec"}, def: "1", max: 31536000, unit: "s",
			meaning: "time from start to the first look for delayed messages that are due and topics whose life is over",
			field:   func(c *Config) any { return &c.Background.FirstExecSecond }},
	}
}
