package bench

import (
	"context"
	"errors"
	"fmt"
)

// errInterrupted is what remains of a run that Ctrl-C ended before there was
// anything to show.
var errInterrupted = errors.New("interrupted before anything was measured")

// opener is openServer or openBare.
type opener func(context.Context, *settings) (*server, error)

func runPub(ctx context.Context, s *settings, out output) error {
	if s.Compare {
		return runComparison(ctx, s, out)
	}
	return runSingle(ctx, s, out, openServer)
}

func runLimit(ctx context.Context, s *settings, out output) error {
	if s.Compare {
		return runComparison(ctx, s, out)
	}
	return runSingle(ctx, s, out, openBare)
}

// runSingle measures one server once.
func runSingle(ctx context.Context, s *settings, out output, open opener) error {
	if err := checkFile(s.json); err != nil {
		return err
	}
	report := newReport(s)
	r, err := measureOnce(ctx, s, open, s.Pipelines[0], newProgress(out, s, s.Mode))
	if err != nil {
		return err
	}
	report.Results = []Result{*r}
	if err := report.writeFile(s.json); err != nil {
		return err
	}
	report.Machine.print(out.stdout)
	s.printLoad(out.stdout, r.Pipeline)
	r.print(out.stdout)
	return r.err()
}

// measureOnce opens a server, measures it and stops it.
func measureOnce(ctx context.Context, s *settings, open opener, pipeline int, p *progress) (*Result, error) {
	srv, err := open(ctx, s)
	if err != nil {
		return nil, interruption(ctx, err)
	}
	r, err := measure(ctx, s, srv, pipeline, p)
	if err != nil {
		_ = srv.stop()
		return nil, interruption(ctx, err)
	}
	// A server that fails after all its replies have come has still failed.
	if err := srv.stop(); err != nil {
		r.Failed++
		r.Errors[fmt.Sprintf("stop: %s", err)]++
	}
	return r, nil
}

func interruption(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errInterrupted
	}
	return err
}
