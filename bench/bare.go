package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"time"

	"github.com/panjf2000/gnet/v2"

	"smss/codec"
)

// The bare server is the yardstick: what an event loop of the library that
// smss is built on can do with these frames on this machine when there is
// nothing else to do. It finds where each PUB ends, answers it with 10 bytes
// and stores nothing; a read's replies leave in one write. It also answers
// CREATE_TOPIC and ALIVE, because the generator starts with them.
type bareServer struct {
	gnet.BuiltinEventEngine
	engine gnet.Engine
	booted chan struct{}
}

// bareSession is a connection's state between two reads.
type bareSession struct {
	skip  int // bytes of the current request still to come, only looked over
	reply byte
}

// bareLoops is DESIGN's number of event loops, so that both servers get the
// same share of the machine.
func bareLoops() int { return min(max(1, runtime.GOMAXPROCS(0)-1), 16) }

func runBareServer(ctx context.Context, s *settings, out output) error {
	addr := net.JoinHostPort(s.host, strconv.Itoa(s.port))
	_, failed, err := startBareHere(addr, s.BareLoops)
	if err != nil {
		return err
	}
	fmt.Fprintf(out.stderr, "bare server on %s, %d event loops; it stores nothing\n", addr, s.BareLoops)
	select {
	case <-ctx.Done():
		return nil // nothing is stored: the end of the process is end enough
	case err := <-failed:
		return fmt.Errorf("bare server: %w", err)
	}
}

// startBareHere runs the bare server in this process until stop is called.
func startBareHere(addr string, loops int) (stop func() error, failed <-chan error, err error) {
	b := &bareServer{booted: make(chan struct{})}
	ended := make(chan error, 1)
	go func() {
		ended <- gnet.Run(b, "tcp://"+addr, gnet.WithNumEventLoop(loops), gnet.WithReuseAddr(true),
			gnet.WithTCPNoDelay(gnet.TCPNoDelay), gnet.WithLogger(silent{}))
	}()
	select {
	case <-b.booted:
	case err := <-ended:
		return nil, nil, fmt.Errorf("bare server on %s: %w", addr, err)
	}
	stop = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return b.engine.Stop(ctx)
	}
	return stop, ended, nil
}

func (b *bareServer) OnBoot(engine gnet.Engine) gnet.Action {
	b.engine = engine
	close(b.booted)
	return gnet.None
}

func (b *bareServer) OnOpen(c gnet.Conn) ([]byte, gnet.Action) {
	c.SetContext(&bareSession{})
	return nil, gnet.None
}

// maxBareReplies is how many replies leave in one write.
const maxBareReplies = 1024

// donePrototype is that many replies that say done.
var donePrototype = func() []byte {
	var b []byte
	for range maxBareReplies {
		b = codec.AppendCode(b, codec.CodeOK)
	}
	return b
}()

// OnTraffic walks over everything that has arrived. Bodies are dropped as
// they come, whatever their size, so that nothing is gathered; only a header
// that is not complete stays in gnet's buffer.
func (b *bareServer) OnTraffic(c gnet.Conn) gnet.Action {
	s := c.Context().(*bareSession)
	in, _ := c.Peek(-1)
	used, done := 0, 0
	for {
		n := min(s.skip, len(in)-used)
		s.skip, used = s.skip-n, used+n
		if s.skip > 0 {
			break
		}
		if s.reply != 0 { // the request that was skipped is complete
			done++
			if s.reply != byte(codec.CodeOK) || done == maxBareReplies {
				if !writeBare(c, done, s.reply) {
					return gnet.Close
				}
				done = 0
			}
			s.reply = 0
		}
		if len(in)-used < codec.RequestHeaderSize {
			break
		}
		if !s.begin(in[used:]) {
			return gnet.Close
		}
	}
	// Discard(0) would drop everything.
	if used > 0 {
		_, _ = c.Discard(used)
	}
	if done > 0 && !writeBare(c, done, byte(codec.CodeOK)) {
		return gnet.Close
	}
	return gnet.None
}

// begin sets how many bytes the request that starts with header takes, and
// how it will be answered.
func (s *bareSession) begin(header []byte) bool {
	s.reply = byte(codec.CodeOK)
	s.skip = codec.RequestHeaderSize + int(binary.LittleEndian.Uint16(header[1:])) + int(header[19])
	switch codec.Command(header[0]) {
	case codec.Pub:
		s.skip += int(binary.LittleEndian.Uint32(header[3:]))
	case codec.CreateTopic:
		s.skip += 8
	case codec.Alive:
		s.reply = byte(codec.CodeAlive)
	default:
		return false
	}
	return true
}

// writeBare writes n replies, the last of them with code.
func writeBare(c gnet.Conn, n int, code byte) bool {
	out := donePrototype[:n*codec.ReplyHeaderSize]
	if code != byte(codec.CodeOK) {
		out = codec.AppendCode(append([]byte(nil), out[:(n-1)*codec.ReplyHeaderSize]...), codec.Code(code))
	}
	_, err := c.Write(out)
	return err == nil
}

// silent is gnet's log: failures come back as errors, and the rest is noise
// between figures.
type silent struct{}

func (silent) Debugf(string, ...any) {}
func (silent) Infof(string, ...any)  {}
func (silent) Warnf(string, ...any)  {}
func (silent) Errorf(string, ...any) {}
func (silent) Fatalf(string, ...any) {}
