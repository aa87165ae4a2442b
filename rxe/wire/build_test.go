package wire

import (
	"bytes"
	"fmt"
	"testing"
)

// shapes are the kinds of path that differ in their headers.
var shapes = []struct {
	name string
	v6   bool
	vlan int16
}{
	{"v4", false, -1}, {"v4-vlan", false, 100}, {"v6", true, -1}, {"v6-vlan", true, 4095},
}

// build makes a frame with a payload of n pattern bytes, cut after cut bytes of the head. The head
// has room for everything when cut is negative.
func build(v6 bool, vlan int16, op Opcode, n, cut int) (*Template, Frame, int) {
	t := new(Template)
	t.Init(testPath(v6, vlan), 0xabcdef, 0xffff)
	data := t.HeaderLen(op)
	size := data + (n+3)&^3 + icrcLen
	f := Frame{Head: make([]byte, MaxHeader+size)}
	if cut >= 0 {
		f = Frame{Head: make([]byte, cut), Tail: make([]byte, size-cut)}
	}
	pattern(f.Head, 1) // what the frame was used for before
	pattern(f.Tail, 2)
	headers := make([]byte, MaxHeader)
	b := t.Begin(headers, op)
	h := (*BTH)(b)
	h.SetPSN(0xfedcba)
	h.SetAckReq(n&1 == 1)
	h.SetSolicited(n&2 == 2)
	pattern(b[bthLen:], 3)
	payload := make([]byte, n)
	pattern(payload, uint64(n))
	copy(f.Head, headers[:data])
	k := copy(f.Head[data:], payload)
	copy(f.Tail, payload[k:])
	return t, f, t.Finish(f, op, n)
}

// join returns the first n bytes of a frame in one piece.
func join(f Frame, n int) []byte {
	return append(append([]byte(nil), f.Head...), f.Tail...)[:n]
}

// checkBuilt verifies a built frame byte by byte where the rules are simple, and by Parse.
func checkBuilt(t *testing.T, tm *Template, frame []byte, op Opcode, n int) {
	t.Helper()
	p := new(Packet)
	if r := Parse(Frame{Head: frame}, p); r != ReasonOK {
		t.Fatalf("%v, %d bytes: %v\n% x", op, n, r, frame)
	}
	ip := tm.BTHOffset() - udpLen - ipv4Len
	if p.V6 {
		ip = tm.BTHOffset() - udpLen - ipv6Len
	}
	if want := refICRC(frame[ip:], p.V6); p.ICRC() != want {
		t.Fatalf("%v, %d bytes: ICRC %08x, want %08x", op, n, p.ICRC(), want)
	}
	payload := make([]byte, n)
	pattern(payload, uint64(n))
	if p.Op != op || p.PSN != 0xfedcba || p.DestQP != 0xabcdef || p.PayloadLen != n ||
		int(p.Pad) != -n&3 || p.AckReq != (n&1 == 1) || p.Solicited != (n&2 == 2) ||
		!bytes.Equal(p.Data0, payload) {
		t.Fatalf("%v, %d bytes: parsed as %v", op, n, p)
	}
	if end := len(frame) - icrcLen; !bytes.Equal(frame[end-int(p.Pad):end], make([]byte, p.Pad)) {
		t.Fatalf("padding % x", frame[end-int(p.Pad):end])
	}
}

// TestBuildLengths builds payloads of every length at both ends of the range.
func TestBuildLengths(t *testing.T) {
	for _, s := range shapes {
		t.Run(s.name, func(t *testing.T) {
			lengths := []int{1023, 1024, 2048, 4093, 4094, 4095, 4096}
			for n := range 140 {
				lengths = append(lengths, n)
			}
			for n := 3770; n <= 3800; n++ {
				lengths = append(lengths, n)
			}
			for _, n := range lengths {
				for _, op := range []Opcode{RCSendOnly, RCWriteOnlyImm, RCReadRespOnly} {
					tm, f, size := build(s.v6, s.vlan, op, n, -1)
					checkBuilt(t, tm, join(f, size), op, n)
				}
			}
		})
	}
}

// TestBuildEveryOpcode builds a packet of every opcode in the table.
func TestBuildEveryOpcode(t *testing.T) {
	for _, s := range shapes {
		for op := range Opcode(255) {
			if !op.Known() {
				continue
			}
			n := 0
			if op.Info().Flags&FlagPayload != 0 {
				n = 37
			}
			tm := new(Template)
			tm.Init(testPath(s.v6, s.vlan), 1, 0xffff)
			buf := make([]byte, 512)
			pattern(buf, 9)
			b := tm.Begin(buf, op)
			want := buf[tm.BTHOffset():tm.HeaderLen(op)]
			if len(b) != len(want) || &b[0] != &want[0] {
				t.Fatalf("%v: Begin returns %d bytes, want %d", op, len(b), len(want))
			}
			size := tm.Finish(Frame{Head: buf}, op, n)
			p := new(Packet)
			if r := Parse(Frame{Head: buf[:size]}, p); r != ReasonOK || p.Op != op {
				t.Errorf("%s %v: %v\n% x", s.name, op, r, buf[:size])
			}
		}
	}
}

// TestBuildSplit builds frames cut at every byte behind the headers: in payload, padding and ICRC.
func TestBuildSplit(t *testing.T) {
	for _, s := range shapes {
		t.Run(s.name, func(t *testing.T) {
			for _, n := range []int{0, 1, 3, 4, 17, 64, 127, 130, 300} {
				tm, f, size := build(s.v6, s.vlan, RCWriteOnly, n, -1)
				want := join(f, size)
				for cut := tm.HeaderLen(RCWriteOnly); cut <= size; cut++ {
					_, f, got := build(s.v6, s.vlan, RCWriteOnly, n, cut)
					if got != size {
						t.Fatalf("%d bytes cut at %d: length %d, want %d", n, cut, got, size)
					}
					if b := join(f, got); !bytes.Equal(b, want) {
						t.Fatalf("%d bytes cut at %d: %s", n, cut, diffBytes(b, want))
					}
				}
			}
		})
	}
}

// TestBuildSplitLong cuts the frames that AF_XDP hands over in two buffers where it cuts them,
// and a few bytes around.
func TestBuildSplitLong(t *testing.T) {
	for _, s := range shapes {
		for n := 3770; n <= 3800; n++ {
			_, f, size := build(s.v6, s.vlan, RCSendOnly, n, -1)
			want := join(f, size)
			for cut := 3836; cut <= min(3844, size); cut++ {
				_, f, got := build(s.v6, s.vlan, RCSendOnly, n, cut)
				if b := join(f, got); !bytes.Equal(b, want) {
					t.Fatalf("%s: %d bytes cut at %d: %s", s.name, n, cut, diffBytes(b, want))
				}
				p := new(Packet)
				if r := Parse(f, p); r != ReasonOK || p.PayloadLen != n {
					t.Fatalf("%s: %d bytes cut at %d: %v", s.name, n, cut, r)
				}
			}
		}
	}
}

// TestBuildLeavesRest checks that nothing behind the frame is written.
func TestBuildLeavesRest(t *testing.T) {
	for n := range 70 {
		_, f, size := build(false, -1, RCSendOnly, n, -1)
		want := make([]byte, len(f.Head))
		pattern(want, 1)
		if got := f.Head[size:]; !bytes.Equal(got, want[size:]) {
			t.Fatalf("%d bytes: wrote past the frame: %s", n, diffBytes(got, want[size:]))
		}
	}
}

// TestTemplateFields checks the path's fields in the frame, as Parse sees them, at their limits.
func TestTemplateFields(t *testing.T) {
	for i, path := range []Path{
		{SrcMAC: MAC{1, 2, 3, 4, 5, 6}, DstMAC: MAC{7, 8, 9, 10, 11, 12}, VLAN: -1,
			Src: GIDFromIPv4([4]byte{255, 255, 255, 255}),
			Dst: GIDFromIPv4([4]byte{255, 255, 255, 254}), TClass: 255, HopLimit: 255,
			SrcPort: 65535},
		{VLAN: 1, VLANPrio: 7, Src: GIDFromIPv4([4]byte{}), Dst: GIDFromIPv4([4]byte{})},
		{VLAN: 4094, VLANPrio: 1, Src: GID{1}, Dst: GID{15: 1}, TClass: 0xa5, FlowLabel: 0xfffff,
			HopLimit: 1, SrcPort: 0xc000},
		{VLAN: -1, Src: GID{0: 0xff, 1: 2}, Dst: GID{0: 0xff, 15: 3}, FlowLabel: 0x80001},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			var tm Template
			tm.Init(testPath(true, 9), 5, 6) // Init again
			tm.Init(&path, 0xffffff, 0x8001)
			buf := make([]byte, 512)
			tm.Begin(buf, RCAck)
			size := tm.Finish(Frame{Head: buf}, RCAck, 0)
			p := new(Packet)
			if r := Parse(Frame{Head: buf[:size]}, p); r != ReasonOK {
				t.Fatal(r)
			}
			if got := pathOf(p); got != path {
				t.Errorf("got  %+v\nwant %+v", got, path)
			}
			if p.PKey != 0x8001 || p.DestQP != 0xffffff {
				t.Errorf("P_Key %#x, QP %#x", p.PKey, p.DestQP)
			}
		})
	}
}

// TestAllocs checks that neither building nor parsing allocates.
func TestAllocs(t *testing.T) {
	p := new(Packet)
	var grh [40]byte
	var ok Reason
	check := func(name string, f func()) {
		t.Helper()
		if n := testing.AllocsPerRun(100, f); n != 0 || ok != ReasonOK {
			t.Errorf("%s: %v allocations, %v", name, n, ok)
		}
	}
	for _, v6 := range []bool{false, true} {
		tm, f, size := build(v6, 3, RCWriteOnly, 1001, -1)
		whole, cut := Frame{Head: f.Head[:size]}, exact(f.Head[:size], 333)
		check("build", func() {
			(*BTH)(tm.Begin(whole.Head, RCWriteOnly)).SetPSN(7)
			tm.Finish(whole, RCWriteOnly, 1001)
			tm.Finish(cut, RCWriteOnly, 1001)
		})
		path := testPath(v6, -1)
		check("init", func() { tm.Init(path, 1, 1) })
		check("parse", func() { ok |= Parse(whole, p); GRH(p, &grh) })
	}
	for _, name := range hexFiles(t) {
		frame := readHex(t, name)
		for cut := range len(frame) + 1 {
			f := exact(frame, cut)
			check(name, func() { ok |= Parse(f, p) })
		}
	}
}
