package conf

import "fmt"

// Config is everything a server can be told. Each field's unit and range stand
// in the table (see Reference); the field comments repeat the unit only.
type Config struct {
	Role string // "master" or "slave"
	Host string // address to bind; "" = all interfaces
	Port int    // own TCP port; 0 = any free port, for tests

	// Master tells a slave where its master is and after which event to go on.
	// A master ignores it.
	Master struct {
		Host    string
		Port    int
		EventID int64
	}

	Log struct {
		Path    string // stdout, stderr, a directory or a *.log file
		Sample  int    // one line for each N publishes; 0 = none
		WithGid bool   // accepted, no effect
		Level   string // debug, info, warn, error
		Format  string // auto, json, console
		Rotate  struct {
			MaxSize    int // MiB
			MaxBackups int // files; 0 = no limit
			MaxAge     int // days; 0 = no limit
		}
	}

	Store struct {
		Path                 string
		MaxLogSize           int64 // bytes
		FlushLevel           int   // 0 never, 1 each second, 2 before each reply
		MaxDays              int   // days; 0 = keep for ever
		ClearInterval        int   // seconds
		WaitDelLockTimeoutMs int   // accepted, no effect
		NoCache              bool
		FolderCount          int   // 0 = not given: what the data directory says, else 10
		MinFreeBytes         int64 // bytes; 0 = off
		MaxOpenFiles         int
		ExitOnSyncError      bool
	}

	Worker struct {
		BuffSize                int // commands
		WaitMsgTimeout          int // accepted, no effect
		WaitMsgTimeoutLogSample int // accepted, no effect
		Readers                 int // goroutines
	}

	Timeout struct {
		NetWriteMs    int // ms without progress
		ServerAliveMs int // ms without data
	}

	Replication struct {
		Allow         string // addresses and networks, separated by commas; "" = everybody
		MaxSlaves     int
		Chain         bool   // a slave feeds slaves of its own
		SendTimeoutMs int    // ms without progress
		MinAcks       int    // slaves; 0 = a reply waits for none
		AckTimeoutMs  int    // ms
		OnAckTimeout  string // "reply" or "refuse"
		AutoCopy      bool   // a slave that lacks events is copied anew
		RetryMaxMs    int    // ms
	}

	Admin struct {
		Host string // address to bind; "" = all interfaces
		Port int    // 0 = off
	}

	Background struct {
		DefaultScanSecond int // seconds
		FirstExecSecond   int // seconds
	}

	Limits struct {
		MaxConnections   int   // 0 = as many as descriptors allow, up to 65536
		MaxMessageSize   int   // bytes
		MaxBatchMessages int   // messages in one publish
		MaxWhoLength     int   // bytes
		MaxTopics        int   // topics
		PipelineWindow   int   // commands in flight on one connection
		MaxUnreadBytes   int   // bytes
		MaxInflightBytes int64 // bytes, all connections together
		MaxInputBytes    int64 // input of all connections that is not a whole request yet, bytes
		MaxPushBytes     int   // bytes
		MaxOutboundBytes int   // bytes
		FrameTimeoutMs   int   // ms
		IdleTimeoutMs    int   // ms; 0 = never
		MaxDelayMs       int64 // ms
		MemoryBytes      int64 // bytes; 0 = automatic
		EventLoops       int   // 0 = automatic
	}

	origins  map[string]origin // by key; a key that is missing has its default
	warnings []string
	file     string
}

// Source names where a value came from.
type Source string

// The sources, weakest first.
const (
	FromDefault     Source = "default"
	FromFile        Source = "file"
	FromEnvironment Source = "environment"
	FromFlag        Source = "flag"
)

// origin is the place a value was read from; where is what a person looks for:
// file:line, a variable or a flag.
type origin struct {
	source Source
	where  string
}

// Default returns the built-in configuration: a master on port 12301.
func Default() Config {
	var c Config
	for _, e := range table() {
		if e.def == "" {
			continue // the zero value says "not given"
		}
		value, err := e.read(e.def)
		if err != nil {
			panic(fmt.Sprintf("conf: default of %s: %v", e.key, err)) // a typing error in the table
		}
		e.assign(&c, value)
	}
	return c
}

// File is the path of the configuration file that was read, "" when there was none.
func (c *Config) File() string { return c.file }

// Warnings are remarks on a configuration that is valid but probably not what
// was meant, one line each; to be logged once at start.
func (c *Config) Warnings() []string { return append([]string(nil), c.warnings...) }

// Given reports whether somebody has set a key, instead of its default.
func (c *Config) Given(key string) bool {
	_, ok := c.origins[key]
	return ok
}

func (c *Config) whereOf(key string) string {
	if o, ok := c.origins[key]; ok {
		return o.where
	}
	return string(FromDefault)
}
