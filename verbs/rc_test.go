package verbs

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// TestRCOperations sends every RC operation over each wire, in both modes and both IP families, in
// sizes of one packet, of one frame in two pieces, and of several.
func TestRCOperations(t *testing.T) {
	onModes(t, func(t *testing.T, w wireKind, cfg Config) {
		ca, cb := w.open(t, cfg, cfg)
		for _, ipv6 := range []bool{false, true} {
			name := map[bool]string{false: "IPv4", true: "IPv6"}[ipv6]
			t.Run(name, func(t *testing.T) {
				a, b := newEnd(t, ca, endConfig{size: 1 << 17}), newEnd(t, cb, endConfig{size: 1 << 17})
				connectBy(t, a, b, ConnOptions{Timeout: 18}, ipv6) // 1 s: a busy machine is not a loss
				for _, n := range []int{0, 1, 3800, 4096, 100001} {
					testSend(t, a, b, n)
					testWrite(t, a, b, n)
					testRead(t, a, b, n)
				}
				testAtomics(t, a, b)
				if s := a.qp.Stats(); s.Retransmits != 0 {
					t.Errorf("%d retransmissions on a lossless wire", s.Retransmits)
				}
			})
		}
	})
}

func testSend(t *testing.T, a, b *end, n int) {
	t.Helper()
	fill(a.mr.Bytes(), byte(n))
	clear(b.mr.Bytes())
	b.recv(7, b.mr.SGE(0, n/2), b.mr.SGE(n/2, n-n/2))
	a.send(SendWR{WRID: 9, Opcode: WRSendWithImm, Imm: 0x01020304, SGList: []SGE{a.mr.SGE(0, n)}})
	r, s := b.done(WCSuccess), a.done(WCSuccess)
	if r.WRID != 7 || r.Opcode != WCRecv || r.ByteLen != uint32(n) || r.Flags != WCWithImm ||
		r.Imm != 0x01020304 || r.QPN != b.qp.Num() {
		t.Errorf("receive of %d: %+v", n, r)
	}
	if s.WRID != 9 || s.Opcode != WCSend || s.QPN != a.qp.Num() {
		t.Errorf("send of %d: %+v", n, s)
	}
	if !bytes.Equal(a.mr.Bytes()[:n], b.mr.Bytes()[:n]) {
		t.Errorf("SEND of %d bytes arrived changed", n)
	}
}

func testWrite(t *testing.T, a, b *end, n int) {
	t.Helper()
	fill(a.mr.Bytes(), byte(n)+1)
	clear(b.mr.Bytes())
	a.send(SendWR{Opcode: WRRDMAWrite, SGList: []SGE{a.mr.SGE(0, n)}, RemoteAddr: b.mr.Addr() + 5,
		RKey: b.mr.RKey()})
	if s := a.done(WCSuccess); s.Opcode != WCRDMAWrite {
		t.Errorf("write of %d: %+v", n, s)
	}
	if !bytes.Equal(a.mr.Bytes()[:n], b.mr.Bytes()[5:5+n]) || b.mr.Bytes()[5+n] != 0 {
		t.Errorf("WRITE of %d bytes arrived changed", n)
	}
}

func testRead(t *testing.T, a, b *end, n int) {
	t.Helper()
	fill(b.mr.Bytes(), byte(n)+2)
	clear(a.mr.Bytes())
	a.send(SendWR{Opcode: WRRDMARead, SGList: []SGE{a.mr.SGE(3, n)}, RemoteAddr: b.mr.Addr(),
		RKey: b.mr.RKey()})
	if s := a.done(WCSuccess); s.Opcode != WCRDMARead || s.ByteLen != uint32(n) {
		t.Errorf("read of %d: %+v", n, s)
	}
	if !bytes.Equal(a.mr.Bytes()[3:3+n], b.mr.Bytes()[:n]) {
		t.Errorf("READ of %d bytes arrived changed", n)
	}
}

func testAtomics(t *testing.T, a, b *end) {
	t.Helper()
	word := b.mr.Bytes()[64:72]
	binary.NativeEndian.PutUint64(word, 40)
	wr := SendWR{Opcode: WRAtomicFetchAdd, SGList: []SGE{a.mr.SGE(8, 8)}, CompareAdd: 2,
		RemoteAddr: b.mr.Addr() + 64, RKey: b.mr.RKey()}
	a.send(wr)
	a.done(WCSuccess)
	wr.Opcode, wr.CompareAdd, wr.Swap = WRAtomicCmpSwap, 42, 7
	wr.SGList = []SGE{a.mr.SGE(16, 8)}
	a.send(wr)
	a.done(WCSuccess)
	got := [3]uint64{binary.NativeEndian.Uint64(a.mr.Bytes()[8:]),
		binary.NativeEndian.Uint64(a.mr.Bytes()[16:]), binary.NativeEndian.Uint64(word)}
	if got != [3]uint64{40, 42, 7} {
		t.Errorf("atomics returned and left %v, want [40 42 7]", got)
	}
	data := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	a.send(SendWR{Opcode: WRAtomicWrite, Flags: SendInline, Inline: data, RemoteAddr: b.mr.Addr() + 64,
		RKey: b.mr.RKey()})
	a.done(WCSuccess)
	if !bytes.Equal(word, data) {
		t.Errorf("ATOMIC WRITE left %v", word)
	}
}
