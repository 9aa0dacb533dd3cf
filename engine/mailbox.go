package engine

import "sync/atomic"

// Note is one item in a mailbox. It is embedded in what it announces, so that
// posting takes no memory; it must not be posted again before its receiver has
// taken it out.
type Note struct {
	next *Note
	// Subject is what the note is about: a *Command that is done, a *Read that
	// is done, or a *Lane whose topic has moved or ended. Immutable.
	Subject any
}

// Mailbox carries notes to one goroutine, usually an event loop: any number of
// posters, one drainer. It has no limit of its own: what can be in it is
// bounded by what its owner has asked for.
type Mailbox struct {
	head atomic.Pointer[Note] // last posted first
	wake func()               // immutable; called when the mailbox stops being empty

	// The writer's: the chain that it builds up during a batch, newest first as
	// the list is, so that no note is touched a second time.
	newest, oldest *Note
}

// NewMailbox returns a mailbox whose owner is woken by wake, which is called
// on the poster's goroutine and must not block.
func NewMailbox(wake func()) *Mailbox { return &Mailbox{wake: wake} }

// post adds a chain of notes from its newest to its oldest.
func (m *Mailbox) post(newest, oldest *Note) {
	for {
		head := m.head.Load()
		oldest.next = head
		if m.head.CompareAndSwap(head, newest) {
			if head == nil {
				m.wake()
			}
			return
		}
	}
}

// Post adds one note.
func (m *Mailbox) Post(n *Note) { m.post(n, n) }

func reverse(n *Note) *Note {
	var out *Note
	for n != nil {
		next := n.next
		n.next = out
		n, out = next, n
	}
	return out
}

// Drain calls take for every note, oldest first. Notes that are posted
// meanwhile cause another wake-up. Only the owner calls it.
func (m *Mailbox) Drain(take func(*Note)) {
	n := reverse(m.head.Swap(nil))
	for n != nil {
		next := n.next // take may cause n to be posted again
		n.next = nil
		take(n)
		n = next
	}
}

// add appends to the chain of the batch; writer only.
func (m *Mailbox) add(n *Note) (first bool) {
	first = m.newest == nil
	if first {
		m.oldest = n
	}
	n.next = m.newest
	m.newest = n
	return first
}

// flush posts the chain of the batch; writer only.
func (m *Mailbox) flush() {
	newest, oldest := m.newest, m.oldest
	m.newest, m.oldest = nil, nil
	m.post(newest, oldest)
}
