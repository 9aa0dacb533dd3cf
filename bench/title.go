package bench

import (
	"fmt"
	"strconv"
	"strings"
)

// title carries the parameters of a run, for names of files.
func (s *settings) title() string {
	var all []string
	switch s.Mode {
	case "pub", "limit", "levels":
		for _, k := range s.Pipelines {
			all = append(all, s.loadTitle(k))
		}
	case "sub", "latency", "fanout":
		all = append(all, s.streamTitle(strings.Join(texts(s.Batches), "+")))
	case "idle":
		all = append(all, fmt.Sprintf("%ds", s.Subscribers))
	case "delay":
		for _, form := range s.Forms {
			all = append(all, s.delayTitle(form))
		}
	case "restart", "seek":
		all = append(all, s.storeTitle())
	case "topics":
		all = append(all, fmt.Sprintf("%dt", s.Topics))
	case "interference":
		all = append(all, s.interferenceTitle(strings.Join(s.By, "+")))
	}
	if s.Mode == "replica" {
		all = append(all, s.replicaTitle(), "acks", strings.Join(texts(s.MinAcks), "+"))
	}
	if s.Against.name != "" {
		all = append(all, "against", s.Against.name)
	}
	return strings.Join(all, "-")
}

// streamTitle names a case of the modes with subscribers.
func (s *settings) streamTitle(batch string) string {
	var parts []string
	switch {
	case s.Mode == "sub":
		parts = append(parts, "drain")
	case s.Mode == "latency":
		parts = append(parts, fmt.Sprintf("%dps", s.Rate), fmt.Sprintf("%dc", s.Threads))
	case s.Rate > 0:
		parts = append(parts, fmt.Sprintf("%dps", s.Rate))
	case s.Threads > 1 || len(s.Pipelines) > 0:
		parts = append(parts, fmt.Sprintf("%dc", s.Threads), strings.Join(texts(s.Pipelines), "")+"p")
	}
	parts = append(parts, fmt.Sprintf("%ds", s.Subscribers), batch+"batch", fmt.Sprintf("%db", s.Size))
	return strings.Join(append(parts, s.ballastTitle()...), "-")
}

func (s *settings) delayTitle(form string) string {
	if form == formSpread {
		return fmt.Sprintf("%s-%d-%dps-%db", form, s.Delays, s.Rate, s.Size)
	}
	return fmt.Sprintf("%s-%d-%db", form, s.Delays, s.Size)
}

func (s *settings) storeTitle() string {
	return fmt.Sprintf("%sg-%db", strconv.FormatFloat(s.Gigabytes, 'g', -1, 64), s.Size)
}

func (s *settings) interferenceTitle(by string) string {
	switch by {
	case byLarge:
		by += fmt.Sprintf("-%db", s.LargeSize)
	case byDelete, byRetention:
		by += fmt.Sprintf("-%sg", strconv.FormatFloat(s.Gigabytes, 'g', -1, 64))
	}
	return fmt.Sprintf("%s-%dps-%dc-%db", by, s.Rate, s.Threads, s.Size)
}

func (s *settings) replicaTitle() string {
	return fmt.Sprintf("%s-%sg", s.loadTitle(s.Pipelines[0]), strconv.FormatFloat(s.Gigabytes, 'g', -1, 64))
}

func texts(numbers []int) []string {
	var all []string
	for _, n := range numbers {
		all = append(all, strconv.Itoa(n))
	}
	return all
}
