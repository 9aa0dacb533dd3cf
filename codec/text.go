package codec

import (
	"unicode"
	"unicode/utf8"
)

// validText reports whether b is UTF-8 whose runes are neither controls (line
// and paragraph separators and bidirectional overrides among them, since they
// forge log lines as well) nor refused by bad.
func validText(b []byte, bad func(rune) bool) bool {
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		if r == utf8.RuneError && size <= 1 {
			return false
		}
		if unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp, unicode.Bidi_Control) || bad(r) {
			return false
		}
		b = b[size:]
	}
	return true
}
