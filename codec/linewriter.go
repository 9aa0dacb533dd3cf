package codec

import "hash/crc32"

// LineWriter writes the records of one log. It remembers the text of each
// column's last value, because the records of a log are much alike: those of a
// batch have its time, and an event id is most often the one after the last. To
// format every number anew would be a twelfth of what a publish costs the
// server. The zero value is ready; it is not safe for concurrent use.
type LineWriter struct {
	columns [maxLineFields]column
}

type column struct {
	value int64
	len   int8 // of text; 0: there was no value yet
	text  [maxDecimal + 1]byte
}

// maxDecimal is the length of the longest number, with its sign.
const maxDecimal = 20

// AppendField appends a decimal field and its tab, as the function of this
// name does. column tells the fields of a line apart, 0 being the first.
func (w *LineWriter) AppendField(dst []byte, column int, v int64) []byte {
	c := &w.columns[column]
	if c.len == 0 || (v != c.value && !c.increment(v)) {
		c.len = int8(len(AppendField(c.text[:0], v)))
	}
	c.value = v
	return append(dst, c.text[:c.len]...)
}

// increment makes the text that of v if that takes changing the last digit
// only.
func (c *column) increment(v int64) bool {
	last := &c.text[c.len-2]
	if v <= 0 || v-1 != c.value || *last == '9' {
		return false
	}
	*last++
	return true
}

// AppendBinlogRecord appends r with its checksum; tail follows r.Payload as
// part of the payload.
func (w *LineWriter) AppendBinlogRecord(dst []byte, r *BinlogRecord, tail []byte) []byte {
	at := len(dst)
	dst = BeginRecord(dst)
	dst = w.AppendField(dst, 0, r.WrittenAtMs)
	dst = w.AppendField(dst, 1, int64(r.Command))
	dst = w.AppendField(dst, 2, r.EventID)
	dst = w.AppendField(dst, 3, r.ReceivedAtMs)
	dst = append(dst, r.Topic...)
	dst = append(dst, '\t')
	n := int64(len(r.Payload) + len(tail))
	if n > 0 {
		n++
	}
	dst = w.AppendField(dst, 5, n)
	return FinishRecord(dst, at, r.Payload, tail)
}

// checksum continues the checksum sum with b. Most records have nothing in
// their payload's second part, and to find that out costs the library as much
// as twenty bytes.
func checksum(sum uint32, b []byte) uint32 {
	if len(b) == 0 {
		return sum
	}
	return crc32.Update(sum, castagnoli, b)
}
