package cli

import (
	"flag"
	"fmt"
	"text/tabwriter"
	"time"

	"smss/client"
)

var pingCommand = &command{
	name:    "ping",
	summary: "ask the server whether it is alive",
	text: "Asks the server whether it is alive, and exits with 0 only if it says so within\n" +
		"-timeout. Made for health checks: it needs no topic and costs next to nothing.",
	examples: []string{"smss ping", "smss ping -addr broker:12301 -timeout 1s"},
	define: func(*flag.FlagSet) runFunc {
		return func(s *session, args []string) error {
			if err := noArguments(args); err != nil {
				return err
			}
			begin := time.Now()
			return s.request("ping", func(c *client.Conn) error {
				if err := c.Alive(); err != nil {
					return err
				}
				fmt.Fprintf(s.out, "%s is alive (%v)\n", s.addr, time.Since(begin).Round(10*time.Microsecond))
				return nil
			})
		}
	},
}

// topicName takes the one argument that a command has.
func topicName(args []string) (string, error) {
	switch {
	case len(args) == 0:
		return "", usageError("the name of a topic is missing")
	case len(args) > 1:
		return "", usagef("unexpected argument %q", args[1])
	case args[0] == "":
		return "", usageError("the name of a topic cannot be empty")
	}
	return args[0], nil
}

func traceFlag(flags *flag.FlagSet) *string {
	return flags.String("trace", "", "trace `ID` of up to 255 bytes, for the server's log")
}

var topicCreateCommand = &command{
	name:    "topic create",
	args:    "NAME",
	summary: "create a topic",
	text: "Creates a topic. Its name has 1 to 128 bytes without spaces, control characters,\n" +
		"/ and \\. With -expire it is deleted by itself after that time, 10s at least.",
	examples: []string{"smss topic create order", "smss topic create session -expire 24h"},
	define: func(flags *flag.FlagSet) runFunc {
		expire := flags.Duration("expire", 0, "`TIME` that the topic lives, such as 90s, 30m, 24h; 0 = until it is deleted")
		trace := traceFlag(flags)
		return func(s *session, args []string) error {
			name, err := topicName(args)
			if err != nil {
				return err
			}
			if *expire < 0 {
				return usagef("-expire %v: it cannot be negative", *expire)
			}
			var at time.Time
			until := ""
			if *expire > 0 {
				at = time.Now().Add(*expire)
				until = ", lives until " + timestamp(at)
			}
			return s.request(name, func(c *client.Conn) error {
				if err := c.CreateTopic(name, at, client.Trace(*trace)); err != nil {
					return err
				}
				fmt.Fprintf(s.out, "created topic %s%s\n", printable(name), until)
				return nil
			})
		}
	},
}

var topicDeleteCommand = &command{
	name:     "topic delete",
	args:     "NAME",
	summary:  "delete a topic and all that it holds",
	text:     "Deletes a topic with all its messages, delayed ones too. Its subscribers are told.",
	examples: []string{"smss topic delete order"},
	define: func(flags *flag.FlagSet) runFunc {
		trace := traceFlag(flags)
		return func(s *session, args []string) error {
			name, err := topicName(args)
			if err != nil {
				return err
			}
			return s.request(name, func(c *client.Conn) error {
				if err := c.DeleteTopic(name, client.Trace(*trace)); err != nil {
					return err
				}
				fmt.Fprintf(s.out, "deleted topic %s\n", printable(name))
				return nil
			})
		}
	},
}

var topicListCommand = &command{
	name:     "topic list",
	summary:  "list all topics",
	text:     "Lists all topics, also those that are about to go.",
	examples: []string{"smss topic list"},
	define: func(flags *flag.FlagSet) runFunc {
		trace := traceFlag(flags)
		return func(s *session, args []string) error {
			if err := noArguments(args); err != nil {
				return err
			}
			return s.request("topic list", func(c *client.Conn) error {
				topics, err := c.Topics(client.Trace(*trace))
				if err != nil {
					return err
				}
				if len(topics) == 0 {
					fmt.Fprintf(s.errOut, "no topics on %s\n", s.addr)
					return nil
				}
				table := tabwriter.NewWriter(s.out, 0, 0, 3, ' ', 0)
				fmt.Fprintln(table, "NAME\tSTATE\tCREATED\tEXPIRES")
				for _, t := range topics {
					fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", printable(t.Name), state(&t), timestamp(t.CreatedAt), expiry(&t))
				}
				return table.Flush()
			})
		}
	},
}

var topicInfoCommand = &command{
	name:     "topic info",
	args:     "NAME",
	summary:  "describe a topic",
	text:     "Describes one topic.",
	examples: []string{"smss topic info order"},
	define: func(flags *flag.FlagSet) runFunc {
		trace := traceFlag(flags)
		return func(s *session, args []string) error {
			name, err := topicName(args)
			if err != nil {
				return err
			}
			return s.request(name, func(c *client.Conn) error {
				t, err := c.TopicInfo(name, client.Trace(*trace))
				if err != nil {
					return err
				}
				table := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
				fmt.Fprintf(table, "name:\t%s\n", printable(t.Name))
				fmt.Fprintf(table, "state:\t%s since %s, event %d\n", state(&t), timestamp(t.StateChangedAt), t.StateChangeEventID)
				fmt.Fprintf(table, "created:\t%s, event %d\n", timestamp(t.CreatedAt), t.CreateEventID)
				fmt.Fprintf(table, "expires:\t%s\n", expiry(&t))
				fmt.Fprintf(table, "directory:\t%s\n", printable(t.Root))
				return table.Flush()
			})
		}
	},
}

func state(t *client.Topic) string {
	if t.Deleted {
		return "deleted"
	}
	return "normal"
}

func expiry(t *client.Topic) string {
	if t.ExpireAt.IsZero() {
		return "never"
	}
	return timestamp(t.ExpireAt)
}
