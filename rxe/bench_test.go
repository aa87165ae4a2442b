package rxe_test

import (
	"fmt"
	"hash/crc32"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file measures the engine alone, in memory: both ends in one goroutine, frames passed by plain
// calls. `make bench-engine` runs it. ns/op is time on the wall, cpu-ns/op the thread's CPU time, which
// other programs on the machine change less.
//
//	Engine/OP/SIZE          a message from post to completion, requester and responder together
//	Engine/OP/SIZE/batch    the same, 32 posted with one doorbell
//	Responder/SIZE          a WRITE packet at the responder alone, acknowledgements included
//	ICRC, CRC32, …          a packet's checksum, and the library's over as many bytes
//	QPs/N                   a WRITE of 64 bytes, the QPs in turn

const engineBatch = 32

// cpuTime is what the calling thread has had of a CPU.
func cpuTime(t testing.TB) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

func newDirect(t testing.TB, c sim.DirectConfig) *sim.Direct {
	t.Helper()
	d, err := sim.NewDirect(c)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// engineOps are the operations, with the sizes that make sense for each.
var engineOps = []struct {
	name     string
	op       rxe.WROpcode
	qp       rxe.QPType
	min, max int
}{
	{"send", rxe.WRSend, rxe.RC, 8, 1 << 20},
	{"write", rxe.WRRDMAWrite, rxe.RC, 8, 1 << 20},
	{"read", rxe.WRRDMARead, rxe.RC, 8, 1 << 20},
	{"atomic", rxe.WRAtomicFetchAdd, rxe.RC, 8, 8},
	{"ud", rxe.WRSend, rxe.UD, 8, 4096},
}

func BenchmarkEngine(b *testing.B) {
	for _, o := range engineOps {
		for _, size := range []int{8, 64, 512, 4096, 65536, 1 << 20} {
			if size < o.min || size > o.max {
				continue
			}
			b.Run(fmt.Sprintf("%s/%d", o.name, size), func(b *testing.B) {
				benchEngine(b, o.op, o.qp, size, 1)
			})
			if size <= 4096 {
				b.Run(fmt.Sprintf("%s/%d/batch", o.name, size), func(b *testing.B) {
					benchEngine(b, o.op, o.qp, size, engineBatch)
				})
			}
		}
	}
}

func benchEngine(b *testing.B, op rxe.WROpcode, qp rxe.QPType, size, batch int) {
	d := newDirect(b, sim.DirectConfig{Type: qp})
	wr := d.WR(op, size)
	run := func(n int) (frames int) {
		for range n {
			if err := d.Post(&wr); err != nil {
				b.Fatal(err)
			}
		}
		frames, err := d.Complete(n)
		if err != nil {
			b.Fatal(err)
		}
		return frames
	}
	for range 300 / batch { // every slot of the queues has been used, the window is open
		run(batch)
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b.ResetTimer()
	frames, start := 0, cpuTime(b)
	for left := b.N; left > 0; left -= batch {
		frames += run(min(batch, left))
	}
	ns := float64(cpuTime(b) - start)
	b.ReportMetric(ns/float64(b.N), "cpu-ns/op")
	b.ReportMetric(ns/float64(frames), "cpu-ns/packet")
}

// BenchmarkResponder plays recorded packets to a responder.
func BenchmarkResponder(b *testing.B) {
	for _, size := range []int{8, 64, 1024, 4096} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			d := newDirect(b, sim.DirectConfig{})
			r, err := d.Record(d.WR(rxe.WRRDMAWrite, size), 1<<20/(size+1024))
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			b.ResetTimer()
			packets, used := 0, time.Duration(0)
			for packets < b.N {
				b.StopTimer()
				if err := r.Rewind(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				start := cpuTime(b)
				if r.Play() == 0 {
					b.Fatal("no acknowledgement")
				}
				used += cpuTime(b) - start
				packets += r.Packets()
			}
			// Of a packet: there were more than N.
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(packets), "ns/op")
			b.ReportMetric(float64(used.Nanoseconds())/float64(packets), "cpu-ns/op")
			b.ReportMetric(float64(packets)/used.Seconds()/1e6, "Mpackets/s")
		})
	}
}

// icrcFrame is a packet of a WRITE in the middle, as the receiver has it.
func icrcFrame(n int) (t *wire.Template, f rxe.Frame) {
	t = new(wire.Template)
	t.Init(&wire.Path{VLAN: -1, Src: wire.GIDFromIPv4([4]byte{10, 0, 0, 1}),
		Dst: wire.GIDFromIPv4([4]byte{10, 0, 0, 2}), HopLimit: 64, SrcPort: 0xc000}, 0x17, 0xffff)
	buf := make([]byte, t.HeaderLen(wire.RCWriteMiddle)+n+4)
	f = rxe.Frame{Head: buf}
	t.Begin(f.Head, wire.RCWriteMiddle)
	t.Finish(f, wire.RCWriteMiddle, n)
	return t, f
}

var benchSum uint32

// BenchmarkICRC compares the ICRC of a packet with 4096 bytes with the library's CRC over as many
// bytes, of which one hides behind the other's best where both are fast.
func BenchmarkICRC(b *testing.B) {
	const n = 4096
	t, f := icrcFrame(n)
	payload := make([]byte, n)
	into := f.Head[t.HeaderLen(wire.RCWriteMiddle):]
	p := new(wire.Packet)
	for _, c := range []struct {
		name string
		run  func()
	}{
		{"crc32", func() { benchSum += crc32.ChecksumIEEE(payload) }},
		{"build", func() {
			t.Begin(f.Head, wire.RCWriteMiddle)
			t.Finish(f, wire.RCWriteMiddle, n)
		}},
		{"parse", func() {
			if wire.Parse(f, p) != wire.ReasonOK {
				b.Fatal("not parsed")
			}
		}},
		{"copy", func() { copy(into, payload) }},
		{"copy+crc32", func() { copy(into, payload); benchSum += crc32.ChecksumIEEE(into[:n]) }},
		{"copy+build", func() {
			t.Begin(f.Head, wire.RCWriteMiddle)
			copy(into, payload)
			t.Finish(f, wire.RCWriteMiddle, n)
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(n)
			b.ReportAllocs()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			start := cpuTime(b)
			for range b.N {
				c.run()
			}
			b.ReportMetric(float64(cpuTime(b)-start)/float64(b.N), "cpu-ns/op")
		})
	}
}

// BenchmarkQPs spreads WRITEs of 64 bytes over many QPs, each QP in turn.
func BenchmarkQPs(b *testing.B) {
	for _, n := range []int{1, 16, 100, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			d := newDirect(b, sim.DirectConfig{QPs: n})
			wr := d.WR(rxe.WRRDMAWrite, 64)
			at, frames := 0, 0
			round := func() int {
				k := min(engineBatch, n-at)
				got, err := d.PostEach(&wr, at, k)
				if err != nil {
					b.Fatal(err)
				}
				at = (at + k) % n
				frames += got
				return k
			}
			for done := 0; done < max(4*n, 1000); {
				done += round()
			}
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			b.ReportAllocs()
			b.ResetTimer()
			frames = 0
			start := cpuTime(b)
			for left := b.N; left > 0; {
				left -= round()
			}
			ns := float64(cpuTime(b) - start)
			b.ReportMetric(ns/float64(b.N), "cpu-ns/op")
			b.ReportMetric(ns/float64(frames), "cpu-ns/packet")
		})
	}
}

// TestIdleQPMemory: what a QP of depth 128 with one SGE and no inline data costs before it is used.
func TestIdleQPMemory(t *testing.T) {
	const n, most = 1000, 16 << 10
	heap := func(qps int) uint64 {
		least := ^uint64(0)
		for range 2 {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			d := newDirect(t, sim.DirectConfig{QPs: qps})
			runtime.GC()
			runtime.ReadMemStats(&after)
			runtime.KeepAlive(d)
			least = min(least, after.HeapAlloc-before.HeapAlloc)
		}
		return least
	}
	least := (heap(1+n) - heap(1)) / (2 * n)
	t.Logf("%d bytes a QP", least)
	if least > most {
		t.Errorf("a connected idle QP takes %d bytes, want %d at most", least, most)
	}
}

// TestNoAllocs: no operation of any size allocates in steady state, by the runtime's own count.
func TestNoAllocs(t *testing.T) {
	for _, o := range engineOps {
		for _, size := range []int{8, 5000, 100_000} {
			if size > o.max {
				continue
			}
			d := newDirect(t, sim.DirectConfig{Type: o.qp})
			wr := d.WR(o.op, size)
			run := func() {
				if err := d.Post(&wr); err != nil {
					t.Fatal(err)
				}
				if _, err := d.Complete(1); err != nil {
					t.Fatal(err)
				}
			}
			for range 300 {
				run()
			}
			const rounds = 1000
			n := leastMallocs(3, func() {
				for range rounds {
					run()
				}
			})
			if n > rounds/100 {
				t.Errorf("%s of %d bytes: %d allocations over %d messages", o.name, size, n, rounds)
			}
		}
	}
}

// leastMallocs is how many objects f allocates, the least of some runs: other goroutines of the
// runtime allocate now and then, too.
func leastMallocs(runs int, f func()) uint64 {
	least := ^uint64(0)
	for range runs {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		least = min(least, after.Mallocs-before.Mallocs)
	}
	return least
}
