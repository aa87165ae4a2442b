package rxe_test

import (
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// sentTo posts an empty SEND and returns the destination MAC of its packet.
func (p *rawPeer) sentTo() wire.MAC {
	p.t.Helper()
	p.must(p.q.PostSend(&rxe.SendWR{Opcode: rxe.WRSend}))
	p.q.RingDoorbell()
	p.s.Enter()
	defer p.s.Leave()
	p.s.Turn(p.now)
	f := rxe.Frame{Head: make([]byte, 2048)}
	if p.s.Transmit(p.now, f) == 0 {
		p.t.Fatal("nothing sent")
	}
	return wire.MAC(f.Head[:6])
}

func TestSetPathMovesAConnection(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{})
	av := p.q.Query().AV
	if got := p.sentTo(); got != av.Path.DstMAC {
		t.Fatalf("sent to %v, want %v", got, av.Path.DstMAC)
	}
	av.Path.DstMAC = wire.MAC{2, 0, 0, 0, 9, 9}
	p.q.SetPath(av)
	if got := p.sentTo(); got != av.Path.DstMAC {
		t.Errorf("after SetPath sent to %v, want %v", got, av.Path.DstMAC)
	}
	if got := p.q.Query().AV; got != av {
		t.Errorf("Query after SetPath: %+v", got)
	}
}

func TestSetPathBeforeConnectingIsIgnored(t *testing.T) {
	p := qpIn(t, rxe.StateInit, rawConfig{})
	p.q.SetPath(rxe.AV{Loopback: true})
	if p.q.Query().AV.Loopback {
		t.Error("a QP in INIT took a path")
	}
}

func TestReplaceAHKeepsTheNumber(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{})
	a, err := p.n.Dev.CreateAH(p.n.AllocPD(), rxe.AV{Path: p.path})
	p.must(err)
	moved := p.path
	moved.DstMAC[5]++
	b := p.n.Dev.ReplaceAH(a, rxe.AV{Path: moved})
	if b == a || b.Num() != a.Num() || b.PD != a.PD || b.AV.Path != moved {
		t.Errorf("replaced %+v by %+v", a, b)
	}
	p.n.Dev.DestroyAH(b)
	if c := p.n.Dev.ReplaceAH(b, rxe.AV{}); c != b {
		t.Error("a destroyed handle was replaced")
	}
}
