package conf

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// maxProblems bounds the list: a megabyte of nonsense must not become many
// megabytes of complaint.
const maxProblems = 100

// Problem is one thing that keeps a configuration from being used.
type Problem struct {
	Where string // file:line, "environment NAME", "flag -name" or "command line"
	Key   string // canonical key, or the key as found when it is unknown; "" = none
	Value string // as written; "" = none
	Text  string // what is wrong, what is allowed, what to do
}

// String is the problem on one line, whatever characters the key or value has.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.Where)
	if p.Key != "" {
		b.WriteString(": " + shorten(p.Key))
	}
	if p.Value != "" {
		b.WriteString(" = " + strconv.Quote(shorten(p.Value)))
	}
	b.WriteString(": " + p.Text)
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, b.String())
}

// Error is every problem found, in the order file, environment, flags, relations.
type Error struct {
	Problems []Problem
	More     int // problems beyond the first 100, counted only
}

// Error lists one problem a line.
func (e *Error) Error() string {
	lines := make([]string, 0, len(e.Problems)+1)
	for _, p := range e.Problems {
		lines = append(lines, p.String())
	}
	if e.More > 0 {
		lines = append(lines, fmt.Sprintf("and %d more problems", e.More))
	}
	return strings.Join(lines, "\n")
}

func (e *Error) add(p Problem) {
	if e.full() {
		e.More++
		return
	}
	e.Problems = append(e.Problems, p)
}

func (e *Error) full() bool { return len(e.Problems) >= maxProblems }

// orNil avoids the typed nil that a plain return of e would be.
func (e *Error) orNil() error {
	if len(e.Problems) == 0 {
		return nil
	}
	return e
}

// shorten keeps a line readable whatever was pasted into a value or key.
func shorten(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// suggest names the candidate a mistyped name was probably meant to be, "" when
// none is near. Candidates are compared without regard to case.
func suggest(name string, candidates []string) string {
	name = strings.ToLower(name)
	if len(name) > 64 {
		return ""
	}
	best, bestDistance := "", 1+max(2, min(3, len(name)/4)) // 2: swapped letters
	for _, candidate := range candidates {
		if d := distance(name, strings.ToLower(candidate)); d < bestDistance {
			best, bestDistance = candidate, d
		}
	}
	return best
}

// distance is the number of single-byte insertions, removals and replacements
// between a and b (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			above := row[j+1]
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			row[j+1] = min(cost, above+1, row[j]+1)
			diagonal = above
		}
	}
	return row[len(b)]
}
