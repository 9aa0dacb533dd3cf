package bench

import (
	"fmt"
	"math"
	"slices"
)

// Figures are what a window gave, by the key of their quantity. A quantity
// that does not apply, such as the memory of a server whose process is not
// known, is missing.
type Figures map[string]float64

// direction says which way a quantity gets better.
type direction int

const (
	neither direction = iota
	higher
	lower
)

// quantity is what is known about a key: how to name it to a reader, how to
// print it, and what is good.
type quantity struct {
	key, label string
	format     func(float64) string
	better     direction
}

// Keys that more than one place uses. The unit stands last.
const (
	keyRequests       = "requests"
	keySeconds        = "seconds"
	keyRequestRate    = "requestsPerSecond"
	keyMessageRate    = "messagesPerSecond"
	keyDeliveryRate   = "deliveredPerSecond"
	keyRepliesPerRead = "repliesPerRead"
	keyServerCPU      = "serverCPUMicrosPerRequest"
	keyServerMessage  = "serverCPUMicrosPerMessage"
	keyServerCores    = "serverCPUCores"
	keyOwnCPU         = "generatorCPUMicrosPerRequest"
	keyOwnMessage     = "generatorCPUMicrosPerMessage"
	keyOwnCores       = "generatorCPUCores"
	keyResidentBefore = "residentBeforeBytes"
	keyResidentPeak   = "residentPeakBytes"
	keyResidentEnd    = "residentEndBytes"
	keyHighWaterMark  = "highWaterMarkBytes"
	keySlaveCPU       = "slaveCPUMicrosPerRequest"
	keySlaveMessage   = "slaveCPUMicrosPerMessage"
	keySlaveCores     = "slaveCPUCores"
	keyLagMax         = "lagMaxBytes"
)

// quantities is every quantity in the order in which tables show them.
var quantities = slices.Concat([]quantity{
	{keySeconds, "seconds", decimal, neither},
	{keyRequests, "requests", whole, neither},
	{"messages", "messages", whole, neither},
	{"subscribers", "subscribers", whole, neither},
	{"topics", "topics", whole, neither},
	{"delays", "pending delays", whole, neither},
	{"storedBytes", "stored", size, neither},
	{"fillSeconds", "time to fill", seconds, neither},
	{"fillPerSecond", "accepted/s while filling", whole, higher},
	{"connectSeconds", "time to connect", seconds, lower},
	{keyRequestRate, "requests/s", whole, higher},
	{keyMessageRate, "messages/s", whole, higher},
	{keyDeliveryRate, "delivered/s", whole, higher},
	{"megabytesPerSecond", "MB/s (bodies)", decimal, higher},
	{"publishedPerSecond", "published/s", whole, higher},
	{"backlogMessages", "behind at the end, messages", whole, lower},
	{"binlogBytes", "binlog", size, neither},
	{"copiedMegabytesPerSecond", "MB/s of binlog copied", decimal, higher},
	{"copiedEventsPerSecond", "events/s copied", whole, higher},
	{"lagMedianBytes", "slave's lag, median", size, lower},
	{keyLagMax, "slave's lag, highest", size, lower},
	{"lagMaxEvents", "slave's lag, highest, events", whole, lower},
	{"lagEndBytes", "slave's lag, end of the load", size, lower},
	{"equalMillis", "then until the slave has all", millis, lower},
	{"largePerSecond", "large messages/s beside", decimal, neither},
	{"removedBytes", "removed by retention", size, neither},
	{"deleteMillis", "deletion answered in", millis, lower},
	{keyRepliesPerRead, "replies per read", decimal, neither},
	{"messagesPerPush", "messages per push", decimal, neither},
}, latencies("latency", "latency"), latencies("endToEnd", "end to end"), latencies("publish", "publish reply"),
	latencies("late", "sent late by"), latencies("lateness", "lateness"), latencies("seek", "first message after SUB"), []quantity{
		{"aliveMillis", "exec to ALIVE answered", millis, lower},
		{"firstPublishMillis", "exec to first publish answered", millis, lower},
		{keyServerCPU, "server CPU µs/request", decimal, lower},
		{keyServerMessage, "server CPU µs/message", decimal, lower},
		{keyServerCores, "server CPU, cores", decimal, neither},
		{keySlaveCPU, "slave CPU µs/request", decimal, lower},
		{keySlaveMessage, "slave CPU µs/message", decimal, lower},
		{keySlaveCores, "slave CPU, cores", decimal, neither},
		{keyOwnCPU, "generator CPU µs/request", decimal, neither},
		{keyOwnMessage, "generator CPU µs/message", decimal, neither},
		{keyOwnCores, "generator CPU, cores", decimal, neither},
		{keyResidentBefore, "server memory before", size, lower},
		{keyResidentPeak, "server memory peak", size, lower},
		{keyResidentEnd, "server memory at the end", size, lower},
		{keyHighWaterMark, "server memory VmHWM", size, lower},
		{"slaveResidentEndBytes", "slave memory at the end", size, lower},
		{"slaveHighWaterMarkBytes", "slave memory VmHWM", size, lower},
		{"residentPendingBytes", "server memory, all pending", size, lower},
		{"bytesPerSubscriber", "memory per subscriber", size, lower},
		{"bytesPerDelay", "memory per pending delay", size, lower},
		{"bytesPerTopic", "memory per topic", size, lower},
		{"descriptors", "server's descriptors", whole, lower},
		{"heartbeats", "heartbeats", whole, neither},
	})

// latencies are the quantities that one histogram gives.
func latencies(key, label string) []quantity {
	return []quantity{
		{key + "MeanMicros", label + " mean", micros, neither},
		{key + "P50Micros", label + " p50", micros, lower},
		{key + "P99Micros", label + " p99", micros, lower},
		{key + "P999Micros", label + " p99.9", micros, lower},
		{key + "MaxMicros", label + " max", micros, neither},
	}
}

// known returns what is known about key; of a key from another version that
// is nothing but its name.
func known(key string) quantity {
	for _, q := range quantities {
		if q.key == key {
			return q
		}
	}
	return quantity{key: key, label: key, format: decimal}
}

// keysOf returns the keys of all figures given, in the order of quantities,
// unknown ones last.
func keysOf(all ...Figures) []string {
	seen := map[string]bool{}
	for _, f := range all {
		for key := range f {
			seen[key] = true
		}
	}
	var keys []string
	for _, q := range quantities {
		if seen[q.key] {
			keys = append(keys, q.key)
			delete(seen, q.key)
		}
	}
	var rest []string
	for key := range seen {
		rest = append(rest, key)
	}
	slices.Sort(rest)
	return append(keys, rest...)
}

func whole(v float64) string { return count(int64(math.Round(v))) }

func seconds(v float64) string { return decimal(v) + " s" }

func millis(v float64) string { return micros(v * 1000) }

// micros prints microseconds in the unit that keeps them short.
func micros(v float64) string {
	switch {
	case v < 10_000:
		return whole(v) + " µs"
	case v < 10_000_000:
		return fmt.Sprintf("%.1f ms", v/1e3)
	}
	return fmt.Sprintf("%.1f s", v/1e6)
}

// size prints bytes.
func size(v float64) string {
	switch a := math.Abs(v); {
	case a < 1<<20:
		return fmt.Sprintf("%.2f KiB", v/(1<<10))
	case a < 1<<30:
		return fmt.Sprintf("%.1f MiB", v/(1<<20))
	}
	return fmt.Sprintf("%.2f GiB", v/(1<<30))
}
