package replication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"smss/codec"
	"smss/storage"
)

// The limits of fetching.
const (
	// pieceBytes is how much is asked for at once, and pieces how many of these
	// may be on their way.
	pieceBytes = 256 << 10
	pieces     = 16
	// fetchTries is how often a file is fetched in which something cannot be
	// read. If it is the same every time, it is so at the master, too.
	fetchTries = 3
)

// fetching brings the staged files to what the master has: first the binlog,
// then topic by topic.
type fetching struct {
	c     *Copy
	st    *storage.Staging
	link  *copyLink
	state *storage.CopyState

	logs  []*copiedLog // the first is the binlog
	queue []*copiedLog // still to be asked for
	sent  []part       // asked for, in order
}

// copiedLog is the binlog or a topic.
type copiedLog struct {
	meta  storage.TopicMeta // of a topic
	files []storage.CopiedFile
	have  []int64 // bytes that are there, for each file

	next   int   // which of the files is to be asked for next
	off    int64 // from where on
	out    int   // parts on their way
	asked  bool  // all of it was asked for
	gone   bool  // the topic was deleted
	oldest int64 // files before it are gone
	tries  int
	lastID int64
}

func (l *copiedLog) name() string { return l.meta.Name } // "" for the binlog

func (l *copiedLog) String() string {
	return storage.LogName{Topic: l.name()}.String()
}

// part is a piece on its way.
type part struct {
	log  *copiedLog
	file int // index
	off  int64
	size int64
}

// plan asks what there is to copy, and compares it with what is staged.
func (f *fetching) plan() error {
	binlog := &copiedLog{files: []storage.CopiedFile{{File: f.state.Binlog.File, Size: f.state.Binlog.Off}}}
	f.logs = []*copiedLog{binlog}
	err := f.link.topics(f.state.EventID, func(t *codec.CopyTopic) {
		name := string(t.Name)
		if !f.st.SafeName(name) {
			f.c.cfg.Events.note(fmt.Sprintf("topic %q of the master is left out: its name is not one that a directory can have", name), nil)
			return
		}
		log := f.logs[len(f.logs)-1]
		if log.name() != name || name == "" { // else the files of a topic go on
			log = &copiedLog{meta: storage.TopicMeta{
				Name: name, CreatedAtMs: t.CreatedAtMs, ExpireAtMs: t.ExpireAtMs, CreateEventID: t.CreateEventID,
				StateChangedAtMs: t.StateChangedAtMs, StateChangeEventID: t.StateChangeEventID,
			}}
			f.logs = append(f.logs, log)
		}
		for _, file := range t.Files {
			log.files = append(log.files, storage.CopiedFile{File: file.File, Size: file.Size})
		}
	})
	if err != nil {
		return err
	}
	if err := f.dropOthers(); err != nil {
		return err
	}
	done, total := int64(0), int64(0)
	for _, log := range f.logs {
		if err := f.compare(log); err != nil {
			return err
		}
		for i := range log.files {
			done += log.have[i]
			total += log.files[i].Size
		}
	}
	f.c.done.Store(done)
	f.c.total.Store(total)
	f.queue = slices.Clone(f.logs)
	return nil
}

// dropOthers removes topics that the master does not have any more.
func (f *fetching) dropOthers() error {
	staged, err := f.st.Topics()
	if err != nil {
		return err
	}
	wanted := make(map[string]bool, len(f.logs))
	for _, log := range f.logs {
		wanted[log.name()] = true
	}
	for _, name := range staged {
		if !wanted[name] {
			if err := f.st.Drop(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// compare finds what is staged of a log, and drops what does not belong to it.
func (f *fetching) compare(log *copiedLog) error {
	staged, err := f.st.Files(log.name())
	if err != nil {
		return err
	}
	sizes := make(map[int64]int64, len(staged))
	for _, file := range staged {
		i, wanted := slices.BinarySearchFunc(log.files, file.File, func(want storage.CopiedFile, id int64) int { return cmp.Compare(want.File, id) })
		if wanted && file.Size <= log.files[i].Size {
			sizes[file.File] = file.Size
			continue
		}
		if err := f.st.DropFile(log.name(), file.File); err != nil {
			return err
		}
	}
	log.have = make([]int64, len(log.files))
	for i, file := range log.files {
		size, there := sizes[file.File]
		log.have[i] = size
		if !there && file.Size == 0 {
			if err := f.st.Write(log.name(), file.File, 0, nil); err != nil {
				return err
			}
		}
	}
	log.rewind()
	return nil
}

// rewind lets asking begin with the first of the files.
func (l *copiedLog) rewind() {
	l.next, l.asked = 0, false
	if len(l.have) > 0 {
		l.off = l.have[0]
	}
}

// fetch copies what is missing and checks every log when it is whole.
func (f *fetching) fetch(ctx context.Context) error {
	for {
		for len(f.sent) < pieces {
			p, ok, err := f.choose()
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			q := codec.CopyRequest{
				Ask: codec.AskPiece, EventID: p.log.meta.CreateEventID, Topic: []byte(p.log.name()),
				File: p.log.files[p.file].File, Off: p.off, Max: p.size,
			}
			if err := f.link.ask(&q); err != nil {
				return err
			}
			f.sent = append(f.sent, p)
		}
		if len(f.sent) == 0 {
			return ctx.Err()
		}
		if err := f.receive(); err != nil {
			return err
		}
		f.c.tell(false)
	}
}

// choose returns the next piece to ask for. A log of which nothing is missing
// is checked on the way.
func (f *fetching) choose() (p part, ok bool, err error) {
	for len(f.queue) > 0 {
		log := f.queue[0]
		for ; !log.gone && log.next < len(log.files); log.turn() {
			file := log.files[log.next]
			if left := file.Size - log.off; left > 0 && file.File >= log.oldest {
				p = part{log, log.next, log.off, min(left, pieceBytes)}
				log.off += p.size
				log.out++
				return p, true, nil
			}
		}
		f.queue = f.queue[1:]
		log.asked = true
		if err := f.settle(log); err != nil {
			return p, false, err
		}
	}
	return p, false, nil
}

// turn goes on to the next file.
func (l *copiedLog) turn() {
	if l.next++; l.next < len(l.files) {
		l.off = l.have[l.next]
	}
}

// receive takes the answer for the oldest piece on its way.
func (f *fetching) receive() error {
	p := f.sent[0]
	var head codec.CopyPiece
	data, err := f.link.answer(&head)
	if err != nil {
		return err
	}
	f.sent = f.sent[1:]
	log := p.log
	log.out--
	file := log.files[p.file].File
	switch {
	case log.gone || file < log.oldest:
	case head.Gone:
		if err := f.vanished(log, head.Oldest); err != nil {
			return err
		}
	case int64(len(data)) != p.size:
		return fmt.Errorf("%v, file %d: %w", log, file, errCopyShort)
	default:
		if err := f.st.Write(log.name(), file, p.off, data); err != nil {
			return err
		}
		log.have[p.file] = p.off + p.size
		f.c.done.Add(p.size)
		f.c.progress = true
	}
	return f.settle(log)
}

// vanished drops what the master does not have any more: a topic, or its oldest
// files, so that no hole is left among them.
func (f *fetching) vanished(log *copiedLog, oldest int64) error {
	if log.name() == "" {
		return fmt.Errorf("retention has removed file %d of the master's binlog", f.state.Binlog.File)
	}
	lost, copied := int64(0), int64(0)
	for i, file := range log.files {
		if file.File >= log.oldest && (oldest == 0 || file.File < oldest) {
			lost += file.Size
			copied += log.have[i]
		}
	}
	f.c.total.Add(-lost)
	f.c.done.Add(-copied)
	if oldest == 0 {
		log.gone = true
		return f.st.Drop(log.name())
	}
	log.oldest = oldest
	for _, file := range log.files {
		if file.File < oldest {
			if err := f.st.DropFile(log.name(), file.File); err != nil {
				return err
			}
		}
	}
	return nil
}

// settle checks a log once all of it is there.
func (f *fetching) settle(log *copiedLog) error {
	if !log.asked || log.out > 0 || log.gone {
		return nil
	}
	if err := f.cutOldest(log); err != nil {
		return err
	}
	what := log.what()
	if good, ok := f.c.checked[log.name()]; ok && good.what == what {
		log.lastID = good.lastID
		return nil
	}
	staged, err := f.st.Files(log.name())
	if err != nil {
		return err
	}
	if !slices.Equal(staged, log.files) {
		return fmt.Errorf("%v: %v is staged, and the master has %v", log, staged, log.files)
	}
	return f.check(log, what)
}

// cutOldest takes the files that are gone out of the list.
func (f *fetching) cutOldest(log *copiedLog) error {
	n := 0
	for n < len(log.files) && log.files[n].File < log.oldest {
		n++
	}
	if n == 0 {
		return nil
	}
	log.files, log.have = log.files[n:], log.have[n:]
	if len(log.files) == 0 {
		// All that belongs to the copy is gone. The topic goes on where it does
		// at the master.
		log.files, log.have = []storage.CopiedFile{{File: log.oldest}}, []int64{0}
		return f.st.Write(log.name(), log.oldest, 0, nil)
	}
	return nil
}

// what names the log's life and files.
func (l *copiedLog) what() string { return fmt.Sprint(l.meta.CreateEventID, l.files) }

// check reads a log and fetches files again in which something cannot be read.
func (f *fetching) check(log *copiedLog, what string) error {
	checked, err := f.st.Check(log.name())
	if err != nil {
		return err
	}
	if len(checked.Bad) > 0 {
		if log.tries++; log.tries < fetchTries {
			return f.again(log, checked.Bad)
		}
		f.c.cfg.Events.note(fmt.Sprintf("%v: damaged at %v at the master, too, as it was the same %d times; it is kept as it is", log, checked.At, fetchTries), errDamagedThere)
	}
	if log.name() == "" && (checked.LastID != f.state.EventID || checked.End != f.state.Binlog) {
		return fmt.Errorf("the binlog's copy ends at %v with event %d instead of at %v with %d", checked.End, checked.LastID, f.state.Binlog, f.state.EventID)
	}
	if checked.LastID > f.state.EventID {
		return fmt.Errorf("%v holds event %d, later than that of the copy, %d", log, checked.LastID, f.state.EventID)
	}
	if err := f.st.Sync(log.name()); err != nil {
		return err
	}
	log.lastID = checked.LastID
	f.c.checked[log.name()] = checkedLog{what, checked.LastID}
	return nil
}

var errDamagedThere = errors.New("stored data is damaged")

// again has files fetched again.
func (f *fetching) again(log *copiedLog, bad []int64) error {
	for i, file := range log.files {
		if slices.Contains(bad, file.File) {
			if err := f.st.DropFile(log.name(), file.File); err != nil {
				return err
			}
			f.c.done.Add(-log.have[i])
			log.have[i] = 0
		}
	}
	f.c.cfg.Events.note(fmt.Sprintf("%v: files %v are damaged and are fetched again", log, bad), nil)
	log.rewind()
	f.queue = append(f.queue, log)
	return nil
}

// end returns where a log ends.
func (l *copiedLog) end() storage.Pos {
	n := len(l.files)
	if n == 0 {
		return storage.Pos{}
	}
	return storage.Pos{File: l.files[n-1].File, Off: l.files[n-1].Size}
}

// topics returns the topics that are there.
func (f *fetching) topics() []storage.CopiedTopic {
	var out []storage.CopiedTopic
	for _, log := range f.logs[1:] {
		if !log.gone {
			out = append(out, storage.CopiedTopic{Meta: log.meta, End: log.end(), LastID: log.lastID})
		}
	}
	return out
}
