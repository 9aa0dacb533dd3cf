package test

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"
)

// Reply codes.
const (
	codeDone  = 200
	codeAlive = 201
	codeEnd   = 255
	codeError = 400
)

// Error texts of the protocol.
const (
	textNoTopic      = "topic not exist"
	textTopicExists  = "topic exist"
	textTopicName    = "topic name MUST be less than 128 char and NOT contains space/enter/tab"
	textExpire       = "expire MUST more than 10s"
	textPubSize      = "invalid request, payload size must be more than 8"
	textPubPayload   = "invalid pub payload"
	textDelayRequest = "invalid delay request"
	textDelayTime    = "delay time must be more than 1 second"
	textNoEvent      = "can't find event id"
	textNoAction     = "don't support action"
	textNameTaken    = " regiester exist" // after the subscriber's name; spelling as it is
)

// client is one connection. Methods with an error result may be used on any
// goroutine, those that fail the test only on the test's own.
type client struct {
	t     testing.TB
	conn  *net.TCPConn
	br    *bufio.Reader
	limit time.Duration // for each reply or push
}

func dialErr(addr string) (*client, error) {
	conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return nil, err
	}
	return &client{conn: conn.(*net.TCPConn), br: bufio.NewReaderSize(conn, 64<<10), limit: slack(10 * time.Second)}, nil
}

// dial connects and closes the connection when the test ends.
func dial(t testing.TB, s *server) *client {
	t.Helper()
	c, err := dialErr(s.addr())
	if err != nil {
		t.Fatal(err)
	}
	c.t = t
	t.Cleanup(func() { c.conn.Close() })
	return c
}

// write sends bytes as they are.
func (c *client) write(b []byte) error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(c.limit)); err != nil {
		return err
	}
	_, err := c.conn.Write(b)
	return err
}

// send is write for the test's goroutine.
func (c *client) send(b []byte) {
	c.t.Helper()
	if err := c.write(b); err != nil {
		c.t.Fatalf("send: %v", err)
	}
}

func (c *client) close() { c.conn.Close() }

// reset closes with RST instead of FIN.
func (c *client) reset() {
	// The connection goes away either way; without the option it ends by FIN.
	_ = c.conn.SetLinger(0)
	c.conn.Close()
}

// reply is the answer to a request in command mode.
type reply struct {
	code int
	text string // of an error
	json []byte // of TOPIC_INFO, LIST and VALID_LIST
}

func (r reply) String() string {
	if r.code == codeError {
		return fmt.Sprintf("400 %q", r.text)
	}
	return fmt.Sprintf("%d %s", r.code, r.json)
}

// full reads exactly n bytes within the limit.
func (c *client) full(n int) ([]byte, error) {
	if err := c.conn.SetReadDeadline(time.Now().Add(c.limit)); err != nil {
		return nil, err
	}
	b := make([]byte, n)
	_, err := io.ReadFull(c.br, b)
	return b, err
}

var errNotZero = errors.New("bytes that must be zero are not")

func zero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}

// errorText reads the rest of an error reply.
func (c *client) errorText(h []byte) (string, error) {
	if !zero(h[4:]) {
		return "", fmt.Errorf("error reply % x: %w", h, errNotZero)
	}
	n := int(binary.LittleEndian.Uint16(h[2:]))
	if n == 0 || n > 32767 {
		return "", fmt.Errorf("error text of %d bytes", n)
	}
	text, err := c.full(n)
	return string(text), err
}

// reply reads one reply strictly. withJSON says that the request was one
// whose answer carries JSON.
func (c *client) reply(withJSON bool) (reply, error) {
	h, err := c.full(10)
	if err != nil {
		return reply{}, err
	}
	r := reply{code: int(binary.LittleEndian.Uint16(h))}
	switch r.code {
	case codeDone:
		if !withJSON {
			if !zero(h[2:]) {
				return r, fmt.Errorf("reply % x: %w", h, errNotZero)
			}
			return r, nil
		}
		if !zero(h[6:]) {
			return r, fmt.Errorf("reply % x: %w", h, errNotZero)
		}
		n := binary.LittleEndian.Uint32(h[2:])
		if n > 64<<20 {
			return r, fmt.Errorf("JSON of %d bytes", n)
		}
		r.json, err = c.full(int(n))
		return r, err
	case codeAlive:
		if !zero(h[2:]) {
			return r, fmt.Errorf("reply % x: %w", h, errNotZero)
		}
		return r, nil
	case codeError:
		r.text, err = c.errorText(h)
		return r, err
	}
	return r, fmt.Errorf("reply % x: unknown code", h)
}

func withJSON(request []byte) bool {
	return request[0] == cmdInfo || request[0] == cmdList || request[0] == cmdValidList
}

// do sends one request and reads its reply.
func (c *client) do(request []byte) (reply, error) {
	if err := c.write(request); err != nil {
		return reply{}, err
	}
	return c.reply(withJSON(request))
}

// doOK is do for requests that must be answered with 200.
func (c *client) doOK(request []byte) error {
	r, err := c.do(request)
	if err == nil && r.code != codeDone {
		err = fmt.Errorf("answer %v", r)
	}
	return err
}

// ok sends a request that must be answered with 200.
func (c *client) ok(request []byte) {
	c.t.Helper()
	if err := c.doOK(request); err != nil {
		c.t.Fatalf("command %d: %v", request[0], err)
	}
}

// refused sends a request that must be answered with 400 and this text, or
// any text when it is empty.
func (c *client) refused(request []byte, text string) string {
	c.t.Helper()
	c.send(request)
	return c.refusal(text)
}

// refusal reads a 400.
func (c *client) refusal(text string) string {
	c.t.Helper()
	r, err := c.reply(false)
	if err != nil {
		c.t.Fatalf("waiting for 400 %q: %v", text, err)
	}
	if r.code != codeError || text != "" && r.text != text {
		c.t.Fatalf("answer %v, want 400 %q", r, text)
	}
	return r.text
}

// alive checks that the connection is in command mode and in step.
func (c *client) alive() {
	c.t.Helper()
	r, err := c.do(reqAlive(""))
	if err != nil || r.code != codeAlive {
		c.t.Fatalf("ALIVE: %v, %v", r, err)
	}
}

// closed checks that the server closes without sending anything more.
func (c *client) closed() {
	c.t.Helper()
	b, err := c.full(1)
	if err == nil {
		rest, _ := c.br.Peek(c.br.Buffered())
		c.t.Fatalf("want the connection closed, got % x", append(b, rest...))
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		c.t.Fatalf("the server does not close the connection within %v", c.limit)
	}
}

// silent checks that nothing arrives for a while; a time is the subject.
func (c *client) silent(d time.Duration) {
	c.t.Helper()
	saved := c.limit
	c.limit = d
	b, err := c.full(1)
	c.limit = saved
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		rest, _ := c.br.Peek(c.br.Buffered())
		c.t.Fatalf("want %v of silence, got % x, %v", d, append(b, rest...), err)
	}
}

// topicInfo is the JSON of a topic.
type topicInfo struct {
	Name               string `json:"name"`
	CreateTimeStamp    int64  `json:"createTimeStamp"`
	ExpireAt           int64  `json:"expireAt"`
	CreateEventID      int64  `json:"createEventId"`
	StateChangeTime    int64  `json:"stateChangeTime"`
	StateChangeEventID int64  `json:"stateChangeEventId"`
	State              int    `json:"state"`
	TopicRoot          string `json:"topicRoot"`
}

// list returns LIST as a map by name.
func (c *client) list() map[string]topicInfo {
	c.t.Helper()
	r, err := c.do(reqList())
	if err != nil || r.code != codeDone {
		c.t.Fatalf("LIST: %v, %v", r, err)
	}
	var infos []topicInfo
	if len(r.json) > 0 {
		if err := json.Unmarshal(r.json, &infos); err != nil {
			c.t.Fatalf("LIST: %v", err)
		}
	}
	m := make(map[string]topicInfo, len(infos))
	for _, i := range infos {
		m[i.Name] = i
	}
	return m
}

// info returns TOPIC_INFO.
func (c *client) info(topic string) topicInfo {
	c.t.Helper()
	r, err := c.do(reqInfo(topic))
	if err != nil || r.code != codeDone {
		c.t.Fatalf("TOPIC_INFO %q: %v, %v", topic, r, err)
	}
	var i topicInfo
	if err := json.Unmarshal(r.json, &i); err != nil {
		c.t.Fatalf("TOPIC_INFO: %v", err)
	}
	return i
}

// smallWindow connects with a receive buffer of a few KB, so that a client
// which does not read fills up soon.
func smallWindow(t testing.TB, s *server) *client {
	t.Helper()
	d := net.Dialer{Timeout: 5 * time.Second, Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		if e := raw.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096)
		}); e != nil {
			return e
		}
		return err
	}}
	conn, err := d.Dial("tcp", s.addr())
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, conn: conn.(*net.TCPConn), br: bufio.NewReader(conn), limit: 10 * time.Second}
	t.Cleanup(c.close)
	return c
}
