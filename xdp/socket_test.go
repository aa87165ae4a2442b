package xdp

import (
	"bytes"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
)

// fill writes a pattern that depends on the frame's length and the position, and returns a copy.
func fillReserved(s *Socket, parts, n int) []byte {
	var all []byte
	for j := range parts {
		p := s.ReservedPart(j)
		for i := range p {
			p[i] = byte(n + (len(all)+i)*7 + (len(all)+i)>>8)
		}
		all = append(all, p...)
	}
	return all[:n]
}

// frame gathers frame i of the batch.
func frame(s *Socket, i int) []byte {
	var all []byte
	_, _, parts := s.Packet(i)
	for j := range parts {
		all = append(all, s.Part(i, j)...)
	}
	return all
}

func TestFrameSizes(t *testing.T) {
	for _, mode := range []link.XDPAttachFlags{link.XDPDriverMode, link.XDPGenericMode} {
		l := newLab(t, 1, 9000)
		m := l.program(t, 1, 1, mode)
		a := l.open(t, 0, Config{SG: true})
		b := l.open(t, 1, Config{SG: true, XSKMAP: m})
		for _, n := range []int{14, 60, 64, 1082, 3839, 3840, 3841, 4096, 4154, 7680, 7936, 7937, 9014} {
			parts, ok := a.ReserveParts(n)
			if !ok {
				t.Fatalf("mode %d: %d bytes not reserved", mode, n)
			}
			want := fillReserved(a, parts, n)
			if !a.Submit(n) {
				t.Fatalf("mode %d: %d bytes refused", mode, n)
			}
			if k := a.Kick(); k != KickSent {
				t.Fatalf("mode %d: kick of %d bytes: %v", mode, n, k)
			}
			if w := b.Wait(time.Second); w != WokenRX {
				t.Fatalf("mode %d: %d bytes did not arrive: %+v %+v", mode, n, a.Stats(), b.Stats())
			}
			if got := b.Receive(8); got != 1 {
				t.Fatalf("mode %d: %d frames of %d bytes, want 1", mode, got, n)
			}
			if got := frame(b, 0); !bytes.Equal(got, want) || b.Len(0) != n {
				t.Fatalf("mode %d: frame of %d bytes arrived with %d, or differs", mode, n, len(got))
			}
			b.Release()
		}
	}
}
