package bench

import (
	"context"
	"fmt"
	"hash/crc32"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file measures the engine in memory, as `make bench-engine` does with more cases. Here it is
// for the report and for the guard, and so for machines that do other things as well: times are CPU
// time of the thread, and of many short stretches, taken in turns, the best counts.

// Engine is what the engine costs alone.
type Engine struct {
	// Yardstick is what a fixed piece of Go takes on this CPU, in ns: table look-ups, shifts and
	// branches that nobody can foretell. Costs are compared over it between machines.
	Yardstick float64      `json:"yardstick_ns"`
	Costs     []EngineCost `json:"costs"`
	ICRC      ICRCCost     `json:"icrc"`
	QPs       []QPCost     `json:"qps"`
}

// EngineCost is one operation, from post to completion, both ends together; or, as "responder", a
// packet at that end alone.
type EngineCost struct {
	Op      string  `json:"op"`
	Size    int     `json:"size"`
	Batch   int     `json:"batch"` // posted with one doorbell
	Message float64 `json:"ns_per_message"`
	Packet  float64 `json:"ns_per_packet"`
	Mallocs uint64  `json:"allocations"` // in a stretch
}

// ICRCCost is for a packet with 4096 bytes of payload, in ns. CRC32 is hash/crc32 over 4096 bytes.
type ICRCCost struct {
	CRC32     float64 `json:"crc32_ns"`
	Build     float64 `json:"build_ns"`
	Parse     float64 `json:"parse_ns"`
	Copy      float64 `json:"copy_ns"`
	CopyCRC32 float64 `json:"copy_crc32_ns"`
	CopyBuild float64 `json:"copy_build_ns"`
}

// QPCost is a packet of WRITEs of 64 bytes that go round over so many QPs.
type QPCost struct {
	QPs    int     `json:"qps"`
	Packet float64 `json:"ns_per_packet"`
}

// engineCase is one thing to measure.
type engineCase struct {
	name    string
	prepare func() error // before each stretch, not timed; may be nil
	// stretch does some work, half a millisecond of it or so, and returns how many messages and
	// packets it was.
	stretch func() (messages, packets int, err error)

	message, packet float64 // ns, the best so far
	mallocs         uint64  // in a stretch, the least so far
	d               *sim.Direct
}

// threadTime is the CPU time of the calling thread in ns.
func threadTime() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) // cannot fail on Linux
	return ts.Nano()
}

// once takes one stretch.
func (c *engineCase) once() error {
	if c.prepare != nil {
		if err := c.prepare(); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	start := threadTime()
	messages, packets, err := c.stretch()
	used := float64(threadTime() - start)
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	lower(&c.message, used/float64(messages))
	lower(&c.packet, used/float64(packets))
	return nil
}

// countMallocs counts the allocations of a stretch.
func (c *engineCase) countMallocs() error {
	var before, after runtime.MemStats
	c.mallocs = ^uint64(0)
	for range 3 { // the runtime allocates now and then, too
		if c.prepare != nil {
			if err := c.prepare(); err != nil {
				return err
			}
		}
		runtime.ReadMemStats(&before)
		if _, _, err := c.stretch(); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		runtime.ReadMemStats(&after)
		c.mallocs = min(c.mallocs, after.Mallocs-before.Mallocs)
	}
	return nil
}

// measureAll takes rounds stretches of each case, in turns.
func measureAll(ctx context.Context, cases []*engineCase, rounds int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for range rounds {
		for _, c := range cases {
			if err := c.once(); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// opCase is an operation of a size, posted in batches.
func opCase(name string, op rxe.WROpcode, size, batch int) (*engineCase, error) {
	d, err := sim.NewDirect(sim.DirectConfig{})
	if err != nil {
		return nil, err
	}
	wr := d.WR(op, size)
	messages := max(1<<20/(size+1024), batch)
	messages -= messages % batch
	c := &engineCase{name: name, d: d}
	c.stretch = func() (int, int, error) {
		packets := 0
		for range messages / batch {
			for range batch {
				if err := d.Post(&wr); err != nil {
					return 0, 0, err
				}
			}
			n, err := d.Complete(batch)
			if err != nil {
				return 0, 0, err
			}
			packets += n
		}
		return messages, packets, nil
	}
	return c, nil
}

// responderCase is the responder alone with WRITEs of a size.
func responderCase(name string, size int) (*engineCase, error) {
	d, err := sim.NewDirect(sim.DirectConfig{})
	if err != nil {
		return nil, err
	}
	r, err := d.Record(d.WR(rxe.WRRDMAWrite, size), 1<<20/(size+1024))
	if err != nil {
		return nil, err
	}
	c := &engineCase{name: name, d: d, prepare: r.Rewind}
	c.stretch = func() (int, int, error) {
		if r.Play() == 0 {
			return 0, 0, fmt.Errorf("nothing was acknowledged")
		}
		return r.Packets(), r.Packets(), nil
	}
	return c, nil
}

// qpCase is WRITEs of 64 bytes over many QPs in turn.
func qpCase(n int) (*engineCase, error) {
	d, err := sim.NewDirect(sim.DirectConfig{QPs: n})
	if err != nil {
		return nil, err
	}
	wr := d.WR(rxe.WRRDMAWrite, 64)
	at := 0
	c := &engineCase{name: fmt.Sprintf("%d QPs", n), d: d}
	c.stretch = func() (messages, packets int, err error) {
		for messages < 1024 {
			k := min(32, n-at)
			got, err := d.PostEach(&wr, at, k)
			if err != nil {
				return 0, 0, err
			}
			at = (at + k) % n
			messages, packets = messages+k, packets+got
		}
		return messages, packets, nil
	}
	for range max(2*n/1024, 2) { // every QP has sent something
		if _, _, err := c.stretch(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// yardstick is a piece of Go that has nothing to do with roxie, of the kind that an engine is made of: it
// keeps a core's units busy. One that waits for each of its own results would hardly notice who else
// uses the core, and the engine would look slow for that.
func yardstick() *engineCase {
	const size = 1 << 13
	table := new([size]uint64) // 64 KiB: more than the first-level cache has
	const seed = 88172645463325252
	state := [4]uint64{seed, seed + 7919, seed + 2*7919, seed + 3*7919}
	c := &engineCase{name: "yardstick"}
	c.stretch = func() (int, int, error) {
		const rounds = 1024
		p, q, r, s := state[0], state[1], state[2], state[3] // in registers
		for range rounds * 31 {
			p, q, r, s = scramble(p), scramble(q), scramble(r), scramble(s)
			table[p%size] += q
			table[q%size] ^= r
			table[r%size] += s
			table[s%size] ^= p
		}
		state = [4]uint64{p, q, r, s}
		return rounds, rounds, nil
	}
	return c
}

// scramble is a step of a xorshift generator.
func scramble(x uint64) uint64 {
	x ^= x << 13
	x ^= x >> 7
	return x ^ x<<17
}

// icrcCases are the parts of a packet's way through build and parse.
func icrcCases() []*engineCase {
	const n = 4096
	t := new(wire.Template)
	t.Init(&wire.Path{VLAN: -1, Src: wire.GIDFromIPv4([4]byte{10, 0, 0, 1}),
		Dst: wire.GIDFromIPv4([4]byte{10, 0, 0, 2}), HopLimit: 64, SrcPort: 0xc000}, 0x17, 0xffff)
	header := t.HeaderLen(wire.RCWriteMiddle)
	f := rxe.Frame{Head: make([]byte, header+n+4)}
	into, payload := f.Head[header:header+n], make([]byte, n)
	p := new(wire.Packet)
	build := func() {
		t.Begin(f.Head, wire.RCWriteMiddle)
		t.Finish(f, wire.RCWriteMiddle, n)
	}
	build()
	var cases []*engineCase
	for _, x := range []struct {
		name string
		run  func()
	}{
		{"crc32", func() { benchSink += uint64(crc32.ChecksumIEEE(payload)) }},
		{"build", build},
		{"parse", func() { benchSink += uint64(wire.Parse(f, p)) }},
		{"copy", func() { copy(into, payload) }},
		{"copy+crc32", func() { copy(into, payload); benchSink += uint64(crc32.ChecksumIEEE(into)) }},
		{"copy+build", func() { copy(into, payload); build() }},
	} {
		cases = append(cases, &engineCase{name: x.name, stretch: func() (int, int, error) {
			const rounds = 512
			for range rounds {
				x.run()
			}
			return rounds, rounds, nil
		}})
	}
	return cases
}

// engineOps are the operations of the report.
var engineOps = []struct {
	op    string
	code  rxe.WROpcode
	size  int
	batch int
}{
	{"write", rxe.WRRDMAWrite, 64, 1}, {"write", rxe.WRRDMAWrite, 64, 32},
	{"send", rxe.WRSend, 64, 1}, {"read", rxe.WRRDMARead, 64, 1},
	{"atomic", rxe.WRAtomicFetchAdd, 8, 1},
	{"write", rxe.WRRDMAWrite, 65536, 1}, {"send", rxe.WRSend, 65536, 1},
	{"read", rxe.WRRDMARead, 65536, 1},
}

// EngineRun measures the engine.
func EngineRun(ctx context.Context, quick bool) (*Engine, error) {
	rounds, qps := 40, []int{1, 10, 100, 1000, 10000}
	if quick {
		rounds, qps = 3, []int{1, 100}
	}
	e := &Engine{}
	stick := yardstick()
	cases := []*engineCase{stick}
	for _, o := range engineOps {
		c, err := opCase(o.op, o.code, o.size, o.batch)
		if err != nil {
			return nil, err
		}
		cases = append(cases, c)
		e.Costs = append(e.Costs, EngineCost{Op: o.op, Size: o.size, Batch: o.batch})
	}
	responder, err := responderCase("responder", 64)
	if err != nil {
		return nil, err
	}
	cases = append(cases, responder)
	e.Costs = append(e.Costs, EngineCost{Op: "responder", Size: 64, Batch: 64})
	crc := icrcCases()
	if err := measureAll(ctx, append(cases, crc...), rounds); err != nil {
		return nil, err
	}
	e.Yardstick = stick.message
	for i := range e.Costs {
		c := cases[i+1]
		if err := c.countMallocs(); err != nil {
			return nil, err
		}
		e.Costs[i].Message, e.Costs[i].Packet, e.Costs[i].Mallocs = c.message, c.packet, c.mallocs
	}
	e.ICRC = ICRCCost{CRC32: crc[0].message, Build: crc[1].message, Parse: crc[2].message,
		Copy: crc[3].message, CopyCRC32: crc[4].message, CopyBuild: crc[5].message}
	return e, e.qps(ctx, qps, rounds)
}

// qps measures how the cost grows with the number of QPs.
func (e *Engine) qps(ctx context.Context, numbers []int, rounds int) error {
	var cases []*engineCase
	for _, n := range numbers {
		c, err := qpCase(n)
		if err != nil {
			return err
		}
		cases = append(cases, c)
	}
	if err := measureAll(ctx, cases, rounds); err != nil {
		return err
	}
	for i, n := range numbers {
		e.QPs = append(e.QPs, QPCost{QPs: n, Packet: cases[i].packet})
	}
	return nil
}
