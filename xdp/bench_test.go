package xdp

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/cilium/ebpf/link"
)

// BenchmarkStream sends frames over a veth pair and receives them, all in one thread.
func BenchmarkStream(b *testing.B) {
	for _, mode := range []link.XDPAttachFlags{link.XDPDriverMode, link.XDPGenericMode} {
		for _, size := range []int{82, 122, 1082, 4154} {
			b.Run(fmt.Sprintf("mode=%d/size=%d", mode, size), func(b *testing.B) {
				l := newLab(b, 1, 9000)
				m := l.program(b, 1, 1, mode)
				tx := l.open(b, 0, Config{SG: true})
				rx := l.open(b, 1, Config{SG: true, XSKMAP: m})
				b.SetBytes(int64(size))
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				b.ResetTimer()
				stream(tx, rx, size, b.N)
				b.StopTimer()
				if st := rx.Stats(); st.RXFrames != uint64(b.N) {
					b.Fatalf("%d of %d frames arrived: %+v", st.RXFrames, b.N, st)
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mpps")
			})
		}
	}
}

// stream moves n frames in batches of 32.
func stream(tx, rx *Socket, size, n int) {
	for left := n; left > 0 || tx.InFlight() > 0; {
		for range min(32, left) {
			head, _, ok := tx.Reserve()
			if !ok {
				break
			}
			head[12]++
			tx.Submit(size)
			left--
		}
		tx.Kick()
		for {
			got := rx.Receive(64)
			if got == 0 {
				break
			}
			for i := range got {
				head, _, _ := rx.Packet(i)
				sink += int(head[12])
			}
			rx.Release()
		}
	}
}

var sink int
