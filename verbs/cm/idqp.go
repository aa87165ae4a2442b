package cm

import (
	"errors"
	"fmt"

	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/verbs"
)

// This file is about an ID's QP: one of its own, or one that its owner connects.

// ErrConnected is returned by Notify for an ID that is connected already (EISCONN).
var ErrConnected = errors.New("already connected")

// CreateQP makes a QP for the ID, ready for receives (rdma_create_qp): of type RC unless init says
// UC, or UD in PortSpaceUDP. Destroy ends it.
func (id *ID) CreateQP(pd *verbs.PD, init *verbs.QPInitAttr) (*verbs.QP, error) {
	if (init.Type == verbs.UD) != (id.space == rcm.PortSpaceUDP) || init.Type == verbs.GSI {
		return nil, fmt.Errorf("create QP: type %v in port space %v: %w", init.Type, id.space,
			verbs.ErrInvalid)
	}
	qp, err := id.m.ctx.CreateQP(pd, init)
	if err == nil {
		if err = id.SetQP(qp); err != nil {
			err = errors.Join(err, qp.Destroy())
		}
	}
	if err != nil {
		return nil, err
	}
	id.m.mu.Lock()
	id.ownQP = true
	id.m.mu.Unlock()
	return qp, nil
}

// SetQP gives the ID a QP that stays the caller's to destroy. It is brought to INIT, or for UD to
// RTS, if it is in RESET.
func (id *ID) SetQP(qp *verbs.QP) error {
	var err error
	if qp.Type() == verbs.UD {
		err = prepareUD(qp)
	} else {
		err = Prepare(qp, (*Params)(nil).fill().Access)
	}
	if err != nil {
		return err
	}
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	if id.qp != nil || id.state >= idConnecting {
		return id.errState("set QP")
	}
	id.qp = qp
	return nil
}

// udMasks are what takes a UD QP from RESET to RTS.
var udMasks = [...]verbs.AttrMask{verbs.AttrState | verbs.AttrPKeyIndex | verbs.AttrPort |
	verbs.AttrQKey, verbs.AttrState, verbs.AttrState | verbs.AttrSQPSN}

// prepareUD brings a datagram QP to RTS, with the Q_Key of RDMA-CM.
func prepareUD(qp *verbs.QP) error {
	if qp.State() != verbs.StateReset {
		return nil
	}
	a := verbs.QPAttr{State: verbs.StateInit, Port: 1, QKey: rcm.UDQKey}
	for _, mask := range udMasks {
		if err := qp.Modify(&a, mask); err != nil {
			return err
		}
		a.State++
	}
	return nil
}

// QPAttr returns what Modify takes to bring a QP that is not the ID's to a state: INIT, RTR or RTS
// (rdma_init_qp_attr). For INIT the ID has its address resolved or is requested; for RTR and RTS
// EventConnectRequest or EventConnectResponse has come. What Connect or Accept is given decides the
// access rights and bounds; before Accept, their defaults. Errors: verbs.ErrInvalid, ErrNoAddress.
func (id *ID) QPAttr(state verbs.QPState) (*verbs.QPAttr, verbs.AttrMask, error) {
	m := id.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if id.state < idAddrResolved || id.state >= idEnded || state < verbs.StateInit ||
		state > verbs.StateRTS {
		return nil, 0, id.errState(fmt.Sprintf("attributes of a QP for %v", state))
	}
	if id.space == rcm.PortSpaceUDP {
		a := verbs.QPAttr{State: state, Port: 1, QKey: rcm.UDQKey}
		return &a, udMasks[state-verbs.StateInit], nil
	}
	par := (*Params)(nil).fill()
	if id.conn != nil {
		par = id.conn.params
	} else {
		id.options.fill(&par)
	}
	if state == verbs.StateInit {
		return &verbs.QPAttr{State: state, Port: 1, AccessFlags: par.Access}, initMask, nil
	}
	p, err := m.machine.QPParam(id.id)
	if err != nil || p.DestQPN == 0 {
		return nil, 0, id.errState(fmt.Sprintf("attributes of a QP for %v", state))
	}
	typ := verbs.RC
	if p.Transport == rcm.TransportUC {
		typ = verbs.UC
	}
	if id.asked != nil && id.conn == nil { // not accepted yet
		par.bound(&p, &id.peer)
	}
	a, err := m.qpAttr(&p, &par, id.psn)
	if err != nil {
		return nil, 0, err
	}
	a.State = state
	if state == verbs.StateRTR {
		return &a, rtrMask(typ), nil
	}
	return &a, rtsMask(typ), nil
}

// bound lowers what a request asks for to what its receiver grants.
func (p *Params) bound(q *rcm.QPParam, peer *rcm.Param) {
	q.MaxDestRdAtomic = min(peer.InitiatorDepth, uint8(p.ResponderResources))
	q.MaxRdAtomic = min(peer.ResponderResources, uint8(p.InitiatorDepth))
}

// Establish completes the connection of an ID without a QP after EventConnectResponse, when the QP
// that its owner has connected is in RTS (rdma_establish). The peer's EventEstablished follows;
// here no event does. Errors: verbs.ErrInvalid, also for an ID with a QP, which does this itself.
func (id *ID) Establish() error {
	return id.say("establish", func(m *Manager) error {
		if id.state != idAnswered {
			return id.errState("establish")
		}
		return m.machine.Establish(m.now(), id.id, nil)
	})
}

// Notify tells the ID of an asynchronous event of its QP (rdma_notify). The only one that counts is
// verbs.EventCommEst: a packet has come before the peer's last message, which may be lost, and
// EventEstablished follows. An ID sees that for itself if the QP is its own. Errors: ErrConnected,
// which does no harm; verbs.ErrInvalid.
func (id *ID) Notify(ev verbs.EventType) error {
	return id.say("notify", func(m *Manager) error {
		switch {
		case ev != verbs.EventCommEst:
			return fmt.Errorf("event %v: %w", ev, verbs.ErrInvalid)
		case id.state == idConnected:
			return ErrConnected
		case id.state != idConnecting || id.asked == nil:
			return id.errState("communication established")
		}
		return m.machine.CommEst(m.now(), id.id)
	})
}
