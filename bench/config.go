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
	root := section{}
	for _, kv := range append(all, s.Set...) {
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
