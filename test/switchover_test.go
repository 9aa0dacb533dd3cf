package test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// The frames of a feed beside records, and the mark of a slave that has taken
// over.
const (
	codeGreeting = 202
	codeTakeOver = 203
	promotedMark = 1 << 63
)

// pretend connects as a slave of this project and acknowledges what it gets, or
// only what it was not sent where acks is false. At the order to take over it
// calls last, and closes the connection.
func pretend(t *testing.T, m *node, acks bool, last func(c *client, eventID int64)) (address string, c *client) {
	t.Helper()
	port := freePort(t)
	text, err := json.Marshal(map[string]any{"node": "feedfeedfeedfeed", "port": port})
	if err != nil {
		t.Fatal(err)
	}
	c = dial(t, m.server)
	c.send(request(cmdReplica, "", "", []byte{1}, append(append(i64(0), u32(len(text))...), text...)))
	done := make(chan struct{})
	t.Cleanup(func() { c.close(); <-done })
	go func() {
		defer close(done)
		defer c.close()
		for {
			head, err := c.full(10)
			if err != nil {
				return
			}
			size := 0
			switch head[0] {
			case codeGreeting:
				size = int(le.Uint32(head[2:]))
			case codeDone:
				n, err := c.full(4)
				if err != nil {
					return
				}
				size = int(le.Uint32(n))
			case codeAlive:
				id := int64(le.Uint64(head[2:]))
				if !acks {
					id = 1 << 40
				}
				_ = c.write(i64(id))
			case codeTakeOver:
				last(c, int64(le.Uint64(head[2:])))
				return
			}
			if _, err := c.full(size); err != nil {
				return
			}
		}
	}()
	return fmt.Sprintf("127.0.0.1:%d", port), c
}

// TestSwitchoverUnknown: a slave that was ordered to take over and is not heard
// of any more may have done so: the old master stays a slave, over a crash too,
// until somebody says otherwise.
func TestSwitchoverUnknown(t *testing.T) {
	t.Parallel()
	m := startNode(t, nil)
	dial(t, m.server).ok(reqCreate("t", 0))
	before := m.status().Replication
	address, _ := pretend(t, m, true, func(*client, int64) {})
	status, out := m.command("switchover")
	if status != 1 || !strings.Contains(out, address+" was ordered to take over and has not confirmed it") || !strings.Contains(out, "never both") {
		t.Fatalf("smss switchover: %d: %s", status, out)
	}
	r := m.status().Replication
	if r.Role != "slave" || r.Link == nil || r.Link.Master != address || r.Epoch != before.Epoch {
		t.Errorf("it is %+v", r)
	}
	dial(t, m.server).refused(reqPub("t", message("x")), "just master can pub message")
	if resp, _ := m.ask("GET", "/healthz?role=master"); resp.StatusCode != 503 {
		t.Errorf("health of a master: %s", resp.Status)
	}
	m.kill()
	m.restart() // as master, by its flags: the operator's word
	r = m.status().Replication
	if r.Role != "master" || r.Epoch == before.Epoch {
		t.Errorf("it goes on in the old epoch: %+v", r)
	}
	dial(t, m.server).ok(reqPub("t", message("y")))
}

// TestSwitchoverConfirmed: with the slave's word the old master follows it.
func TestSwitchoverConfirmed(t *testing.T) {
	t.Parallel()
	m := startNode(t, nil)
	dial(t, m.server).ok(reqCreate("t", 0))
	address, _ := pretend(t, m, true, func(c *client, eventID int64) {
		if eventID != 1 {
			t.Errorf("ordered behind event %d", eventID)
		}
		_ = c.write(le.AppendUint64(nil, uint64(eventID)|promotedMark))
		if _, err := c.full(1); err == nil {
			t.Error("the old master sends on instead of ending the connection")
		}
	})
	if out := m.change("switchover", address); !strings.Contains(out, address+" is the master behind event 1") {
		t.Errorf("smss switchover says %s", out)
	}
	if r := m.status().Replication; r.Role != "slave" || r.Link.Master != address {
		t.Errorf("it is %+v", r)
	}
	m.change("promote")
	dial(t, m.server).ok(reqPub("t", message("x")))
}

// TestSwitchoverLeft: a slave that goes before it was ordered changes nothing,
// and one that reports what it was not sent is not believed.
func TestSwitchoverLeft(t *testing.T) {
	t.Parallel()
	m := startNode(t, nil)
	dial(t, m.server).ok(reqCreate("t", 0))
	epoch := m.status().Replication.Epoch
	_, c := pretend(t, m, false, func(*client, int64) { t.Error("ordered to take over without what it needs") })
	answer := make(chan string, 1)
	go func() {
		status, out := m.command("switchover")
		answer <- fmt.Sprint(status, ": ", out)
	}()
	await(t, 10*time.Second, "writes are stopped", func() bool { return m.status().Replication.Role == "slave" })
	c.conn.Close() // while the master waits for it
	out := <-answer
	if !strings.HasPrefix(out, "1: ") || !strings.Contains(out, "this server is the master as before") || !strings.Contains(out, "left before it had everything") {
		t.Errorf("smss switchover: %s", out)
	}
	dial(t, m.server).ok(reqPub("t", message("x")))
	if r := m.status().Replication; r.Role != "master" || r.Epoch != epoch {
		t.Errorf("it is %+v", r)
	}
}
