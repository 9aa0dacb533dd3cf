package conf

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"gopkg.in/yaml.v3" // in this file only: the library is archived and may have to be replaced
)

// yamlWalk applies one document. It works on nodes, not on decoded structs, since
// only nodes tell the line, both spellings of a key and a key given twice. Aliases
// cannot multiply the work: it descends into known sections only, each once.
type yamlWalk struct {
	loader   *loader
	path     string // of the file
	leaves   map[string]fileKey
	sections map[string]bool     // lower case
	found    map[string]foundKey // by canonical key
	seen     map[string]int      // lower case key as spelled -> line
}

type fileKey struct {
	entry *entry
	alias bool
}

type foundKey struct {
	alias bool
	text  string
}

func (l *loader) applyYAML(path string, data []byte) {
	root, problem := parseYAML(path, data)
	if problem != nil {
		l.problems.add(*problem)
		return
	}
	if root == nil {
		return
	}
	w := &yamlWalk{loader: l, path: path, leaves: make(map[string]fileKey), sections: make(map[string]bool),
		found: make(map[string]foundKey), seen: make(map[string]int)}
	for i := range l.table {
		e := &l.table[i]
		w.know(e.key, fileKey{entry: e})
		for _, alias := range e.aliases {
			w.know(alias, fileKey{entry: e, alias: true})
		}
	}
	w.mapping("", root)
}

// know makes a key and the sections around it known.
func (w *yamlWalk) know(key string, k fileKey) {
	key = strings.ToLower(key)
	w.leaves[key] = k
	for i := range len(key) {
		if key[i] == '.' {
			w.sections[key[:i]] = true
		}
	}
}

// parseYAML returns the mapping of the only document, nil for an empty file.
func parseYAML(path string, data []byte) (*yaml.Node, *Problem) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, second yaml.Node
	if err := decoder.Decode(&document); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		return nil, syntaxProblem(path, err)
	}
	switch err := decoder.Decode(&second); {
	case err == nil:
		return nil, &Problem{Where: fmt.Sprintf("%s:%d", path, second.Line), Text: "a second document begins here; a configuration is one document"}
	case !errors.Is(err, io.EOF):
		return nil, syntaxProblem(path, err)
	}
	root := &document
	if root.Kind == yaml.DocumentNode && len(root.Content) == 1 {
		root = root.Content[0]
	}
	if isNull(root) {
		return nil, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, &Problem{Where: fmt.Sprintf("%s:%d", path, root.Line), Text: "is not a list of keys and values such as port: 12301"}
	}
	return root, nil
}

// syntaxProblem moves the parser's line number to where all line numbers stand.
func syntaxProblem(path string, err error) *Problem {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	where := path
	if m := regexp.MustCompile(`^line (\d+): `).FindStringSubmatch(text); m != nil {
		where, text = path+":"+m[1], text[len(m[0]):]
	}
	return &Problem{Where: where, Text: "is not valid YAML: " + shorten(text)}
}

// mapping walks the keys of one section; prefix is "" or ends in a dot.
func (w *yamlWalk) mapping(prefix string, node *yaml.Node) {
	here := make(map[string]int) // lower case key -> line, of this mapping
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], deref(node.Content[i+1])
		where := fmt.Sprintf("%s:%d", w.path, key.Line)
		if key.Kind != yaml.ScalarNode {
			w.loader.problems.add(Problem{Where: where, Text: "a key must be a word"})
			continue
		}
		spelled := prefix + key.Value
		path := strings.ToLower(spelled)
		if line, ok := here[path]; ok {
			w.twice(spelled, where, line)
			continue
		}
		here[path] = key.Line
		w.pair(path, spelled, where, key.Line, value)
	}
}

// pair handles one key with its value: a leaf, a section, or neither.
func (w *yamlWalk) pair(path, spelled, where string, line int, value *yaml.Node) {
	if known, ok := w.leaves[path]; ok {
		if before, ok := w.seen[path]; ok {
			w.twice(spelled, where, before)
			return
		}
		w.seen[path] = line
		w.leaf(known, spelled, where, value)
		return
	}
	if !w.sections[path] {
		w.unknown(path, spelled, where)
		return
	}
	switch {
	case isNull(value): // all keys of the section are commented out
	case value.Kind == yaml.MappingNode:
		w.mapping(spelled+".", value)
	default:
		w.loader.problems.add(Problem{Where: where, Key: spelled, Value: value.Value, Text: "is a section: keys are expected below it, not a value"})
	}
}

func (w *yamlWalk) leaf(known fileKey, spelled, where string, value *yaml.Node) {
	e := known.entry
	switch {
	case e.noFile:
		w.loader.refuse(e, value.Value, where, "cannot be set in the file; use the flag -"+e.flag+" or "+envName(e.key))
		return
	case isNull(value):
		w.loader.refuse(e, "", where, "has no value; remove the line to have the default; allowed: "+e.allowed())
		return
	case value.Kind != yaml.ScalarNode:
		w.loader.refuse(e, "", where, "needs a single value, not a list or a section; allowed: "+e.allowed())
		return
	}
	before, given := w.found[e.key]
	if given && before.text != value.Value {
		w.loader.warn("%s: %s is given under two names with different values; the one named %s counts", where, e.key, e.key)
	}
	wins := !given || before.alias // the existing server's code key beats the documentation's
	if wins {
		w.found[e.key] = foundKey{alias: known.alias, text: value.Value}
	}
	if known.alias {
		where += " (" + spelled + ")"
	}
	w.loader.apply(e, value.Value, origin{FromFile, where}, wins)
}

func (w *yamlWalk) twice(spelled, where string, before int) {
	w.loader.problems.add(Problem{Where: where, Key: spelled, Text: fmt.Sprintf("is given twice, first in line %d; remove one", before)})
}

func (w *yamlWalk) unknown(path, spelled, where string) {
	w.loader.problems.add(Problem{Where: where, Key: spelled, Text: "is not a known key" + w.loader.didYouMean(path)})
}

// deref follows an alias to its anchor. An alias cannot point at an alias.
func deref(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}
