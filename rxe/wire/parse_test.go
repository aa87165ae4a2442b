package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"reflect"
	"testing"
)

// rules is what the specification's opcode table says: bytes of extension headers and whether
// payload may follow. It is written down here again, independent of the package's own table.
var rules = map[byte]struct {
	ext     int
	payload bool
}{
	0x00: {0, true}, 0x01: {0, true}, 0x02: {0, true}, 0x03: {4, true}, 0x04: {0, true},
	0x05: {4, true}, 0x06: {16, true}, 0x07: {0, true}, 0x08: {0, true}, 0x09: {4, true},
	0x0a: {16, true},
	0x0b: {20, true}, 0x0c: {16, false}, 0x0d: {4, true}, 0x0e: {0, true}, 0x0f: {4, true},
	0x10: {4, true}, 0x11: {4, false}, 0x12: {12, false}, 0x13: {28, false}, 0x14: {28, false},
	0x16: {4, true}, 0x17: {4, true}, 0x1c: {20, false}, 0x1d: {16, true},
	0x20: {0, true}, 0x21: {0, true}, 0x22: {0, true}, 0x23: {4, true}, 0x24: {0, true},
	0x25: {4, true}, 0x26: {16, true}, 0x27: {0, true}, 0x28: {0, true}, 0x29: {4, true},
	0x2a: {16, true},
	0x2b: {20, true}, 0x64: {8, true}, 0x65: {12, true}, 0x81: {16, false},
}

// TestParseOpcodeLengthPad goes through every opcode, length, pad count and version.
func TestParseOpcodeLengthPad(t *testing.T) {
	p := new(Packet)
	transport := make([]byte, 64)
	pattern(transport, 4)
	for op := range 256 {
		rule, known := rules[byte(op)]
		for n := range 48 { // bytes behind the BTH
			for pad := range 4 {
				for _, tver := range []byte{0, 1, 8} {
					b := transport[:12+n]
					b[0], b[1] = byte(op), byte(pad)<<4|tver
					frame := rawPacket(op&1 == 0, b)
					rest := n - rule.ext
					want := ReasonOK
					switch {
					case !known:
						want = ReasonOpcode
					case tver != 0:
						want = ReasonTVer
					case rest < 0 || rest > 0 && !rule.payload:
						want = ReasonLength
					case pad > rest || rest%4 != 0:
						want = ReasonPad
					}
					got := Parse(Frame{Head: frame}, p)
					if got != want {
						t.Fatalf("opcode %#x, %d bytes, pad %d, tver %d: %v, want %v",
							op, n, pad, tver, got, want)
					}
					if got != ReasonOK {
						continue
					}
					if p.PayloadLen != rest-pad || len(p.Headers()) != 12+rule.ext {
						t.Fatalf("opcode %#x, %d bytes, pad %d: payload %d, headers %d",
							op, n, pad, p.PayloadLen, len(p.Headers()))
					}
				}
			}
		}
	}
}

// TestParseReasons has a frame for every reason.
func TestParseReasons(t *testing.T) {
	be := binary.BigEndian
	body := append([]byte{0x04, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 1, 0}, 1, 2, 3, 4)
	v4 := func(change func(b []byte)) []byte {
		b := rawPacket(false, body)
		change(b)
		fixIPv4Sum(b[14:34])
		return b
	}
	v6 := func(change func(b []byte)) []byte {
		b := rawPacket(true, body)
		change(b)
		return b
	}
	tests := []struct {
		name  string
		frame []byte
		want  Reason
	}{
		{"good v4", v4(func([]byte) {}), ReasonOK},
		{"good v6", v6(func([]byte) {}), ReasonOK},
		{"empty", nil, ReasonShort},
		{"13 bytes", make([]byte, 13), ReasonShort},
		{"tag cut", v4(func(b []byte) { be.PutUint16(b[12:], 0x8100) })[:17], ReasonShort},
		{"IPv4 header cut", v4(func([]byte) {})[:33], ReasonShort},
		{"IPv6 header cut", v6(func([]byte) {})[:53], ReasonShort},
		{"ARP", v4(func(b []byte) { be.PutUint16(b[12:], 0x0806) }), ReasonEthertype},
		{"802.1ad", v4(func(b []byte) { be.PutUint16(b[12:], 0x88a8) }), ReasonEthertype},
		{"two tags", append(append(v4(func([]byte) {})[:12:12], 0x81, 0, 0, 1, 0x81, 0, 0, 2),
			v4(func([]byte) {})[12:]...), ReasonEthertype},
		{"IPv4 version 6", v4(func(b []byte) { b[14] = 0x65 }), ReasonIPVersion},
		{"IPv6 version 4", v6(func(b []byte) { b[14] = 0x45 }), ReasonIPVersion},
		{"IHL 4", v4(func(b []byte) { b[14] = 0x44 }), ReasonIPHeader},
		{"IPv4 longer than frame", v4(func(b []byte) { b[17]++ }), ReasonIPLength},
		{"IPv4 below header", v4(func(b []byte) { be.PutUint16(b[16:], 19) }), ReasonIPLength},
		{"IHL past the packet", v4(func(b []byte) { b[14] = 0x4f }), ReasonIPLength},
		{"IPv6 longer than frame", v6(func(b []byte) { b[19]++ }), ReasonIPLength},
		{"no room for UDP", v4(func(b []byte) { be.PutUint16(b[16:], 27) }), ReasonShort},
		{"no room for UDP v6", v6(func(b []byte) { be.PutUint16(b[18:], 7) }), ReasonShort},
		{"IPv4 checksum", append(v4(func([]byte) {})[:24:24], append([]byte{0xde, 0xad},
			v4(func([]byte) {})[26:]...)...), ReasonIPChecksum},
		{"first fragment", v4(func(b []byte) { b[20] = 0x20 }), ReasonFragment},
		{"last fragment", v4(func(b []byte) { b[21] = 1 }), ReasonFragment},
		{"IPv6 fragment", v6(func(b []byte) { b[20] = 44 }), ReasonFragment},
		{"TCP", v4(func(b []byte) { b[23] = 6 }), ReasonNotUDP},
		{"IPv6 hop-by-hop", v6(func(b []byte) { b[20] = 0 }), ReasonNotUDP},
		{"port", v4(func(b []byte) { b[37]++ }), ReasonPort},
		{"UDP longer", v4(func(b []byte) { b[39]++ }), ReasonUDPLength},
		{"UDP shorter", v6(func(b []byte) { b[59]-- }), ReasonUDPLength},
		{"UDP length 0", v4(func(b []byte) { be.PutUint16(b[38:], 0) }), ReasonUDPLength},
		{"no BTH", rawPacket(false, nil), ReasonShortBTH},
		{"BTH cut", rawPacket(true, body[:11]), ReasonShortBTH},
		{"opcode", rawPacket(false, append([]byte{0x15}, body[1:]...)), ReasonOpcode},
		{"TVer", rawPacket(false, append([]byte{4, 1}, body[2:]...)), ReasonTVer},
		{"ACK with payload",
			rawPacket(false, append([]byte{0x11}, append(body, 5, 6, 7, 8)[1:]...)), ReasonLength},
		{"READ request cut", rawPacket(false, append([]byte{0x0c}, body[1:]...)), ReasonLength},
		{"padding only", rawPacket(false, append([]byte{4, 0x30}, body[2:12]...)), ReasonPad},
		{"no multiple of 4", rawPacket(false, body[:15]), ReasonPad},
		{"payload changed", v4(func(b []byte) { b[54] ^= 1 }), ReasonICRC},
		{"ICRC changed", v6(func(b []byte) { b[len(b)-1] ^= 0x80 }), ReasonICRC},
	}
	var seen [NumReasons]bool
	p := new(Packet)
	for _, tt := range tests {
		got := Parse(Frame{Head: tt.frame}, p)
		if got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
		seen[tt.want] = true
		for cut := range tt.frame {
			if got := Parse(exact(tt.frame, cut), p); got != tt.want {
				t.Errorf("%s, cut at %d: %v, want %v", tt.name, cut, got, tt.want)
			}
		}
	}
	names := map[string]bool{}
	for r, ok := range seen {
		if !ok {
			t.Errorf("no frame for %v", Reason(r))
		}
		names[Reason(r).String()] = true
	}
	if len(names) != int(NumReasons) || names[""] || NumReasons.String() != "unknown" {
		t.Errorf("reason names: %v", names)
	}
}

// sameParse compares what two frames were parsed to, wherever their bytes lie.
func sameParse(a, b *Packet) bool {
	x, y := *a, *b
	for _, p := range []*Packet{&x, &y} {
		p.Data0 = append(append([]byte{}, p.Data0...), p.Data1...)
		p.h = append([]byte{}, p.h[:p.bthOff+int(p.Info.HdrLen)]...)
		p.Data1 = nil
		p.head, p.memo = [maxParse]byte{}, headerMemo{}
	}
	return reflect.DeepEqual(x, y)
}

// TestParseSplit parses frames cut at every byte; pieces have no spare capacity.
func TestParseSplit(t *testing.T) {
	for _, name := range hexFiles(t) {
		frame := readHex(t, name)
		want, got := new(Packet), new(Packet)
		if r := Parse(Frame{Head: frame}, want); r != ReasonOK {
			t.Fatal(r)
		}
		for cut := range len(frame) + 1 {
			f := exact(frame, cut)
			if r := Parse(f, got); r != ReasonOK {
				t.Fatalf("%s cut at %d: %v", name, cut, r)
			}
			if !sameParse(got, want) {
				t.Fatalf("%s cut at %d:\ngot  %v\nwant %v", name, cut, got, want)
			}
			if len(got.Data0) == 0 && len(got.Data1) > 0 {
				t.Fatalf("%s cut at %d: first piece empty, second not", name, cut)
			}
			if b := append(append([]byte(nil), f.Head...), f.Tail...); !bytes.Equal(b, frame) {
				t.Fatalf("%s cut at %d: Parse changed the frame", name, cut)
			}
		}
	}
}

// TestParseTruncated cuts the end off: no shorter frame is accepted, unless only Ethernet padding
// is missing.
func TestParseTruncated(t *testing.T) {
	p := new(Packet)
	for _, name := range hexFiles(t) {
		frame := readHex(t, name)
		if Parse(Frame{Head: frame}, p) != ReasonOK {
			t.Fatal(name)
		}
		end := p.icrcOff + icrcLen
		for n := range end {
			for _, cut := range []int{0, n / 2, n} {
				if r := Parse(exact(frame[:n], cut), p); r == ReasonOK {
					t.Errorf("%s: %d of %d bytes accepted", name, n, end)
				}
			}
		}
		if r := Parse(Frame{Head: frame[:end]}, p); r != ReasonOK {
			t.Errorf("%s without padding: %v", name, r)
		}
	}
}

// TestEthernetPadding puts up to 60 bytes of rubbish behind short packets.
func TestEthernetPadding(t *testing.T) {
	rubbish := bytes.Repeat([]byte{0xa5}, 60)
	want, got := new(Packet), new(Packet)
	for _, v6 := range []bool{false, true} {
		for n := range 6 {
			_, f, size := build(v6, -1, RCSendOnly, n, -1)
			frame := join(f, size)
			if r := Parse(Frame{Head: frame}, want); r != ReasonOK {
				t.Fatal(r)
			}
			for k := range rubbish {
				padded := append(frame[:size:size], rubbish[:k]...)
				for _, cut := range []int{len(padded), size, size - 2, size + k/2} {
					if r := Parse(exact(padded, cut), got); r != ReasonOK || !sameParse(got, want) {
						t.Fatalf("%d bytes and %d of padding, cut at %d: %v", n, k, cut, r)
					}
				}
			}
		}
	}
}

// TestBitFlips flips every bit. Only the fields that the ICRC leaves out may change unnoticed, and
// the IPv4 checksum notices what is left out of the IPv4 header.
func TestBitFlips(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("v6=%v", v6), func(t *testing.T) {
			_, f, size := build(v6, -1, RCWriteOnlyImm, 21, -1)
			frame := join(f, size)
			free := map[int]byte{} // mask of the bits that may flip
			for i := range 12 {
				free[i] = 0xff
			}
			bth := 42
			if v6 {
				bth = 62
				free[14], free[15], free[16], free[17], free[21] = 0x0f, 0xff, 0xff, 0xff, 0xff
			}
			free[bth-2], free[bth-1], free[bth+4] = 0xff, 0xff, 0xff
			p := new(Packet)
			for i := range frame {
				for bit := range 8 {
					frame[i] ^= 1 << bit
					ok := Parse(Frame{Head: frame}, p) == ReasonOK
					if want := free[i]>>bit&1 == 1; ok != want {
						t.Errorf("byte %d bit %d flipped: accepted %v, want %v", i, bit, ok, want)
					}
					frame[i] ^= 1 << bit
				}
			}
		})
	}
}

// TestGRH checks the area before the data of a UD receive.
func TestGRH(t *testing.T) {
	p := new(Packet)
	for _, v6 := range []bool{false, true} {
		_, f, size := build(v6, 5, UDSendOnly, 3, -1)
		if r := Parse(Frame{Head: f.Head[:size]}, p); r != ReasonOK {
			t.Fatal(r)
		}
		got := [40]byte{0: 1, 19: 2}
		GRH(p, &got)
		want := f.Head[18:58]
		if !v6 {
			want = append(make([]byte, 20), f.Head[18:38]...)
		}
		if !bytes.Equal(got[:], want) {
			t.Errorf("v6=%v: %s", v6, diffBytes(got[:], want))
		}
	}
}
