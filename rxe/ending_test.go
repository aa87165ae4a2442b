package rxe_test

import (
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// stalled is a QP whose LOCAL_INV has executed and waits for a shard that is in the middle of a batch.
func stalled(t *testing.T) (p *rawPeer, other *rxe.Shard) {
	p = qpIn(t, rxe.StateRTS, rawConfig{retry: 1, shards: 2})
	tab := p.n.Dev.Keys()
	key, err := tab.AllocFast(p.q.Init().PD, 1)
	p.must(err)
	_, err = tab.Map(key.Index(), [][]byte{make([]byte, 4096)})
	p.must(err)
	num, err := tab.Stage(mr.Region{Key: key, Access: sim.AllAccess, IOVA: fastVA, Length: 4096})
	p.must(err)
	p.post(rxe.SendWR{ID: 1, Opcode: rxe.WRRegMR, RKey: key, List: num})
	p.wantWC("1:success")
	other = p.n.Dev.Shards()[1]
	other.Enter()
	p.post(rxe.SendWR{ID: 2, Opcode: rxe.WRLocalInv, RKey: key})
	p.wantWC()
	return p, other
}

// letPass ends the other shard's batch, and with it the wait.
func (p *rawPeer) letPass(other *rxe.Shard) {
	other.Leave()
	p.run()
}

// TestRefusedBehindGrace: the peer refuses a request while the completion of a LOCAL_INV before it still
// waits for its grace. Nothing more is sent, no timer runs, and the status is the peer's.
func TestRefusedBehindGrace(t *testing.T) {
	p, other := stalled(t)
	one(t, p.post(p.writeWR(3, 8)))
	one(t, p.post(p.readWR(5, 8)))
	p.inject(nak(ourPSN, wire.NAKRemoteAccess))
	p.inject(p.response(wire.RCReadRespOnly, ourPSN.Add(1), 8)) // answers what is not looked at any more
	if n := p.s.C.Drops[rxe.ReasonBadResponse]; n != 1 {
		t.Errorf("%d answers dropped, want 1", n)
	}
	if s := p.post(p.writeWR(4, 8)); len(s) != 0 {
		t.Errorf("sent behind a refused request: %+v", s)
	}
	if s := p.advance(100 * ackT14); len(s) != 0 {
		t.Errorf("sent again: %+v", s)
	}
	p.inject(nak(ourPSN, wire.NAKRemoteOp)) // the first word counts
	p.wantWC()
	p.letPass(other)
	p.wantWC("2:success", "3:remote access error", "5:Work Request Flushed Error", "4:Work Request Flushed Error")
	p.state(rxe.StateErr)
}

// TestDoneBehindGrace: what the peer has acknowledged, or a local fault has ended, keeps that status if the QP
// goes to ERR while a LOCAL_INV before it waits for its grace.
func TestDoneBehindGrace(t *testing.T) {
	p, other := stalled(t)
	one(t, p.post(p.writeWR(3, 8)))
	p.inject(ack(ourPSN))
	p.post(rxe.SendWR{ID: 4, Opcode: rxe.WRSend, SGEs: []rxe.SGE{{Length: 1, LKey: 3}}})
	p.post(p.writeWR(5, 8))
	p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateErr}, rxe.AttrState))
	p.run()
	p.wantWC()
	p.letPass(other)
	p.wantWC("2:success", "3:success", "4:local protection error", "5:Work Request Flushed Error")
}

// TestRetriesAreSent: retries that a QP could not send, because it waited for its turn behind others, do
// not count: its peer being dead, RETRY_EXC_ERR comes when retry_cnt of them were on the wire.
func TestRetriesAreSent(t *testing.T) {
	p, sides := crowd(t, 120, pairConfig{mem: 1 << 18, sim: sim.Config{Latency: 1 * ms},
		node: sim.NodeConfig{Device: rxe.Config{Budget: 1}}, conn: sim.ConnAttr{Timeout: 12, Retry: 2}})
	for _, s := range sides {
		s.send(t, rxe.SendWR{ID: 1, Opcode: rxe.WRRDMAWrite, SGEs: []rxe.SGE{s.mem.SGE(0, 8192)}, RemoteAddr: p.b.mem.Addr, RKey: p.b.mem.Key})
	}
	dead := sides[len(sides)-1]
	p.b.n.Dev.DestroyQP(p.b.n.Dev.QPByNumber(dead.q.Query().DestQPN))
	wantStatus(t, p.wait(dead, 1)[0], rxe.WCRetryExcErr)
	if n := dead.q.Stats.Retransmits; n < 2 {
		t.Errorf("gave up after %d retransmissions, %d timeouts", n, dead.q.Stats.Timeouts)
	}
}
