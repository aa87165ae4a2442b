package cm

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
	"time"

	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/verbs"
)

// toState brings a QP that is not the ID's to a state, as the ID says.
func (h *host) toState(id *ID, qp *verbs.QP, states ...verbs.QPState) {
	h.t.Helper()
	for _, s := range states {
		a, mask, err := id.QPAttr(s)
		h.must(err)
		h.must(qp.Modify(a, mask))
	}
}

// routed brings an ID without a QP to where it can connect.
func (h *host) routed(ch *EventChannel, to netip.AddrPort) *ID {
	h.t.Helper()
	id := h.id(ch, rcm.PortSpaceTCP)
	h.must(id.ResolveAddr(to, resolveTime))
	get(h.t, ch, EventAddrResolved)
	h.must(id.ResolveRoute(resolveTime))
	get(h.t, ch, EventRouteResolved)
	return id
}

// TestIDsWithoutQP: both owners connect QPs that the IDs do not have. The active one gets
// EventConnectResponse and calls Establish; EventEstablished comes to the passive one only.
func TestIDsWithoutQP(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.RC, verbs.UC} {
		a, b := hosts(t, &Config{Machine: quick})
		ca, cb := a.channel(), b.channel()
		l := b.listening(cb, rcm.PortSpaceTCP, b.ip4)
		id := a.routed(ca, l.LocalAddr())
		if err := id.Connect(nil); !errors.Is(err, verbs.ErrInvalid) {
			t.Fatalf("connect without a QP: %v", err)
		}
		if err := id.Establish(); !errors.Is(err, verbs.ErrInvalid) {
			t.Fatalf("establish before the answer: %v", err)
		}
		qa, cqa := a.qp(typ)
		a.must(id.Connect(&Params{QPN: qa.Num(), Type: typ, ResponderResources: 3, InitiatorDepth: 5}))
		if err := id.SetQP(qa); !errors.Is(err, verbs.ErrInvalid) {
			t.Fatalf("QP for an ID that connects without: %v", err)
		}
		a.toState(id, qa, verbs.StateInit)
		if _, _, err := id.QPAttr(verbs.StateRTR); !errors.Is(err, verbs.ErrInvalid) {
			t.Fatalf("RTR before the answer: %v", err)
		}

		req := get(t, cb, EventConnectRequest)
		qb, cqb := b.qp(typ)
		b.toState(req.ID, qb, verbs.StateInit, verbs.StateRTR)
		b.must(req.ID.Accept(&Params{QPN: qb.Num(), Private: []byte("welcome")}))
		res := get(t, ca, EventConnectResponse)
		if res.ID != id || res.Remote.QPN != qb.Num() ||
			!bytes.HasPrefix(res.Private, []byte("welcome")) {
			t.Fatalf("response %+v", res)
		}
		a.toState(id, qa, verbs.StateRTR, verbs.StateRTS)
		a.must(id.Establish())
		if err := id.Establish(); !errors.Is(err, verbs.ErrInvalid) {
			t.Fatalf("establish again: %v", err)
		}
		get(t, cb, EventEstablished)
		b.toState(req.ID, qb, verbs.StateRTS)
		if attr, _ := qa.Query(); typ == verbs.RC &&
			(attr.MaxDestRdAtomic != 3 || attr.MaxQPRdAtomic != 5) {
			t.Errorf("READs and atomics %d/%d", attr.MaxDestRdAtomic, attr.MaxQPRdAtomic)
		}
		sendOne(t, a, b, qa, qb, cqa, cqb)
		sendOne(t, b, a, qb, qa, cqb, cqa)

		b.must(req.ID.Disconnect())
		get(t, ca, EventDisconnected) // and no EventEstablished before
		a.must(id.Disconnect())
		get(t, cb, EventDisconnected)
		get(t, ca, EventTimewaitExit)
		get(t, cb, EventTimewaitExit)
		b.must(req.ID.Destroy())
	}
}

// sendOne sends a message from one QP to another.
func sendOne(t testing.TB, a, b *host, qa, qb *verbs.QP, cqa, cqb *verbs.CQ) {
	t.Helper()
	mr, err := b.pd.AllocMR(4096, verbs.LocalWrite)
	b.must(err)
	b.must(qb.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{mr.SGE(0, 16)}}))
	a.must(qa.PostSend(&verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendInline,
		Inline: []byte("ping")}))
	for _, cq := range []*verbs.CQ{cqa, cqb} {
		b.must(cq.Wait(within(t)))
		wc := make([]verbs.WC, 1)
		if n, err := cq.Poll(wc); n != 1 || err != nil || wc[0].Status != verbs.WCSuccess {
			t.Fatal(n, err, wc[0].Status)
		}
	}
	if string(mr.Bytes()[:4]) != "ping" {
		t.Fatal("message differs")
	}
}

// TestResponseRejected: the owner of an ID without a QP may refuse the answer.
func TestResponseRejected(t *testing.T) {
	a, b := hosts(t, &Config{Machine: quick})
	ca, cb := a.channel(), b.channel()
	l := b.listening(cb, rcm.PortSpaceTCP, b.ip4)
	id := a.routed(ca, l.LocalAddr())
	a.must(id.Connect(&Params{QPN: 77}))
	req := get(t, cb, EventConnectRequest)
	b.must(req.ID.Accept(&Params{QPN: 78}))
	get(t, ca, EventConnectResponse)
	a.must(id.Reject([]byte("no")))
	ev := get(t, cb, EventRejected)
	var rej *RejectError
	if !errors.As(ev.Err, &rej) || rej.Reason != rcm.ReasonConsumer || ev.Status != 28 ||
		!bytes.HasPrefix(rej.Private, []byte("no")) {
		t.Fatalf("rejected %+v", ev)
	}
	b.must(req.ID.Destroy())
}

// TestNotify: the RTU is lost, and the owner of the accepting QP tells of its first packet.
// Machines that never repeat anything show that it is this that counts.
func TestNotify(t *testing.T) {
	a, b, link := lossyHosts(t, &Config{Machine: rcm.Config{RetryFirst: time.Hour}})
	link.lose.Store(&map[rcm.Attr]bool{rcm.AttrRTU: true})
	ca, cb := a.channel(), b.channel()
	l := b.listening(cb, rcm.PortSpaceTCP, b.ip4)
	id := a.resolved(ca, l.LocalAddr(), verbs.RC)
	a.must(id.Connect(nil))
	req := get(t, cb, EventConnectRequest)
	t.Cleanup(func() { b.must(req.ID.Destroy()) })
	if err := req.ID.Notify(verbs.EventCommEst); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("before Accept: %v", err)
	}
	qb, _ := b.qp(verbs.RC)
	b.toState(req.ID, qb, verbs.StateInit, verbs.StateRTR)
	b.must(req.ID.Accept(&Params{QPN: qb.Num()}))
	get(t, ca, EventEstablished)
	if err := id.Notify(verbs.EventCommEst); !errors.Is(err, ErrConnected) {
		t.Errorf("of an established connection: %v", err)
	}
	if err := req.ID.Notify(verbs.EventQPFatal); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("of another event: %v", err)
	}
	a.must(id.QP().PostSend(&verbs.SendWR{Opcode: verbs.WRRDMAWrite})) // of no bytes
	for {
		ev, err := b.ctx.AsyncEvent(within(t))
		b.must(err)
		if ev.Type == verbs.EventCommEst && ev.QP == qb {
			break
		}
	}
	select {
	case <-cb.Ready():
		t.Fatal("an event before Notify")
	default:
	}
	b.must(req.ID.Notify(verbs.EventCommEst))
	get(t, cb, EventEstablished)
	if n := b.m.Stats().Received[rcm.AttrRTU.Index()]; n != 0 {
		t.Errorf("%d RTUs came", n)
	}
}

// TestQPAttrDatagrams: a UD QP of one's own is brought up as the ID says, and served.
func TestQPAttrDatagrams(t *testing.T) {
	a, b := hosts(t, nil)
	ca, cb := a.channel(), b.channel()
	l := b.listening(cb, rcm.PortSpaceUDP, netip.Addr{})
	id := a.resolved(ca, netip.AddrPortFrom(b.ip4, l.LocalAddr().Port()), verbs.UD)
	a.must(id.Connect(nil))
	req := get(t, cb, EventConnectRequest)
	qb, cqb := b.qp(verbs.UD)
	b.toState(req.ID, qb, verbs.StateInit, verbs.StateRTR, verbs.StateRTS)
	b.must(req.ID.Accept(&Params{QPN: qb.Num()}))
	est := get(t, ca, EventEstablished)
	if est.Service.QPN != qb.Num() {
		t.Fatalf("service %+v", est.Service)
	}
	defer est.Service.AH.Destroy()
	b.must(req.ID.Destroy())
	mr, err := b.pd.AllocMR(4096, verbs.LocalWrite)
	b.must(err)
	b.must(qb.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{mr.SGE(0, 128)}}))
	a.must(id.QP().PostSend(&verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendInline,
		Inline: []byte("ping"), AH: est.Service.AH, RemoteQPN: est.Service.QPN,
		RemoteQKey: est.Service.QKey}))
	b.must(cqb.Wait(within(t)))
}
