package test

import (
	"encoding/binary"
	"time"
)

// Commands.
const (
	cmdSub       = 0
	cmdPub       = 1
	cmdCreate    = 2
	cmdDelete    = 3
	cmdDelay     = 16
	cmdAlive     = 17
	cmdReplica   = 64
	cmdCopy      = 70
	cmdInfo      = 65
	cmdValidList = 99
	cmdList      = 100
)

var le = binary.LittleEndian

// request lays out header, topic name, trace id and body. fields are the
// header's bytes from 3 on.
func request(cmd byte, topic, trace string, fields, body []byte) []byte {
	b := make([]byte, 20, 20+len(topic)+len(trace)+len(body))
	b[0] = cmd
	le.PutUint16(b[1:], uint16(len(topic)))
	copy(b[3:19], fields)
	b[19] = byte(len(trace))
	b = append(b, topic...)
	b = append(b, trace...)
	return append(b, body...)
}

func u32(n int) []byte   { return le.AppendUint32(nil, uint32(n)) }
func i64(n int64) []byte { return le.AppendUint64(nil, uint64(n)) }

// message is one message of a payload.
func message(body string, headers ...[2]string) []byte {
	var content []byte
	for _, h := range headers {
		for _, s := range h {
			content = append(content, u32(len(s))...)
			content = append(content, s...)
		}
	}
	content = append(content, body...)
	b := append(u32(len(content)), u32(len(headers))...)
	return append(b, content...)
}

// batch puts messages without headers back to back.
func batch(bodies ...string) []byte {
	var b []byte
	for _, s := range bodies {
		b = append(b, message(s)...)
	}
	return b
}

func reqPub(topic string, payload []byte) []byte {
	return request(cmdPub, topic, "", u32(len(payload)), payload)
}

func reqDelay(topic string, delay int64, payload []byte) []byte {
	return request(cmdDelay, topic, "", u32(len(payload)), append(i64(delay), payload...))
}

func reqCreate(topic string, expireAt int64) []byte {
	return request(cmdCreate, topic, "", nil, i64(expireAt))
}

func reqDelete(topic string) []byte { return request(cmdDelete, topic, "", nil, nil) }
func reqAlive(trace string) []byte  { return request(cmdAlive, "", trace, nil, nil) }
func reqInfo(topic string) []byte   { return request(cmdInfo, topic, "", nil, nil) }
func reqList() []byte               { return request(cmdList, "", "", nil, nil) }

func reqValidList(id int64) []byte { return request(cmdValidList, "", "", nil, i64(id)) }

// sub is a SUB request.
type sub struct {
	topic, who string
	from       int64
	batch      byte
	ack        time.Duration // sent when not 0
}

func (s sub) request() []byte {
	fields := []byte{s.batch, 0}
	body := i64(s.from)
	if s.ack != 0 {
		fields[1] = 1
		body = append(body, i64(int64(s.ack))...)
	}
	body = append(body, u32(len(s.who))...)
	return request(cmdSub, s.topic, "", fields, append(body, s.who...))
}
