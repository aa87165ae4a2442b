package verbs

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/netdev"
)

// groups are the multicast groups the device's QPs are in. The kernel is made to join each
// through a UDP socket of its own, so that the NIC's filter and the switches (by IGMP and MLD)
// let it in; no datagram is ever read there.
type groups struct {
	c      *Context
	v4, v6 int // sockets of the interface's network namespace, -1 without

	mu      sync.Mutex // held across the kernel's and the shard's part of a change
	members map[GID]map[*QP]struct{}
}

// openGroups opens the sockets in the calling thread's namespace.
func openGroups(c *Context) *groups {
	g := &groups{c: c, v4: -1, v6: -1, members: map[GID]map[*QP]struct{}{}}
	if c.conn == nil {
		return g
	}
	const kind = unix.SOCK_DGRAM | unix.SOCK_CLOEXEC
	if fd, err := unix.Socket(unix.AF_INET, kind, 0); err == nil {
		g.v4 = fd
	}
	if fd, err := unix.Socket(unix.AF_INET6, kind, 0); err == nil {
		g.v6 = fd
	}
	return g
}

// AttachMcast makes a UD QP a member of a multicast group (ibv_attach_mcast): datagrams to the
// group come to its receive queue. Being a member already is fine. Errors: rxe.ErrQPType for
// another type of QP or an address that is no group; the kernel's, when it cannot join.
func (q *QP) AttachMcast(group GID) error {
	g := q.ctx.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	set := g.members[group]
	if _, in := set[q]; in {
		return nil
	}
	q.poller.hold()
	err := ErrClosed
	if !q.poller.shut {
		err = q.ctx.dev.AttachMulticast(q.qp, group)
	}
	q.poller.release()
	if err == nil && len(set) == 0 {
		if err = g.join(group); err != nil {
			q.poller.hold()
			q.ctx.dev.DetachMulticast(q.qp, group)
			q.poller.release()
		}
	}
	if err != nil {
		return fmt.Errorf("attach QP %#x to group %v: %w", q.Num(), netdev.AddrOf(group), err)
	}
	if set == nil {
		set = map[*QP]struct{}{}
		g.members[group] = set
	}
	set[q] = struct{}{}
	return nil
}

// DetachMcast ends a membership (ibv_detach_mcast). It fails with ErrInvalid if there is none.
func (q *QP) DetachMcast(group GID) error {
	g := q.ctx.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, in := g.members[group][q]; !in {
		return fmt.Errorf("detach QP %#x from group %v: not a member: %w", q.Num(),
			netdev.AddrOf(group), ErrInvalid)
	}
	q.poller.hold()
	q.ctx.dev.DetachMulticast(q.qp, group)
	q.poller.release()
	g.drop(group, q)
	return nil
}

// leaveAll ends the memberships of a QP that is gone from the engine.
func (g *groups) leaveAll(q *QP) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for group, set := range g.members {
		if _, in := set[q]; in {
			g.drop(group, q)
		}
	}
}

// drop forgets a membership; with the last one the kernel leaves the group. g.mu is held.
func (g *groups) drop(group GID, q *QP) {
	delete(g.members[group], q)
	if len(g.members[group]) > 0 {
		return
	}
	delete(g.members, group)
	g.leave(group)
}

// join lets a group's frames in: through the NIC, the switches and the steering program.
func (g *groups) join(group GID) error {
	if g.c.conn == nil {
		return nil
	}
	if err := g.membership(group, unix.IP_ADD_MEMBERSHIP, unix.IPV6_JOIN_GROUP); err != nil {
		if errors.Is(err, unix.ENOBUFS) {
			err = fmt.Errorf("%w: raise the sysctl net.ipv4.igmp_max_memberships", err)
		}
		return fmt.Errorf("join: %w", err)
	}
	if err := g.c.prog.Add(uint16(g.c.cfg.VLAN), netdev.AddrOf(group)); err != nil {
		g.leave(group)
		return err
	}
	return nil
}

func (g *groups) leave(group GID) {
	if g.c.conn == nil || g.c.isClosed() {
		return
	}
	_ = g.c.prog.Remove(uint16(g.c.cfg.VLAN), netdev.AddrOf(group))
	_ = g.membership(group, unix.IP_DROP_MEMBERSHIP, unix.IPV6_LEAVE_GROUP)
}

// membership sets a membership option for the group's family.
func (g *groups) membership(group GID, opt4, opt6 int) error {
	if group.IsIPv4() {
		return unix.SetsockoptIPMreqn(g.v4, unix.IPPROTO_IP, opt4,
			&unix.IPMreqn{Multiaddr: group.IPv4(), Ifindex: int32(g.c.index())})
	}
	return unix.SetsockoptIPv6Mreq(g.v6, unix.IPPROTO_IPV6, opt6,
		&unix.IPv6Mreq{Multiaddr: group, Interface: uint32(g.c.index())})
}

func (g *groups) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, fd := range []*int{&g.v4, &g.v6} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
}
