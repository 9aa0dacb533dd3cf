package codec

import "encoding/binary"

// BinlogRecord is one write event: a record of the binlog, which is also what
// replication sends. Topic and Payload alias the input of ParseBinlogRecord.
type BinlogRecord struct {
	WrittenAtMs  int64
	Command      Command // Pub, CreateTopic, DeleteTopic, Delay or DelayApply
	EventID      int64   // of the first message where the event has several
	ReceivedAtMs int64
	Topic        []byte
	Payload      []byte
	// Checksummed is false for a record that the existing server wrote.
	Checksummed bool
}

const binlogFields = 6

// delayPrefixSize is what stands before the messages in the payload of Delay
// and DelayApply: trigger time and the id of the DELAY event.
const delayPrefixSize = 16

// AppendBinlogRecord appends r with its checksum; tail follows r.Payload as
// part of the payload.
func AppendBinlogRecord(dst []byte, r *BinlogRecord, tail []byte) []byte {
	var w LineWriter
	return w.AppendBinlogRecord(dst, r, tail)
}

// ParseBinlogRecord reads the record at the start of b.
//
//   - nil: the record takes b[:size].
//   - ErrRecordShort: it takes at least size bytes; size never passes
//     maxPayload + 1 + MaxRecordLine + 4.
//   - an error that wraps ErrRecordDamaged otherwise, with size 0.
func ParseBinlogRecord(b []byte, maxPayload int, r *BinlogRecord) (size int, err error) {
	var l Line
	lineSize, err := ParseLine(b, binlogFields, &l)
	if err != nil {
		return lineSize, err
	}
	var ok [5]bool
	var command, payloadLen int64
	r.WrittenAtMs, ok[0] = l.Decimal(0)
	command, ok[1] = l.Decimal(1)
	r.EventID, ok[2] = l.Decimal(2)
	r.ReceivedAtMs, ok[3] = l.Decimal(3)
	payloadLen, ok[4] = l.Decimal(5)
	if ok != [5]bool{true, true, true, true, true} || command < 0 || command > 255 {
		return 0, ErrFields
	}
	if payloadLen < 0 || payloadLen == 1 || payloadLen > int64(maxPayload)+1 {
		return 0, ErrFields
	}
	r.Command, r.Topic, r.Checksummed = Command(command), l.Field(4), l.Checksummed()
	r.Payload, size, err = l.Finish(b, lineSize, payloadLen)
	if err != nil {
		return size, err
	}
	if !r.validPayload() {
		return 0, errPayloadCommand
	}
	return size, nil
}

// validPayload reports whether the payload has the size that its command
// fixes. Messages themselves are not walked: that is Messages.
func (r *BinlogRecord) validPayload() bool {
	switch r.Command {
	case CreateTopic:
		return len(r.Payload) == 8
	case DeleteTopic:
		return len(r.Payload) == 0
	case Pub:
		return len(r.Payload) > 0
	case Delay, DelayApply:
		return len(r.Payload) > delayPrefixSize
	}
	return false
}

// Messages returns the messages of a Pub, Delay or DelayApply record, in wire
// form back to back.
func (r *BinlogRecord) Messages() []byte {
	switch r.Command {
	case Pub:
		return r.Payload
	case Delay, DelayApply:
		return r.Payload[delayPrefixSize:]
	}
	return nil
}

// IDs returns how many event ids the record takes, beginning with EventID.
// Records of Pub and DelayApply take one for each message, others one.
func (r *BinlogRecord) IDs() int64 {
	if r.Command == Pub || r.Command == DelayApply {
		if n, ok := CountStored(r.Messages()); ok {
			return int64(n)
		}
	}
	return 1
}

// ExpireAtMs returns the end of life of a CreateTopic record, 0 = for ever.
func (r *BinlogRecord) ExpireAtMs() int64 {
	return int64(binary.LittleEndian.Uint64(r.Payload))
}

// DelayKey returns what identifies a delayed message: its trigger time in
// Unix ms and the id of the DELAY event. For Delay and DelayApply records.
func (r *BinlogRecord) DelayKey() (triggerAtMs, eventID int64) {
	return ParseDelayPrefix(r.Payload)
}

// AppendDelayPrefix appends what stands before the messages of a Delay or
// DelayApply payload.
func AppendDelayPrefix(dst []byte, triggerAtMs, eventID int64) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(triggerAtMs))
	return binary.LittleEndian.AppendUint64(dst, uint64(eventID))
}

// ParseDelayPrefix reads what AppendDelayPrefix wrote; payload has at least
// 16 bytes.
func ParseDelayPrefix(payload []byte) (triggerAtMs, eventID int64) {
	return int64(binary.LittleEndian.Uint64(payload)), int64(binary.LittleEndian.Uint64(payload[8:]))
}

// DelayMessages returns the messages behind the prefix, or false where the
// payload is too short to hold any.
func DelayMessages(payload []byte) ([]byte, bool) {
	if len(payload) <= delayPrefixSize {
		return nil, false
	}
	return payload[delayPrefixSize:], true
}
