package cm

import (
	"errors"
	"fmt"
	"net/netip"

	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// multicastQPN is what datagrams to a group are addressed to.
const multicastQPN = 0xffffff

// JoinMulticast makes the ID's UD QP a member of a group (rdma_join_multicast): EventMulticastJoin,
// with the Service to send to, or EventMulticastError. The ID has its address bound or resolved.
func (id *ID) JoinMulticast(group netip.Addr) error {
	m := id.m
	m.mu.Lock()
	defer m.mu.Unlock()
	_, in := id.groups[group]
	switch {
	case id.space != rcm.PortSpaceUDP || id.qp == nil || in || !group.IsMulticast():
		return fmt.Errorf("join %v: no group, a member already, or no UD QP: %w", group, verbs.ErrInvalid)
	case !id.local.IsValid() || id.state >= idEnded:
		return id.errState("join multicast group")
	}
	qp, local, tos := id.qp, wire.GID(id.local.As16()), id.options.tos
	id.groups[group] = nil
	go func() {
		ah, err := m.joined(qp, local, group, tos)
		m.mu.Lock()
		defer m.mu.Unlock()
		_, wanted := id.groups[group]
		switch {
		case err != nil:
			delete(id.groups, group)
			id.put(&Event{Type: EventMulticastError, ID: id, Err: err})
		case !wanted: // left, or destroyed, meanwhile
			_, _ = qp.DetachMcast(group.As16()), ah.Destroy()
		default:
			id.groups[group] = ah
			id.put(&Event{Type: EventMulticastJoin, ID: id,
				Service: &Service{AH: ah, QPN: multicastQPN, QKey: rcm.UDQKey}})
		}
	}()
	return nil
}

// joined attaches a QP to a group, and makes the way there.
func (m *Manager) joined(qp *verbs.QP, local wire.GID, group netip.Addr,
	tclass uint8) (*verbs.AH, error) {
	if err := qp.AttachMcast(group.As16()); err != nil {
		return nil, err
	}
	ah, err := m.ahFor(qp, local, group, tclass)
	if err != nil {
		return nil, errors.Join(err, qp.DetachMcast(group.As16()))
	}
	return ah, nil
}

// ahFor makes an address handle for a QP's use.
func (m *Manager) ahFor(qp *verbs.QP, local wire.GID, to netip.Addr,
	tclass uint8) (*verbs.AH, error) {
	i, err := m.gidIndex(local)
	if err != nil {
		return nil, err
	}
	return qp.PD().CreateAH(&verbs.AHAttr{DGID: to.As16(), SGIDIndex: i, TrafficClass: tclass})
}

// LeaveMulticast ends a membership (rdma_leave_multicast).
func (id *ID) LeaveMulticast(group netip.Addr) error {
	id.m.mu.Lock()
	ah, in := id.groups[group]
	delete(id.groups, group)
	qp := id.qp
	id.m.mu.Unlock()
	if !in {
		return fmt.Errorf("leave %v: not a member: %w", group, verbs.ErrInvalid)
	}
	return leave(qp, group, ah)
}

// leave ends a membership, or the wish for one.
func leave(qp *verbs.QP, group netip.Addr, ah *verbs.AH) error {
	if ah == nil {
		return nil
	}
	return errors.Join(qp.DetachMcast(group.As16()), ah.Destroy())
}
