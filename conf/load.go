package conf

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// DefaultFile is read when no file is named and it exists.
const DefaultFile = "config/config.yaml"

// maxFileSize bounds the configuration file: 1 MiB.
const maxFileSize = 1 << 20

// loader carries one call of Load.
type loader struct {
	config   Config
	table    []entry
	problems Error
	wrong    map[string]bool // keys with a problem: relations with them are not judged
}

// Load builds the configuration from the defaults, the file, the environment and
// the flags; later ones win. args is the command line without the program name,
// environ has the form of os.Environ, and readFile nil means ReadFile.
//
// The error is flag.ErrHelp when help was asked for (print Help), else an *Error
// with every problem found.
func Load(args []string, environ []string, readFile func(string) ([]byte, error)) (*Config, error) {
	if readFile == nil {
		readFile = ReadFile
	}
	l := &loader{config: Default(), table: table(), wrong: make(map[string]bool)}
	l.config.origins = make(map[string]origin)

	flags, err := parseFlags(args, l.table)
	if err != nil {
		return nil, err
	}
	variables := smssVariables(environ)
	l.readFile(flags, variables, readFile)
	l.readEnvironment(variables)
	l.readFlags(flags)
	l.config.checkRelations(&l.problems, l.wrong)
	if err := l.problems.orNil(); err != nil {
		return nil, err
	}
	l.config.remark()
	return &l.config, nil
}

// ReadFile reads path, but never more than a little over the 1 MiB that a
// configuration may have.
func ReadFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFileSize+1))
}

// readFile finds, reads and applies the configuration file.
func (l *loader) readFile(flags commandLine, variables map[string]string, readFile func(string) ([]byte, error)) {
	path, namedBy := DefaultFile, ""
	if name := variables[envConfig]; name != "" {
		path, namedBy = name, envWhere(envConfig)
	}
	if flags.configGiven {
		path, namedBy = flags.config, flagWhere("config")
	}
	if path == "" {
		l.problems.add(Problem{Where: namedBy, Text: "names no file"})
		return
	}
	data, err := readFile(path)
	if err != nil {
		// ENOTDIR: something else is called "config", so there is no default file.
		absent := errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
		if !absent || namedBy != "" {
			l.problems.add(Problem{Where: path, Text: unreadable(err, namedBy)})
		}
		return
	}
	l.config.file = path
	if len(data) > maxFileSize {
		l.problems.add(Problem{Where: path, Text: fmt.Sprintf("is larger than %s, which no configuration is", formatSize(maxFileSize))})
		return
	}
	l.applyYAML(path, data)
}

func unreadable(err error, namedBy string) string {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		err = pathError.Err // the path stands in front of the line already
	}
	text := "cannot be read: " + err.Error()
	if namedBy != "" {
		text += " (named by " + namedBy + ")"
	}
	return text
}

// apply reads text as the value of e. store false only checks it.
func (l *loader) apply(e *entry, text string, from origin, store bool) {
	value, err := e.read(text)
	if err != nil {
		l.refuse(e, text, from.where, complaint(e, err))
		return
	}
	if store {
		e.assign(&l.config, value)
		l.config.origins[e.key] = from
	}
}

// refuse reports a problem with a known key.
func (l *loader) refuse(e *entry, value, where, text string) {
	l.wrong[e.key] = true
	l.problems.add(Problem{Where: where, Key: e.key, Value: value, Text: text})
}

func (l *loader) warn(format string, args ...any) {
	l.config.warnings = append(l.config.warnings, fmt.Sprintf(format, args...))
}

// fileKeys are the canonical keys that may stand in the file.
func (l *loader) fileKeys() []string {
	var keys []string
	for _, e := range l.table {
		if !e.noFile {
			keys = append(keys, e.key)
		}
	}
	return keys
}

// didYouMean is the end of a complaint about an unknown file key, "" when the
// key resembles none. A key known under another section counts as near.
func (l *loader) didYouMean(path string) string {
	if l.problems.full() {
		return "" // nobody will read it; the search is what costs
	}
	keys := l.fileKeys()
	name := path[strings.LastIndexByte(path, '.')+1:]
	best := ""
	for _, key := range keys {
		if strings.EqualFold(key[strings.LastIndexByte(key, '.')+1:], name) {
			best = key
			break
		}
	}
	if near := suggest(path, keys); near != "" {
		best = near
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}
