package replication

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"smss/codec"
	"smss/storage"
)

// copyLink is a connection over which a full copy is read. One goroutine uses
// it: requests are small, so that a few may be on their way before the first
// answer is read.
type copyLink struct {
	link *link
	stop func() bool
	buf  []byte
	out  []byte
}

// copyDialer connects to a master.
type copyDialer struct {
	dial    dialer
	silence time.Duration
}

func (d *copyDialer) open(ctx context.Context, address string) (*copyLink, error) {
	conn, err := d.dial(ctx, address)
	if err != nil {
		return nil, err
	}
	l := &copyLink{link: newLink(conn, d.silence)}
	l.stop = context.AfterFunc(ctx, func() { conn.Close() })
	return l, nil
}

func (l *copyLink) close() {
	l.stop()
	l.link.conn.Close()
}

// ask sends a request.
func (l *copyLink) ask(q *codec.CopyRequest) (err error) {
	if l.out, err = codec.AppendCopy(l.out[:0], traceID, q); err != nil {
		return err
	}
	return l.link.send(l.out)
}

// answer reads the next answer into head. The bytes behind it are valid until
// the next call.
func (l *copyLink) answer(head any) ([]byte, error) {
	b, err := l.link.answer(codec.Copy, l.buf[:0], codec.MaxCopyAnswer)
	if err != nil {
		var refused *RefusedError
		if errors.As(err, &refused) && refused.Text == codec.TextUnknownCommand {
			return nil, errNoCopies
		}
		return nil, err
	}
	l.buf = b
	return codec.ParseCopyAnswer(b, head)
}

func (l *copyLink) call(q *codec.CopyRequest, head any) ([]byte, error) {
	if err := l.ask(q); err != nil {
		return nil, err
	}
	return l.answer(head)
}

var errNoCopies = errors.New("the master cannot be copied: it is an existing server or an older one, a slave that takes no slaves of its own (replication.chain), or has replication.maxSlaves 0")

// start asks where a copy begins. own is the name of the directory that it is
// for, "" for none.
func (l *copyLink) start(own string) (*codec.CopyStart, error) {
	s := new(codec.CopyStart)
	if _, err := l.call(&codec.CopyRequest{}, s); err != nil {
		return nil, err
	}
	if s.Node == own {
		return nil, &RefusedError{fmt.Sprintf("a server cannot copy itself (node %s)", own)}
	}
	return s, nil
}

// topics calls see for the topics as of an event, and for those with very many
// files more than once.
func (l *copyLink) topics(eventID int64, see func(*codec.CopyTopic)) error {
	q := codec.CopyRequest{Ask: codec.AskTopics, EventID: eventID}
	for {
		var page codec.CopyTopics
		if _, err := l.call(&q, &page); err != nil {
			return err
		}
		for i := range page.Topics {
			see(&page.Topics[i])
		}
		if page.Done {
			return nil
		}
		n := len(page.Topics)
		if n == 0 {
			return errors.New("the master's list of topics does not end")
		}
		last, from := &page.Topics[n-1], int64(0)
		if last.More {
			if len(last.Files) == 0 {
				return errors.New("the master's list of files does not end")
			}
			from = last.Files[len(last.Files)-1].File + 1
		}
		order := bytes.Compare(last.Name, q.Topic)
		if order < 0 || order == 0 && (q.File == 0 || last.More && from <= q.File) {
			return errors.New("the master's list of topics goes back")
		}
		q.Topic, q.File = last.Name, from
	}
}

// delays calls put for the delayed messages that are pending as of an event,
// and returns how many were left out.
func (l *copyLink) delays(eventID int64, put func(storage.DelayKey, []byte) error) (skipped int, err error) {
	q := codec.CopyRequest{Ask: codec.AskDelays, EventID: eventID}
	for {
		var page codec.CopyDelays
		data, err := l.call(&q, &page)
		if err != nil {
			return skipped, err
		}
		for i := range page.Delays {
			d := &page.Delays[i]
			if d.Size < 0 || d.Size > len(data) {
				return skipped, errors.New("the master's delayed messages are longer than its answer")
			}
			if err := put(delayKey(d), data[:d.Size]); err != nil {
				return skipped, err
			}
			data = data[d.Size:]
		}
		skipped += page.Skipped
		if page.Next == nil {
			return skipped, nil
		}
		next := delayKey(page.Next)
		if q.After != nil {
			if last := delayKey(q.After); !last.StoredBefore(&next) {
				return skipped, errors.New("the master's list of delayed messages goes back")
			}
		}
		q.After = page.Next
	}
}
