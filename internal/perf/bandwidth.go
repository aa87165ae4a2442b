package perf

import (
	"fmt"
	"time"
)

// resendAfter is how long a UC test waits for an answer to a control message.
const resendAfter = 20 * time.Millisecond

// silentAfter is how long it asks again and again before it takes the other end for gone.
const silentAfter = 5 * time.Second

// drainFor is how long a receiver of UC or UD messages waits for stragglers.
const drainFor = 20 * time.Millisecond

// bandwidth is the active end: it keeps every QP's send queue full until all is sent, and returns
// when all is complete and, if the other side compares, compared.
func (r *run) bandwidth() (time.Duration, error) {
	unlimited := r.cfg.Duration > 0
	for _, c := range r.conns {
		c.target = uint64(r.cfg.Iters)
		if unlimited {
			c.target = idCountMask
		}
	}
	r.start = time.Now()
	for {
		busy := false
		for _, c := range r.conns {
			sent, err := r.feed(c)
			if err != nil {
				return 0, err
			}
			busy = busy || sent
		}
		n, err := r.poll()
		if err != nil {
			return 0, err
		}
		now := r.now()
		if n > 0 {
			r.rates.sample(now, r.moved.Load())
			r.lastSeen = now
		}
		switch {
		case r.finished():
			return r.now(), nil
		case unlimited && now >= r.cfg.Duration:
			unlimited = false
			for _, c := range r.conns {
				c.target = c.posted + 1 // the last one is signaled
			}
		case r.halted():
			return 0, r.why()
		case n == 0 && !busy:
			if err := r.remind(now); err != nil {
				return 0, err
			}
			if err := r.idle(); err != nil {
				return 0, err
			}
		}
	}
}

// feed posts what a QP has room for, and closes each stretch of messages that is to be checked.
func (r *run) feed(c *conn) (sent bool, err error) {
	for {
		limit := r.limit(c)
		if c.posted >= limit {
			return sent, nil
		}
		if err := r.post(c, limit-c.posted); err != nil {
			return true, err
		}
		sent = true
		if r.lap && (c.posted == c.closed+r.every || c.posted == c.target) {
			if err := r.closeStretch(c, r.now()); err != nil {
				return true, err
			}
		}
	}
}

// limit is how many messages may be posted by now.
func (r *run) limit(c *conn) uint64 {
	limit := min(c.target, c.done+uint64(r.cfg.TXDepth))
	switch {
	case r.sendsBoth() && r.cfg.Server == "" && c.arrived == 0:
		limit = 0 // the client begins
	case r.lap:
		limit = min(limit, c.acked+r.slots, c.closed+r.every)
	case r.paced:
		limit = min(limit, c.acked+r.slots)
	case r.check.on: // READ, atomics
		limit = min(limit, c.checked+r.slots)
	}
	return limit
}

func (r *run) closeStretch(c *conn, now time.Duration) error {
	if c.acked == c.closed {
		c.heard = now
	}
	c.closed, c.asked = c.posted, now
	return r.postControl(c, idClose, c.posted)
}

// remind repeats control messages that UC has lost, or whose answers it has.
func (r *run) remind(now time.Duration) error {
	if !r.lap || r.cfg.Transport == RC {
		return nil
	}
	for _, c := range r.conns {
		switch waits := c.acked < c.closed; {
		case waits && now-c.heard > silentAfter:
			return fmt.Errorf("QP %d: %w: no answer for %v", c.index, errGone, silentAfter)
		case waits && now-c.asked > resendAfter:
			if err := r.closeStretch(c, now); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *run) finished() bool {
	for _, c := range r.conns {
		switch {
		case c.done < c.target, r.lap && c.acked < c.target, c.checked < c.due:
			return false
		case r.sendsBoth() && r.cfg.Duration == 0 && c.arrived < c.target:
			// Over UC and UD what is missing now may never come.
			return r.cfg.Transport != RC && r.now()-r.lastSeen > lostAfter
		}
	}
	return true
}

// sendsBoth says whether both ends send and receive SENDs at a time.
func (r *run) sendsBoth() bool { return r.duplex && r.cfg.Test.Op == Send }

// serve is the passive end: it takes what comes until the other end says how much it has sent.
func (r *run) serve() error {
	r.start = time.Now()
	for !r.halted() {
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

// drain takes what is still on its way of so many messages, of all QPs.
func (r *run) drain(messages uint64) error {
	if r.cfg.Test.Op != Send {
		return nil
	}
	last := r.now()
	for r.arrivals() < messages && r.now()-last < drainFor {
		n, err := r.poll()
		if err != nil {
			return err
		}
		if n > 0 {
			last = r.now()
		}
	}
	return nil
}

// arrivals is how many messages have come in, where this end can see it.
func (r *run) arrivals() uint64 {
	var n uint64
	for _, c := range r.conns {
		n += c.arrived
	}
	return n
}

// sent is how many messages are complete.
func (r *run) sent() uint64 {
	var n uint64
	for _, c := range r.conns {
		n += c.done
	}
	return n
}
