package replication

import (
	"fmt"
	"slices"

	"smss/codec"
	"smss/engine"
	"smss/storage"
)

// PartedError says that two histories have different events under the same
// ids, behind event After.
type PartedError struct {
	After int64 // the last event that both have
	Slave int64 // the last event of the one that wants to follow
}

func (e *PartedError) Error() string {
	return fmt.Sprintf("histories part after event %d: the slave has its own events up to %d, which this master does not have; copy it anew with smss reseed", e.After, e.Slave)
}

// BehindError says that the slave has events that its master does not have yet.
type BehindError struct{ Master, Slave int64 }

func (e *BehindError) Error() string {
	return fmt.Sprintf("the master is behind: its last event is %d, the slave's %d; is it the right one, and has it its data?", e.Master, e.Slave)
}

// compare reports whether a slave that has the epochs and the last event of
// slave may go on behind master. Both lists hold the events before their first
// epoch under no name: those are believed to be the same.
func compare(master, slave []codec.Epoch, masterLast, slaveLast int64) error {
	if slaveLast == 0 {
		return nil
	}
	slave = reigned(slave, slaveLast)
	same := 0
	for same < len(master) && same < len(slave) && master[same] == slave[same] {
		same++
	}
	// How far each goes in the last reign that both know.
	masterEnd, slaveEnd := masterLast, slaveLast
	if same < len(master) {
		masterEnd = min(masterEnd, master[same].First-1)
	}
	if same < len(slave) {
		slaveEnd = min(slaveEnd, slave[same].First-1)
	}
	switch {
	case slaveEnd < slaveLast:
		return &PartedError{min(masterEnd, slaveEnd), slaveLast}
	case slaveLast <= masterEnd:
		return nil
	case same < len(master):
		return &PartedError{masterEnd, slaveLast}
	}
	return &BehindError{masterLast, slaveLast}
}

// reigned leaves out epochs that were announced but have no event yet.
func reigned(epochs []codec.Epoch, last int64) []codec.Epoch {
	for len(epochs) > 0 && epochs[len(epochs)-1].First > last {
		epochs = epochs[:len(epochs)-1]
	}
	return epochs
}

// maxEpochs is how many reigns are remembered; older ones become part of what
// lies before the first. They fit into a greeting, and into what is read of a small file.
const maxEpochs = 500

// reign returns the history with a new epoch that begins behind last.
func reign(h storage.History, last int64) storage.History {
	h.Epochs = append(slices.Clone(reigned(h.Epochs, last)), codec.Epoch{ID: storage.NewEpochID(), First: last + 1})
	if n := len(h.Epochs) - maxEpochs; n > 0 {
		h.Epochs = h.Epochs[n:]
	}
	h.Slave = false
	return h
}

// epochOf returns the name of the current reign, "" for an existing server's.
func epochOf(h *storage.History) string {
	if n := len(h.Epochs); n > 0 {
		return h.Epochs[n-1].ID
	}
	return ""
}

// refusal makes an error the answer to a slave.
func refusal(err error) error { return &engine.Refusal{Text: err.Error()} }
