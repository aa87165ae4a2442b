package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/roxie-rdma/roxie/internal/qemu"
	"github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
	rdmacm "github.com/roxie-rdma/roxie/verbs/cm"
)

// This file plays the other end of librdmacm's examples: ucmatose, udaddy, rdma_client and
// rdma_server, mckey. What they exchange is in their sources only; each is told here.

// Ports of the examples.
const (
	matosePort = 7471 // also rdma_server's
	addyPort   = 7174
)

const (
	matoseCount, matoseSize = 100, 1000
	matoseConns             = 10
	clientSize              = 16 // rdma_client's message
	keyCount, keySize       = 50, 100
	grhLen                  = 40
)

var keyGroup = netip.MustParseAddr("239.77.0.1")

func cmScenarios() []*scenario {
	cell := func(tool, role, transport string, size, qps int) Cell {
		c := base(tool, role, transport, "cm").with(size, 4096)
		c.QPs, c.PMTU = qps, c.largestPMTU()
		return c
	}
	return []*scenario{
		{Cell: cell("ucmatose", "client", "RC", matoseSize, matoseConns), play: matoseClient},
		{Cell: cell("ucmatose", "server", "RC", matoseSize, matoseConns), play: matoseServer},
		{Cell: cell("rdma_server", "client", "RC", clientSize, 1), play: serverClient},
		{Cell: cell("rdma_client", "server", "RC", clientSize, 1), play: clientServer},
		{Cell: cell("udaddy", "client", "UD", matoseSize, 1), play: addyClient},
		{Cell: cell("udaddy", "server", "UD", matoseSize, 1), play: addyServer},
		{Cell: cell("mckey", "client", "UD", keySize, 1), play: keySender},
		{Cell: cell("mckey", "server", "UD", keySize, 1), play: keyReceiver, undo: unyielding},
	}
}

func guestAt(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(qemu.GuestIPv4.Addr(), port)
}

// beside runs a program in the guest and f in this process.
func (r *rig) beside(ctx context.Context, pcap string, argv []string, server bool,
	f func(ctx context.Context, p *peer, ready func() error) error) (err error) {
	p, err := r.open(pcap)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	var program *process
	start := func() error {
		program, err = r.there(ctx, argv...)
		return err
	}
	if server { // the guest's program has to be there first
		cell := Cell{Tool: argv[0], Option: "cm"}
		if err := r.deaf(ctx, &cell); err != nil {
			return err
		}
		if err := start(); err != nil {
			return err
		}
		defer program.stop()
		err = until(ctx, argv[0]+" to listen", func() (bool, error) { return r.listensCM(ctx) })
		if err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, cellTimeout/3)
	defer cancel()
	err = f(ctx, p, func() error {
		if server {
			return nil
		}
		return start()
	})
	if program == nil {
		return err
	}
	if err != nil {
		program.stop()
		return fmt.Errorf("%w; %s said: %s", err, argv[0], lastLines(program.out.String()))
	}
	defer program.stop()
	return program.wait(ctx)
}

// lastLines is the end of what a program wrote.
func lastLines(s string) string {
	const n = 4
	lines := strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' })
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}

// matoseClient connects to ucmatose's server several times; each connection gets its messages, and
// sends as many back.
func matoseClient(ctx context.Context, s *scenario, r *rig, at *place) (string, error) {
	argv := []string{"ucmatose", "-c", fmt.Sprint(s.QPs), "-C", fmt.Sprint(matoseCount), "-S", fmt.Sprint(s.Size)}
	return "", r.beside(ctx, at.pcap, argv, true, func(ctx context.Context, p *peer, _ func() error) error {
		var conns []*rdmacm.Conn
		for range s.QPs {
			qp, err := p.qp(verbs.RC)
			if err != nil {
				return err
			}
			// They share their memory: what comes is not known anyway.
			if err := p.recvs(qp, matoseCount, s.Size); err != nil {
				return err
			}
			c, err := p.m.Dial(ctx, guestAt(matosePort), qp, nil)
			if err != nil {
				return err
			}
			conns = append(conns, c)
		}
		if err := p.complete(ctx, verbs.WCRecv, matoseCount*s.QPs, nil); err != nil {
			return err
		}
		for _, c := range conns {
			if err := p.send(c.QP(), matoseCount, s.Size, nil); err != nil {
				return err
			}
		}
		if err := p.complete(ctx, verbs.WCSend, matoseCount*s.QPs, nil); err != nil {
			return err
		}
		return gone(ctx, conns) // the server hangs up
	})
}

// gone waits until the other end has ended all connections.
func gone(ctx context.Context, conns []*rdmacm.Conn) error {
	for _, c := range conns {
		select {
		case <-c.Done():
		case <-ctx.Done():
			return fmt.Errorf("the other end does not disconnect: %w", ctx.Err())
		}
	}
	return nil
}

// matoseServer is ucmatose's server. Its client sends back what it got last.
func matoseServer(ctx context.Context, s *scenario, r *rig, at *place) (string, error) {
	argv := []string{"ucmatose", "-s", qemu.HostIPv4.Addr().String(), "-c", fmt.Sprint(s.QPs),
		"-C", fmt.Sprint(matoseCount), "-S", fmt.Sprint(s.Size)}
	return "", r.beside(ctx, at.pcap, argv, false, func(ctx context.Context, p *peer, ready func() error) error {
		l, err := p.m.Listen(matosePort, nil)
		if err != nil {
			return err
		}
		defer l.Close()
		if err := ready(); err != nil {
			return err
		}
		var conns []*rdmacm.Conn
		for range s.QPs {
			c, err := p.accept(ctx, l, matoseCount, s.Size)
			if err != nil {
				return err
			}
			conns = append(conns, c)
		}
		for _, c := range conns {
			if err := p.send(c.QP(), matoseCount, s.Size, nil); err != nil {
				return err
			}
		}
		want := p.mem.Bytes()[outAt : outAt+s.Size]
		err = p.complete(ctx, verbs.WCRecv, matoseCount*s.QPs, func(wc *verbs.WC) error {
			return same(p.received(wc, 0), want)
		})
		if err != nil {
			return err
		}
		for _, c := range conns {
			if err := c.Disconnect(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// accept takes one request, with receives posted.
func (p *peer) accept(ctx context.Context, l *rdmacm.Listener, n, bytes int) (*rdmacm.Conn, error) {
	req, err := l.Accept(ctx)
	if err != nil {
		return nil, err
	}
	qp, err := p.qp(verbs.RC)
	if err != nil {
		return nil, err
	}
	if err := p.recvs(qp, n, bytes); err != nil {
		return nil, err
	}
	return req.Accept(ctx, qp, nil)
}

// serverClient is rdma_client: one message there, one back, and it hangs up.
func serverClient(ctx context.Context, s *scenario, r *rig, at *place) (string, error) {
	return "", r.beside(ctx, at.pcap, []string{"rdma_server"}, true, func(ctx context.Context, p *peer,
		_ func() error) error {
		qp, err := p.qp(verbs.RC)
		if err != nil {
			return err
		}
		if err := p.recvs(qp, 1, s.Size); err != nil {
			return err
		}
		c, err := p.m.Dial(ctx, guestAt(matosePort), qp, nil)
		if err != nil {
			return err
		}
		if err := p.send(qp, 1, s.Size, nil); err != nil {
			return err
		}
		if err := p.complete(ctx, verbs.WCRecv, 1, nil); err != nil {
			return err
		}
		return c.Disconnect(ctx)
	})
}

// clientServer is rdma_server.
func clientServer(ctx context.Context, s *scenario, r *rig, at *place) (string, error) {
	argv := []string{"rdma_client", "-s", qemu.HostIPv4.Addr().String()}
	return "", r.beside(ctx, at.pcap, argv, false, func(ctx context.Context, p *peer, ready func() error) error {
		l, err := p.m.Listen(matosePort, nil)
		if err != nil {
			return err
		}
		defer l.Close()
		if err := ready(); err != nil {
			return err
		}
		c, err := p.accept(ctx, l, 1, s.Size)
		if err != nil {
			return err
		}
		if err := p.complete(ctx, verbs.WCRecv, 1, nil); err != nil {
			return err
		}
		if err := p.send(c.QP(), 1, s.Size, nil); err != nil {
			return err
		}
		if err := p.complete(ctx, verbs.WCSend, 1, nil); err != nil {
			return err
		}
		return gone(ctx, []*rdmacm.Conn{c})
	})
}

// datagrams makes a UD QP ready to send and receive.
func (p *peer) datagrams(qkey uint32, n, bytes int) (*verbs.QP, error) {
	qp, err := p.qp(verbs.UD)
	if err != nil {
		return nil, err
	}
	a := &verbs.QPAttr{State: verbs.StateInit, Port: 1, QKey: qkey}
	err = qp.Modify(a, verbs.AttrState|verbs.AttrPKeyIndex|verbs.AttrPort|verbs.AttrQKey)
	if err != nil {
		return nil, err
	}
	if err := p.recvs(qp, n, grhLen+bytes); err != nil {
		return nil, err
	}
	a.State = verbs.StateRTR
	if err := qp.Modify(a, verbs.AttrState); err != nil {
		return nil, err
	}
	a.State = verbs.StateRTS
	return qp, qp.Modify(a, verbs.AttrState|verbs.AttrSQPSN)
}

// to addresses a datagram as the examples do: with the sender's QPN as immediate data.
func to(ah *verbs.AH, qp, own verbs.QPN, qkey uint32) func(*verbs.SendWR) {
	return func(wr *verbs.SendWR) {
		wr.Opcode, wr.Imm = verbs.WRSendWithImm, uint32(own)
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah, qp, qkey
	}
}

// addyClient is udaddy's client: it asks for the service and sends datagrams; the server sends as
// many back, out of the memory that it received into, GRH first.
func addyClient(ctx context.Context, s *scenario, r *rig, at *place) (string, error) {
	argv := []string{"udaddy", "-C", fmt.Sprint(keyCount), "-S", fmt.Sprint(s.Size)}
	return "", r.beside(ctx, at.pcap, argv, true, func(ctx context.Context, p *peer, _ func() error) error {
		svc, err := p.m.Resolve(ctx, guestAt(addyPort), p.pd, nil)
		if err != nil {
			return err
		}
		qp, err := p.datagrams(svc.QKey, keyCount, s.Size)
		if err != nil {
			return err
		}
		if err := p.send(qp, keyCount, s.Size, to(svc.AH, svc.QPN, qp.Num(), svc.QKey)); err != nil {
			return err
		}
		want := p.mem.Bytes()[outAt:]
		return p.complete(ctx, verbs.WCRecv, keyCount, func(wc *verbs.WC) error {
			got := p.received(wc, grhLen+grhLen) // behind our GRH, and behind its
			return same(got, want[:len(got)])
		})
	})
}

// addyServer is udaddy's server.
func addyServer(ctx context.Context, s *scenario, r *rig, at *place) (string, error) {
	argv := []string{"udaddy", "-s", qemu.HostIPv4.Addr().String(), "-C", fmt.Sprint(keyCount),
		"-S", fmt.Sprint(s.Size)}
	return "", r.beside(ctx, at.pcap, argv, false, func(ctx context.Context, p *peer, ready func() error) error {
		l, err := p.m.Listen(addyPort, &rdmacm.ListenConfig{PortSpace: cm.PortSpaceUDP})
		if err != nil {
			return err
		}
		defer l.Close()
		qp, err := p.datagrams(cm.UDQKey, keyCount, s.Size)
		if err != nil {
			return err
		}
		if err := ready(); err != nil {
			return err
		}
		req, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		if err := req.AcceptUD(qp, 0, nil); err != nil {
			return err
		}
		var peerQP verbs.QPN
		err = p.complete(ctx, verbs.WCRecv, keyCount, func(wc *verbs.WC) error {
			if wc.Imm != uint32(wc.SrcQP) {
				return fmt.Errorf("immediate data %#x, from QP %#x", wc.Imm, uint32(wc.SrcQP))
			}
			peerQP = wc.SrcQP
			return nil
		})
		if err != nil {
			return err
		}
		ah, err := p.pd.CreateAH(&verbs.AHAttr{DGID: wire.GIDFromAddr(qemu.GuestIPv4.Addr()),
			SGIDIndex: qemu.GuestGIDv4})
		if err != nil {
			return err
		}
		if err := p.send(qp, keyCount, s.Size, to(ah, peerQP, qp.Num(), cm.UDQKey)); err != nil {
			return err
		}
		return p.complete(ctx, verbs.WCSend, keyCount, nil)
	})
}

// keySender sends to a multicast group, as mckey -s does.
func keySender(ctx context.Context, s *scenario, r *rig, at *place) (string, error) {
	argv := []string{"mckey", "-m", keyGroup.String(), "-b", qemu.GuestIPv4.Addr().String(),
		"-C", fmt.Sprint(keyCount), "-S", fmt.Sprint(s.Size)}
	return "", r.beside(ctx, at.pcap, argv, false, func(ctx context.Context, p *peer, ready func() error) error {
		if err := ready(); err != nil {
			return err
		}
		err := until(ctx, "mckey to join", func() (bool, error) {
			out, err := r.run(ctx, "cat /proc/net/igmp")
			return strings.Contains(out, igmpForm(keyGroup)), err
		})
		if err != nil {
			return err
		}
		ah, err := p.pd.CreateAH(&verbs.AHAttr{DGID: wire.GIDFromAddr(keyGroup),
			SGIDIndex: qemu.GuestGIDv4})
		if err != nil {
			return err
		}
		qp, err := p.datagrams(cm.UDQKey, 1, s.Size)
		if err != nil {
			return err
		}
		if err := p.send(qp, keyCount, s.Size, to(ah, wire.QPNMulticast, qp.Num(), cm.UDQKey)); err != nil {
			return err
		}
		return p.complete(ctx, verbs.WCSend, keyCount, nil)
	})
}

// igmpForm is a group as /proc/net/igmp prints it: the address in memory order.
func igmpForm(group netip.Addr) string {
	a := group.As4()
	return fmt.Sprintf("%08X", binary.LittleEndian.Uint32(a[:]))
}

// yielding is a script that runs a program, given as its arguments, on one processor together with
// the kernel's unbound work queues, and behind them: what the program gives rxe to do is done before
// the program goes on. However nice it is, it would not be preempted at once by all that wakes up; what
// is in an idle group is.
const yielding = `
echo 1 >/sys/devices/virtual/workqueue/cpumask
mkdir -p /tmp/groups
mountpoint -q /tmp/groups || mount -t cgroup2 none /tmp/groups
echo +cpu >/tmp/groups/cgroup.subtree_control
mkdir -p /tmp/groups/idle
echo 1 >/tmp/groups/idle/cpu.idle
echo $$ >/tmp/groups/idle/cgroup.procs
exec taskset 1 "$@"
`

// unyielding undoes that.
func unyielding(ctx context.Context, r *rig) error {
	_, err := r.run(ctx, "cat /proc/irq/default_smp_affinity >/sys/devices/virtual/workqueue/cpumask")
	return err
}

// keyReceiver receives what mckey -s sends to a group. mckey destroys its address handle as soon as
// it has posted its datagrams, and rxe, which sends from a work queue, then has nowhere to send them
// to ("Unable to find AH"). So mckey has to let rxe go first.
func keyReceiver(ctx context.Context, s *scenario, r *rig, at *place) (string, error) {
	argv := []string{"sh", "-ec", yielding, "sh", "mckey", "-m", keyGroup.String(),
		"-b", qemu.GuestIPv4.Addr().String(), "-s", "-C", fmt.Sprint(keyCount), "-S", fmt.Sprint(s.Size)}
	return "", r.beside(ctx, at.pcap, argv, false, func(ctx context.Context, p *peer, ready func() error) error {
		qp, err := p.datagrams(cm.UDQKey, keyCount, s.Size)
		if err != nil {
			return err
		}
		if err := qp.AttachMcast(wire.GIDFromAddr(keyGroup)); err != nil {
			return err
		}
		if err := ready(); err != nil {
			return err
		}
		return p.complete(ctx, verbs.WCRecv, keyCount, func(wc *verbs.WC) error {
			if wc.Imm != uint32(wc.SrcQP) {
				return fmt.Errorf("immediate data %#x, from QP %#x", wc.Imm, uint32(wc.SrcQP))
			}
			return nil
		})
	})
}
