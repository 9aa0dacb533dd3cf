package main

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"net"
	"strconv"
	"time"

	"smss/admin"
	"smss/engine"
	"smss/replication"
)

// startAdmin begins the admin listener, or returns nil where there is none. A
// port that nobody has asked for may be taken, by another server on the same
// machine for one: this one goes on without.
func (s *server) startAdmin(serves admin.Config) (*admin.Server, error) {
	c := s.cfg
	if c.Admin.Port == 0 {
		return nil, nil
	}
	ln, err := net.Listen("tcp", net.JoinHostPort(c.Admin.Host, strconv.Itoa(c.Admin.Port)))
	if err != nil {
		if c.Given("admin.port") || c.Given("admin.host") {
			return nil, fmt.Errorf("admin.port %d: %w; give another one, or 0 for none", c.Admin.Port, err)
		}
		s.log.Warn().Err(err).Int("port", c.Admin.Port).Msg("no admin listener: smss status, promote, demote and switchover do not reach this server; admin.port gives it another port, 0 none")
		return nil, nil
	}
	s.log.Info().Str("address", ln.Addr().String()).Msg("admin listener")
	serves.Version, serves.Since, serves.Host = version(), time.Now(), c.Admin.Host
	serves.Log = log.New(lineLog{newLibraryLog(s.log, "admin", s.repeat)}, "", 0)
	serves.Asked = func(what, remote string, err error) {
		line := s.log.Info()
		if err != nil {
			line = s.log.Warn()
		}
		line.Err(err).Str("remote", remote).Msg("asked to " + what)
	}
	return admin.Start(ln, serves), nil
}

// serving is what the admin listener of a server shows that serves.
func (s *server) serving(e *engine.Engine) admin.Config {
	return admin.Config{Engine: e, Node: s.node, Replication: func() any { return s.node.Status() }}
}

// copying is the same while a full copy is made.
func copying(c *replication.Copy) admin.Config {
	return admin.Config{
		Absent:      errors.New("a full copy of the master is being made, see the status"),
		Replication: func() any { return c.Status() },
	}
}

// lineLog takes lines of the HTTP server's log.
type lineLog struct{ log libraryLog }

func (l lineLog) Write(line []byte) (int, error) {
	l.log.Warnf("%s", bytes.TrimSpace(line))
	return len(line), nil
}
