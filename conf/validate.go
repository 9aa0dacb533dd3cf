package conf

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// minMemoryBytes is the least soft memory limit that does not make the collector
// run without pause.
const minMemoryBytes = 16 << 20

// sdkPatienceMs is how long the existing client library waits for any traffic on
// a subscription before it gives up.
const sdkPatienceMs = 35000

// Validate checks every value and the relations between values. Load has done
// this already; it is for a Config made or changed in code.
func (c *Config) Validate() error {
	var problems Error
	wrong := make(map[string]bool)
	for _, e := range table() {
		value := e.current(c)
		if e.absent != "" && value == any(int64(0)) && !c.Given(e.key) {
			continue
		}
		if err := e.check(value); err != nil {
			wrong[e.key] = true
			problems.add(Problem{Where: c.whereOf(e.key), Key: e.key, Value: e.format(value), Text: complaint(&e, err)})
		}
	}
	c.checkRelations(&problems, wrong)
	return problems.orNil()
}

func complaint(e *entry, err error) string {
	return err.Error() + "; allowed: " + e.allowed()
}

// checkRelations reports values that are fine alone but not together. A relation
// with a value that is wrong already is passed over: its default would be judged.
func (c *Config) checkRelations(problems *Error, wrong map[string]bool) {
	const (
		inflight = "limits.maxInflightBytes"
		message  = "limits.maxMessageSize"
		memory   = "limits.memoryBytes"
	)
	if !wrong[inflight] && !wrong[message] && c.Limits.MaxInflightBytes < int64(c.Limits.MaxMessageSize) {
		key := inflight
		if !c.Given(inflight) {
			key = message // point at the line that someone wrote
		}
		problems.add(Problem{Where: c.whereOf(key), Key: inflight, Value: formatSize(c.Limits.MaxInflightBytes),
			Text: fmt.Sprintf("must be at least %s, which is %s; raise the one or lower the other",
				message, formatSize(int64(c.Limits.MaxMessageSize)))})
	}
	if !wrong[memory] && c.Limits.MemoryBytes != 0 && c.Limits.MemoryBytes < minMemoryBytes {
		problems.add(Problem{Where: c.whereOf(memory), Key: memory, Value: formatSize(c.Limits.MemoryBytes),
			Text: "is too little to work with; allowed: 0 = automatic, or at least " + formatSize(minMemoryBytes)})
	}
	if !wrong["role"] && !wrong["master.host"] && c.Role == "slave" && c.Master.Host == "" {
		problems.add(Problem{Where: c.whereOf("role"), Key: "role", Value: c.Role,
			Text: "a slave must be told its master: give -host (or SMSS_MASTER_HOST)"})
	}
}

// remark collects the warnings on a valid configuration.
func (c *Config) remark() {
	if c.Role == "master" {
		for _, key := range []string{"master.host", "master.port", "master.event"} {
			if c.Given(key) {
				c.warnings = append(c.warnings, c.whereOf(key)+" is ignored: it names the master of a slave, and this server is a master; the own port and address are the keys port and host")
			}
		}
	}
	if c.Timeout.ServerAliveMs >= sdkPatienceMs {
		c.warnings = append(c.warnings, fmt.Sprintf("%s: timeout.server.alive = %d: existing clients end a subscription that is silent for %d ms",
			c.whereOf("timeout.server.alive"), c.Timeout.ServerAliveMs, sdkPatienceMs))
	}
}

func notEmpty(s string) error {
	if strings.TrimSpace(s) == "" {
		return errors.New("is empty")
	}
	return nil
}

// networks takes a list of addresses and networks.
func networks(s string) error {
	_, err := ParseNetworks(s)
	return err
}

// ParseNetworks reads a list of addresses and networks, separated by commas. An
// address stands for itself alone.
func ParseNetworks(s string) (out []netip.Prefix, err error) {
	for _, part := range strings.Split(s, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		p, err := netip.ParsePrefix(part)
		if err != nil {
			addr, addrErr := netip.ParseAddr(part)
			if addrErr != nil {
				return nil, fmt.Errorf("%q is neither an address nor a network", part)
			}
			p = netip.PrefixFrom(addr, addr.BitLen())
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// hostOrNothing takes an IP address or a name; underscores are allowed because
// container names have them.
func hostOrNothing(s string) error {
	if s == "" {
		return nil
	}
	if _, err := netip.ParseAddr(s); err == nil {
		return nil
	}
	if len(s) > 253 || strings.ContainsFunc(s, notInHostName) {
		return errors.New("is not an address or name (no port, no brackets, no spaces)")
	}
	return nil
}

func notInHostName(r rune) bool {
	letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
	digit := r >= '0' && r <= '9'
	return !letter && !digit && r != '-' && r != '.' && r != '_'
}
