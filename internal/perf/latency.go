package perf

import (
	"errors"
	"fmt"
	"time"

	"github.com/roxie-rdma/roxie/verbs"
)

const (
	// warmUp rounds of a latency test are not recorded: they meet cold caches.
	warmUp = 32
	// signalEvery is how many messages of a latency test make one completion, which is looked at in
	// passing.
	signalEvery = 16
	// lostAfter is how long a round may take over UC and UD before its message counts as lost.
	lostAfter = time.Second
	// lookEvery is how many spins go by between two looks at the clock.
	lookEvery = 1 << 12
)

var errLost = errors.New("no message came for a second: one was lost, and nothing repeats it; " +
	"-c RC does")

// over says when the active end of a latency test has done enough.
func (r *run) over(n uint64) bool {
	if r.cfg.Duration > 0 {
		return n > warmUp && time.Since(r.measured) >= r.cfg.Duration
	}
	return n >= r.expected()
}

// expected is how many messages a QP will see, if a number and not a time is given.
func (r *run) expected() uint64 {
	n := uint64(r.cfg.Iters)
	if r.cfg.Test.Latency {
		n += warmUp
	}
	return n
}

// latency is the active end of a latency test.
func (r *run) latency() (time.Duration, error) {
	c := r.conns[0]
	c.target = idCountMask
	r.cqMod = signalEvery
	r.start = time.Now()
	for n := uint64(0); !r.over(n); n++ {
		if n == warmUp {
			r.measured = time.Now()
		}
		from := r.now()
		var err error
		switch r.cfg.Test.Op {
		case Write:
			if err = r.write(c, n); err == nil {
				err = r.awaitFlag(c, n)
			}
		case Send:
			if err = r.send(c, n); err == nil {
				err = r.awaitArrival(c, n)
			}
		default:
			err = r.fetch(c)
		}
		if err != nil {
			return 0, err
		}
		if took := int64(r.now() - from); n >= warmUp {
			if r.cfg.Test.Op == Write || r.cfg.Test.Op == Send {
				took /= 2
			}
			r.lat.record(took)
			r.moved.Add(uint64(r.size))
		}
	}
	return time.Since(r.measured), nil
}

// echo is the passive end of a latency test: WRITE and SEND are answered in kind.
func (r *run) echo() error {
	c := r.conns[0]
	c.target = idCountMask
	r.cqMod = signalEvery
	r.start = time.Now()
	for n := uint64(0); ; n++ {
		var err error
		switch r.cfg.Test.Op {
		case Write:
			if err = r.awaitFlag(c, n); err == nil {
				err = r.write(c, n)
			}
		case Send:
			if err = r.awaitArrival(c, n); err == nil {
				err = r.send(c, n)
			}
		default:
			return r.serve()
		}
		if errors.Is(err, errHalted) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// errHalted ends a wait because the other end has something to say.
var errHalted = errors.New("the other end ended the test")

// room waits until the send queue can take one more message.
func (r *run) room(c *conn) error {
	for c.posted-c.done >= uint64(r.cfg.TXDepth) {
		if _, err := r.poll(); err != nil {
			return err
		}
		if r.halted() {
			return r.end()
		}
	}
	return nil
}

// end is what a loop returns that was halted.
func (r *run) end() error {
	if r.cfg.Server == "" {
		return errHalted
	}
	return r.why()
}

// send posts message n.
func (r *run) send(c *conn, n uint64) error {
	if err := r.room(c); err != nil {
		return err
	}
	return r.post(c, 1)
}

// awaitArrival waits for message n of the other end.
func (r *run) awaitArrival(c *conn, n uint64) error {
	for spins := 0; c.arrived <= n; {
		got, err := r.poll()
		if err != nil {
			return err
		}
		if got > 0 {
			continue
		}
		if err := r.wait(spins); err != nil {
			return err
		}
		spins++
	}
	return nil
}

// wait is called after each vain look for the other end's message. spins counts them.
func (r *run) wait(spins int) error {
	if r.halted() {
		return r.end()
	}
	if r.cfg.Transport != RC && r.cfg.Server != "" && spins%lookEvery == 0 {
		switch now := r.now(); {
		case spins == 0:
			r.waitsSince = now
		case now-r.waitsSince > lostAfter:
			return errLost
		}
	}
	if r.cfg.Test.Op == Write {
		return nil // the message makes no completion to sleep for
	}
	if r.cfg.Transport != RC {
		return nil // a lost one neither
	}
	return r.idle()
}

// flagOf is the last byte of message n of a WRITE test, by which its arrival is noticed. 0 is what
// the buffer is cleared to.
func flagOf(n uint64) byte { return byte(n%255) + 1 }

// write makes message n and writes it to the other end: the pattern, if that is compared, and the
// flag at its end.
func (r *run) write(c *conn, n uint64) error {
	if err := r.room(c); err != nil {
		return err
	}
	at := r.plan.outAt(c.index)
	out := r.mem.Bytes()[at : at+r.size]
	if r.cfg.Verify {
		copy(out, r.pattern[shift(c.index, n, r.slots):])
	}
	out[r.size-1] = flagOf(n)
	wr, sge := &c.wrs[0], &c.sges[0]
	r.message(c, wr, sge, n)
	sge.Addr = r.mem.Addr() + uint64(at)
	if r.inline {
		wr.Inline = out
	}
	c.posted++
	if err := c.qp.PostSend(wr); err != nil {
		return fmt.Errorf("post to QP %d: %w", c.index, err)
	}
	return nil
}

// awaitFlag waits until the last byte of message n is there, and with it the whole of it.
func (r *run) awaitFlag(c *conn, n uint64) error {
	slot := r.slot(c, n)
	last, want := &slot[r.size-1], flagOf(n)
	for spins := 0; verbs.LoadFlag(last) != want; spins++ {
		if _, err := r.poll(); err != nil {
			return err
		}
		if err := r.wait(spins); err != nil {
			return err
		}
	}
	r.check.check(slot[:r.size-1], c.index, n, r.slots)
	r.check.flag()
	return nil
}

// fetch is one round of a READ or atomic: post, wait for the completion.
func (r *run) fetch(c *conn) error {
	c.target = c.posted + 1 // signaled
	if err := r.post(c, 1); err != nil {
		return err
	}
	for spins := 0; c.done < c.posted; spins++ {
		got, err := r.poll()
		if err != nil {
			return err
		}
		if got == 0 {
			if err := r.wait(spins); err != nil {
				return err
			}
		}
	}
	return nil
}
