package conf

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

const (
	envPrefix = "SMSS_"
	envConfig = "SMSS_CONFIG" // path of the configuration file
	envAddr   = "SMSS_ADDR"   // read by the subcommands that are clients
	envTest   = "SMSS_TEST_"  // start of the names tests use
)

// smssVariables picks the SMSS_* variables that have a value. An empty one counts
// as not set: compose files pass PORT=${PORT} when PORT is missing.
func smssVariables(environ []string) map[string]string {
	found := make(map[string]string)
	for _, line := range environ {
		name, value, ok := strings.Cut(line, "=")
		if ok && value != "" && strings.HasPrefix(name, envPrefix) {
			found[name] = value
		}
	}
	return found
}

func (l *loader) readEnvironment(variables map[string]string) {
	byName := make(map[string]*entry)
	for i := range l.table {
		e := &l.table[i]
		byName[envName(e.key)] = e
		byName[envNameUnsplit(e.key)] = e
	}
	usedName := make(map[string]string) // key -> variable that set it
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		value, e := variables[name], byName[name]
		switch {
		case name == envConfig || name == envAddr || strings.HasPrefix(name, envTest):
		case isServiceLink(name, value):
			if e != nil {
				l.warn("%s = %q is ignored: it describes a service of the container platform, not this setting", name, shorten(value))
			}
		case e == nil:
			l.problems.add(Problem{Where: envWhere(name), Value: value, Text: "names no setting" + l.didYouMeanVariable(name)})
		case usedName[e.key] != "" && variables[usedName[e.key]] != value:
			l.refuse(e, value, envWhere(name), usedName[e.key]+" says something else; remove one of the two")
		default:
			usedName[e.key] = name
			l.apply(e, value, origin{FromEnvironment, envWhere(name)}, true)
		}
	}
}

func envWhere(name string) string { return "environment " + name }

// envName is the variable that overrides a key: store.maxLogSize is
// SMSS_STORE_MAX_LOG_SIZE.
func envName(key string) string {
	var b strings.Builder
	b.WriteString(envPrefix)
	for _, r := range key {
		switch {
		case r == '.':
			r = '_'
		case unicode.IsUpper(r):
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToUpper(r))
	}
	return b.String()
}

// envNameUnsplit is the spelling without underscores inside a word:
// SMSS_STORE_MAXLOGSIZE.
func envNameUnsplit(key string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

func (l *loader) didYouMeanVariable(name string) string {
	var names []string
	for _, e := range l.table {
		names = append(names, envName(e.key))
	}
	if near := suggest(name, names); near != "" {
		return "; did you mean " + near + "?"
	}
	return "; remove it"
}

// isServiceLink recognises the variables that Kubernetes sets in each container
// for a Service named smss or smss-*, SMSS_PORT=tcp://10.0.0.1:12301 among them.
// Without this a server would not start beside its own Service.
func isServiceLink(name, value string) bool {
	if serviceLinkName().MatchString(name) {
		return true
	}
	scheme, _, ok := strings.Cut(value, "://")
	return ok && strings.HasSuffix(name, "_PORT") && (scheme == "tcp" || scheme == "udp" || scheme == "sctp")
}

func serviceLinkName() *regexp.Regexp {
	return regexp.MustCompile(`_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?$`)
}
