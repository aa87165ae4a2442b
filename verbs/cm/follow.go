package cm

import (
	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/verbs"
)

// This file is what the device tells the manager, and what comes of it.

// firstPacket is called when the first packet has come to a QP whose RTU has not: it counts as one.
// The QP's shard is held.
func (m *Manager) firstPacket(id rcm.ID) {
	m.toldMu.Lock()
	m.established = append(m.established, id)
	m.toldMu.Unlock()
	m.kick()
}

// confirm tells the machine of first packets.
func (m *Manager) confirm() {
	m.toldMu.Lock()
	ids := m.established
	m.established = nil
	m.toldMu.Unlock()
	for _, id := range ids {
		_ = m.machine.CommEst(m.now(), id) // gone, or established meanwhile: nothing to tell
	}
}

// changed is called when something has changed around the device, parts of which are locked.
func (m *Manager) changed(x verbs.Change) {
	m.toldMu.Lock()
	m.changes[x] = struct{}{}
	m.toldMu.Unlock()
	m.kick()
}

// follow tells the IDs of changes. m.mu is held.
func (m *Manager) follow() {
	m.toldMu.Lock()
	changes := m.changes
	if len(changes) == 0 {
		m.toldMu.Unlock()
		return
	}
	m.changes = map[verbs.Change]struct{}{}
	m.toldMu.Unlock()
	for x := range changes {
		switch x.Kind {
		case verbs.ChangeGone:
			m.vanish()
		case verbs.ChangeGIDs:
			for id := range m.ids {
				id.checkHome()
			}
		case verbs.ChangeWay:
			for id := range m.ids {
				id.moved(&x)
			}
		}
	}
}

// vanish ends everything because the interface has gone, or the device was closed.
func (m *Manager) vanish() {
	m.shutAll()
	m.vanished = true
}
