package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
)

// errInterrupted is what remains of a run that Ctrl-C ended before there was
// anything to show.
var errInterrupted = errors.New("interrupted before anything was measured")

// scenario is one case of a mode: a load with its parameters, or several that
// need one server.
type scenario struct {
	name    string
	measure func(ctx context.Context, srv *server, p *progress) ([]Result, error)
}

// runPlan measures every scenario on every side in every round, alternately,
// and writes the report. Each measurement has a new process and an empty data
// directory: none inherits the heap, the files or the unwritten pages of the
// one before.
func runPlan(ctx context.Context, s *settings, out output, scenarios ...scenario) error {
	if err := s.checkFiles(); err != nil {
		return err
	}
	// Before any server starts, since it inherits the limit.
	reserveDescriptors(s.Threads + s.Subscribers + s.BallastSubscribers)
	report := newReport(s)
	sides := s.sides()
	if len(sides) > 1 {
		report.Base = sides[0].name
	}
	failed := runRounds(ctx, s, out, sides, scenarios, report)
	report.Interrupted = ctx.Err() != nil
	if len(report.Results) == 0 {
		return cmp.Or(failed, errInterrupted)
	}
	report.seal()
	if err := report.write(s); err != nil {
		return errors.Join(failed, err)
	}
	report.print(out.stdout)
	return failed
}

// runRounds adds the results to report. It ends with the first that failed,
// which is among them.
func runRounds(ctx context.Context, s *settings, out output, sides []side, scenarios []scenario, report *Report) error {
	for round := 1; round <= s.Rounds; round++ {
		for _, sc := range scenarios {
			for _, sd := range sides {
				label := sc.name
				if len(sides) > 1 {
					label += ", " + sd.name
				}
				if s.Rounds > 1 {
					label += fmt.Sprintf(", round %d of %d", round, s.Rounds)
				}
				results, err := measureOnce(ctx, sd, sc, newProgress(out, s, label))
				for _, r := range results {
					r.Server = sd.name
					if r.Round == 0 { // a scenario can have rounds of its own
						r.Round = round
					}
					report.Results = append(report.Results, r)
					err = cmp.Or(err, r.err())
				}
				if ctx.Err() != nil {
					return nil
				}
				if err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// measureOnce opens a server, measures it and stops it.
func measureOnce(ctx context.Context, sd side, sc scenario, p *progress) ([]Result, error) {
	srv, err := sd.open(ctx)
	if err != nil {
		return nil, err
	}
	results, err := sc.measure(ctx, srv, p)
	p.end()
	stopped := srv.stop()
	// A server that fails after all its replies have come has still failed.
	if n := len(results); err == nil && stopped != nil && n > 0 {
		results[n-1].fail(fmt.Sprintf("stop: %s", stopped), 1)
	}
	return results, err
}

func newResult(name string) Result {
	return Result{Case: name, Figures: Figures{}}
}

// fail counts n failures of one kind.
func (r *Result) fail(text string, n int64) {
	if r.Errors == nil {
		r.Errors = map[string]int64{}
	}
	r.Errors[text] += n
	r.Failed += n
}
