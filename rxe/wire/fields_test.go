package wire

import (
	"bytes"
	"testing"
)

func TestPSN(t *testing.T) {
	for _, tt := range []struct {
		p, q PSN
		want int32
	}{
		{0, 0, 0}, {1, 0, 1}, {0, 1, -1}, {0, 0xffffff, 1}, {0xffffff, 0, -1},
		{0x7fffff, 0, 1<<23 - 1}, {0x800000, 0, -1 << 23}, {0, 0x800000, -1 << 23},
		{5, 0xfffffb, 10}, {0x800000, 1, 1<<23 - 1}, {0x123456, 0x123456, 0},
	} {
		if got := tt.p.Diff(tt.q); got != tt.want {
			t.Errorf("%#x.Diff(%#x) = %d, want %d", tt.p, tt.q, got, tt.want)
		}
	}
	for _, tt := range []struct {
		p    PSN
		n    uint32
		want PSN
	}{
		{0, 0, 0}, {0xffffff, 1, 0}, {0xfffffe, 5, 3}, {7, 1 << 24, 7}, {1, 0xffffffff, 0},
	} {
		if got := tt.p.Add(tt.n); got != tt.want {
			t.Errorf("%#x.Add(%d) = %#x, want %#x", tt.p, tt.n, got, tt.want)
		}
	}
	if PSN(0xffffff).Next() != 0 || PSN(41).Next() != 42 {
		t.Error("Next")
	}
}

func TestSyndrome(t *testing.T) {
	for _, tt := range []struct {
		s    Syndrome
		wire uint8
		kind SyndromeKind
		text string
	}{
		{AckSyndrome(0), 0x00, KindACK, "0x00(ack)"},
		{AckSyndrome(CreditInvalid), 0x1f, KindACK, "0x1f(ack)"},
		{RNRSyndrome(0), 0x20, KindRNR, "0x20(rnr_655.36ms)"},
		{RNRSyndrome(1), 0x21, KindRNR, "0x21(rnr_0.01ms)"},
		{RNRSyndrome(18), 0x32, KindRNR, "0x32(rnr_5.12ms)"},
		{0x40, 0x40, KindReserved, "0x40(reserved)"},
		{NAKSyndrome(NAKPSNSeq), 0x60, KindNAK, "0x60(nak_psn_seq)"},
		{NAKSyndrome(NAKInvalidRequest), 0x61, KindNAK, "0x61(nak_invalid_request)"},
		{NAKSyndrome(NAKRemoteAccess), 0x62, KindNAK, "0x62(nak_remote_access)"},
		{NAKSyndrome(NAKRemoteOp), 0x63, KindNAK, "0x63(nak_remote_op)"},
		{NAKSyndrome(NAKInvalidRD), 0x64, KindNAK, "0x64(nak_invalid_rd)"},
		{0x7f, 0x7f, KindNAK, "0x7f(nak_reserved)"},
		{0x80, 0x80, KindReserved, "0x80(reserved)"},
		{0xff, 0xff, KindReserved, "0xff(reserved)"},
	} {
		if uint8(tt.s) != tt.wire || tt.s.Kind() != tt.kind || tt.s.String() != tt.text {
			t.Errorf("%#x: kind %d, %q; want %#x, %d, %q", uint8(tt.s), tt.s.Kind(), tt.s,
				tt.wire, tt.kind, tt.text)
		}
	}
	for v := range uint8(32) {
		nak := NAKCode(v)
		if AckSyndrome(v).Credits() != v || RNRSyndrome(v).Timer() != v ||
			NAKSyndrome(nak).NAK() != nak {
			t.Errorf("value %d does not survive", v)
		}
	}
}

func TestCredits(t *testing.T) {
	// Codes go 0, 1, 2, 3 and then in steps of half a power of two: 4, 6, 8, 12 …
	for code := range uint8(31) {
		want := uint32(code)
		if code >= 4 {
			want = 4 << (code/2 - 2) * (2 + uint32(code)%2) / 2
		}
		n, ok := CreditCount(code)
		if !ok || n != want {
			t.Errorf("CreditCount(%d) = %d %v, want %d", code, n, ok, want)
		}
		if CreditCode(n) != code {
			t.Errorf("CreditCode(%d) = %d, want %d", n, CreditCode(n), code)
		}
		if code > 0 && CreditCode(n-1) != code-1 {
			t.Errorf("CreditCode(%d) = %d, want %d", n-1, CreditCode(n-1), code-1)
		}
	}
	for _, code := range []uint8{31, 32, 255} {
		if _, ok := CreditCount(code); ok {
			t.Errorf("code %d gives credits", code)
		}
	}
	if CreditCode(1<<31) != 30 {
		t.Error("CreditCode of a large count")
	}
}

func TestRNRDelay(t *testing.T) {
	for timer, want := range map[uint8]int64{
		0: 655_360_000, 1: 10_000, 2: 20_000, 4: 40_000, 5: 60_000, 12: 640_000, 18: 5_120_000,
		25: 61_440_000, 31: 491_520_000, 32: 655_360_000,
	} {
		if got := RNRDelay(timer); got != want {
			t.Errorf("RNRDelay(%d) = %d, want %d", timer, got, want)
		}
	}
	for timer := uint8(2); timer < 32; timer++ {
		if RNRDelay(timer) <= RNRDelay(timer-1) {
			t.Errorf("RNRDelay(%d) is not above its predecessor", timer)
		}
	}
}

func TestFlowLabelAndPort(t *testing.T) {
	for _, tt := range []struct {
		l, r  QPN
		label uint32
		port  uint16
	}{
		{0x11, 0x11, 0x00121, 0xc121},
		{0x11, 0x1234, 0x13574, 0xf570},
		{0x1234, 0x11, 0x13574, 0xf570},
		{0, 0, 0, 0xc000},
		{0xffffff, 0xffffff, 0xfff1e, 0xff21},
		{0xfedcba, 0x987654, 0x2a423, 0xe429},
	} {
		if got := FlowLabel(tt.l, tt.r); got != tt.label {
			t.Errorf("FlowLabel(%#x, %#x) = %#x, want %#x", tt.l, tt.r, got, tt.label)
		}
		if got := SourcePort(tt.label); got != tt.port {
			t.Errorf("SourcePort(%#x) = %#x, want %#x", tt.label, got, tt.port)
		}
	}
	for l := range QPN(1 << 12) {
		label := FlowLabel(0xffffff-l*97, 0xfedcba^l*1031)
		if port := SourcePort(label); label > 0xfffff || port < 0xc000 {
			t.Fatalf("label %#x, port %#x", label, port)
		}
	}
}

func TestGID(t *testing.T) {
	v4 := GIDFromIPv4([4]byte{192, 168, 7, 1})
	for _, tt := range []struct {
		g               GID
		text            string
		isV4, multicast bool
		mac             string
	}{
		{v4, "::ffff:192.168.7.1", true, false, ""},
		{GIDFromIPv4([4]byte{239, 255, 2, 3}), "::ffff:239.255.2.3", true, true,
			"01:00:5e:7f:02:03"},
		{GIDFromIPv4([4]byte{224, 0, 0, 1}), "::ffff:224.0.0.1", true, true, "01:00:5e:00:00:01"},
		{GIDFromIPv4([4]byte{240, 0, 0, 1}), "::ffff:240.0.0.1", true, false, ""},
		{GID{0: 0xfe, 1: 0x80, 15: 9}, "fe80::9", false, false, ""},
		{GID{0: 0xff, 1: 0x02, 12: 1, 13: 2, 14: 3, 15: 4}, "ff02::102:304", false, true,
			"33:33:01:02:03:04"},
		{GID{}, "::", false, false, ""},
	} {
		isV4, multicast := tt.g.IsIPv4(), tt.g.IsMulticast()
		if tt.g.String() != tt.text || isV4 != tt.isV4 || multicast != tt.multicast {
			t.Errorf("%v: IPv4 %v, multicast %v; want %s %v %v", tt.g, isV4, multicast,
				tt.text, tt.isV4, tt.multicast)
		}
		if a := tt.g.Addr(); a.Is4() != tt.isV4 || GIDFromAddr(a) != tt.g {
			t.Errorf("%v: address %v, and back %v", tt.g, a, GIDFromAddr(a))
		}
		if tt.mac != "" && MulticastMAC(tt.g).String() != tt.mac {
			t.Errorf("%v: MAC %v, want %s", tt.g, MulticastMAC(tt.g), tt.mac)
		}
	}
	if v4.IPv4() != [4]byte{192, 168, 7, 1} {
		t.Error("IPv4 does not return what GIDFromIPv4 was given")
	}
}

// TestHeaderBytes sets every field of every header and compares the bytes.
func TestHeaderBytes(t *testing.T) {
	var bth BTH
	bth.SetOpcode(RCWriteOnly)
	bth.SetSolicited(true)
	bth.SetPad(3)
	bth.SetTVer(5)
	bth.SetPKey(0x1234)
	bth.SetBECN(true)
	bth.SetDestQP(0x56789a)
	bth.SetAckReq(true)
	bth.SetPSN(0xbcdef0)
	var reth RETH
	reth.SetVA(0x0102030405060708)
	reth.SetRKey(0x090a0b0c)
	reth.SetLength(0x0d0e0f10)
	var aeth AETH
	aeth.SetSyndrome(0x61)
	aeth.SetMSN(0x123456)
	var atomic AtomicETH
	atomic.SetVA(0x0102030405060708)
	atomic.SetRKey(0x090a0b0c)
	atomic.SetSwapAdd(0x1112131415161718)
	atomic.SetCompare(0x2122232425262728)
	var atomicAck AtomicAckETH
	atomicAck.SetOrig(0x0102030405060708)
	var imm ImmDt
	imm.Set(0x01020304)
	var ieth IETH
	ieth.SetRKey(0x01020304)
	deth := DETH{4: 0xff}
	deth.SetQKey(0x01020304)
	deth.SetSrcQP(0x050607)
	feth := FETH{0xff, 0xff, 0xff, 0xff}
	feth.Set(PlacementPersistent, SelectMR)
	for _, tt := range []struct {
		name      string
		got, want []byte
	}{
		{"BTH", bth[:],
			[]byte{0x0a, 0xb5, 0x12, 0x34, 0x40, 0x56, 0x78, 0x9a, 0x80, 0xbc, 0xde, 0xf0}},
		{"RETH", reth[:], []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}},
		{"AETH", aeth[:], []byte{0x61, 0x12, 0x34, 0x56}},
		{"AtomicETH", atomic[:], []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
			0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
			0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28}},
		{"AtomicAckETH", atomicAck[:], []byte{1, 2, 3, 4, 5, 6, 7, 8}},
		{"ImmDt", imm[:], []byte{1, 2, 3, 4}},
		{"IETH", ieth[:], []byte{1, 2, 3, 4}},
		{"DETH", deth[:], []byte{1, 2, 3, 4, 0, 5, 6, 7}},
		{"FETH", feth[:], []byte{0, 0, 0, 0x12}},
	} {
		if !bytes.Equal(tt.got, tt.want) {
			t.Errorf("%s: %s", tt.name, diffBytes(tt.got, tt.want))
		}
	}
	if bth.Opcode() != RCWriteOnly || !bth.Solicited() || bth.MigReq() || bth.Pad() != 3 ||
		bth.TVer() != 5 || bth.PKey() != 0x1234 || bth.FECN() || !bth.BECN() ||
		bth.DestQP() != 0x56789a || !bth.AckReq() || bth.PSN() != 0xbcdef0 {
		t.Errorf("BTH reads back wrong: % x", bth)
	}
	bth.SetSolicited(false)
	bth.SetMigReq(true)
	bth.SetPad(0)
	bth.SetTVer(0)
	bth.SetBECN(false)
	bth.SetFECN(true)
	bth.SetAckReq(false)
	want := BTH{0x0a, 0x40, 0x12, 0x34, 0x80, 0x56, 0x78, 0x9a, 0, 0xbc, 0xde, 0xf0}
	if bth != want {
		t.Errorf("BTH: %s", diffBytes(bth[:], want[:]))
	}
	if feth.Placement() != PlacementPersistent || feth.Selectivity() != SelectMR {
		t.Errorf("FETH reads back wrong: % x", feth)
	}
}

// TestOpcodeTable checks the table against itself: what follows from a name must be in the flags.
func TestOpcodeTable(t *testing.T) {
	names, known := map[string]bool{}, 0
	for i := range 256 {
		op := Opcode(i)
		in := op.Info()
		if in.Service != Service(i>>5) || in.Service != op.Service() {
			t.Errorf("%v: service %d", op, in.Service)
		}
		if !op.Known() {
			if in.Name != "" || in.Flags != 0 || in.HdrLen != bthLen {
				t.Errorf("unknown opcode %#x: %+v", i, in)
			}
			continue
		}
		known++
		if rule := rules[byte(i)]; int(in.HdrLen) != bthLen+rule.ext ||
			in.Flags&FlagPayload != 0 != rule.payload {
			t.Errorf("%v: headers %d, want %d", op, in.HdrLen, bthLen+rule.ext)
		}
		if names[in.Name] || in.Name == "" || op.String() != in.Name {
			t.Errorf("opcode %#x: name %q", i, in.Name)
		}
		names[in.Name] = true
		if in.HdrLen > bthLen+maxExt {
			t.Errorf("%v: %d bytes of headers", op, in.HdrLen)
		}
		if request := in.Flags&FlagRequest != 0; request == (in.Flags&FlagResponse != 0) {
			t.Errorf("%v: neither request nor response", op)
		}
		middle := in.Flags&FlagMiddle != 0
		if middle == (in.Flags&(FlagStart|FlagEnd) != 0) {
			t.Errorf("%v: position in the message", op)
		}
	}
	if known != len(rules) || known != len(opcodes) {
		t.Errorf("%d opcodes, want %d", known, len(rules))
	}
	if got := Opcode(0x15).String(); got != "OPCODE_0x15" {
		t.Errorf("unknown opcode prints %q", got)
	}
	for op, want := range map[Opcode]bool{
		RCSendFirst: true, RCSendMiddle: false, RCSendLastImm: false, RCSendOnlyInv: true,
		RCWriteOnlyImm: true, RCWriteLastImm: true, RCWriteOnly: false, UDSendOnlyImm: true,
		RCReadRequest: false,
	} {
		if got := op.Info().Flags&FlagConsumesRecv != 0; got != want {
			t.Errorf("%v takes a receive WQE: %v, want %v", op, got, want)
		}
	}
	if in := RCFlush.Info(); in.FETHOff != 12 || in.RETHOff != 16 {
		t.Errorf("FLUSH: FETH at %d, RETH at %d", in.FETHOff, in.RETHOff)
	}
	if in := UDSendOnlyImm.Info(); in.DETHOff != 12 || in.ImmOff != 20 {
		t.Errorf("UD with immediate: DETH at %d, ImmDt at %d", in.DETHOff, in.ImmOff)
	}
	if in := RCWriteOnlyImm.Info(); in.RETHOff != 12 || in.ImmOff != 28 {
		t.Errorf("WRITE with immediate: RETH at %d, ImmDt at %d", in.RETHOff, in.ImmOff)
	}
	if in := RCAtomicAck.Info(); in.AETHOff != 12 || in.AtomicAckOff != 16 {
		t.Errorf("atomic acknowledge: AETH at %d, AtomicAckETH at %d", in.AETHOff, in.AtomicAckOff)
	}
}
