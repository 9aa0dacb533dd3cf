package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"
	"gopkg.in/natefinch/lumberjack.v2"

	"smss/conf"
)

// logTimeFormat is RFC 3339 with milliseconds and the local offset.
const logTimeFormat = "2006-01-02T15:04:05.000Z07:00"

// newLogger builds the process's logger from cfg.Log. The closer belongs to the
// caller; for a file it is a *lumberjack.Logger, so that Rotate can be had from it.
// A file that cannot be written is reported here, not at the first line.
func newLogger(cfg *conf.Config, stdout, stderr *os.File) (zerolog.Logger, io.Closer, error) {
	level, err := zerolog.ParseLevel(cfg.Log.Level)
	if err != nil {
		return zerolog.Nop(), nil, fmt.Errorf("log.level: %w", err)
	}
	target, terminal, err := logTarget(cfg, stdout, stderr)
	if err != nil {
		return zerolog.Nop(), nil, fmt.Errorf("log.path %q: %w", cfg.Log.Path, err)
	}
	var out io.Writer = target
	if cfg.Log.Format == "console" || cfg.Log.Format == "auto" && terminal {
		out = consoleWriter(target, !terminal)
	}
	// A hook of our own, since zerolog's time format is a variable of its package
	// and would be shared by every logger of the process.
	return zerolog.New(out).Level(level).Hook(timestamp{time.Now}), target, nil
}

// logTarget opens where lines go and says whether a person is watching there.
func logTarget(cfg *conf.Config, stdout, stderr *os.File) (target io.WriteCloser, terminal bool, err error) {
	switch cfg.Log.Path {
	case "stdout":
		return stream{stdout}, isTerminal(stdout), nil
	case "stderr":
		return stream{stderr}, isTerminal(stderr), nil
	}
	path, err := prepareLogFile(cfg.Log.Path)
	if err != nil {
		return nil, false, err
	}
	// Closing leaves one sleeping goroutine behind (lumberjack issue 56), which a
	// logger that lives as long as the process can afford.
	return &lumberjack.Logger{
		Filename:   path,
		MaxSize:    cfg.Log.Rotate.MaxSize,
		MaxBackups: cfg.Log.Rotate.MaxBackups,
		MaxAge:     cfg.Log.Rotate.MaxAge,
		LocalTime:  true,
	}, false, nil
}

// prepareLogFile finds the file meant by log.path, makes its directory and proves
// that the file can be written.
func prepareLogFile(path string) (string, error) {
	info, err := os.Stat(path)
	isDirectory := err == nil && info.IsDir()
	switch {
	case isDirectory || !strings.EqualFold(filepath.Ext(path), ".log") && errors.Is(err, os.ErrNotExist):
		path = filepath.Join(path, "out.log")
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return "", err
	case err == nil && !strings.EqualFold(filepath.Ext(path), ".log"):
		return "", errors.New("is a file; a directory or a file name ending in .log is expected")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return "", err
	}
	return path, f.Close()
}

// stream is a standard stream; it is not ours to close.
type stream struct{ *os.File }

func (stream) Close() error { return nil }

func isTerminal(f *os.File) bool {
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	terminal := false
	err = raw.Control(func(fd uintptr) { terminal = isatty.IsTerminal(fd) || isatty.IsCygwinTerminal(fd) })
	return err == nil && terminal
}

func consoleWriter(out io.Writer, noColor bool) io.Writer {
	return zerolog.NewConsoleWriter(func(w *zerolog.ConsoleWriter) {
		w.Out = out
		w.NoColor = noColor
		w.FormatTimestamp = func(t any) string { return fmt.Sprint(t) } // formatted already
	})
}

// timestamp adds the time to each line.
type timestamp struct{ now func() time.Time }

func (t timestamp) Run(e *zerolog.Event, _ zerolog.Level, _ string) {
	e.Str(zerolog.TimestampFieldName, t.now().Format(logTimeFormat))
}

// libraryLog lets a library write to our logger: it is gnet's logging.Logger and
// Badger's Logger. What libraries tell as information is debug to us, and errors
// they repeat are held back.
type libraryLog struct {
	log    zerolog.Logger
	part   string
	repeat *repeatLog
}

// newLibraryLog marks each line with part, the library's name.
func newLibraryLog(log zerolog.Logger, part string, repeat *repeatLog) libraryLog {
	return libraryLog{log.With().Str("part", part).Logger(), part, repeat}
}

func (l libraryLog) Debugf(format string, args ...any)   { logLine(l.log.Debug(), format, args) }
func (l libraryLog) Infof(format string, args ...any)    { logLine(l.log.Debug(), format, args) }
func (l libraryLog) Warnf(format string, args ...any)    { l.limited(zerolog.WarnLevel, format, args) }
func (l libraryLog) Warningf(format string, args ...any) { l.limited(zerolog.WarnLevel, format, args) }
func (l libraryLog) Errorf(format string, args ...any)   { l.limited(zerolog.ErrorLevel, format, args) }

// Fatalf writes the line, always, and returns: ending the process is for main,
// which has files to close, and the library also returns the error that made it
// say this.
func (l libraryLog) Fatalf(format string, args ...any) {
	logLine(l.log.Error().Bool("fatal", true), format, args)
}

// limited writes a line whose cause is its format string, with the number of
// lines held back before it.
func (l libraryLog) limited(level zerolog.Level, format string, args []any) {
	if level < l.log.GetLevel() {
		return
	}
	emit, suppressed := l.repeat.Allow(l.part + ": " + format)
	if !emit {
		return
	}
	e := l.log.WithLevel(level)
	if suppressed > 0 {
		e = e.Int("suppressed", suppressed)
	}
	logLine(e, format, args)
}

// logLine formats only when the level is on: a disabled event is nil.
func logLine(e *zerolog.Event, format string, args []any) {
	if e != nil {
		e.Msg(strings.TrimSpace(fmt.Sprintf(format, args...)))
	}
}

const (
	repeatInterval  = 10 * time.Second
	maxRepeatCauses = 1024
)

// repeatLog keeps errors that come in floods from filling the disk: one line for
// each cause in ten seconds. A cause is a short text that does not vary with the
// victim, such as a format string. Beyond 1024 causes at a time the further ones
// count as one. Safe for use by several goroutines.
type repeatLog struct {
	now func() time.Time

	mu       sync.Mutex
	causes   map[string]*repeated // at most maxRepeatCauses
	overflow repeated
	sweepAt  time.Time // no entry expires before
}

type repeated struct {
	lastEmit   time.Time // zero = never
	suppressed int       // since then
}

func newRepeatLog(now func() time.Time) *repeatLog {
	return &repeatLog{now: now, causes: make(map[string]*repeated)}
}

// Allow says whether a line for cause may be written now, and if so how many were
// held back since the last one.
func (l *repeatLog) Allow(cause string) (emit bool, suppressed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	r := l.entry(cause, now)
	if !r.lastEmit.IsZero() && now.Sub(r.lastEmit) < repeatInterval {
		r.suppressed++
		return false, 0
	}
	suppressed = r.suppressed
	*r = repeated{lastEmit: now}
	return true, suppressed
}

// entry finds or makes the entry of cause, forgetting expired ones for it.
func (l *repeatLog) entry(cause string, now time.Time) *repeated {
	if r, ok := l.causes[cause]; ok {
		return r
	}
	if len(l.causes) >= maxRepeatCauses && !now.Before(l.sweepAt) {
		l.sweep(now)
	}
	if len(l.causes) >= maxRepeatCauses {
		return &l.overflow
	}
	r := new(repeated)
	l.causes[cause] = r
	return r
}

// sweep drops entries whose interval is over and sets the time before which
// another sweep would find nothing. What they held back is told by the next line
// of the further causes, so that the sum stays right.
func (l *repeatLog) sweep(now time.Time) {
	l.sweepAt = now.Add(repeatInterval)
	for cause, r := range l.causes {
		end := r.lastEmit.Add(repeatInterval)
		switch {
		case !end.After(now):
			l.overflow.suppressed += r.suppressed
			delete(l.causes, cause)
		case end.Before(l.sweepAt):
			l.sweepAt = end
		}
	}
}
