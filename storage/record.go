package storage

import "smss/codec"

// TopicRecord is one message as it lies in a topic's log. Message aliases the
// input of ParseTopicRecord.
type TopicRecord struct {
	StoredAtMs int64
	EventID    int64
	SavedAtMs  int64
	Index      int64 // within its batch
	Source     Pos   // of the binlog record that it comes from
	Message    []byte
	// Checksummed is false for a record that the existing server wrote.
	Checksummed bool
}

const topicFields = 7

// maxStoredPayload bounds what a stored record may claim. It is no setting: a
// record stays readable when the limit for new ones is lowered. What is read
// into memory is bounded by the file as well.
const maxStoredPayload = 1<<30 + 16

// AppendTopicRecord appends r with its checksum.
func AppendTopicRecord(dst []byte, r *TopicRecord) []byte {
	var w codec.LineWriter
	return appendTopicRecord(dst, &w, r)
}

// appendTopicRecord appends r by the writer of its log, or of a batch of logs.
func appendTopicRecord(dst []byte, w *codec.LineWriter, r *TopicRecord) []byte {
	at := len(dst)
	dst = codec.BeginRecord(dst)
	dst = w.AppendField(dst, 0, r.StoredAtMs)
	dst = w.AppendField(dst, 1, r.EventID)
	dst = w.AppendField(dst, 2, r.SavedAtMs)
	dst = w.AppendField(dst, 3, int64(len(r.Message)+1))
	dst = w.AppendField(dst, 4, r.Index)
	dst = w.AppendField(dst, 5, r.Source.File)
	dst = codec.AppendField(dst, r.Source.Off) // every record has another
	return codec.FinishRecord(dst, at, r.Message, nil)
}

// ParseTopicRecord reads the record at the start of b; its results are those
// of codec.ParseBinlogRecord.
func ParseTopicRecord(b []byte, maxMessage int, r *TopicRecord) (size int, err error) {
	var l codec.Line
	lineSize, err := codec.ParseLine(b, topicFields, &l)
	if err != nil {
		return lineSize, err
	}
	var v [topicFields]int64
	for i := range v {
		var ok bool
		if v[i], ok = l.Decimal(i); !ok {
			return 0, codec.ErrFields
		}
	}
	payloadLen := v[3]
	if payloadLen <= codec.MessageOverhead+1 || payloadLen > int64(maxMessage)+1 {
		return 0, codec.ErrFields
	}
	r.StoredAtMs, r.EventID, r.SavedAtMs, r.Index = v[0], v[1], v[2], v[4]
	r.Source = Pos{v[5], v[6]}
	r.Checksummed = l.Checksummed()
	r.Message, size, err = l.Finish(b, lineSize, payloadLen)
	if err != nil {
		return size, err
	}
	if n, ok := codec.MessageSize(r.Message); !ok || n != len(r.Message) {
		return 0, codec.ErrFields
	}
	return size, nil
}
