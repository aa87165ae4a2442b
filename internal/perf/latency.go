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
	// lostAfter is how long nothing may come over UC and UD before messages count as lost.
	lostAfter = time.Second
	// roundLostAfter is the same for a round of a latency test, which cannot go on without it: an
	// emulated machine may stand still for longer than a second.
	roundLostAfter = 5 * time.Second
	// lookEvery is how many spins go by between two looks at the clock.
	lookEvery = 1 << 12
	// clockEvery is the same for a test by time that each end ends by itself.
	clockEvery = 1 << 6
)

var errLost = errors.New("no message came for 5 seconds: one was lost, and nothing repeats it; " +
	"-c RC does")

// over says when the active end of a latency test has done enough.
func (r *run) over(n uint64) bool {
	if r.cfg.Duration > 0 {
		return n > r.warm && time.Since(r.measured) >= r.cfg.Duration
	}
	return n >= r.expected()
}

// expected is how many messages a QP will see, if a number and not a time is given.
func (r *run) expected() uint64 {
	n := uint64(r.cfg.Iters)
	if r.cfg.Test.Latency {
		n += r.warm
	}
	return n
}

// latency is the active end of a latency test.
func (r *run) latency() (time.Duration, error) {
	c := r.conns[0]
	c.target = r.lastMessage()
	r.cqMod = signalEvery
	r.start = time.Now()
	if r.serverFirst() {
		if err := r.awaitFlag(c, 0); err != nil {
			return 0, err
		}
	}
	for n := uint64(0); !r.over(n); n++ {
		if n == r.warm {
			r.measured = time.Now()
		}
		from := r.now()
		var err error
		switch r.cfg.Test.Op {
		case Write:
			if err = r.write(c, n); err == nil {
				err = r.awaitAnswer(c, n)
			}
		case Send:
			if err = r.send(c, n); err == nil {
				err = r.awaitArrival(c, n)
			}
		default:
			err = r.fetch(c)
		}
		if errors.Is(err, errTimeUp) {
			break
		} else if err != nil {
			return 0, err
		}
		if took := int64(r.now() - from); n >= r.warm && !(r.serverFirst() && n+1 == c.target) {
			if r.cfg.Test.Op == Write || r.cfg.Test.Op == Send {
				took /= 2
			}
			r.lat.record(took)
			r.moved.Add(uint64(r.size))
		}
	}
	took := time.Since(r.measured)
	return took, r.settle(c)
}

// lastMessage is how many messages there will be, to have the last one signaled.
func (r *run) lastMessage() uint64 {
	if r.foreign && r.cfg.Duration == 0 {
		return r.expected()
	}
	return idCountMask
}

// settle waits until all that was sent is complete. Only perftest's way needs it: it ends by count,
// and nothing is heard of the other end afterwards.
func (r *run) settle(c *conn) error {
	for r.foreign && r.cfg.Duration == 0 && c.done < c.posted {
		n, err := r.poll()
		if err != nil {
			return err
		}
		if n == 0 {
			if err := r.idle(); err != nil {
				return err
			}
		}
	}
	return nil
}

// timeUp says whether a test by time is over for an end that has to see to it by itself: perftest
// does not answer any more then.
func (r *run) timeUp() bool {
	return r.foreign && r.cfg.Duration > 0 && r.now() >= r.cfg.Duration
}

// echo is the passive end of a latency test: WRITE and SEND are answered in kind.
func (r *run) echo() error {
	c := r.conns[0]
	c.target = r.lastMessage()
	r.cqMod = signalEvery
	r.start = time.Now()
	var from time.Duration // when the last message was posted
	for n := uint64(0); n < c.target; n++ {
		var err error
		switch r.cfg.Test.Op {
		case Write:
			if r.serverFirst() {
				from = r.now()
				if err = r.write(c, n); err == nil {
					err = r.awaitFlag(c, n)
					r.recordEcho(n+1, from)
				}
			} else if err = r.awaitFlag(c, n); err == nil {
				err = r.write(c, n)
			}
		case Send:
			if err = r.awaitArrival(c, n); err == nil {
				r.recordEcho(n, from)
				from = r.now()
				err = r.send(c, n)
			}
		default:
			return r.serve()
		}
		if errors.Is(err, errHalted) || errors.Is(err, errTimeUp) {
			return nil
		} else if err != nil {
			return err
		}
		r.moved.Add(uint64(r.size))
	}
	return r.settle(c)
}

// recordEcho notes a half round trip as the passive end sees it; perftest's servers print them, too.
func (r *run) recordEcho(n uint64, from time.Duration) {
	if r.foreign && n > 0 {
		r.lat.record(int64(r.now()-from) / 2)
	}
}

// errHalted ends a wait because the other end has something to say.
var errHalted = errors.New("the other end ended the test")

// errTimeUp ends a wait because the test was to last so long.
var errTimeUp = errors.New("the time is up")

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
	switch {
	case r.cfg.Server == "":
		return errHalted
	case r.foreign && r.cfg.Duration > 0 && r.now() > r.cfg.Duration/2:
		return errTimeUp // the other end's clock was first
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
	if spins%clockEvery == 0 && r.timeUp() {
		return errTimeUp
	}
	if r.cfg.Transport != RC && r.cfg.Server != "" && spins%lookEvery == 0 {
		switch now := r.now(); {
		case spins == 0:
			r.waitsSince = now
		case now-r.waitsSince > roundLostAfter:
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
func (r *run) flagOf(n uint64) byte {
	if r.foreign {
		return byte(n + 1) // perftest's, which comes round to 0
	}
	return byte(n%255) + 1
}

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
	out[r.size-1] = r.flagOf(n)
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

// serverFirst says whether it is the server that sends first: in perftest's write_lat it is.
func (r *run) serverFirst() bool { return r.foreign && r.cfg.Test.Op == Write }

// awaitAnswer waits for the answer to message n: the other end's of that number, or the next one if
// that end was first. The last message has none then.
func (r *run) awaitAnswer(c *conn, n uint64) error {
	if !r.serverFirst() {
		return r.awaitFlag(c, n)
	}
	if n+1 == c.target {
		return nil
	}
	return r.awaitFlag(c, n+1)
}

// awaitFlag waits until the last byte of message n is there, and with it the whole of it.
func (r *run) awaitFlag(c *conn, n uint64) error {
	slot := r.slot(c, n)
	last, want := &slot[r.size-1], r.flagOf(n)
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
