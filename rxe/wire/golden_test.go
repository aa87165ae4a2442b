package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the golden text files instead of comparing")

// captures holds the packets of kernel rxe that the replay tests use, too.
const captures = "../testdata/captures"

// readPcap returns the frames of a classic pcap file with Ethernet frames.
func readPcap(tb testing.TB, name string) (frames [][]byte) {
	tb.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		tb.Fatal(err)
	}
	le := binary.LittleEndian
	if len(b) < 24 || le.Uint32(b) != 0xa1b2c3d4 || le.Uint32(b[20:]) != 1 {
		tb.Fatalf("%s: not a little-endian Ethernet pcap", name)
	}
	for b = b[24:]; len(b) > 0; {
		n := int(le.Uint32(b[8:]))
		if full := int(le.Uint32(b[12:])); full != n {
			tb.Fatalf("%s: frame cut to %d of %d bytes", name, n, full)
		}
		frames = append(frames, b[16:16+n])
		b = b[16+n:]
	}
	return frames
}

func captureFiles(tb testing.TB) []string {
	tb.Helper()
	names, err := filepath.Glob(captures + "/*.pcap")
	if err != nil || len(names) == 0 {
		tb.Fatalf("no captures: %v", err)
	}
	return names
}

// pathOf returns the path a packet came.
func pathOf(p *Packet) Path {
	return Path{SrcMAC: p.SrcMAC, DstMAC: p.DstMAC, VLAN: p.VLAN, VLANPrio: p.VLANPrio,
		Src: p.Src, Dst: p.Dst, TClass: p.TClass, FlowLabel: p.FlowLabel, HopLimit: p.HopLimit,
		SrcPort: p.SrcPort}
}

// rebuild builds the packet again from what Parse found, field by field.
func rebuild(p *Packet) []byte {
	path := pathOf(p)
	var t Template
	t.Init(&path, p.DestQP, p.PKey)
	buf := make([]byte, 9000)
	b := t.Begin(buf, p.Op)
	h := (*BTH)(b)
	h.SetSolicited(p.Solicited)
	h.SetMigReq(p.MigReq)
	h.SetFECN(p.FECN)
	h.SetBECN(p.BECN)
	h.SetAckReq(p.AckReq)
	h.SetPSN(p.PSN)
	copyExt(p, b)
	n := copy(buf[t.HeaderLen(p.Op):], p.Data0)
	copy(buf[t.HeaderLen(p.Op)+n:], p.Data1)
	return buf[:t.Finish(Frame{Head: buf}, p.Op, p.PayloadLen)]
}

// copyExt copies the extension headers field by field through the views.
func copyExt(p *Packet, b []byte) {
	in := p.Info
	if in.Flags&FlagRETH != 0 {
		h := (*RETH)(b[in.RETHOff:])
		h.SetVA(p.RETH().VA())
		h.SetRKey(p.RETH().RKey())
		h.SetLength(p.RETH().Length())
	}
	if in.Flags&FlagAETH != 0 {
		h := (*AETH)(b[in.AETHOff:])
		h.SetSyndrome(p.AETH().Syndrome())
		h.SetMSN(p.AETH().MSN())
	}
	if in.Flags&FlagAtomicETH != 0 {
		h := (*AtomicETH)(b[in.AtomicETHOff:])
		h.SetVA(p.AtomicETH().VA())
		h.SetRKey(p.AtomicETH().RKey())
		h.SetSwapAdd(p.AtomicETH().SwapAdd())
		h.SetCompare(p.AtomicETH().Compare())
	}
	if in.Flags&FlagAtomicAckETH != 0 {
		(*AtomicAckETH)(b[in.AtomicAckOff:]).SetOrig(p.AtomicAckETH().Orig())
	}
	if in.Flags&FlagImm != 0 {
		(*ImmDt)(b[in.ImmOff:]).Set(p.Imm())
	}
	if in.Flags&FlagInv != 0 {
		(*IETH)(b[in.InvOff:]).SetRKey(p.Inv())
	}
	if in.Flags&FlagDETH != 0 {
		h := (*DETH)(b[in.DETHOff:])
		h.SetQKey(p.DETH().QKey())
		h.SetSrcQP(p.DETH().SrcQP())
	}
	if in.Flags&FlagFETH != 0 {
		(*FETH)(b[in.FETHOff:]).Set(p.FETH().Placement(), p.FETH().Selectivity())
	}
}

// likeOriginal gives a rebuilt frame what Path has no field for, the IP ID and the UDP checksum
// of the original, and seals it again.
func likeOriginal(tb testing.TB, frame, original []byte) {
	tb.Helper()
	p := new(Packet)
	if r := Parse(Frame{Head: frame}, p); r != ReasonOK {
		tb.Fatalf("own frame: %v", r)
	}
	ip, bth := p.ipOff, p.bthOff
	if len(original) < bth {
		return
	}
	copy(frame[bth-2:bth], original[bth-2:])
	if !p.V6 {
		h := frame[ip : ip+ipv4Len]
		copy(h[4:6], original[ip+4:])
		fixIPv4Sum(h)
	}
	binary.LittleEndian.PutUint32(frame[len(frame)-icrcLen:], refICRC(frame[ip:], p.V6))
}

// TestCaptures parses every packet the kernel sent and builds it again, byte for byte.
func TestCaptures(t *testing.T) {
	seen := map[Opcode]int{}
	for _, name := range captureFiles(t) {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".pcap"), func(t *testing.T) {
			for i, frame := range readPcap(t, name) {
				p := new(Packet)
				if r := Parse(Frame{Head: frame}, p); r != ReasonOK {
					t.Errorf("packet %d: %v\n% x", i+1, r, frame)
					continue
				}
				seen[p.Op]++
				got := rebuild(p)
				likeOriginal(t, got, frame)
				if !bytes.Equal(got, frame) {
					t.Errorf("packet %d, %v: %s", i+1, p.Op, diffBytes(got, frame))
				}
			}
		})
	}
	if len(seen) < 31 {
		t.Errorf("captures hold %d opcodes, want at least 31: %v", len(seen), seen)
	}
}

// readHex returns the frame in a golden file, whose first line tells its origin.
func readHex(tb testing.TB, name string) []byte {
	tb.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		tb.Fatal(err)
	}
	origin, digits, _ := strings.Cut(string(text), "\n")
	if !strings.HasPrefix(origin, "# ") {
		tb.Fatalf("%s: no origin in the first line", name)
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(digits), ""))
	if err != nil {
		tb.Fatalf("%s: %v", name, err)
	}
	return b
}

func hexFiles(tb testing.TB) []string {
	tb.Helper()
	names, err := filepath.Glob("testdata/*.hex")
	if err != nil || len(names) == 0 {
		tb.Fatalf("no golden files: %v", err)
	}
	return names
}

// TestGolden does what TestCaptures does for frames of other origin, among them the two public ICRC
// vectors.
func TestGolden(t *testing.T) {
	for _, name := range hexFiles(t) {
		base := strings.TrimSuffix(filepath.Base(name), ".hex")
		t.Run(base, func(t *testing.T) {
			frame := readHex(t, name)
			p := new(Packet)
			if r := Parse(Frame{Head: frame}, p); r != ReasonOK {
				ok, got, want := CheckICRC(Frame{Head: frame})
				t.Fatalf("%v, icrc %v %08x %08x\n% x", r, ok, got, want, frame)
			}
			if len(p.IPHeader()) > ipv4Len && !p.V6 {
				return // options can not be built
			}
			if base == "vlan_priority_tag" {
				if p.VLAN != -1 || p.VLANPrio != 3 {
					t.Errorf("VLAN %d priority %d, want -1 3", p.VLAN, p.VLANPrio)
				}
				p.VLAN = 0
			}
			got := rebuild(p)
			likeOriginal(t, got, frame)
			if pad := len(frame) - len(got); strings.HasPrefix(base, "eth_padding") && pad > 0 {
				frame = frame[:len(got)]
			}
			if !bytes.Equal(got, frame) {
				t.Errorf("%v: %s", p.Op, diffBytes(got, frame))
			}
		})
	}
}

// TestDecode compares the lines Decode makes of the golden frames and of some captures.
func TestDecode(t *testing.T) {
	var got strings.Builder
	line := func(name string, frame []byte) {
		text, _ := Decode(Frame{Head: frame})
		fmt.Fprintf(&got, "%s: %s\n", name, text)
	}
	for _, name := range hexFiles(t) {
		line(strings.TrimSuffix(filepath.Base(name), ".hex"), readHex(t, name))
	}
	for _, name := range []string{"cm_rping_v4", "cm_reject_v4", "cm_udaddy_sidr_v4", "rc_atomic",
		"rc_rnr", "rc_nak_len", "rc_send_inv", "ud_send_imm_v6"} {
		for i, frame := range readPcap(t, captures+"/"+name+".pcap") {
			line(fmt.Sprintf("%s %d", name, i+1), frame)
		}
	}
	frame := readHex(t, "testdata/vlan.hex")
	frame[len(frame)-1] ^= 0x10
	line("wrong ICRC", frame)
	line("no RoCEv2", frame[:20])

	const file = "testdata/decode.txt"
	if *rewrite {
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	g, w := strings.Split(got.String(), "\n"), strings.Split(string(want), "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			t.Fatalf("line %d:\ngot  %s\nwant %s", i+1, g[i], w[i])
		}
	}
	if len(g) != len(w) {
		t.Fatalf("%d lines, want %d", len(g), len(w))
	}
}
