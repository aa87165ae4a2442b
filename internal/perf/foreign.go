package perf

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/roxie-rdma/roxie/verbs"
)

// This file runs a test against perftest: its order of steps, its ways to end. Each of its programs
// has its own:
//
//	*        keys of all QPs, connect, the same again, barrier
//	write_lat, read_lat, atomic_lat
//	         have a barrier before all that
//	-R       barrier, connect, barrier, before the keys and instead of connecting behind them
//	write_bw, read_bw, atomic_bw
//	         all sizes; barrier, report of the last, close
//	  -b     for each size: barrier, run, with -a barrier, report; close
//	send_bw  for each size: receives, barrier, run, with -b and not -D report, with -a barrier; close
//	send_lat for each size: receives, barrier, run; close
//	write_lat
//	         all sizes; no more is said
//	read_lat, atomic_lat
//	         all sizes; close

// perftestSession is session with perftest at the other end.
func (e *endpoint) perftestSession(ctx context.Context, conn net.Conn, hooks *Hooks) (
	results []Result, err error) {
	if e.cfg.Verify {
		return nil, errors.Join(errors.New("--verify: the other end is perftest, whose data is not "+
			"known; leave it out"), conn.Close())
	}
	p, ctx := newPerftest(ctx, conn, e.cfg.Server != "")
	defer func() {
		p.gone(errGone)
		_ = conn.Close()
	}()
	s := &foreign{endpoint: e, p: p, ctx: ctx, hooks: hooks}
	defer s.hangUp()
	if err := s.connect(); err != nil {
		return nil, err
	}
	if hooks.Setup != nil {
		hooks.Setup(e.setup())
	}
	if err := s.sizes(); err != nil {
		return nil, err
	}
	return s.results, s.close()
}

// foreign is a test with perftest at the other end.
type foreign struct {
	*endpoint
	p       *perftest
	ctx     context.Context
	hooks   *Hooks
	results []Result
}

// connect exchanges what both need to know and brings the QPs up.
func (s *foreign) connect() (err error) {
	if s.cycle, s.pmtu, err = s.p.numbers(s.ctx, s.pmtu); err != nil {
		return err
	}
	if s.endpoint.sizes, err = s.cfg.sizes(s.pmtu); err != nil {
		return err
	}
	if err := s.create(); err != nil {
		return err
	}
	if s.cfg.CM {
		if err := s.connectCM(); err != nil {
			return err
		}
	}
	if s.cfg.Test.Latency && s.cfg.Test.Op != Send {
		if err := s.barrier(); err != nil {
			return err
		}
	}
	for _, c := range s.conns {
		if c.remote, err = s.p.swapKeys(s.ctx, s.keys(c), stepTimeout); err != nil {
			return err
		}
	}
	for _, c := range s.conns {
		if s.cfg.CM {
			continue // it is up
		}
		c.peer = verbs.QPN(c.remote.QPN)
		if err := s.bringUp(c); err != nil {
			return err
		}
	}
	// The SEND tests have their barrier before the second round of keys, the others behind it: each
	// is a key message, whichever it is meant to be.
	if s.cfg.Test.Op == Send {
		if err := s.barrier(); err != nil {
			return err
		}
	}
	for _, c := range s.conns {
		if _, err := s.p.swapKeys(s.ctx, s.keys(c), stepTimeout); err != nil {
			return err
		}
	}
	if s.cfg.Test.Op == Send {
		return nil
	}
	return s.barrier()
}

// barrier returns when both ends have called it.
func (s *foreign) barrier() error {
	_, err := s.p.swapKeys(s.ctx, s.keys(s.conns[0]), stepTimeout)
	return err
}

// sizes runs all message sizes. A server that only serves memory does so once for all of them.
func (s *foreign) sizes() error {
	memory := s.cfg.Server == "" && !s.cfg.Bidirectional &&
		(s.cfg.Test.Op == Read || s.cfg.Test.Op == Atomic ||
			s.cfg.Test.Op == Write && !s.cfg.Test.Latency)
	if memory {
		largest := s.endpoint.sizes[len(s.endpoint.sizes)-1]
		return s.one(largest)
	}
	for _, size := range s.endpoint.sizes {
		if err := s.one(size); err != nil {
			return err
		}
	}
	return nil
}

// one runs one size with the barriers and reports around it.
func (s *foreign) one(size int) error {
	r := newRun(s.ctx, s.endpoint, &s.p.attention, size)
	defer r.close()
	send := s.cfg.Test.Op == Send
	if send {
		for _, c := range s.conns {
			if err := r.firstRecvs(c); err != nil {
				return err
			}
		}
	}
	before := s.traffic()
	if send || s.cfg.Bidirectional {
		if err := s.barrier(); err != nil {
			return err
		}
	}
	took, err := s.play(r)
	if err != nil {
		return err
	}
	if err := s.check(r); err != nil {
		return err
	}
	return s.report(r, before, took)
}

// play runs this end's part of a size, and returns how long that took.
func (s *foreign) play(r *run) (took time.Duration, err error) {
	if !r.deaf {
		r.x.onLine(r.close)
	}
	err = onThread(s.cfg, func() (err error) {
		if s.cfg.Server == "" && !r.duplex {
			start := time.Now()
			err = r.passive()
			took = time.Since(start)
			return err
		}
		stop := r.report(s.hooks)
		defer stop()
		took, err = r.active()
		return err
	})
	return took, err
}

// check sees to it that an end that counts has come to the end.
func (s *foreign) check(r *run) error {
	t := s.cfg.Test
	if s.cfg.Duration != 0 {
		return nil
	}
	want := r.expected() * uint64(s.cfg.QPs)
	switch {
	case t.Latency && s.cfg.Server == "" && (t.Op == Write || t.Op == Send):
		if r.conns[0].posted < want {
			return s.why()
		}
	case t.Op == Send && !t.Latency && s.cfg.Server == "" && !r.duplex:
		if err := r.drain(want); err != nil {
			return err
		}
	}
	return nil
}

// why is the reason for an early end.
func (s *foreign) why() error {
	if err := context.Cause(s.ctx); err != nil {
		return err
	}
	return errors.New("the other end ended the test early")
}

// report exchanges the reports that follow a size and adds the result.
func (s *foreign) report(r *run, before traffic, took time.Duration) error {
	t := s.cfg.Test
	send, all := t.Op == Send, s.cfg.All
	after := s.traffic()
	sent := report{Messages: r.sent(), Packets: after.sent - before.sent,
		Retransmit: after.again - before.again, figures: r.figures(took)}
	came := report{Messages: r.arrivals()}
	if s.cfg.Server != "" {
		came.Messages = sent.Messages // perftest does not tell what it has seen
	}
	if s.cfg.Server == "" && !r.duplex {
		sent.Messages, came.Packets, came.Retransmit = came.Messages, sent.Packets, sent.Retransmit
		sent.Packets, sent.Retransmit = 0, 0
	}
	res := s.result(r, sent, came)
	if s.cfg.Bidirectional || send {
		if !t.Latency && !send && all {
			if err := s.barrier(); err != nil {
				return err
			}
		}
		if s.cfg.Bidirectional && !(send && s.cfg.Duration > 0) {
			theirs, err := s.p.swapReport(s.ctx, ownReport(&res))
			if err != nil {
				return err
			}
			addReport(&res, theirs)
		}
		if !t.Latency && send && all {
			if err := s.barrier(); err != nil {
				return err
			}
		}
	} else if !t.Latency && s.last(r) {
		// The barrier tells a server that was serving memory that it is over.
		if err := s.barrier(); err != nil {
			return err
		}
		theirs, err := s.p.swapReport(s.ctx, ownReport(&res))
		if err != nil {
			return err
		}
		if s.cfg.Server == "" {
			takeReport(&res, theirs)
		}
	}
	if s.cfg.Server == "" && t.Latency && !r.deaf {
		return nil // memory was served: there is nothing to tell
	}
	s.results = append(s.results, res)
	if s.hooks.Result != nil {
		s.hooks.Result(&res)
	}
	return nil
}

// last says whether a size is the last one.
func (s *foreign) last(r *run) bool {
	return r.size == s.endpoint.sizes[len(s.endpoint.sizes)-1]
}

// gbpsPerMiB turns perftest's MiB/s into this program's 10^9 bits/s.
const gbpsPerMiB = mebi * 8 / 1e9

func ownReport(res *Result) bwReport {
	return bwReport{uint64(res.Size), res.Iterations,
		res.BWPeakGbps / gbpsPerMiB, res.BWGbps / gbpsPerMiB, res.MsgRate}
}

// addReport makes a result that of both directions together, as perftest prints it.
func addReport(res *Result, theirs bwReport) {
	res.BWGbps += theirs.average * gbpsPerMiB
	res.BWPeakGbps += theirs.peak * gbpsPerMiB
	res.MsgRate += theirs.msg
}

// takeReport makes a server's result that of the client, who has measured.
func takeReport(res *Result, theirs bwReport) {
	res.Size = int(min(theirs.size, maxSize))
	res.Iterations = theirs.iters
	res.BWGbps = theirs.average * gbpsPerMiB
	res.BWPeakGbps = max(theirs.peak*gbpsPerMiB, res.BWGbps)
	res.MsgRate = theirs.msg
}

// lingerFor is how long an end stays for the other one's last acknowledgements, if that does not
// hang up before.
const lingerFor = time.Second

// close ends the test as each program does.
func (s *foreign) close() error {
	t := s.cfg.Test
	if t.Latency && t.Op == Write {
		// Nothing more is said: each end hangs up when its last message is acknowledged.
		if c, ok := s.p.conn.(*net.TCPConn); ok {
			_ = c.CloseWrite()
		}
		select {
		case <-s.ctx.Done():
		case <-time.After(lingerFor):
		}
		return nil
	}
	if err := s.barrier(); err != nil {
		return err
	}
	if s.cfg.CM {
		return nil
	}
	if err := s.p.write([]byte(doneText)); err != nil && !errors.Is(err, errGone) {
		return err
	}
	return nil
}
