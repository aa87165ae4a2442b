package wire

import (
	"fmt"
	"testing"
)

// testPath returns a path of the wanted family.
func testPath(v6 bool, vlan int16) *Path {
	p := &Path{SrcMAC: MAC{2, 0, 0, 0, 7, 1}, DstMAC: MAC{2, 0, 0, 0, 7, 2},
		VLAN: vlan, VLANPrio: 5,
		Src: GIDFromIPv4([4]byte{192, 168, 7, 1}), Dst: GIDFromIPv4([4]byte{192, 168, 7, 2}),
		HopLimit: 64, SrcPort: 0xc121}
	if v6 {
		p.Src, p.Dst = GID{0: 0xfd, 5: 7, 15: 1}, GID{0: 0xfd, 5: 7, 15: 2}
		p.TClass, p.FlowLabel = 0x2e, 0x12345
	}
	return p
}

// benchCases are the packets whose cost the engine's budget is made of.
var benchCases = []struct {
	name string
	op   Opcode
	v6   bool
	n    int // payload
	cut  int // bytes in the head, 0 for all
}{
	{"ack", RCAck, false, 0, 0},
	{"ack-v6", RCAck, true, 0, 0},
	{"send-8", RCSendOnly, false, 8, 0},
	{"write-8", RCWriteOnly, false, 8, 0},
	{"send-64", RCSendOnly, false, 64, 0},
	{"write-64", RCWriteOnly, false, 64, 0},
	{"middle-1024", RCWriteMiddle, false, 1024, 0},
	{"middle-1024-v6", RCWriteMiddle, true, 1024, 0},
	{"middle-4096", RCWriteMiddle, false, 4096, 0},
	{"middle-4096-cut-4096", RCWriteMiddle, false, 4096, 4096},
	{"middle-4096-cut-3840", RCWriteMiddle, false, 4096, 3840},
	{"middle-4096-cut-best", RCWriteMiddle, false, 4096, 54 + 4032},
}

func benchFrame(op Opcode, v6 bool, n, cut int) (*Template, Frame) {
	t := new(Template)
	t.Init(testPath(v6, -1), 0x17, 0xffff)
	size := t.HeaderLen(op) + (n+3)&^3 + icrcLen
	buf := make([]byte, 2*8192)
	f := Frame{Head: buf[:max(size, MaxHeader)]}
	if cut > 0 {
		f = Frame{Head: buf[:cut:cut], Tail: buf[8192 : 8192+size-cut]}
	}
	return t, f
}

func BenchmarkBuild(b *testing.B) {
	for _, c := range benchCases {
		b.Run(c.name, func(b *testing.B) {
			t, f := benchFrame(c.op, c.v6, c.n, c.cut)
			b.SetBytes(int64(t.HeaderLen(c.op) + c.n + icrcLen))
			b.ReportAllocs()
			for i := range b.N {
				h := t.Begin(f.Head, c.op)
				(*BTH)(h).SetPSN(PSN(i) & PSNMask)
				(*BTH)(h).SetAckReq(i&15 == 0)
				t.Finish(f, c.op, c.n)
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	for _, c := range benchCases {
		b.Run(c.name, func(b *testing.B) {
			t, f := benchFrame(c.op, c.v6, c.n, c.cut)
			t.Begin(f.Head, c.op)
			n := t.Finish(f, c.op, c.n)
			if c.cut == 0 {
				f.Head = f.Head[:n]
			}
			p := new(Packet)
			b.SetBytes(int64(f.Len()))
			b.ReportAllocs()
			for range b.N {
				if r := Parse(f, p); r != ReasonOK {
					b.Fatal(r)
				}
			}
		})
	}
}

func BenchmarkParseNoICRC(b *testing.B) {
	t, f := benchFrame(RCWriteOnly, false, 1024, 0)
	t.Begin(f.Head, RCWriteOnly)
	t.Finish(f, RCWriteOnly, 1024)
	p := new(Packet)
	for range b.N {
		if r := ParseNoICRC(f, p); r != ReasonOK {
			b.Fatal(r)
		}
	}
}

// BenchmarkAdvance shows what a run of bytes costs, where the slow and the fast path meet.
func BenchmarkAdvance(b *testing.B) {
	data := make([]byte, 4096)
	for _, n := range []int{4, 8, 16, 24, 31, 32, 48, 63, 64, 80, 1024, 4096} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.SetBytes(int64(n))
			s := uint32(icrcSeed)
			for range b.N {
				s = advance(s, data[:n])
			}
		})
	}
}
