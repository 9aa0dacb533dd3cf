package bench

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"
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
	os.Exit(m.Run())
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
	end, _, err := startBareHere("127.0.0.1:"+string(port[1]), 1)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	<-ctx.Done()
	if end() != nil {
		return 1
	}
	return 0
}

// bareForTest runs the bare server in the test's process.
func bareForTest(t *testing.T) (addr string) {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	stop, _, err := startBareHere(addr, 1)
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

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func noEnv(string) string { return "" }
