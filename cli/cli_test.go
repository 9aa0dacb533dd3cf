package cli

import (
	"bytes"
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"smss/client/clienttest"
	"smss/codec"
)

// outcome is what a command line did.
type outcome struct {
	exit     int
	out, err string
}

func noEnv(string) string { return "" }

// runLine runs a command line against addr, which it gives by -addr.
func runLine(ctx context.Context, addr, stdin string, args ...string) outcome {
	var out, errOut bytes.Buffer
	if addr != "" {
		args = append(slices.Clone(args), "-addr", addr)
		if i := slices.Index(args, "--"); i >= 0 { // flags go in front of that
			args = append(append(slices.Clone(args[:i]), "-addr", addr), args[i:len(args)-2]...)
		}
	}
	exit := run(ctx, args, strings.NewReader(stdin), &out, &errOut, noEnv)
	return outcome{exit, out.String(), errOut.String()}
}

const orderJSON = `{"name":"order","createTimeStamp":1796073091854,"expireAt":0,"createEventId":1,"stateChangeTime":1796073091855,"stateChangeEventId":4,"state":0,"topicRoot":"/3/3/order"}`
const goneJSON = `{"name":"a\u001bb","createTimeStamp":1796073091854,"expireAt":1796073092854,"createEventId":2,"stateChangeTime":1796073091855,"stateChangeEventId":4,"state":1,"topicRoot":"/1/2/x"}`

func TestCommands(t *testing.T) {
	for _, v := range []struct {
		line   string
		script func(*clienttest.Session)
		exit   int
		out    string // contained in standard output; "=" in front: equal to it
		err    string // contained in standard error, where SERVER is the address
	}{
		{"ping", func(s *clienttest.Session) { s.Expect(codec.Alive); s.Alive() }, 0, "is alive (", ""},
		{"ping", func(s *clienttest.Session) { s.Expect(codec.Alive); s.OK() }, 1, "=", "ping: SERVER does not speak the protocol"},
		{"ping", func(s *clienttest.Session) { s.Expect(codec.Alive); s.Refuse("going down") }, 1, "=", "ping: going down (server SERVER)"},
		{"ping", func(s *clienttest.Session) { s.Expect(codec.Alive) }, 1, "=", "ping: connection to SERVER was lost: EOF"},
		{"ping -timeout 30ms", func(s *clienttest.Session) { s.Expect(codec.Alive); s.Closed() }, 1, "=", "ping: no answer from SERVER within 30ms"},

		{"topic create order", func(s *clienttest.Session) { s.Expect(codec.CreateTopic); s.OK() }, 0, "=created topic order\n", ""},
		{"topic create order -trace tr", func(s *clienttest.Session) { s.Expect(codec.CreateTopic); s.Refuse(codec.TextTopicExist) }, 1, "=",
			"smss topic create: order: topic exist (server SERVER); it can be used as it is\n"},
		{"topic create a/b", func(s *clienttest.Session) { s.Expect(codec.CreateTopic); s.Refuse(codec.TextTopicName) }, 1, "=", "a/b: topic name MUST be"},
		{"topic delete order", func(s *clienttest.Session) { s.Expect(codec.DeleteTopic); s.OK() }, 0, "=deleted topic order\n", ""},
		{"topic delete order", func(s *clienttest.Session) { s.Expect(codec.DeleteTopic); s.Refuse(codec.TextTopicNotExist) }, 1, "=",
			"order: topic not exist (server SERVER); create it with"},
		{"topic delete order", func(s *clienttest.Session) { s.Expect(codec.DeleteTopic); s.Refuse(codec.TextMasterManages) }, 1, "=", "use the address of its master"},
		{"topic list", func(s *clienttest.Session) { s.Expect(codec.List); s.JSON("[" + goneJSON + "," + orderJSON + "]") }, 0,
			"=NAME     STATE     CREATED                EXPIRES\n" +
				"a\\x1bb   deleted   2026-11-30T21:11:31Z   2026-11-30T21:11:32Z\n" +
				"order    normal    2026-11-30T21:11:31Z   never\n", ""},
		{"topic list", func(s *clienttest.Session) { s.Expect(codec.List); s.JSON("") }, 0, "=", "no topics on SERVER"},
		{"topic info order", func(s *clienttest.Session) { s.Expect(codec.TopicInfo); s.JSON(orderJSON) }, 0,
			"=name:       order\nstate:      normal since 2026-11-30T21:11:31Z, event 4\ncreated:    2026-11-30T21:11:31Z, event 1\n" +
				"expires:    never\ndirectory:  /3/3/order\n", ""},
		{"topic info order", func(s *clienttest.Session) { s.Expect(codec.TopicInfo); s.Refuse("a\nb\x1b") }, 1, "=", `order: a\nb\x1b (server SERVER)`},
	} {
		t.Run(v.line, func(t *testing.T) {
			s := clienttest.Serve(t, func(s *clienttest.Session) { v.script(s) })
			got := runLine(t.Context(), s.Addr(), "", strings.Fields(v.line)...)
			want := strings.ReplaceAll(v.err, "SERVER", s.Addr())
			if got.exit != v.exit || !contains(got.out, v.out) || !strings.Contains(got.err, want) || v.err == "" && got.err != "" {
				t.Errorf("exit %d\nout %q\nerr %q, want %q", got.exit, got.out, got.err, want)
			}
			if strings.Count(got.err, "\n") > 1 {
				t.Errorf("more than one line: %q", got.err)
			}
		})
	}
}

func contains(s, want string) bool {
	if exact, ok := strings.CutPrefix(want, "="); ok {
		return s == exact
	}
	return strings.Contains(s, want)
}

func TestTopicCreateWithExpiry(t *testing.T) {
	var before, at int64
	s := clienttest.Serve(t, func(s *clienttest.Session) {
		at = s.Expect(codec.CreateTopic).ExpireAtMs
		s.OK()
		s.Closed()
	})
	before = time.Now().UnixMilli()
	got := runLine(t.Context(), s.Addr(), "", "topic", "create", "session", "-expire", "24h")
	if got.exit != 0 || !strings.HasPrefix(got.out, "created topic session, lives until 2") {
		t.Errorf("%+v", got)
	}
	if day := int64(24 * time.Hour / time.Millisecond); at < before+day || at > time.Now().UnixMilli()+day {
		t.Errorf("expires %d ms after the start", at-before)
	}
}

func TestUsageErrors(t *testing.T) {
	for line, want := range map[string]string{
		"":                                "usage: smss SUBCOMMAND",
		"publish t x":                     `unknown subcommand "publish"`,
		"topic":                           "topic needs a subcommand",
		"topic drop t":                    `unknown subcommand "drop" of topic`,
		"topic create":                    "the name of a topic is missing",
		"topic create a b":                `unexpected argument "b"`,
		"topic create t -expire 7d":       "invalid value \"7d\" for flag -expire",
		"topic create t -expire -1s":      "-expire -1s: it cannot be negative",
		"topic list t":                    `unexpected argument "t"`,
		"ping now":                        `unexpected argument "now"`,
		"ping -nonsense":                  "flag provided but not defined: -nonsense",
		"ping -timeout 0s":                "-timeout 0s: it has to be more than 0",
		"ping -timeout x":                 "invalid value",
		"ping -addr a:b:c:d]":             "is not HOST:PORT",
		"pub":                             "the name of a topic is missing",
		"pub t":                           "a message is missing",
		"pub t x -header novalue":         "not KEY=VALUE",
		"pub t x -header =v":              "not KEY=VALUE",
		"pub t x -delay -1s":              "-delay -1s: it cannot be negative",
		"pub t x -trace " + longText(256): "trace id is longer than 255 bytes",
		"sub t":                           "-name is missing",
		"sub -name w":                     "the name of a topic is missing",
		"sub -name w t u":                 `unexpected argument "u"`,
		"sub -name w t -batch 256":        "-batch 256: allowed are 1 to 255",
		"sub -name w t -batch -1":         "-batch -1: allowed are 1 to 255",
		"sub -name w t -count -1":         "-count -1: it cannot be negative",
		"sub -name w t -format xml":       `-format "xml": allowed are text, json and raw`,
		"sub -name w t -from x":           "invalid value",
		"sub -name w t -ack-timeout 0s":   "-ack-timeout 0s: it has to be more than 0",
		"help nonsense":                   `unknown subcommand "nonsense"`,
	} {
		t.Run(line, func(t *testing.T) {
			addr := ""
			if strings.Contains(line, "-trace") { // found when the request is built
				addr = clienttest.Serve(t, func(s *clienttest.Session) { s.Closed() }).Addr()
			}
			got := runLine(t.Context(), addr, "", strings.Fields(line)...)
			if got.exit != 2 || got.out != "" || !strings.Contains(got.err, want) || !strings.Contains(got.err, "usage: smss ") {
				t.Errorf("exit %d\nout %q\nerr %q", got.exit, got.out, got.err)
			}
		})
	}
}

func longText(n int) string { return strings.Repeat("x", n) }

func TestHelp(t *testing.T) {
	for line, wants := range map[string][]string{
		"help":              {"ping", "topic create", "pub", "sub", "SMSS_ADDR"},
		"-h":                {"Subcommands"},
		"--help":            {"Subcommands"},
		"help help":         {"Subcommands"},
		"help ping":         {"usage: smss ping [flags]\n", "-addr HOST:PORT", "Examples:\n  smss ping\n"},
		"help topic":        {"smss topic create [flags] NAME", "smss topic delete", "smss topic list", "smss topic info"},
		"help topic create": {"-expire TIME", "smss topic create session -expire 24h"},
		"topic -h":          {"smss topic create [flags] NAME", "smss topic list"},
		"topic create -h":   {"-expire TIME"},
		"help pub":          {"-header KEY=VALUE", "-delay TIME", "tail -f access.log | smss pub access -"},
		"pub -h":            {"-header KEY=VALUE"},
		"help sub":          {"-from EVENT-ID", "-format FORMAT", "(default text)", "-ack-timeout TIME", "(default 30s)"},
	} {
		got := runLine(t.Context(), "", "", strings.Fields(line)...)
		if got.exit != 0 || got.err != "" {
			t.Errorf("%s: %+v", line, got)
		}
		for _, want := range wants {
			if !strings.Contains(got.out, want) {
				t.Errorf("%s: %q is not in\n%s", line, want, got.out)
			}
		}
		for l := range strings.Lines(got.out) {
			if len([]rune(l)) > 110 {
				t.Errorf("%s: line of %d characters: %q", line, len(l), l)
			}
		}
	}
}

func TestNamesAreThoseThatRunKnows(t *testing.T) {
	for _, c := range commands() {
		if first := strings.Fields(c.name)[0]; !slices.Contains(Names(), first) {
			t.Errorf("%s is not in Names", first)
		}
		if len(c.examples) == 0 || c.text == "" {
			t.Errorf("%s has no examples or no text", c.name)
		}
	}
	for _, name := range Names() {
		if name == "help" {
			continue
		}
		if got := runLine(t.Context(), "", "", "help", name); got.exit != 0 {
			t.Errorf("help %s: %+v", name, got)
		}
	}
}

func TestAddresses(t *testing.T) {
	for in, want := range map[string]string{
		"127.0.0.1:12301": "127.0.0.1:12301", "broker": "broker:12301", "broker:1": "broker:1", ":5": ":5",
		"broker:": "broker:12301", "::1": "[::1]:12301", "[::1]": "[::1]:12301", "[::1]:7": "[::1]:7",
	} {
		if got, err := withPort("-addr", in, defaultPort); err != nil || got != want {
			t.Errorf("%q: %q, error %v", in, got, err)
		}
	}
	for _, in := range []string{"", "[]", "a:b:c]", "a:b:c", "[broker", "[a]b:1"} {
		if got, err := withPort("-addr", in, defaultPort); err == nil {
			t.Errorf("%q: %q", in, got)
		}
	}
}

func TestAddressFromTheEnvironment(t *testing.T) {
	s := clienttest.Serve(t, func(s *clienttest.Session) { s.Expect(codec.Alive); s.Alive(); s.Closed() })
	var out, errOut bytes.Buffer
	env := func(name string) string { return map[string]string{"SMSS_ADDR": s.Addr()}[name] }
	if exit := Run([]string{"ping"}, nil, &out, &errOut, env); exit != 0 || !strings.HasPrefix(out.String(), s.Addr()+" is alive") {
		t.Errorf("exit %d, out %q, err %q", exit, out.String(), errOut.String())
	}
	// The flag comes before it.
	other := clienttest.Serve(t, func(s *clienttest.Session) { s.Expect(codec.Alive); s.Alive(); s.Closed() })
	out.Reset()
	if exit := Run([]string{"ping", "-addr", other.Addr()}, nil, &out, &errOut, env); exit != 0 || !strings.HasPrefix(out.String(), other.Addr()) {
		t.Errorf("exit %d, out %q, err %q", exit, out.String(), errOut.String())
	}
}

func TestNobodyListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	for _, line := range []string{"ping", "topic list", "pub t x", "pub t -", "sub -name w t"} {
		got := runLine(t.Context(), addr, "", strings.Fields(line)...)
		want := "cannot reach " + addr + ": connection refused; is the server running?"
		if got.exit != 1 || got.out != "" || !strings.Contains(got.err, want) || strings.Count(got.err, "\n") != 1 {
			t.Errorf("%s: %+v", line, got)
		}
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "plain text": "plain text", "订单 🚀": "订单 🚀", `a\b"c'`: `a\b"c'`,
		"a\tb\nc": `a\tb\nc`, "\x1b[31m": `\x1b[31m`, "a\xffb": `a\xffb`, "\ufffd": "\ufffd",
		"\u202egnp": `\u202egnp`, "a\u2028b": `a\u2028b`, "\x00": `\x00`,
	} {
		if got := printable(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
