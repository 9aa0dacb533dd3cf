package replication

import (
	"errors"
	"testing"

	"smss/codec"
	"smss/storage"
)

func TestCompareHistories(t *testing.T) {
	a, b, c := codec.Epoch{ID: "a", First: 1}, codec.Epoch{ID: "b", First: 11}, codec.Epoch{ID: "c", First: 11}
	list := func(e ...codec.Epoch) []codec.Epoch { return e }
	for name, tt := range map[string]struct {
		master, slave         []codec.Epoch
		masterLast, slaveLast int64
		parted                int64 // -1 = no, -2 = the master is behind
	}{
		"an empty slave":                        {list(a, b), list(c), 20, 0, -1},
		"existing servers":                      {nil, nil, 20, 10, -1},
		"existing servers, master empty":        {nil, nil, 0, 10, -2},
		"the same reign":                        {list(a), list(a), 20, 10, -1},
		"the same reign and place":              {list(a), list(a), 20, 20, -1},
		"the master lost its data":              {list(codec.Epoch{ID: "x", First: 1}), list(a), 0, 20, 0},
		"the master lost its tail":              {list(a), list(a), 10, 12, -2},
		"a slave of before there were epochs":   {list(b), nil, 20, 10, -1},
		"with events of its own since":          {list(b), nil, 20, 12, 10},
		"a new reign that the slave has not":    {list(a, b), list(a), 20, 10, -1},
		"the old master wrote on":               {list(a, b), list(a), 20, 15, 10},
		"both were promoted":                    {list(a, b), list(a, c), 20, 20, 10},
		"both were promoted, one wrote nothing": {list(a, b), list(a, c), 20, 10, -1},
		"the slave was promoted, the other not": {list(a), list(a, b), 30, 20, 10},
		"promoted behind the master":            {list(a), list(a, b), 9, 20, 9},
	} {
		err := compare(tt.master, tt.slave, tt.masterLast, tt.slaveLast)
		var parted *PartedError
		var behind *BehindError
		switch {
		case tt.parted == -1 && err != nil,
			tt.parted == -2 && !errors.As(err, &behind),
			tt.parted >= 0 && (!errors.As(err, &parted) || parted.After != tt.parted):
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReign(t *testing.T) {
	h := storage.History{Slave: true, Epochs: []codec.Epoch{{ID: "a", First: 1}, {ID: "announced", First: 50}}}
	before := h.Epochs[1]
	got := reign(h, 20)
	if len(got.Epochs) != 2 || got.Epochs[0].ID != "a" || got.Epochs[1].First != 21 || got.Slave {
		t.Errorf("%+v", got)
	}
	if h.Epochs[1] != before {
		t.Error("the old list was changed")
	}
	for i := range int64(maxEpochs + 5) {
		got = reign(got, 100+i)
	}
	if len(got.Epochs) != maxEpochs {
		t.Errorf("%d epochs", len(got.Epochs))
	}
}
