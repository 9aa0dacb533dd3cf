package storage

import (
	"bytes"

	"smss/codec"
)

// FindDelay looks for the DELAY record of k in the binlog, where the metadata
// cannot give its payload. It reads up to a whole file and is for any
// goroutine but the writer's and the event loops'.
func (s *Store) FindDelay(k DelayKey) (payload []byte, found bool, err error) {
	o := Offline{fsys: s.fsys, path: s.path}
	err = o.Walk(o.Binlog(), WalkStart{EventID: k.EventID}, WalkSeen{Entry: func(e *Entry) error {
		rec := e.Binlog
		if e.EventID > k.EventID {
			return errStop
		}
		if rec.Command != codec.Delay || string(rec.Topic) != k.Topic {
			return nil
		}
		if trigger, id := rec.DelayKey(); trigger == k.TriggerAtMs && id == k.EventID {
			payload, found = bytes.Clone(rec.Payload), true
			return errStop
		}
		return nil
	}})
	return payload, found, err
}
