package cli

import (
	"flag"
	"fmt"
	"net/url"
	"strconv"
	"time"
)

func jsonFlag(flags *flag.FlagSet) *bool {
	return flags.Bool("json", false, "print the server's answer as it is, JSON")
}

// changePatience is how long a change may take: longer than any limit of the
// server, so that its answer comes and not ours.
const changePatience = 3 * time.Minute

var promoteCommand = &command{
	name:     "promote",
	summary:  "make a slave the master",
	admin:    true,
	patience: changePatience,
	text: "Makes a slave the master: it stops following, begins a new epoch behind the last\n" +
		"event that it has, arms delayed messages and lifetimes, and takes writes. For a\n" +
		"master that is gone; while it lives, use smss switchover. Events that the slave\n" +
		"had not received are lost, and an old master that returns with events of its own\n" +
		"is refused. A master stays what it is.",
	examples: []string{"smss promote", "smss promote -admin 10.0.0.2:12302"},
	define: func(flags *flag.FlagSet) runFunc {
		asJSON := jsonFlag(flags)
		return func(s *session, args []string) error {
			if err := noArguments(args); err != nil {
				return err
			}
			return s.change(*asJSON, "/promote", nil, func(c *roleChange) string {
				return fmt.Sprintf("%s is the master, its last event was %d%s", s.addr, c.LastEventID, restartNote)
			})
		}
	},
}

var demoteCommand = &command{
	name:     "demote",
	args:     "MASTER",
	summary:  "make a server follow a master, or another one",
	admin:    true,
	patience: changePatience,
	text: "Makes a server the slave of MASTER, HOST:PORT of its broker port. A master stops\n" +
		"writing at once; a slave follows another master than before. What it holds is\n" +
		"kept. Whether the two belong together they find out when they meet: see smss\n" +
		"status afterwards.",
	examples: []string{"smss demote 10.0.0.1:12301", "smss demote 10.0.0.1:12301 -admin 10.0.0.2:12302"},
	define: func(flags *flag.FlagSet) runFunc {
		asJSON := jsonFlag(flags)
		return func(s *session, args []string) error {
			master, err := one(args)
			if err != nil {
				return err
			}
			if master == "" {
				return usageError("the address of the master is missing")
			}
			return s.change(*asJSON, "/follow", url.Values{"master": {master}}, func(c *roleChange) string {
				return fmt.Sprintf("%s follows %s; smss status tells how they get on%s", s.addr, c.Master, restartNote)
			})
		}
	},
}

var switchoverCommand = &command{
	name:     "switchover",
	args:     "[TO]",
	summary:  "hand a master's role over to a slave, losing nothing",
	admin:    true,
	patience: changePatience,
	text: "Hands the role of a master over to one of its slaves, the one of address or node\n" +
		"id TO, or the only one. The master stops writing, waits until the slave has\n" +
		"everything, lets it take over, and follows it. Nothing is lost; clients are refused\n" +
		"for as long as it takes, a second or less if the slave keeps up. Where the slave\n" +
		"does not catch up or leaves, the master stays the master.",
	examples: []string{"smss switchover", "smss switchover 10.0.0.2:12301 -admin 10.0.0.1:12302"},
	define: func(flags *flag.FlagSet) runFunc {
		asJSON := jsonFlag(flags)
		return func(s *session, args []string) error {
			to, err := one(args)
			if err != nil {
				return err
			}
			query := url.Values{}
			if to != "" {
				query.Set("to", to)
			}
			return s.change(*asJSON, "/switchover", query, func(c *roleChange) string {
				return fmt.Sprintf("%s is the master behind event %d, and %s follows it%s", c.Master, c.LastEventID, s.addr, restartNote)
			})
		}
	},
}

var reseedCommand = &command{
	name:     "reseed",
	summary:  "copy a slave's master anew",
	admin:    true,
	patience: changePatience,
	text: "Lets a slave copy its master anew, for one whose history has parted from its\n" +
		"master's, or whose master does not have the events any more that it needs. What\n" +
		"only the slave has is lost, for which -discard must be given.",
	examples: []string{"smss reseed -admin 10.0.0.2:12302", "smss reseed -discard"},
	define: func(flags *flag.FlagSet) runFunc {
		asJSON := jsonFlag(flags)
		discard := flags.Bool("discard", false, "give up events that only this server has")
		return func(s *session, args []string) error {
			if err := noArguments(args); err != nil {
				return err
			}
			return s.change(*asJSON, "/reseed", url.Values{"discard": {strconv.FormatBool(*discard)}}, func(*roleChange) string {
				return s.addr + " copies its master anew; smss status tells how far it is"
			})
		}
	},
}
