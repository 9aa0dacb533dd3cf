package storage

import (
	"strings"
	"testing"

	"smss/codec"
)

// A small file is read whole or not at all, and none is written that could not
// be read again. The longest history is one.
func TestSmallFiles(t *testing.T) {
	m := inMemory(t, 1000)
	fsys, name := m.fs(), m.opt.Path+"/small"
	if err := writeSmallFile(fsys, name, make([]byte, smallFileMax+1)); err == nil || m.there(name) {
		t.Errorf("too long a one was written: %v", err)
	}
	long := []byte(strings.Repeat("x", smallFileMax))
	must(t, writeSmallFile(fsys, name, long))
	if b, err := readSmallFile(fsys, name); err != nil || string(b) != string(long) {
		t.Errorf("%d bytes come back, %v", len(b), err)
	}
	m.resize(name, smallFileMax+1)
	if b, err := readSmallFile(fsys, name); err == nil {
		t.Errorf("%d bytes of one that is longer were taken for all", len(b))
	}
	h := History{Node: NewEpochID()}
	for range 500 { // as many as package replication keeps
		h.Epochs = append(h.Epochs, codec.Epoch{ID: NewEpochID(), First: 1<<63 - 1})
	}
	must(t, m.s.SaveHistory(h))
	if _, err := readHistory(fsys, m.opt.Path); err != nil {
		t.Error(err)
	}
}
