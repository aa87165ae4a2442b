package hostile

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// Addresses of the link that no host has.
var (
	stranger  = netip.MustParseAddr("10.77.0.99")
	stranger6 = netip.MustParseAddr("fd77::99")
)

// maxRetransmits is what the load may send twice in all: a machine that is too busy to answer
// within the ACK timeout makes a QP go back by its window. What is hostile must not make it do so
// at all, which NAKs would show.
const maxRetransmits = 256

// TestHostilePeer sends everything that is bad to an endpoint whose other connection moves data
// meanwhile.
func TestHostilePeer(t *testing.T) {
	r := newRig(t)
	ctx, stop := context.WithCancel(context.Background())
	loaded := make(chan error, 1)
	go func() { loaded <- r.load(ctx) }()
	defer func() { // also when a step fails: before the endpoints go
		stop()
		if err := <-loaded; err != nil {
			t.Errorf("the connection under load: %v", err)
		}
		server, client := r.server.qp.Stats(), r.client.qp.Stats()
		t.Logf("%d messages there and back, %d packets to A, %d and %d sent twice", r.moved.Load(),
			server.RcvdPkts, server.Retransmits, client.Retransmits)
		if n := server.Retransmits + client.Retransmits; n > maxRetransmits {
			t.Errorf("%d packets were sent twice", n)
		}
		if n := server.NAKsSent + client.NAKsSent + server.NAKsRcvd + client.NAKsRcvd; n > 0 {
			t.Errorf("%d NAKs", n)
		}
	}()
	for _, step := range []struct {
		name string
		do   func(*testing.T, *rig)
	}{
		{"lengths", lengths}, {"opcodes", opcodes}, {"pads", pads}, {"ICRC", badICRC},
		{"addresses", spoofed}, {"CNP", congestion}, {"victim", victim}, {"replay", replay},
		{"departures", departures}, {"nobodies", nobodies}, {"requests", requests},
	} {
		start, begun := r.moved.Load(), time.Now()
		if !t.Run(step.name, func(t *testing.T) {
			old := r.t
			r.t = t
			defer func() { r.t = old }()
			step.do(t, r)
		}) {
			return
		}
		for r.moved.Load() < start+3 { // it has not stopped
			select {
			case err := <-loaded:
				loaded <- err
				return
			case <-time.After(time.Millisecond):
			}
			if time.Since(begun) > 2*patience {
				t.Fatalf("after %s the connection under load moves no more", step.name)
			}
		}
	}
}

// counted says how many frames of a step A has dropped, without the marks, and for which reasons.
func (r *rig) counted(f func()) (all uint64, by map[rxe.Reason]uint64) {
	before, marks := r.a.Stats().Total, r.marks
	f()
	after := r.a.Stats().Total
	by = map[rxe.Reason]uint64{}
	for i := range after.Drops {
		if n := after.Drops[i] - before.Drops[i]; n > 0 {
			by[rxe.Reason(i)] = n
			all += n
		}
	}
	n := r.marks - marks
	if by[rxe.ReasonNoGroup] -= n; by[rxe.ReasonNoGroup] == 0 {
		delete(by, rxe.ReasonNoGroup)
	}
	return all - n, by
}

// wantOnly demands that all frames were dropped for one reason.
func (r *rig) wantOnly(why rxe.Reason, frames [][]byte) {
	r.t.Helper()
	all, by := r.counted(func() { r.send(frames...) })
	if all != uint64(len(frames)) || by[why] != all {
		r.t.Errorf("%d frames sent, dropped: %v; want all for: %v", len(frames), by, why)
	}
}

// lengths: frames cut off anywhere, of random bytes, with lengths in their headers that are right
// and that are not.
func lengths(t *testing.T, r *rig) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var whole, lying [][]byte
	template := r.frame(from{qpn: r.server.qp.Num()}, wire.RCSendOnly, 256, nil)
	for n := 0; n <= 128; n++ {
		b := bytes.Clone(template[:42+n])
		for i := range b[42:] {
			b[42+i] = byte(rnd.Uint32())
		}
		lying = append(lying, b) // its headers tell of more
		b = bytes.Clone(b)
		setLengths(b)
		whole = append(whole, b)
	}
	all, by := r.counted(func() { r.send(whole...) })
	if all < 120 || by[rxe.Reason(wire.ReasonShortBTH)] < 10 ||
		by[rxe.Reason(wire.ReasonOpcode)] < 10 {
		t.Errorf("of %d frames %d were dropped: %v", len(whole), all, by)
	}
	r.send(lying...) // those that the kernel keeps are none of ours
}

// setLengths makes the IPv4 and UDP headers fit the frame.
func setLengths(b []byte) {
	be := binary.BigEndian
	be.PutUint16(b[16:], uint16(len(b)-14))
	be.PutUint16(b[38:], uint16(len(b)-34))
	be.PutUint16(b[24:], 0)
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(be.Uint16(b[i:]))
	}
	sum = sum&0xffff + sum>>16
	be.PutUint16(b[24:], ^uint16(sum+sum>>16))
}

// opcodes: every opcode, known or not, with payloads of many lengths, from an address that is not
// the peer's, to the connection under load, and to QPNs that are nobody's.
func opcodes(t *testing.T, r *rig) {
	var frames [][]byte
	unknown := uint64(0)
	sizes := []int{0, 1, 2, 3, 4, 8, 63, 256, 1025}
	for op := range 256 {
		for i, n := range sizes {
			to := r.server.qp.Num()
			if i%3 == 2 {
				to = verbs.QPN(nobody + op)
			}
			if !wire.Opcode(op).Known() {
				unknown++
			}
			src := stranger
			if i%2 == 1 {
				src = stranger6
			}
			frames = append(frames, r.frame(from{src: src, qpn: to}, wire.Opcode(op), n, nil))
		}
	}
	all, by := r.counted(func() { r.send(frames...) })
	if all != uint64(len(frames)) || by[rxe.Reason(wire.ReasonOpcode)] != unknown {
		t.Errorf("of %d frames, %d of them with unknown opcodes, %d were dropped: %v", len(frames),
			unknown, all, by)
	}
	for _, why := range []rxe.Reason{rxe.ReasonNoQP, rxe.ReasonQPType, rxe.ReasonAddress} {
		if by[why] == 0 {
			t.Errorf("no packet was dropped for: %v", why)
		}
	}
}

// pads: every pad count with every payload of up to 12 bytes, from the peer's own address.
func pads(t *testing.T, r *rig) {
	var frames [][]byte
	for n := range 13 {
		for pad := range 4 {
			b := r.frame(from{qpn: r.server.qp.Num()}, wire.RCSendOnly, n, nil)
			if right := -n & 3; pad == right && n > 0 {
				b[len(b)-1] ^= 0x55 // that one is wrong otherwise
			} else if pad == right {
				continue
			}
			b[42+1] = b[42+1]&^0x30 | byte(pad)<<4
			frames = append(frames, b)
		}
	}
	all, by := r.counted(func() { r.send(frames...) })
	pad, icrc := by[rxe.Reason(wire.ReasonPad)], by[rxe.Reason(wire.ReasonICRC)]
	if all != uint64(len(frames)) || pad == 0 || icrc == 0 || pad+icrc != all {
		t.Errorf("of %d frames %d were dropped: %v", len(frames), all, by)
	}
}

// badICRC: packets that are right but for one bit, anywhere behind the UDP header's length.
func badICRC(t *testing.T, r *rig) {
	rnd := rand.New(rand.NewPCG(3, 4))
	var frames [][]byte
	for range 300 {
		b := r.frame(from{qpn: r.server.qp.Num()}, wire.RCSendOnly, 64, nil)
		at := 42 + 5 + rnd.IntN(len(b)-42-5) // QPN, PSN, payload, ICRC
		b[at] ^= 1 << rnd.IntN(8)
		frames = append(frames, b)
	}
	r.wantOnly(rxe.Reason(wire.ReasonICRC), frames)
}

// spoofed: whole messages for the connection under load, from addresses that are not the peer's; of
// another partition; for QPNs that are nobody's.
func spoofed(t *testing.T, r *rig) {
	rnd := rand.New(rand.NewPCG(5, 6))
	qpn := r.server.qp.Num()
	psn := func(hdr []byte) { (*wire.BTH)(hdr).SetPSN(wire.PSN(rnd.Uint32() & wire.PSNMask)) }
	var others, partition, none [][]byte
	for i := range 400 {
		src := netip.AddrFrom4([4]byte{byte(10 + i%3), 77, byte(i), byte(3 + rnd.IntN(250))})
		op := []wire.Opcode{wire.RCSendOnly, wire.RCWriteOnly, wire.RCReadRequest, wire.RCAck}[i%4]
		size := 100
		if op == wire.RCReadRequest || op == wire.RCAck {
			size = 0
		}
		mac := wire.MAC{2, 9, 9, 9, 9, byte(i)}
		others = append(others, r.frame(from{src: src, qpn: qpn, mac: mac}, op, size, psn))
		partition = append(partition, r.frame(from{qpn: qpn, pkey: uint16(1 + i)}, op, size, psn))
		none = append(none, r.frame(from{qpn: verbs.QPN(rnd.Uint32()&0x7fffff | 0x800000)}, op, size,
			psn))
	}
	r.wantOnly(rxe.ReasonAddress, others)
	r.wantOnly(rxe.ReasonPKey, partition)
	r.wantOnly(rxe.ReasonNoQP, none)
}

// congestion: notification packets, from the peer's own address.
func congestion(t *testing.T, r *rig) {
	var frames [][]byte
	for range 300 {
		frames = append(frames, r.frame(from{qpn: r.server.qp.Num()}, wire.CNP, 0, nil))
	}
	r.wantOnly(rxe.ReasonQPType, frames)
}

// victim: other connections, one after the other, get packets from their peer's own address, with
// headers that are right more often than not. They may fall; memory that they do not lend stays as
// it is.
func victim(t *testing.T, r *rig) {
	around := newEnd(t, r.a) // a region of another domain
	copy(around.mem.Bytes(), bytes.Repeat([]byte{0xa5}, memory))
	rnd := rand.New(rand.NewPCG(7, 8))
	fallen := 0
	_, by := r.counted(func() {
		for range 16 {
			server, client := r.connect()
			for range 3 {
				must(t, server.qp.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{server.mem.SGE(0,
					rnd.IntN(6000))}}))
			}
			r.send(r.aimed(rnd, server, around)...)
			if server.qp.State() != verbs.StateRTS {
				fallen++
			}
			must(t, server.qp.Destroy())
			must(t, client.qp.Destroy())
		}
	})
	t.Logf("%d of 16 victims have fallen; dropped: %v", fallen, by)
	for _, b := range around.mem.Bytes() {
		if b != 0xa5 {
			t.Fatal("memory of another protection domain was written")
		}
	}
}

// aimed are packets for a victim.
func (r *rig) aimed(rnd *rand.Rand, server, around *end) (frames [][]byte) {
	attr, _ := server.qp.Query()
	for range 100 {
		op := wire.Opcode(rnd.IntN(0x1e))
		if !op.Known() {
			continue
		}
		n := rnd.IntN(300)
		if rnd.IntN(3) == 0 {
			n = 4096
		}
		if op.Info().Flags&wire.FlagPayload == 0 {
			n = 0
		}
		frames = append(frames, r.frame(from{qpn: server.qp.Num()}, op, n, func(hdr []byte) {
			aim(rnd, hdr, op, &attr, server, around)
		}))
	}
	return frames
}

// aim fills the headers of a packet for the victim in.
func aim(rnd *rand.Rand, hdr []byte, op wire.Opcode, a *verbs.QPAttr, server, around *end) {
	bth, in := (*wire.BTH)(hdr), op.Info()
	psn := a.RQPSN
	if in.Flags&wire.FlagResponse != 0 {
		psn = a.SQPSN
	}
	bth.SetPSN(psn.Add(uint32(rnd.IntN(6))).Add(wire.PSNMask - 1))
	bth.SetAckReq(rnd.IntN(2) == 0)
	mem := server.mem
	if rnd.IntN(4) == 0 {
		mem = around.mem
	}
	if o := in.RETHOff; o != 0 {
		h := (*wire.RETH)(hdr[o:])
		h.SetVA(mem.Addr() + uint64(rnd.IntN(memory)))
		h.SetRKey(uint32(mem.RKey()))
		h.SetLength(uint32(rnd.IntN(6000)))
	}
	if o := in.AtomicETHOff; o != 0 {
		h := (*wire.AtomicETH)(hdr[o:])
		h.SetVA(mem.Addr() + uint64(8*rnd.IntN(memory/8)))
		h.SetRKey(uint32(mem.RKey()))
	}
	if o := in.AETHOff; o != 0 {
		h := (*wire.AETH)(hdr[o:])
		h.SetSyndrome(wire.Syndrome(rnd.Uint32()))
		h.SetMSN(rnd.Uint32() & 0xffffff)
	}
}
