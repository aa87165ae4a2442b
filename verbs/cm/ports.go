package cm

import (
	"fmt"
	"net/netip"

	rcm "github.com/roxie-rdma/roxie/rxe/cm"
)

// place is a port of the own addresses that an ID or a Listener has.
type place struct {
	space  rcm.PortSpace
	port   uint16
	local  netip.Addr // not valid: all
	family rcm.Family // of all addresses
	reuse  bool       // others that say so too may have it besides
}

// clashes reports whether two cannot be had at once, as Linux' rdma_cm sees it.
func (p *place) clashes(o *place) bool {
	switch {
	case p == o || p.reuse && o.reuse:
		return false
	case p.version() != 0 && o.version() != 0 && p.version() != o.version():
		return false
	}
	return !p.local.IsValid() || !o.local.IsValid() || p.local == o.local
}

// version is the IP version that a place is restricted to; 0: none.
func (p *place) version() rcm.Family {
	switch {
	case !p.local.IsValid():
		return p.family
	case p.local.Is4():
		return rcm.IPv4
	}
	return rcm.IPv6
}

type portKey struct {
	space rcm.PortSpace
	port  uint16
}

// ports has who has which port. Manager.mu is held for all of it.
type ports map[portKey][]*place

func (t ports) add(p *place) {
	k := portKey{p.space, p.port}
	t[k] = append(t[k], p)
}

func (t ports) remove(p *place) {
	k := portKey{p.space, p.port}
	list := t[k]
	for i, o := range list {
		if o == p {
			list[i] = list[len(list)-1]
			list = list[:len(list)-1]
			break
		}
	}
	if t[k] = list; len(list) == 0 {
		delete(t, k)
	}
}

// taken reports whether somebody has what p wants.
func (t ports) taken(p *place) bool {
	for _, o := range t[portKey{p.space, p.port}] {
		if p.clashes(o) {
			return true
		}
	}
	return false
}

// firstFreePort is where the ports begin from which one is chosen for those who want any.
const firstFreePort = 49152

// take files p. For port 0 it chooses one that nobody has; the search begins at start. The error
// wraps rcm.ErrInUse.
func (t ports) take(p *place, start uint16) error {
	if p.port != 0 {
		if t.taken(p) {
			return fmt.Errorf("port %d: %w", p.port, rcm.ErrInUse)
		}
		t.add(p)
		return nil
	}
	const n = 1<<16 - firstFreePort
	for i := range uint32(n) {
		p.port = uint16(firstFreePort + (uint32(start)+i)%n)
		if len(t[portKey{p.space, p.port}]) == 0 {
			t.add(p)
			return nil
		}
	}
	p.port = 0
	return fmt.Errorf("no port is free: %w", rcm.ErrInUse)
}
