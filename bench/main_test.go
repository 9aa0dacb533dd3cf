package bench

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"smss/codec"
)

// TestMain lets the test binary stand in for the smss binary that bench
// starts: with `bench …` it is bench, with `-config FILE` it is a server, for
// which the bare one does.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "bench":
			os.Exit(Run(os.Args[2:], os.Stdout, os.Stderr, os.Getenv))
		case "-config":
			os.Exit(standInServer(os.Args[2]))
		}
	}
	os.Exit(runTests(m))
}

// ownedByGnet are the goroutines that its pool starts when the package is
// loaded.
var ownedByGnet = []goleak.Option{
	goleak.IgnoreTopFunction("github.com/panjf2000/ants/v2.(*poolCommon).purgeStaleWorkers"),
	goleak.IgnoreTopFunction("github.com/panjf2000/ants/v2.(*poolCommon).ticktock"),
}

// buildDirectory holds the real server's binary.
var buildDirectory string

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "smss-bench-test-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(dir)
	buildDirectory = dir
	// Most tests wait for servers: more of them at a time than processors.
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(4*runtime.GOMAXPROCS(0))); err != nil {
		fmt.Println(err)
		return 1
	}
	status := m.Run()
	if status == 0 {
		if err := goleak.Find(ownedByGnet...); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	return status
}

func standInServer(config string) int {
	b, err := os.ReadFile(config)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	if bytes.Contains(b, []byte("refuse: true")) {
		fmt.Println("config: refuse: not allowed")
		return 1
	}
	for _, kv := range os.Environ() {
		if bytes.HasPrefix([]byte(kv), []byte("SMSS_")) {
			fmt.Println("inherited", kv)
			return 1
		}
	}
	port := regexp.MustCompile(`(?m)^port: (\d+)$`).FindSubmatch(b)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	_, _, err = startBareHere("127.0.0.1:"+string(port[1]), 1)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	<-ctx.Done()
	return 0
}

// bareForTest runs the bare server in the test's process. Between a port's
// being found free and its being bound somebody else may take it.
func bareForTest(t *testing.T) (addr string) {
	t.Helper()
	for attempt := 1; ; attempt++ {
		port, err := freePort()
		if err != nil {
			t.Fatal(err)
		}
		addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		stop, _, err := startBareHere(addr, 1)
		if err != nil && attempt < 5 && errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
		return addr
	}
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func noEnv(string) string { return "" }

// listLength asks for all topics and returns how many bytes of JSON tell of
// them.
func (c *control) listLength(t *testing.T) int {
	t.Helper()
	_ = c.conn.SetDeadline(time.Now().Add(c.timeout))
	if _, err := c.conn.Write(codec.AppendPlain(nil, codec.List, "", "")); err != nil {
		t.Fatal(err)
	}
	var head [codec.ReplyHeaderSize]byte
	if _, err := io.ReadFull(c.conn, head[:]); err != nil {
		t.Fatal(err)
	}
	return int(codec.ParseReplyHeader(head[:]).JSONSize)
}
