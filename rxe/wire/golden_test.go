package wire

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

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

// rebuild builds the packet again from what Parse found. The IP ID and flags of IPv4 are taken over
// from the original, because the builder's are fixed, and the frame is sealed again with them.
func rebuild(p *Packet) []byte {
	path := Path{SrcMAC: p.SrcMAC, DstMAC: p.DstMAC, VLAN: p.VLAN, VLANPrio: p.VLANPrio, Src: p.Src,
		Dst: p.Dst, TClass: p.TClass, FlowLabel: p.FlowLabel, HopLimit: p.HopLimit, SrcPort: p.SrcPort}
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

// withIPID gives a frame the IP ID of another and seals it again.
func withIPID(tb testing.TB, frame, like []byte) {
	tb.Helper()
	p := new(Packet)
	if r := ParseNoICRC(Frame{Head: frame}, p); r != ReasonOK {
		tb.Fatalf("own frame: %v", r)
	}
	if p.V6 {
		return
	}
	ip := frame[len(frame)-len(like):][ethLen:]
	copy(ip[4:6], like[ethLen+4:])
	ip[10], ip[11] = 0, 0
	sum := sum16(ip[:ipv4Len])
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	if r := ParseNoICRC(Frame{Head: frame}, p); r != ReasonOK {
		tb.Fatalf("own frame: %v", r)
	}
	binary.LittleEndian.PutUint32(frame[len(frame)-icrcLen:], p.computeICRC(Frame{Head: frame}))
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
				withIPID(t, got, frame)
				if !bytes.Equal(got, frame) {
					t.Errorf("packet %d, %v:\ngot  % x\nwant % x", i+1, p.Op, got, frame)
				}
			}
		})
	}
	t.Log(seen)
}
