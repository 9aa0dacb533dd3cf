package cli

import (
	"bufio"
	"encoding/json"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"smss/client"
)

// writeFunc prints one message.
type writeFunc func(*bufio.Writer, *client.Delivery) error

var formats = map[string]writeFunc{"text": writeText, "json": writeJSON, "raw": writeRaw}

func writeText(w *bufio.Writer, d *client.Delivery) error {
	line := strconv.AppendInt(nil, d.EventID, 10)
	line = append(line, '\t')
	line = append(line, printable(string(d.Body))...)
	before := "\t["
	for _, h := range d.Headers {
		line = append(line, before...)
		before = " "
		line = append(line, printable(h.Key)...)
		line = append(line, '=')
		line = append(line, printable(h.Value)...)
	}
	if len(d.Headers) > 0 {
		line = append(line, ']')
	}
	_, err := w.Write(append(line, '\n'))
	return err
}

// jsonMessage is one line of the json format. Headers keep their order and
// their duplicates.
type jsonMessage struct {
	EventID    int64        `json:"eventId"`
	StoredAt   string       `json:"storedAt"`
	Headers    []jsonHeader `json:"headers,omitempty"`
	Body       *string      `json:"body,omitempty"`
	BodyBase64 []byte       `json:"bodyBase64,omitempty"`
}

type jsonHeader struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

func writeJSON(w *bufio.Writer, d *client.Delivery) error {
	m := jsonMessage{EventID: d.EventID, StoredAt: d.StoredAt.UTC().Format("2006-01-02T15:04:05.000Z07:00")}
	for _, h := range d.Headers {
		m.Headers = append(m.Headers, jsonHeader(h))
	}
	if body := string(d.Body); utf8.ValidString(body) {
		m.Body = &body
	} else {
		m.BodyBase64 = d.Body
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(&m)
}

func writeRaw(w *bufio.Writer, d *client.Delivery) error {
	if _, err := w.Write(d.Body); err != nil {
		return err
	}
	return w.WriteByte('\n')
}

// printable escapes what is not to reach a terminal or would break a line:
// control characters, direction marks, and bytes that are not UTF-8.
func printable(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return r == utf8.RuneError || !strconv.IsPrint(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		if part := s[:size]; strconv.IsPrint(r) && !(r == utf8.RuneError && size == 1) {
			b.WriteString(part)
		} else {
			quoted := strconv.Quote(part)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		s = s[size:]
	}
	return b.String()
}

// timestamp is a time as all output has it.
func timestamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
