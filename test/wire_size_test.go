package test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
)

// maxMessageSize is the configuration key of the largest payload.
const maxMessageSize = "limits.maxMessageSize"

// hashedBody is n pseudo-random bytes that begin with the hash of the rest,
// as far as n has room for it.
func hashedBody(seed uint64, n int) string {
	random := rand.New(rand.NewPCG(seed, 2))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	if n > sha256.Size {
		sum := sha256.Sum256(b[sha256.Size:])
		copy(b, sum[:])
	}
	return string(b)
}

func intact(body string) bool {
	if len(body) <= sha256.Size {
		return true
	}
	sum := sha256.Sum256([]byte(body[sha256.Size:]))
	return string(sum[:]) == body[:sha256.Size]
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// TestCase10Sizes: every accepted size comes back as it was, over borders of
// files and after a restart; what is over the limit is refused.
func TestCase10Sizes(t *testing.T) {
	t.Parallel()
	const limit = 2 << 20
	s := startServer(t, options{config: config{maxMessageSize: limit, "store.maxLogSize": 1 << 20}})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	// Content of 0 bytes: a payload of 8.
	c.refused(reqPub("t", message("")), textPubSize)
	// The limit is for the payload, which has two counts of 4 bytes.
	sizes := []int{1, 2, 511, 512, 4095, 4096, 32767, 32768, 65535 - 8, 65536 - 8, 65535, 65536, 65537, 512<<10 - 1, 512 << 10,
		512<<10 + 1, 1 << 20, limit - 9, limit - 8}
	var want []string
	for i, n := range sizes {
		body := hashedBody(uint64(i), n)
		c.ok(reqPub("t", message(body)))
		want = append(want, digest(body))
	}
	over := dial(t, s)
	over.send(reqPub("t", message(strings.Repeat("x", limit-7)))[:1000])
	over.refusal("")
	c.alive()
	check := func() {
		t.Helper()
		got := read(t, s, "t", 0, len(sizes))
		for i, m := range got {
			if digest(m.body) != want[i] {
				t.Errorf("the message of %d bytes came back as %d others", sizes[i], len(m.body))
			}
		}
	}
	check()
	s.stop()
	s.restart()
	check()
	wantBodies(t, drain(t, s, "t")[len(sizes):])
}

// TestCase11Fragments: requests in one write, in single bytes and in random
// pieces are all answered without a further byte, and nothing is mixed up.
func TestCase11Fragments(t *testing.T) {
	t.Parallel()
	stream := func(topic string, n, size int) ([]byte, []string) {
		var b []byte
		var want []string
		for i := range n {
			body := hashedBody(uint64(i), size+i%17)
			want = append(want, digest(body))
			b = append(b, reqPub(topic, message(body))...)
		}
		return b, want
	}
	verify := func(t *testing.T, s *server, topic string, want []string) {
		t.Helper()
		for i, m := range read(t, s, topic, 0, len(want)) {
			if digest(m.body) != want[i] || !intact(m.body) {
				t.Fatalf("message %d is damaged or out of order", i)
			}
		}
	}
	replies := func(c *client, n int) error {
		for i := range n {
			if r, err := c.reply(false); err != nil || r.code != codeDone {
				return fmt.Errorf("reply %d of %d: %v, %w", i, n, r, err)
			}
		}
		return nil
	}
	s := startServer(t, options{})
	admin := dial(t, s)

	t.Run("one write", func(t *testing.T) {
		admin.ok(reqCreate("one", 0))
		b, want := stream("one", 1000, 60)
		c := dial(t, s)
		sent := make(chan error, 1)
		go func() { sent <- c.write(b) }()
		if err := replies(c, len(want)); err != nil {
			t.Fatal(err)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		verify(t, s, "one", want)
	})
	t.Run("byte by byte", func(t *testing.T) {
		admin.ok(reqCreate("bytes", 0))
		b, want := stream("bytes", scale(100, 1000), 40)
		c := dial(t, s)
		sent := make(chan error, 1)
		go func() {
			for i := range b {
				if err := c.write(b[i : i+1]); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		if err := replies(c, len(want)); err != nil {
			t.Fatal(err)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		verify(t, s, "bytes", want)
	})
	t.Run("pieces around 64 KiB", func(t *testing.T) {
		admin.ok(reqCreate("pieces", 0))
		b, want := stream("pieces", scale(300, 700), 10000)
		c := dial(t, s)
		sent := make(chan error, 1)
		go func() {
			random := rand.New(rand.NewPCG(11, 3))
			for len(b) > 0 {
				n := min(len(b), 65536-40+random.IntN(80))
				if err := c.write(b[:n]); err != nil {
					sent <- err
					return
				}
				b = b[n:]
			}
			sent <- nil
		}()
		if err := replies(c, len(want)); err != nil {
			t.Fatal(err)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		verify(t, s, "pieces", want)
	})
	t.Run("200 KB on 8 connections", func(t *testing.T) {
		const conns, each = 8, 12
		var wg sync.WaitGroup
		errs := make(chan error, 2*conns)
		wants := make([][]string, conns)
		for i := range conns {
			topic := fmt.Sprintf("big-%d", i)
			admin.ok(reqCreate(topic, 0))
			var b []byte
			b, wants[i] = stream(topic, each, 200_000+i)
			c := dial(t, s)
			wg.Go(func() { errs <- c.write(b) })
			wg.Go(func() { errs <- replies(c, each) })
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
		for i := range conns {
			verify(t, s, fmt.Sprintf("big-%d", i), wants[i])
		}
	})
}

// TestPipelineOrder: replies come in request order although some requests are
// answered at once and others by the writer.
func TestPipelineOrder(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	random := rand.New(rand.NewPCG(5, 8))
	var requests []byte
	type expectation struct {
		code int
		text string
		json bool
	}
	var want []expectation
	add := func(r []byte, e expectation) {
		requests = append(requests, r...)
		want = append(want, e)
	}
	for range scale(500, 20000) {
		switch random.IntN(7) {
		case 0:
			add(reqAlive("x"), expectation{code: codeAlive})
		case 1:
			add(reqPub("none", message("x")), expectation{code: codeError, text: textNoTopic})
		case 2:
			add(reqPub("t", u32(1)), expectation{code: codeError, text: textPubSize})
		case 3:
			add(reqInfo("t"), expectation{code: codeDone, json: true})
		case 4:
			add(request(50, "t", "", u32(3), []byte("abc")), expectation{code: codeError, text: textNoAction})
		default:
			add(reqPub("t", message("x")), expectation{code: codeDone})
		}
	}
	sent := make(chan error, 1)
	go func() { sent <- c.write(requests) }()
	for i, e := range want {
		r, err := c.reply(e.json)
		if err != nil || r.code != e.code || r.text != e.text {
			t.Fatalf("reply %d: %v, %v; want %d %s", i, r, err, e.code, e.text)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

// TestReadYourPublish: who got 200 and then subscribes finds its message.
func TestReadYourPublish(t *testing.T) {
	t.Parallel()
	s := startServer(t, options{})
	c := dial(t, s)
	c.ok(reqCreate("t", 0))
	x := dial(t, s)
	var last int64
	for i := range scale(200, 5000) {
		body := fmt.Sprint(i)
		c.ok(reqPub("t", message(body)))
		x.sub(sub{topic: "t", who: "w", from: last, batch: 255, ack: 2 * time.Second})
		msgs := x.push()
		wantBodies(t, msgs, body)
		last = msgs[0].id
		x.send(ackLast)
		// Command mode again, the name free: the loop depends on it.
		x.alive()
	}
}
