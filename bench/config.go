package bench

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// serverConfig is the configuration file of a started server: what a run
// needs, and -set on top of it.
func serverConfig(s *settings, data string, port int) ([]byte, error) {
	all := []string{
		"host=127.0.0.1",
		"port=" + strconv.Itoa(port),
		"store.path=" + data,
		"store.flushLevel=" + strconv.Itoa(s.Flush),
	}
	return configOf(slices.Concat(all, s.ackConfig(), s.Set))
}

// existingKeys are what the existing server needs to be told, since a key that
// it misses is 0 there. The values are this server's defaults, with which it
// does at least as well as with its own.
var existingKeys = []string{
	"log.path=stdout", "log.sample=10000", "log.withGid=false",
	"log.rotate.maxSize=500", "log.rotate.maxBackups=10", "log.rotate.maxAge=14",
	"store.maxLogSize=1073741824", "store.maxDays=7", "store.clearInterval=7200",
	"store.waitDelLockTimeoutMs=3000", "store.noCache=false", "store.folderCount=10",
	"worker.buffSize=4096", "worker.waitMsgTimeout=1000", "worker.waitMsgTimeoutLogSample=30",
	"timeout.net.write=1000", "timeout.server.alive=30000",
	"background.defaultScanSecond=7200", "background.firstExecSecond=1",
}

// foreignConfig is the configuration file of another binary: every key of the
// existing server, which this one accepts as well.
func foreignConfig(s *settings, data string, port int) ([]byte, error) {
	own := []string{
		"port=" + strconv.Itoa(port),
		"store.path=" + data,
		"store.flushLevel=" + strconv.Itoa(s.Flush),
	}
	return configOf(slices.Concat(existingKeys, own, s.ackConfig(), s.Set))
}

func configOf(all []string) ([]byte, error) {
	root := section{}
	for _, kv := range all {
		key, value, _ := strings.Cut(kv, "=")
		if !root.set(strings.Split(key, "."), value) {
			return nil, usagef("-set %s: the key is a section elsewhere, or below a value", kv)
		}
	}
	return root.append(nil, ""), nil
}

// section is a YAML mapping whose values are strings and sections.
type section map[string]any

func (s section) set(path []string, value string) bool {
	if len(path) == 1 {
		_, isSection := s[path[0]].(section)
		s[path[0]] = value
		return !isSection
	}
	if s[path[0]] == nil {
		s[path[0]] = section{}
	}
	below, ok := s[path[0]].(section)
	return ok && below.set(path[1:], value)
}

// plain is what needs no quotes in YAML, the numbers and booleans among it.
var plain = regexp.MustCompile(`^[A-Za-z0-9./][A-Za-z0-9./_+-]*$`)

func (s section) append(b []byte, indent string) []byte {
	for _, key := range slices.Sorted(maps.Keys(s)) {
		b = append(b, indent+key+":"...)
		switch v := s[key].(type) {
		case section:
			b = v.append(append(b, '\n'), indent+"  ")
		case string:
			if !plain.MatchString(v) {
				v = strconv.Quote(v)
			}
			b = append(b, " "+v+"\n"...)
		}
	}
	return b
}
