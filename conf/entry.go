package conf

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// entry is one row of the table. The type of the pointer that field returns
// (*int, *int64, *bool, *string) decides how the text of a value is read.
type entry struct {
	key     string   // canonical, dotted; the spelling of the existing server's code
	aliases []string // other spellings accepted in the file
	flag    string   // command line flag, "" = none
	noFile  bool     // not a key of the file
	def     string   // default as one would write it; "" = zero value
	absent  string   // what stands for the value while nobody gave one
	unit    string
	min     int64 // of a number
	max     int64
	oneOf   []string           // of a word
	syntax  func(string) error // of any other text
	shape   string             // syntax in words
	meaning string
	field   func(*Config) any
}

const unitBytes = "bytes"

// read turns text into int64, bool or string and checks it against the range.
func (e *entry) read(text string) (any, error) {
	value, err := e.parse(text)
	if err != nil {
		return nil, err
	}
	return value, e.check(value)
}

func (e *entry) parse(text string) (any, error) {
	switch e.field(new(Config)).(type) {
	case *bool:
		return parseBool(text)
	case *string:
		return text, nil
	default:
		if e.unit == unitBytes {
			return parseSize(text)
		}
		return parseWhole(text)
	}
}

// check compares a value with the row's range.
func (e *entry) check(value any) error {
	switch v := value.(type) {
	case int64:
		if v < e.min || v > e.max {
			return errors.New("is out of range")
		}
	case string:
		return e.checkText(v)
	}
	return nil
}

func (e *entry) checkText(v string) error {
	if strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return errors.New("contains a control character")
	}
	if e.syntax != nil {
		return e.syntax(v)
	}
	for _, word := range e.oneOf {
		if v == word {
			return nil
		}
	}
	return errors.New("is not one of the words known here")
}

// assign stores a value that check has passed.
func (e *entry) assign(c *Config, value any) {
	switch p := e.field(c).(type) {
	case *int:
		*p = int(value.(int64))
	case *int64:
		*p = value.(int64)
	case *bool:
		*p = value.(bool)
	case *string:
		*p = value.(string)
	}
}

func (e *entry) current(c *Config) any {
	switch p := e.field(c).(type) {
	case *int:
		return int64(*p)
	case *int64:
		return *p
	case *bool:
		return *p
	case *string:
		return *p
	}
	return nil
}

// format writes a value so that read understands it.
func (e *entry) format(value any) string {
	if v, ok := value.(int64); ok && e.unit == unitBytes {
		return formatSize(v)
	}
	return fmt.Sprint(value)
}

// allowed describes the range for a person.
func (e *entry) allowed() string {
	switch e.field(new(Config)).(type) {
	case *bool:
		return "true or false"
	case *string:
		if len(e.oneOf) > 0 {
			return strings.Join(e.oneOf, ", ")
		}
		return e.shape
	}
	span := e.format(e.min) + ".." + e.format(e.max)
	if e.unit != "" && !strings.HasSuffix(span, "iB") { // "64..256GiB" says its unit
		span += " " + e.unit
	}
	return span
}

func parseBool(text string) (bool, error) {
	switch strings.ToLower(strings.TrimSpace(text)) {
	case "true", "1":
		return true, nil
	case "false", "0":
		return false, nil
	}
	// yes and on are refused because the existing server reads them as false.
	return false, errors.New("is not true or false")
}

// parseWhole takes decimal digits only: YAML reads 010 as eight and 1_000 as a
// thousand, other readers do not, and a limit should not depend on that.
func parseWhole(text string) (int64, error) {
	text = strings.TrimSpace(text)
	digits := strings.TrimPrefix(text, "-")
	if digits == "" || strings.Trim(digits, "0123456789") != "" || (len(digits) > 1 && digits[0] == '0') {
		return 0, errors.New("is not a plain whole number")
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, errors.New("is out of range")
	}
	return v, nil
}

// parseSize is parseWhole with an optional binary suffix. KB and MB are refused
// because half of the world reads them as powers of ten.
func parseSize(text string) (int64, error) {
	text = strings.TrimSpace(text)
	number := strings.TrimRight(text, "kKmMgGiIbB")
	shift, ok := sizeShift(text[len(number):])
	if !ok {
		return 0, errors.New("has an unknown size suffix (K, M, G, KiB, MiB and GiB are known)")
	}
	v, err := parseWhole(number)
	if err != nil {
		return 0, err
	}
	if v > math.MaxInt64>>shift || v < math.MinInt64>>shift {
		return 0, errors.New("is out of range")
	}
	return v << shift, nil
}

func sizeShift(suffix string) (shift uint, ok bool) {
	switch strings.ToLower(suffix) {
	case "":
		return 0, true
	case "k", "kib":
		return 10, true
	case "m", "mib":
		return 20, true
	case "g", "gib":
		return 30, true
	}
	return 0, false
}

func formatSize(v int64) string {
	for _, u := range [...]struct {
		suffix string
		shift  uint
	}{{"GiB", 30}, {"MiB", 20}, {"KiB", 10}} {
		if v != 0 && v%(1<<u.shift) == 0 {
			return strconv.FormatInt(v>>u.shift, 10) + u.suffix
		}
	}
	return strconv.FormatInt(v, 10)
}
