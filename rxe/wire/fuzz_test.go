package wire

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// FuzzParse feeds any bytes, cut anywhere, in memory without spare capacity. Nothing may panic or
// read past the frame; the cut must not matter; and what Parse accepts, rebuilt, must parse to
// the same.
func FuzzParse(f *testing.F) {
	for _, name := range hexFiles(f) {
		frame := readHex(f, name)
		f.Add(frame, uint16(0))
		f.Add(frame, uint16(len(frame)/2))
	}
	f.Fuzz(func(t *testing.T, frame []byte, cut uint16) {
		if len(frame) > 1<<16 {
			return
		}
		whole, split := exact(frame, len(frame)), exact(frame, int(cut)%(len(frame)+1))
		want, got := new(Packet), new(Packet)
		r := ParseNoICRC(whole, want)
		if s := ParseNoICRC(split, got); s != r {
			t.Fatalf("cut at %d: %v, whole: %v", len(split.Head), s, r)
		}
		line, s := Decode(split)
		if whole, _ := Decode(whole); line != whole || s != r && s != ReasonICRC {
			t.Fatalf("cut: %v %s\nwhole: %s", s, line, whole)
		}
		if r != ReasonOK {
			if s := Parse(split, got); s != r {
				t.Fatalf("Parse says %v, ParseNoICRC %v", s, r)
			}
			return
		}
		if !sameParse(got, want) {
			t.Fatalf("cut at %d: %v\nwhole: %v", len(split.Head), got, want)
		}
		// A right ICRC makes both accept it.
		ip := ethLen
		if binary.BigEndian.Uint16(frame[12:]) == etherTypeVLAN {
			ip += vlanLen
		}
		crc := refICRC(frame[ip:want.icrcOff+icrcLen], want.V6)
		if _, _, w := CheckICRC(split); w != crc {
			t.Fatalf("cut at %d: ICRC %08x, want %08x", len(split.Head), w, crc)
		}
		binary.LittleEndian.PutUint32(whole.Head[want.icrcOff:], crc)
		if r := Parse(exact(whole.Head, len(split.Head)), got); r != ReasonOK {
			t.Fatalf("sealed again: %v", r)
		}
		rebuilt := rebuild(got)
		if r := Parse(Frame{Head: rebuilt}, want); r != ReasonOK {
			t.Fatalf("rebuilt: %v\n% x", r, rebuilt)
		}
		if g, w := want.String(), got.String(); g != w {
			t.Fatalf("rebuilt: %s\nfrom %s", g, w)
		}
		a, b := append(got.Data0[:len(got.Data0):len(got.Data0)], got.Data1...), want.Data0
		if !bytes.Equal(a, b) {
			t.Fatalf("payload: %s", diffBytes(b, a))
		}
	})
}

// FuzzBuild builds frames from any fields, cut anywhere behind the headers, and takes them apart.
func FuzzBuild(f *testing.F) {
	f.Add(byte(RCSendOnly), []byte("payload"), uint16(0), uint64(1))
	f.Add(byte(RCWriteOnlyImm), bytes.Repeat([]byte{0xff}, 300), uint16(170), uint64(2))
	f.Add(byte(CNP), []byte{}, uint16(1), uint64(1<<63))
	f.Add(byte(RCFetchAdd), []byte{}, uint16(30), uint64(0xffffffffffffffff))
	f.Fuzz(func(t *testing.T, opcode byte, payload []byte, cut uint16, bits uint64) {
		op := Opcode(opcode)
		if !op.Known() || len(payload) > 9000 {
			return
		}
		if op.Info().Flags&FlagPayload == 0 {
			payload = nil
		}
		path := testPath(bits&1 == 1, int16(bits>>1&0x1fff)-1)
		path.VLAN = min(path.VLAN, 4095)
		path.TClass, path.HopLimit = uint8(bits>>14), uint8(bits>>22)
		path.SrcPort = uint16(bits >> 30)
		path.Src[15], path.Dst[13] = uint8(bits>>46), uint8(bits>>54)
		var tm Template
		tm.Init(path, QPN(bits>>20)&PSNMask, uint16(bits>>3))

		head := make([]byte, MaxHeader)
		pattern(head, bits)
		b := tm.Begin(head, op)
		h := (*BTH)(b)
		h.SetPSN(PSN(bits>>40) & PSNMask)
		h.SetAckReq(bits>>60&1 == 1)
		h.SetSolicited(bits>>61&1 == 1)
		h.SetMigReq(bits>>62&1 == 1)
		h.SetFECN(bits>>63 == 1)
		if op != CNP {
			pattern(b[bthLen:], bits)
		}
		data := tm.HeaderLen(op)
		size := data + (len(payload)+3)&^3 + icrcLen
		whole := append(head[:data:data], payload...)
		whole = append(whole, make([]byte, size-len(whole))...)
		frame := exact(whole, data+int(cut)%(size-data+1))
		pattern(frame.Head[min(len(frame.Head), data+len(payload)):], 5)
		if n := tm.Finish(frame, op, len(payload)); n != size {
			t.Fatalf("length %d, want %d", n, size)
		}

		p := new(Packet)
		if r := Parse(frame, p); r != ReasonOK {
			t.Fatalf("%v\n% x % x", r, frame.Head, frame.Tail)
		}
		got := append(p.Data0[:len(p.Data0):len(p.Data0)], p.Data1...)
		if p.Op != op || p.PSN != h.PSN() || !bytes.Equal(got, payload) {
			t.Fatalf("parsed as %v", p)
		}
		if !bytes.Equal(p.Headers()[bthLen:], b[bthLen:]) {
			t.Fatalf("extension headers: %s", diffBytes(p.Headers()[bthLen:], b[bthLen:]))
		}
		if want := refICRC(join(frame, size)[p.ipOff:], p.V6); p.ICRC() != want {
			t.Fatalf("ICRC %08x, want %08x", p.ICRC(), want)
		}
	})
}
