package capture

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/gopacket/gopacket/pcapgo"

	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

const (
	defaultBuffer = 16 << 20 // bytes
	leastBuffer   = 1 << 20  // bytes for each shard
	defaultKeep   = 64 << 20 // bytes
	writeBuffer   = 1 << 18
	maxFrame      = 1 << 16
	maxInterfaces = 255

	flushEvery = 200 * time.Millisecond
	lookSoon   = time.Millisecond // how often the queues are looked at, under load and without
	lookLate   = 16 * time.Millisecond
	aftermath  = 100 * time.Millisecond // what belongs to a failure comes after it, too
	drainBatch = 4096
)

// Config says what to record. The zero value records everything until Stop.
type Config struct {
	Filter   string        // in the language of FilterHelp; empty: all
	SnapLen  int           // bytes recorded of each frame; 0: all
	Count    int           // packets after which the capture ends; 0: no limit
	Duration time.Duration // after which it ends; 0: no limit

	// Ring, if not 0, keeps packets for so long in memory and writes them when a QP of one of the
	// devices fails (verbs.Context.OnQPFailure), or at Trigger. Then the capture ends. Nothing is
	// written if that does not come to pass.
	Ring     time.Duration
	RingSize int // bytes for that; 0: 64 MiB; the oldest packets go when they do not suffice

	Buffer int // bytes between each device's shards and the writer; 0: 16 MiB
}

// Check says what is wrong with a configuration, and with its filter.
func (c Config) Check() error {
	if _, err := ParseFilter(c.Filter); err != nil {
		return err
	}
	_, err := c.withDefaults()
	return err
}

// withDefaults returns a checked copy with defaults filled in.
func (c Config) withDefaults() (Config, error) {
	if c.SnapLen == 0 {
		c.SnapLen = maxFrame
	}
	if c.RingSize == 0 {
		c.RingSize = defaultKeep
	}
	if c.Buffer == 0 {
		c.Buffer = defaultBuffer
	}
	switch {
	case c.SnapLen < 64 || c.SnapLen > maxFrame:
		return c, fmt.Errorf("snapshot length %d: want 64 to %d bytes", c.SnapLen, maxFrame)
	case c.Count < 0:
		return c, fmt.Errorf("count %d: want 1 or more, or 0 for no limit", c.Count)
	case c.Duration < 0:
		return c, fmt.Errorf("duration %v: want more than 0, or 0 for no limit", c.Duration)
	case c.Ring < 0 || c.Ring > 24*time.Hour:
		return c, fmt.Errorf("ring of %v: want more than 0, up to 24h", c.Ring)
	case c.Ring > 0 && c.Count > 0:
		return c, errors.New("a ring keeps a time, not a count of packets: give one of them")
	case c.RingSize < 1<<20 || c.RingSize > 1<<32:
		return c, fmt.Errorf("ring of %d bytes: want 1 MiB to 4 GiB", c.RingSize)
	case c.Buffer < leastBuffer || c.Buffer > 1<<30:
		return c, fmt.Errorf("buffer of %d bytes: want 1 MiB to 1 GiB", c.Buffer)
	}
	return c, nil
}

// Stats tells what a capture did.
type Stats struct {
	Seen    uint64        `json:"seen"`              // packets that came by
	Written uint64        `json:"written"`           // packets in the file
	Bytes   uint64        `json:"bytes"`             // of frames in the file
	Lost    uint64        `json:"lost"`              // packets that matched and found the buffer full
	Pushed  uint64        `json:"pushed,omitempty"`  // packets that a ring's size cost before their time
	Trigger string        `json:"trigger,omitempty"` // why a ring was written
	Span    time.Duration `json:"span_ns,omitempty"` // from the first packet in the file to the last
}

// Capture is one that runs. Its methods may be called from any goroutine.
type Capture struct {
	cfg    Config
	filter *Filter
	began  time.Time

	mu      sync.Mutex
	sources []*source
	names   []string // of interfaces, by number
	past    []total  // of devices that have gone, by number of the interface
	ended   bool

	stop    chan struct{}
	once    sync.Once
	trigger chan string
	done    chan struct{}

	// The goroutine's until done.
	out     *bufio.Writer
	ng      *pcapgo.NgWriter
	known   int // interfaces in the file
	history *ring
	scratch wire.Packet
	stats   Stats
	first   time.Duration
	err     error
}

// source is a device that is recorded.
type source struct {
	dev    *verbs.Context
	iface  uint8
	lanes  []*lane
	remove func()
	gone   bool // detached; mu
}

// total is what went by on an interface.
type total struct{ seen, lost uint64 }

// lane is what a shard's tap works with.
type lane struct {
	*ring
	pkt   wire.Packet
	noted uint64 // lost frames that the file knows of; the goroutine's
}

// Start begins to record devices to out, which it does not close. More devices may come with
// Attach. An error is about cfg, or about writing the head of the file.
func Start(out io.Writer, cfg Config, devices ...*verbs.Context) (*Capture, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Capture{
		cfg: cfg, began: time.Now(), stop: make(chan struct{}), done: make(chan struct{}),
		trigger: make(chan string, 1), out: bufio.NewWriterSize(out, writeBuffer),
	}
	if c.filter, err = ParseFilter(cfg.Filter); err != nil {
		return nil, err
	}
	if len(devices) == 0 {
		return nil, errors.New("no device to capture from")
	}
	if cfg.Ring > 0 {
		c.history = newRing(cfg.RingSize)
	}
	for _, d := range devices {
		c.Attach(d)
	}
	if c.history == nil {
		if err := c.open(""); err != nil {
			c.detachAll()
			return nil, err
		}
	}
	go c.run()
	return c, nil
}

// Attach records one more device. One that was closed and opened anew continues its interface.
func (c *Capture) Attach(dev *verbs.Context) {
	name := dev.Port().LinkName
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || slices.ContainsFunc(c.sources, func(s *source) bool { return s.dev == dev }) {
		return
	}
	i := slices.Index(c.names, name)
	if i < 0 {
		if i = len(c.names); i == maxInterfaces {
			return
		}
		c.names, c.past = append(c.names, name), append(c.past, total{})
	}
	c.forget()
	shards := dev.Device().Shards
	s := &source{dev: dev, iface: uint8(i), lanes: make([]*lane, shards)}
	for j := range s.lanes {
		s.lanes[j] = &lane{ring: newRing(max(leastBuffer, c.cfg.Buffer/shards))}
	}
	untap := dev.Tap(func(x *verbs.Captured) { c.see(s, x) })
	unhook := func() {}
	if c.history != nil {
		unhook = dev.OnQPFailure(func(q *verbs.QP, why verbs.Reason) {
			select {
			case c.trigger <- fmt.Sprintf("QP %#x of %s failed: %v", q.Num(), name, why):
			default:
			}
		})
	}
	s.remove = sync.OnceFunc(func() { untap(); unhook() })
	c.sources = append(c.sources, s)
}

// Detach ends the recording of a device that goes away. What was recorded of it stays.
func (c *Capture) Detach(dev *verbs.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.sources {
		if s.dev == dev {
			s.remove()
			s.gone = true
		}
	}
}

// forget frees what devices needed that have gone, once all of it is taken. c.mu is held.
func (c *Capture) forget() {
	c.sources = slices.DeleteFunc(c.sources, func(s *source) bool {
		if !s.gone || slices.ContainsFunc(s.lanes, func(l *lane) bool { return !l.empty() }) {
			return false
		}
		for i := range s.lanes {
			c.past[s.iface].seen += s.lanes[i].seen.Load()
			c.past[s.iface].lost += s.lanes[i].lost.Load()
		}
		return true
	})
}

// see records a frame. A shard calls it.
func (c *Capture) see(s *source, x *verbs.Captured) {
	l := s.lanes[x.Shard]
	l.seen.Add(1)
	if c.filter.Match(x, &l.pkt) {
		l.put(x, s.iface, c.cfg.SnapLen, x.Time.Sub(c.began))
	}
}

// Trigger has a ring written now, for the reason why, and ends it. A capture without a ring does
// not mind it.
func (c *Capture) Trigger(why string) {
	if c.history == nil {
		return
	}
	select {
	case c.trigger <- why:
	default:
	}
}

// Done is closed when the capture has ended: by Stop, Count, Duration, the trigger of a ring or an
// error of writing.
func (c *Capture) Done() <-chan struct{} { return c.done }

// Stop ends the capture, if it has not ended, writes what is recorded and returns what it did. The
// error is the first one of writing.
func (c *Capture) Stop() (Stats, error) {
	c.once.Do(func() { close(c.stop) })
	<-c.done
	return c.stats, c.err
}

// run takes records from the queues until the capture ends.
func (c *Capture) run() {
	defer close(c.done)
	var end <-chan time.Time
	if c.cfg.Duration > 0 {
		t := time.NewTimer(c.cfg.Duration)
		defer t.Stop()
		end = t.C
	}
	look := time.NewTimer(0)
	defer look.Stop()
	pause, flushed := lookSoon, time.Now()
	for c.err == nil && !c.full() {
		n := c.drain(drainBatch)
		if now := time.Now(); c.ng != nil && now.Sub(flushed) >= flushEvery {
			c.keep(c.flush())
			flushed = now
		}
		pause = min(2*pause, lookLate)
		if n > 0 {
			pause = lookSoon
		}
		if n == drainBatch {
			pause = 0
		}
		look.Reset(pause)
		select {
		case <-look.C:
			continue
		case why := <-c.trigger:
			c.writeHistory(why)
		case <-c.stop:
		case <-end:
		}
		break
	}
	c.finish()
}

// full reports that Count packets are written.
func (c *Capture) full() bool { return c.cfg.Count > 0 && c.stats.Written >= uint64(c.cfg.Count) }

// keep remembers the first error.
func (c *Capture) keep(err error) {
	if c.err == nil && err != nil {
		c.err = fmt.Errorf("write capture: %w", err)
	}
}

// drain takes up to limit records, the oldest of all queues first.
func (c *Capture) drain(limit int) (n int) {
	c.mu.Lock()
	sources := slices.Clone(c.sources)
	c.mu.Unlock()
	var x, best record
	for ; n < limit && c.err == nil && !c.full(); n++ {
		var from *lane
		for _, s := range sources {
			for _, l := range s.lanes {
				if l.peek(&x) && (from == nil || x.at < best.at) {
					from, best = l, x
				}
			}
		}
		if from == nil {
			break
		}
		if c.history != nil {
			c.stats.Pushed += uint64(c.history.keep(from.ring, &best))
		} else {
			lost := from.lost.Load()
			c.write(&best, lost-from.noted)
			from.noted = lost
		}
		from.pop(&best)
	}
	if c.history != nil {
		for oldest := time.Since(c.began) - c.cfg.Ring; c.history.peek(&x) && x.at < oldest; {
			c.history.pop(&x)
		}
	}
	return n
}

// writeHistory writes what a ring holds, with what comes in a moment.
func (c *Capture) writeHistory(why string) {
	select {
	case <-c.stop:
	case <-time.After(aftermath):
	}
	for c.drain(drainBatch) == drainBatch {
		continue
	}
	c.detachAll()
	c.stats.Trigger = why
	if err := c.open(why); err != nil {
		c.keep(err)
		return
	}
	var x record
	for c.err == nil && c.history.peek(&x) {
		c.write(&x, 0)
		c.history.pop(&x)
	}
}

// detachAll ends the recording of all devices, for good.
func (c *Capture) detachAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	for _, s := range c.sources {
		s.remove()
	}
}

// finish writes what is still in the queues and the statistics.
func (c *Capture) finish() {
	c.detachAll()
	if c.history == nil {
		for c.drain(drainBatch) == drainBatch {
			continue
		}
	}
	for _, t := range c.past {
		c.stats.Seen += t.seen
		c.stats.Lost += t.lost
	}
	for _, s := range c.sources {
		for i := range s.lanes {
			c.stats.Seen += s.lanes[i].seen.Load()
			c.stats.Lost += s.lanes[i].lost.Load()
		}
	}
	if c.ng == nil || c.err != nil {
		return
	}
	c.keep(c.writeStatistics())
	c.keep(c.flush())
}

func (c *Capture) flush() error {
	if err := c.ng.Flush(); err != nil {
		return err
	}
	return c.out.Flush()
}
