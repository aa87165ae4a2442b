package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/roxie-rdma/roxie/internal/qemu"
	"github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/verbs"
	rdmacm "github.com/roxie-rdma/roxie/verbs/cm"
)

// This file is about what has to be refused: connections, and memory.

const (
	rpingPort = 7174
	deafPort  = 7999 // nobody listens there
)

func rejectScenarios() []*scenario {
	cell := func(role, option string) Cell {
		c := base("rping", role, "RC", option)
		return c.with(64, c.largestPMTU())
	}
	return []*scenario{
		{Cell: cell("client", "no listener"), play: noListenerThere},
		{Cell: cell("server", "no listener"), play: noListenerHere},
		{Cell: cell("server", "bad pmtu"), play: badPMTU},
		{Cell: cell("client", "wrong key"), play: wrongKeyHere, rough: true},
		{Cell: cell("server", "wrong key"), play: wrongKeyThere, rough: true},
	}
}

// rejected expects a refusal.
func rejected(err error, want cm.Reason) (string, error) {
	var rej *rdmacm.RejectError
	switch {
	case !errors.As(err, &rej):
		return "", fmt.Errorf("the connection was not refused: %v", err)
	case rej.Reason != want:
		return "", fmt.Errorf("the refusal is for %q, want %q", rej.Reason, want)
	}
	return fmt.Sprintf("refused: %v", rej.Reason), nil
}

// noListenerThere connects to a port of the guest that nobody listens to.
func noListenerThere(ctx context.Context, s *scenario, r *rig, at *place) (note string, err error) {
	err = r.beside(ctx, at.pcap, []string{"rping", "-s", "-a", "0.0.0.0"}, true, func(ctx context.Context, p *peer,
		_ func() error) error {
		qp, err := p.qp(verbs.RC)
		if err != nil {
			return err
		}
		_, err = p.m.Dial(ctx, guestAt(deafPort), qp, nil)
		if note, err = rejected(err, cm.ReasonInvalidServiceID); err != nil {
			return err
		}
		return errEnough
	})
	return note, unlessEnough(err)
}

// errEnough ends a scenario whose stock tool would go on.
var errEnough = errors.New("that is enough")

// unlessEnough takes errEnough out of an error.
func unlessEnough(err error) error {
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// refusedThere has the guest's rping connect to us and expects what it says.
func (r *rig) refusedThere(ctx context.Context, at *place, port int, want string, listen bool) (string, error) {
	argv := []string{"rping", "-c", "-a", qemu.HostIPv4.Addr().String(), "-p", fmt.Sprint(port), "-C", "1"}
	err := r.beside(ctx, at.pcap, argv, false, func(ctx context.Context, p *peer, ready func() error) error {
		if listen {
			l, err := p.m.Listen(uint16(port), nil)
			if err != nil {
				return err
			}
			defer l.Close()
		}
		if err := ready(); err != nil {
			return err
		}
		return until(ctx, "a request to be refused", func() (bool, error) {
			return p.m.Stats().Sent[cm.AttrREJ.Index()] > 0, nil
		})
	})
	switch {
	case err == nil:
		return "", errors.New("rping ended as if all were well")
	case !strings.Contains(err.Error(), want):
		return "", fmt.Errorf("rping does not say %q: %w", want, err)
	}
	return "rping: " + want, nil
}

// noListenerHere has rping connect to us, where nobody listens.
func noListenerHere(ctx context.Context, s *scenario, r *rig, at *place) (string, error) {
	return r.refusedThere(ctx, at, deafPort, "RDMA_CM_EVENT_REJECTED, error 8", false)
}

// badPMTU has rping ask for a path MTU that our link does not take. (The other way round, Linux
// takes what is too large for its link: rxe_qp_chk_attr looks at max_mtu, not at active_mtu.)
func badPMTU(ctx context.Context, s *scenario, r *rig, at *place) (note string, err error) {
	if err := r.g.SetHostMTU(1500); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, r.g.SetHostMTU(s.LinkMTU)) }()
	return r.refusedThere(ctx, at, rpingPort, "RDMA_CM_EVENT_REJECTED, error 26", true)
}

// advertise sends rping's message: where memory is, and how to reach it.
func (p *peer) advertise(qp *verbs.QP, addr uint64, key verbs.Key, size int) error {
	b := p.mem.Bytes()[outAt : outAt+16]
	binary.BigEndian.PutUint64(b, addr)
	binary.BigEndian.PutUint32(b[8:], uint32(key))
	binary.BigEndian.PutUint32(b[12:], uint32(size))
	return qp.PostSend(&verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{p.mem.SGE(outAt, 16)}})
}

// badBit makes another key of a key, of the same region.
const badBit = 0x40

// wrongKeyHere has the guest's rping READ our memory with a key that is none.
func wrongKeyHere(ctx context.Context, s *scenario, r *rig, at *place) (note string, err error) {
	err = r.beside(ctx, at.pcap, []string{"rping", "-s", "-a", "0.0.0.0"}, true, func(ctx context.Context, p *peer,
		_ func() error) error {
		qp, err := p.qp(verbs.RC)
		if err != nil {
			return err
		}
		c, err := p.m.Dial(ctx, guestAt(rpingPort), qp, nil)
		if err != nil {
			return err
		}
		if err := p.advertise(qp, p.mem.Addr(), p.mem.RKey()^badBit, s.Size); err != nil {
			return err
		}
		if err := gone(ctx, []*rdmacm.Conn{c}); err != nil {
			return err
		}
		faults := p.dev.Stats().Total.NAKsSent
		if faults != 1 {
			return fmt.Errorf("%d NAKs were sent, want 1", faults)
		}
		return errEnough
	})
	if !errors.Is(err, errEnough) {
		return "", err
	}
	const want = "status 10" // IBV_WC_REM_ACCESS_ERR
	if !strings.Contains(err.Error(), want) {
		return "", fmt.Errorf("rping does not say %q: %w", want, err)
	}
	return "rping: " + want, nil
}

// wrongKeyThere WRITEs to the guest with a key that is none.
func wrongKeyThere(ctx context.Context, s *scenario, r *rig, at *place) (note string, err error) {
	argv := []string{"rping", "-c", "-a", qemu.HostIPv4.Addr().String(), "-C", "1", "-S", fmt.Sprint(s.Size)}
	err = r.beside(ctx, at.pcap, argv, false, func(ctx context.Context, p *peer, ready func() error) error {
		l, err := p.m.Listen(rpingPort, nil)
		if err != nil {
			return err
		}
		defer l.Close()
		if err := ready(); err != nil {
			return err
		}
		c, err := p.accept(ctx, l, 1, 16)
		if err != nil {
			return err
		}
		var addr uint64
		var key verbs.Key
		err = p.complete(ctx, verbs.WCRecv, 1, func(wc *verbs.WC) error {
			b := p.received(wc, 0)
			addr, key = binary.BigEndian.Uint64(b), verbs.Key(binary.BigEndian.Uint32(b[8:]))
			return nil
		})
		if err != nil {
			return err
		}
		err = c.QP().PostSend(&verbs.SendWR{Opcode: verbs.WRRDMARead, Flags: verbs.SendSignaled, RemoteAddr: addr,
			RKey: key ^ badBit, SGList: []verbs.SGE{p.mem.SGE(outAt, s.Size)}})
		if err != nil {
			return err
		}
		var status *statusError
		err = p.complete(ctx, verbs.WCRDMARead, 1, nil)
		if !errors.As(err, &status) || status.wc.Status != verbs.WCRemAccessErr {
			return fmt.Errorf("a READ with a wrong key ended with %v", err)
		}
		note = status.Error()
		return errEnough
	})
	return note, unlessEnough(err)
}
