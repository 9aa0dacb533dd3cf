package bench

import (
	"context"
	"io"
	"net"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smss/codec"
)

func dialForTest(t *testing.T, l load) *generator {
	t.Helper()
	if l.timeout == 0 {
		l.timeout = 30 * time.Second
	}
	g, err := dialGenerator(testContext(t), &l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	return g
}

func TestGeneratorCounts(t *testing.T) {
	addr := bareForTest(t)
	for _, tt := range []struct {
		name                                 string
		connections, loops, pipeline, topics int
		size, batch, requests                int
	}{
		{"one", 1, 1, 1, 1, 1, 1, 3},
		{"one in flight", 20, 1, 1, 1, 200, 1, 200},
		{"two loops", 20, 2, 1, 1, 200, 1, 200},
		{"more loops than connections", 2, 5, 1, 1, 200, 1, 20},
		{"16 in flight", 20, 1, 16, 1, 200, 1, 200},
		{"window larger than the run", 3, 1, 64, 1, 200, 1, 10},
		{"topics", 20, 1, 7, 13, 200, 3, 100},
		{"larger than the socket's buffers", 2, 1, 3, 2, 3 << 20, 1, 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := dialForTest(t, load{addr: addr, connections: tt.connections, loops: tt.loops, pipeline: tt.pipeline,
				work: newWorkload("bench", tt.topics, tt.size, tt.batch, tt.pipeline)})
			for run := range 2 { // the second begins where the first has ended
				f, err := g.run(testContext(t), target{requests: tt.requests})
				if err != nil {
					t.Fatal(err)
				}
				want := int64(tt.connections * tt.requests)
				if f.requests != want || f.failed != 0 || g.done() != want || f.latency.TotalCount() != want || f.elapsed <= 0 {
					t.Fatalf("run %d: %+v, done %d, recorded %d, want %d", run, f, g.done(), f.latency.TotalCount(), want)
				}
			}
		})
	}
}

// Allocations are counted over the whole process, the bare server's among
// them, so that what is shown is more than asked.
func TestGeneratorDoesNotAllocatePerRequest(t *testing.T) {
	addr := bareForTest(t)
	for _, pipeline := range []int{1, 16} {
		g := dialForTest(t, load{addr: addr, connections: 16, loops: 1, pipeline: pipeline,
			work: newWorkload("bench", 3, 200, 1, pipeline)})
		const each = 500
		if _, err := g.run(testContext(t), target{requests: each}); err != nil {
			t.Fatal(err)
		}
		ctx := testContext(t)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f, err := g.run(ctx, target{requests: each})
		runtime.ReadMemStats(&after)
		if err != nil || f.requests != 16*each {
			t.Fatalf("%+v, %v", f, err)
		}
		if n := after.Mallocs - before.Mallocs; n > 16*each/20 {
			t.Errorf("%d in flight: %d allocations for %d requests", pipeline, n, f.requests)
		}
	}
}

// Every topic gets its share, and every request is one that a server takes.
func TestWorkload(t *testing.T) {
	const topics, pipeline, batch = 11, 4, 3
	w := newWorkload("t", topics, 50, batch, pipeline)
	if len(w.bytes) < w.cycle+pipeline*w.request || w.cycle != topics*w.request {
		t.Fatalf("%d bytes, cycle %d, request %d", len(w.bytes), w.cycle, w.request)
	}
	limits := &codec.Limits{MaxMessageSize: 1 << 20, MaxBatchMessages: 100}
	var req codec.Request
	for i, b := 0, w.bytes; len(b) > 0; i++ {
		n, err := codec.ParseRequest(b, limits, &req)
		if err != nil || req.Invalid != nil || n != w.request || req.Messages != batch || string(req.Topic) != topicName("t", topics, i%topics) {
			t.Fatalf("request %d: %d bytes, %v, %+v", i, n, err, req)
		}
		b = b[n:]
	}
	if topicName("t", 1, 0) != "t" || topicName("t", 11, 3) != "t-03" || topicName("t", 10, 3) != "t-3" {
		t.Fatal("names")
	}
}

// serve accepts connections and hands each to handle, which may return to
// close it.
func serve(t *testing.T, handle func(net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				handle(c)
			}()
		}
	}()
	return l.Addr().String()
}

func TestGeneratorCountsErrors(t *testing.T) {
	t.Parallel()
	work := newWorkload("bench", 1, 10, 1, 2)
	// Each second request is refused, and replies come in pieces of 7 bytes.
	refusing := func(c net.Conn) {
		request := make([]byte, work.request)
		var pending []byte
		for i := 0; ; i++ {
			if _, err := io.ReadFull(c, request); err != nil {
				return
			}
			if i%2 == 0 {
				pending = codec.AppendCode(pending, codec.CodeOK)
			} else {
				pending = codec.AppendError(pending, codec.TextTopicNotExist)
			}
			for len(pending) > 0 {
				n := min(7, len(pending))
				if _, err := c.Write(pending[:n]); err != nil {
					return
				}
				pending = pending[n:]
			}
		}
	}
	// The third request gets no reply but the end.
	leaving := func(c net.Conn) {
		request := make([]byte, work.request)
		for range 2 {
			if _, err := io.ReadFull(c, request); err != nil {
				return
			}
			c.Write(codec.AppendCode(nil, codec.CodeOK))
		}
		io.ReadFull(c, request)
	}
	babbling := func(c net.Conn) {
		c.Write(codec.AppendCode(codec.AppendCode(nil, codec.CodeOK), codec.CodeOK))
		io.Copy(io.Discard, c)
	}
	mute := func(c net.Conn) { io.Copy(io.Discard, c) }
	strange := func(c net.Conn) {
		io.ReadFull(c, make([]byte, work.request))
		c.Write(codec.AppendCode(nil, codec.CodeEnd))
		io.Copy(io.Discard, c)
	}
	for _, tt := range []struct {
		name               string
		handle             func(net.Conn)
		pipeline, requests int
		succeeded, failed  int64
		text               string
	}{
		{"refused", refusing, 2, 10, 15, 15, codec.TextTopicNotExist},
		{"closed", leaving, 1, 10, 6, 3, "connection"},
		{"reply too many", babbling, 1, 1, 3, 3, "reply without a request"},
		{"no reply", mute, 2, 10, 0, 6, "no reply within 50ms"},
		{"unexpected code", strange, 1, 1, 0, 3, "reply code 255"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			timeout := 30 * time.Second
			if tt.name == "no reply" {
				timeout = 50 * time.Millisecond
			}
			g := dialForTest(t, load{addr: serve(t, tt.handle), connections: 3, loops: 1, pipeline: tt.pipeline, work: work, timeout: timeout})
			f, err := g.run(testContext(t), target{requests: tt.requests})
			if err != nil {
				t.Fatal(err)
			}
			if f.requests != tt.succeeded || f.failed != tt.failed || len(f.errors) != 1 {
				t.Fatalf("%+v, want %d and %d failed", f, tt.succeeded, tt.failed)
			}
			for text := range f.errors {
				if !strings.HasPrefix(text, tt.text) {
					t.Fatalf("error %q, want %q", text, tt.text)
				}
			}
			// A second run goes on with what is left and ends.
			if _, err := g.run(testContext(t), target{duration: time.Millisecond}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestErrorTextsAreBounded(t *testing.T) {
	l := &loop{errors: map[string]int64{}}
	for i := range 1000 {
		l.countError(strings.Repeat("x", i), 1)
	}
	if len(l.errors) != maxErrorTexts+1 || l.errors["other errors"] != 1000-maxErrorTexts {
		t.Fatalf("%d texts, %d others", len(l.errors), l.errors["other errors"])
	}
}

func TestGeneratorStopsEarly(t *testing.T) {
	t.Parallel()
	g := dialForTest(t, load{addr: bareForTest(t), connections: 8, loops: 2, pipeline: 4, work: newWorkload("bench", 1, 100, 1, 4)})
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	go func() {
		for g.done() < 1000 {
			runtime.Gosched()
		}
		cancel()
	}()
	f, err := g.run(ctx, target{duration: time.Hour})
	if err != nil || f.requests < 1000 || f.failed != 0 {
		t.Fatalf("%+v, %v", f, err)
	}
	// What was in flight has been answered: the connections are of use still.
	if f, err = g.run(testContext(t), target{requests: 5}); err != nil || f.requests != 40 || f.failed != 0 {
		t.Fatalf("%+v, %v", f, err)
	}
}

func TestDialErrors(t *testing.T) {
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]string{
		"no-port": "missing port", "127.0.0.1:" + strconv.Itoa(port): "connection refused",
	} {
		_, err := dialGenerator(testContext(t), &load{addr: addr, connections: 1, loops: 1, pipeline: 1, work: newWorkload("t", 1, 1, 1, 1)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", addr, err, want)
		}
	}
}

func TestSourceAddress(t *testing.T) {
	addr := make(chan string, 1)
	d, err := newDialer(serve(t, func(c net.Conn) { addr <- c.RemoteAddr().String() }))
	if err != nil {
		t.Fatal(err)
	}
	d.source = 3
	fd, err := d.dial()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if got := <-addr; !strings.HasPrefix(got, "127.0.0.3:") {
		t.Fatalf("connected from %s", got)
	}
}
