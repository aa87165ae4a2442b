package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"github.com/roxie-rdma/roxie/internal/perf"
)

// perfPrinter prints a run while it goes on.
type perfPrinter struct {
	out  io.Writer
	test perf.Test
	line *statusLine
	err  error // the first that printing met
}

func (p *perfPrinter) hooks() perf.Hooks {
	h := perf.Hooks{
		Setup: func(s *perf.Setup) {
			p.line.clear()
			p.note(perf.WriteSetup(p.out, s))
		},
		Result: func(r *perf.Result) {
			p.line.clear()
			p.note(perf.WriteRow(p.out, p.test, r))
		},
	}
	if p.line.on {
		h.Progress = func(m *perf.Moment) {
			p.line.set(fmt.Sprintf("%s, %d bytes: %.1f s, %.2f Gb/s", p.test.Name, m.Size,
				m.Elapsed.Seconds(), m.Gbps))
		}
	}
	return h
}

func (p *perfPrinter) note(err error) {
	if p.err == nil {
		p.err = err
	}
}

// statusLine is a line at the bottom of a terminal that is written over again and again. On
// anything but a terminal it is silent.
type statusLine struct {
	out io.Writer
	on  bool
	len int
}

func newStatusLine(w io.Writer) *statusLine {
	f, ok := w.(*os.File)
	return &statusLine{out: w, on: ok && isTerminal(f)}
}

func (s *statusLine) set(text string) {
	if !s.on {
		return
	}
	pad := strings.Repeat(" ", max(0, s.len-len(text)))
	fmt.Fprintf(s.out, "\r%s%s", text, pad)
	s.len = len(text)
}

func (s *statusLine) clear() {
	if s.on && s.len > 0 {
		fmt.Fprintf(s.out, "\r%s\r", strings.Repeat(" ", s.len))
		s.len = 0
	}
}

// interfaceHint names the interfaces that could be meant.
func interfaceHint() string {
	all, err := net.Interfaces()
	if err != nil {
		return ""
	}
	var names []string
	for _, i := range all {
		if i.Flags&net.FlagLoopback == 0 && i.Flags&net.FlagUp != 0 && len(i.HardwareAddr) == 6 {
			names = append(names, i.Name)
		}
	}
	if len(names) == 0 {
		return ", or run both ends here with --lab"
	}
	return " (" + strings.Join(names, ", ") + "), or run both ends here with --lab"
}
