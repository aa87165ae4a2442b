package rxe_test

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file makes recordings with our own engines and replays them, for operations, sizes, path MTUs
// and PSNs that the kernel's recordings do not have.

// ownPost is a work request of a recording that our own engines make.
type ownPost struct {
	op    rxe.WROpcode
	n     int
	flags rxe.SendFlags
	bad   bool // names the region without rights
}

// A group is posted together; its completions are waited for. Each post that consumes a receive finds
// one.
type group []ownPost

// TestReplayOwn: recordings of operations, sizes, path MTUs and PSNs that the kernel's do not have,
// made by two engines of ours in the same form, are understood without a word of code.
func TestReplayOwn(t *testing.T) {
	const send, sendImm, write, writeImm, read = rxe.WRSend, rxe.WRSendWithImm, rxe.WRRDMAWrite,
		rxe.WRRDMAWriteWithImm, rxe.WRRDMARead
	for _, c := range []struct {
		name   string
		typ    rxe.QPType
		pmtu   uint32
		psn    wire.PSN
		v6     bool
		groups []group
		// READs that are answered together carry the MSN of the last: the responder, which is fed one
		// packet at a time, would answer otherwise.
		together bool
	}{
		{name: "rc_write_imm", typ: rxe.RC, pmtu: 1024, psn: 0x100,
			groups: []group{{{op: writeImm, n: 10}}, {{op: writeImm, n: 0}}, {{op: writeImm, n: 3000}}}},
		{name: "rc_fence", typ: rxe.RC, pmtu: 1024, psn: 0x100, groups: []group{{{op: read, n: 2000},
			{op: send, n: 16, flags: rxe.SendFence}, {op: send, n: 20, flags: rxe.SendInline}}}},
		{name: "rc_solicited", typ: rxe.RC, pmtu: 1024, psn: 0x100, groups: []group{{
			{op: send, n: 16, flags: rxe.SendSolicited}, {op: sendImm, n: 17, flags: rxe.SendSolicited}}}},
		{name: "rc_nak_perm", typ: rxe.RC, pmtu: 1024, psn: 0x100,
			groups: []group{{{op: write, n: 100, bad: true}}}},
		{name: "rc_mtu4096_wrap", typ: rxe.RC, pmtu: 4096, psn: 0xfffffe, groups: []group{{{op: send, n: 64}},
			{{op: send, n: 14000}}, {{op: read, n: 13000}}, {{op: write, n: 9001}}}},
		{name: "rc_write_big_mtu256", typ: rxe.RC, pmtu: 256, psn: 0xffffc0, v6: true,
			groups: []group{{{op: write, n: 32768}}}},
		{name: "rc_deep", typ: rxe.RC, pmtu: 512, psn: 0x7fffff, v6: true, together: true, groups: []group{{
			{op: read, n: 1500}, {op: read, n: 1500}, {op: read, n: 1500}, {op: read, n: 1500},
			{op: read, n: 700}, {op: read, n: 0}, {op: write, n: 600}}}},
		{name: "uc_write", typ: rxe.UC, pmtu: 1024, psn: 0x100, groups: []group{{{op: write, n: 64}},
			{{op: write, n: 2500}}, {{op: writeImm, n: 61}}, {{op: writeImm, n: 2100}}}},
		{name: "uc_send_wrap", typ: rxe.UC, pmtu: 256, psn: 0xffffff, v6: true,
			groups: []group{{{op: send, n: 900}}, {{op: sendImm, n: 1}}}},
		{name: "ud_wrap", typ: rxe.UD, pmtu: 4096, psn: 0xfffffe, v6: true,
			groups: []group{{{op: send, n: 4096}}, {{op: sendImm, n: 0}}, {{op: send, n: 3}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir() + "/"
			w := &ownRecorder{t: t, typ: c.typ, pmtu: c.pmtu, psn: c.psn}
			w.record(dir+c.name, c.name, c.v6, c.groups)
			rec := readRecording(t, dir, c.name)
			if len(rec.convs) != 1 || len(rec.convs[0].packets) != len(rec.packets) || rec.lossy {
				t.Fatalf("%d conversations, lossy %v", len(rec.convs), rec.lossy)
			}
			x := new(exceptions)
			replay(t, rec, x, (*player).requester)
			if !c.together {
				replay(t, rec, x, (*player).responder)
			}
		})
	}
}

// ownRecorder makes a recording.
type ownRecorder struct {
	t    *testing.T
	typ  rxe.QPType
	pmtu uint32
	psn  wire.PSN
	text strings.Builder
	pcap bytes.Buffer
	f    *sim.Fabric
	n    [2]*sim.Node
	q    [2]*rxe.QP
	send [2]*rxe.CQ
	recv [2]*rxe.CQ
	mem  [2]*sim.Region
	shut [2]*sim.Region

	// fault, if set, decides about each packet. Only what arrives is recorded.
	fault func(from int) sim.Verdict
}

func (w *ownRecorder) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *ownRecorder) record(file, name string, v6 bool, groups []group) {
	w.t.Helper()
	out := pcapgo.NewWriter(&w.pcap)
	w.must(out.WriteFileHeader(9000, layers.LinkTypeEthernet))
	// Frames arrive one by one, as on a slow wire: a responder answers each before it sees the next.
	cfg := sim.Config{Seed: 1, Latency: 50_000, Spread: 50_000}
	cfg.Faults.Script = func(_ uint64, from, _ *sim.Node, b []byte) sim.Verdict {
		verdict, copies := sim.Pass, 1
		if w.fault != nil {
			end := endA
			if from == w.n[endB] {
				end = endB
			}
			verdict = w.fault(end)
		}
		switch verdict {
		case sim.Drop:
			copies = 0
		case sim.Duplicate:
			copies = 2
		}
		for range copies {
			w.must(out.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(0, int64(w.f.Now())),
				CaptureLength: len(b), Length: len(b)}, b))
		}
		return verdict
	}
	w.f = sim.New(cfg)
	for end := range w.n {
		w.end(end, v6)
	}
	w.connect(name)
	for _, g := range groups {
		w.group(g)
	}
	w.must(os.WriteFile(file+".pcap", w.pcap.Bytes(), 0o600))
	w.must(os.WriteFile(file+".txt", []byte(w.text.String()), 0o600))
}

func (w *ownRecorder) end(end int, v6 bool) {
	w.t.Helper()
	var err error
	w.n[end], err = w.f.AddNode(sim.NodeConfig{V6: v6,
		Device: rxe.Config{Window: replayWindow, MinWindow: replayWindow}})
	w.must(err)
	n := w.n[end]
	pd := n.AllocPD()
	w.send[end], err = n.Dev.NewCQ(64)
	w.must(err)
	w.recv[end], err = n.Dev.NewCQ(64)
	w.must(err)
	w.q[end], err = n.Dev.CreateQP(n.Dev.Shards()[0], rxe.QPInit{Type: w.typ, PD: pd, SendCQ: w.send[end],
		RecvCQ: w.recv[end], MaxSendWR: 64, MaxRecvWR: 64, MaxSend: 1, MaxRecv: 1, MaxInline: 64})
	w.must(err)
	buf := make([]byte, 1<<16)
	fillEnd(end, buf)
	addr := uint64(0x10000000 * (end + 1))
	w.mem[end], err = n.Reg(pd, buf, addr, sim.AllAccess)
	w.must(err)
	w.shut[end], err = n.Reg(pd, buf, addr, 0)
	w.must(err)
	fmt.Fprintf(&w.text, "%c: dev rx%c gid[1] %v buf %#x len %d lkey 0x%08x rkey 0x%08x "+
		"read-only-local-mr rkey 0x%08x\n", 'A'+end, 'a'+end, n.GID, addr, len(buf),
		w.mem[end].Key, w.mem[end].Key, w.shut[end].Key)
}

const ownQKey = 0x11223344

func (w *ownRecorder) connect(name string) {
	w.t.Helper()
	qkey := ""
	if w.typ == rxe.UD {
		for end, q := range w.q {
			a := rxe.QPAttr{Port: 1, QKey: ownQKey, SQPSN: w.psn.Add(0x1000 * uint32(end))}
			for i, m := range []rxe.AttrMask{
				rxe.AttrPKeyIndex | rxe.AttrPort | rxe.AttrQKey, 0, rxe.AttrSQPSN} {
				a.State = rxe.StateInit + rxe.QPState(i)
				w.must(q.Modify(&a, m|rxe.AttrState))
			}
		}
		qkey = fmt.Sprintf(" qkey %#x", ownQKey)
	} else {
		w.must(sim.Connect(w.n[0], w.q[0], w.n[1], w.q[1], sim.ConnAttr{PMTU: w.pmtu, PSN: w.psn}))
	}
	fmt.Fprintf(&w.text, "%s: made by our own engines\nQP type %v: A qpn 0x%06x sq_psn 0x%06x | "+
		"B qpn 0x%06x sq_psn 0x%06x | path mtu %d%s\n", name, w.typ,
		w.q[0].QPN(), w.psn, w.q[1].QPN(), w.psn.Add(0x1000), w.pmtu, qkey)
}

// group posts a group and prints its completions.
func (w *ownRecorder) group(g group) {
	w.t.Helper()
	recvs, failed := 0, false
	for _, p := range g {
		wr := rxe.SendWR{Opcode: p.op, Flags: p.flags | rxe.SendSignaled}
		at := 0
		switch p.op {
		case rxe.WRSend, rxe.WRSendWithImm, rxe.WRRDMAWriteWithImm:
			recvs++
			w.must(w.q[1].PostRecv(&rxe.RecvWR{SGEs: []rxe.SGE{w.mem[1].SGE(recvAt, 20000)}}))
		case rxe.WRRDMARead:
			at = readAt
		case rxe.WRAtomicFetchAdd:
			at, wr.CompareAdd = atomicAt, 3
		}
		if p.op != rxe.WRSend && p.op != rxe.WRSendWithImm {
			wr.RemoteAddr, wr.RKey = w.mem[1].Addr+8, w.mem[1].Key
		}
		if p.op == rxe.WRSendWithImm || p.op == rxe.WRRDMAWriteWithImm {
			wr.Imm = 0xaabbcc00 + uint32(p.n)
		}
		if p.bad {
			wr.RKey, failed = w.shut[1].Key, true
		}
		if wr.SGEs = []rxe.SGE{w.mem[0].SGE(at, p.n)}; p.flags&rxe.SendInline != 0 {
			wr.Inline = w.mem[0].Buf[:p.n]
		}
		if w.typ == rxe.UD {
			ah, err := w.n[0].Dev.CreateAH(w.q[0].Init().PD, w.n[0].Path(w.n[1]))
			w.must(err)
			wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah.Num(), w.q[1].QPN(), ownQKey
		}
		fmt.Fprintf(&w.text, "  A posts op %d len %d raddr %#x rkey 0x%08x imm/inv 0x%08x flags %x "+
			"cmp/add %#x swap 0x0\n", p.op, p.n, wr.RemoteAddr, wr.RKey, wr.Imm, uint8(p.flags), wr.CompareAdd)
		w.must(w.q[0].PostSend(&wr))
	}
	w.q[0].RingDoorbell()
	w.wait("A", w.send[0], len(g))
	if !failed {
		w.wait("B", w.recv[1], recvs)
	}
}

func (w *ownRecorder) wait(end string, cq *rxe.CQ, n int) {
	w.t.Helper()
	var c [1]rxe.CQE
	for ; n > 0; n-- {
		if !w.f.RunUntil(w.f.Now()+20_000_000_000, func() bool { return cq.Poll(c[:]) == 1 }) {
			w.t.Fatalf("%s: no completion", end)
		}
		fmt.Fprintf(&w.text, "  %s wc: status %d (%v) op %d len %d flags %x imm/inv 0x%08x src_qp %#x\n", end,
			c[0].Status, c[0].Status, c[0].Opcode, c[0].ByteLen, uint8(c[0].Flags), c[0].Imm, c[0].SrcQP)
	}
	w.f.Run(w.f.Now() + 1_000_000)
}
