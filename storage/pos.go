package storage

import "fmt"

// Pos is a place in a log: a file's number and an offset in it. The place
// behind the last record of a full file is (next file, 0).
type Pos struct {
	File int64 `json:"file"`
	Off  int64 `json:"off"`
}

// The ranges that Pack holds. A log that would need more refuses to grow.
const (
	maxFileID  = 1<<24 - 1
	maxFileOff = 1<<40 - 1
)

// Before reports whether p lies before q.
func (p Pos) Before(q Pos) bool {
	return p.File < q.File || (p.File == q.File && p.Off < q.Off)
}

// String returns file:offset, for messages.
func (p Pos) String() string { return fmt.Sprintf("%d:%d", p.File, p.Off) }

// Pack returns p as one word that orders as Before does, so that an end can be
// published by a single atomic store.
func (p Pos) Pack() uint64 { return uint64(p.File)<<40 | uint64(p.Off) }

// UnpackPos is the inverse of Pack.
func UnpackPos(v uint64) Pos { return Pos{int64(v >> 40), int64(v & maxFileOff)} }
