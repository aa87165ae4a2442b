package verbs

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/internal/nettest"
)

const testQKey = 0x11111111

// startUD takes a UD QP to RTS.
func (e *end) startUD(psn PSN) {
	e.t.Helper()
	a := QPAttr{State: StateInit, Port: 1, QKey: testQKey, SQPSN: psn}
	e.must(e.qp.Modify(&a, AttrState|AttrPKeyIndex|AttrPort|AttrQKey))
	a.State = StateRTR
	e.must(e.qp.Modify(&a, AttrState))
	a.State = StateRTS
	e.must(e.qp.Modify(&a, AttrState|AttrSQPSN))
}

func (e *end) ahTo(c *Context, ipv6 bool) *AH {
	e.t.Helper()
	own := gid(e.t, e.c, ipv6).Index
	ah, err := e.pd.CreateAH(&AHAttr{DGID: gid(e.t, c, ipv6).GID, SGIDIndex: own})
	e.must(err)
	return ah
}

// TestUD: datagrams between devices and inside one, over both IP families, with the GRH area.
func TestUD(t *testing.T) {
	onModes(t, func(t *testing.T, w wireKind, cfg Config) {
		ca, cb := w.open(t, cfg, cfg)
		a, b, c := newEnd(t, ca, endConfig{typ: UD}), newEnd(t, cb, endConfig{typ: UD}),
			newEnd(t, ca, endConfig{typ: UD})
		for _, e := range []*end{a, b, c} {
			e.startUD(5)
		}
		for _, to := range []*end{b, c} {
			for _, ipv6 := range []bool{false, true} {
				ah := a.ahTo(to.c, ipv6)
				fill(a.mr.Bytes(), 3)
				to.recv(4, to.mr.SGE(0, 4096+GRHBytes))
				a.send(SendWR{Opcode: WRSendWithImm, Imm: 99, SGList: []SGE{a.mr.SGE(0, 4096)}, AH: ah,
					RemoteQPN: to.qp.Num(), RemoteQKey: testQKey})
				a.done(WCSuccess)
				r := to.done(WCSuccess)
				if r.ByteLen != 4096+GRHBytes || r.SrcQP != a.qp.Num() ||
					r.Flags != WCGRH|WCWithImm || r.Imm != 99 {
					t.Errorf("receive %+v", r)
				}
				if !bytes.Equal(to.mr.Bytes()[GRHBytes:GRHBytes+4096], a.mr.Bytes()[:4096]) {
					t.Error("datagram arrived changed")
				}
				a.must(ah.Destroy())
			}
		}
		ah := a.ahTo(cb, false)
		b.recv(1, b.mr.SGE(0, 8192))
		a.send(SendWR{Opcode: WRSend, SGList: []SGE{a.mr.SGE(0, 5000)}, AH: ah,
			RemoteQPN: b.qp.Num(), RemoteQKey: testQKey})
		a.done(WCSuccess) // but nothing was sent (IBTA C10-93.1.1)
		time.Sleep(5 * time.Millisecond)
		if n := b.cq.Len(); n != 0 {
			t.Error("a datagram longer than the path MTU arrived")
		}
	})
}

// TestMulticast: members on both devices and several shards get a copy each, the sender none.
func TestMulticast(t *testing.T) {
	onModes(t, func(t *testing.T, w wireKind, cfg Config) {
		cfg.Queues = 2
		ca, cb := w.open(t, cfg, cfg)
		for _, group := range []GID{
			{10: 0xff, 11: 0xff, 12: 239, 13: 1, 14: 2, 15: 3},
			{0: 0xff, 1: 0x0e, 14: 7, 15: 9},
		} {
			send := newEnd(t, ca, endConfig{typ: UD, shard: 1})
			members := []*end{newEnd(t, ca, endConfig{typ: UD, shard: 2}),
				newEnd(t, cb, endConfig{typ: UD, shard: 1}), newEnd(t, cb, endConfig{typ: UD, shard: 2})}
			for _, e := range append(members, send) {
				e.startUD(1)
				e.must(e.qp.AttachMcast(group))
				e.recv(1, e.mr.SGE(0, 100))
			}
			send.must(send.qp.AttachMcast(group))
			ah, err := send.pd.CreateAH(&AHAttr{DGID: group, SGIDIndex: gid(t, ca, !group.IsIPv4()).Index})
			send.must(err)
			copy(send.mr.Bytes(), "to all")
			send.send(SendWR{Opcode: WRSend, SGList: []SGE{send.mr.SGE(0, 6)}, AH: ah, RemoteQPN: 0xffffff,
				RemoteQKey: testQKey})
			send.done(WCSuccess)
			for i, m := range members {
				c := m.done(WCSuccess)
				if got := string(m.mr.Bytes()[GRHBytes : GRHBytes+6]); c.ByteLen != GRHBytes+6 || got != "to all" {
					t.Errorf("member %d received %+v", i, c)
				}
			}
			time.Sleep(5 * time.Millisecond)
			if n := send.cq.Len(); n != 0 {
				t.Error("the sender got its own datagram")
			}
			for _, e := range members[:2] {
				e.must(e.qp.DetachMcast(group))
			}
			if err := members[0].qp.DetachMcast(group); err == nil {
				t.Error("left a group twice")
			}
			members[2].must(members[2].qp.Destroy())
			send.must(send.qp.Destroy())
			if n := len(ca.groups.members) + len(cb.groups.members); n != 0 {
				t.Errorf("%d groups left", n)
			}
		}
		rc := newEnd(t, ca, endConfig{})
		if err := rc.qp.AttachMcast(GID{0: 0xff}); err == nil {
			t.Error("an RC QP joined a group")
		}
	})
}

// TestUC: SEND and WRITE without acknowledgement.
func TestUC(t *testing.T) {
	onModes(t, func(t *testing.T, w wireKind, cfg Config) {
		a, b := newPair(t, w, cfg, endConfig{typ: UC, size: 1 << 17}, ConnOptions{})
		testSend(t, a, b, 100001)
		fill(a.mr.Bytes(), 9)
		b.recv(1)
		a.send(SendWR{Opcode: WRRDMAWriteWithImm, SGList: []SGE{a.mr.SGE(0, 10000)},
			RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
		a.done(WCSuccess)
		if c := b.done(WCSuccess); c.Opcode != WCRecvRDMAWithImm || c.ByteLen != 10000 {
			t.Errorf("completion %+v", c)
		}
		if !bytes.Equal(a.mr.Bytes()[:10000], b.mr.Bytes()[:10000]) {
			t.Error("WRITE arrived changed")
		}
	})
}

// TestMulticastJoinsInKernel: the kernel itself is a member of a group while any QP is, so that it tells the
// switches by IGMP and MLD and has the NIC's filter opened, and leaves with the last one.
func TestMulticastJoinsInKernel(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	c := openIn(t, l.A, Config{})
	a, b := newEnd(t, c, endConfig{typ: UD}), newEnd(t, c, endConfig{typ: UD})
	for _, g := range []struct {
		group      GID
		file, line string
	}{
		{GID{10: 0xff, 11: 0xff, 12: 239, 13: 1, 14: 2, 15: 3}, "igmp", "030201EF"},
		{GID{0: 0xff, 1: 0x0e, 14: 7, 15: 9}, "igmp6", "ff0e0000000000000000000000000709"},
	} {
		joined := func() (in bool) {
			l.A.Do(func() {
				b, err := os.ReadFile("/proc/thread-self/net/" + g.file)
				if err != nil {
					t.Fatal(err)
				}
				in = bytes.Contains(b, []byte(g.line))
			})
			return in
		}
		want := func(in bool, when string) {
			t.Helper()
			if joined() != in {
				t.Errorf("%s: the kernel is a member of %v: %v", when, g.group, !in)
			}
		}
		want(false, "before")
		a.must(a.qp.AttachMcast(g.group))
		a.must(b.qp.AttachMcast(g.group))
		want(true, "with two QPs")
		a.must(a.qp.DetachMcast(g.group))
		want(true, "with one QP")
		a.must(b.qp.DetachMcast(g.group))
		want(false, "afterwards")
	}
	a.must(a.qp.AttachMcast(GID{0: 0xff, 1: 0x0e, 15: 1}))
	a.must(a.qp.Destroy())
	if err := a.qp.AttachMcast(GID{0: 0xff, 1: 0x0e, 15: 1}); err == nil {
		t.Error("a destroyed QP joined a group")
	}
}
