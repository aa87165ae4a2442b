package perf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/roxie-rdma/roxie/internal/netdev"
	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// This file is -R: a first connection by RDMA-CM takes the exchange (control), then, between two
// barriers, the QPs are connected at the same port. What the keys say of QPNs and PSNs is not used
// then. Over UD, a server that has to send learns the client's QPN by a datagram with immediate data.

const (
	// perftest may not listen yet when its barrier is through: it is asked again, as its own client
	// does.
	cmAttempts = 20
	cmPause    = 100 * time.Millisecond
	// cmFarewell is how long a server waits for the client to disconnect.
	cmFarewell = 5 * time.Second
)

// connectCM connects all QPs, with a barrier before and one behind.
func (s *foreign) connectCM() (err error) {
	if s.cfg.Server != "" {
		if err := s.barrier(); err != nil {
			return err
		}
		for _, c := range s.conns {
			if err := s.dial(c); err != nil {
				return fmt.Errorf("QP %d: %w", c.index, err)
			}
		}
		return s.barrier()
	}
	l := s.listener
	if s.cfg.Transport == UD {
		l, err = s.manager.Listen(uint16(s.cfg.Port), &cm.ListenConfig{PortSpace: rcm.PortSpaceUDP})
		if err != nil {
			return fmt.Errorf("-R: %w", err)
		}
		defer l.Close()
	}
	if err := s.barrier(); err != nil {
		return err
	}
	for _, c := range s.conns {
		if err := s.accept(l, c); err != nil {
			return fmt.Errorf("QP %d: %w", c.index, err)
		}
	}
	return s.barrier()
}

func (s *foreign) dial(c *conn) error {
	addr, err := s.serverAddr(s.ctx)
	if err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		if s.cfg.Transport == UD {
			err = s.resolve(c, addr)
		} else {
			c.cm, err = s.manager.Dial(s.ctx, addr, c.qp, &cm.Params{PathMTU: s.pmtu})
		}
		var rej *cm.RejectError
		if !errors.As(err, &rej) || attempt == cmAttempts {
			return err
		}
		select {
		case <-time.After(cmPause):
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
		if err := s.initialise(c, true); err != nil {
			return err
		}
	}
}

// resolve learns of the other end's QP and, if that has to send, tells it of this one.
func (s *foreign) resolve(c *conn, addr netip.AddrPort) error {
	svc, err := s.manager.Resolve(s.ctx, addr, s.pd, nil)
	if err != nil {
		return err
	}
	c.ah, c.peer = svc.AH, svc.QPN
	if err := s.ready(c); err != nil || !s.needsName() {
		return err
	}
	wr := verbs.SendWR{WRID: workID(idClose, c.index, 0), Opcode: verbs.WRSendWithImm,
		Flags: verbs.SendSignaled, Imm: uint32(c.qp.Num()), AH: c.ah, RemoteQPN: svc.QPN,
		RemoteQKey: svc.QKey, SGList: []verbs.SGE{{Addr: s.mem.Addr(), Length: nameLen, LKey: c.lkey}}}
	if err := c.qp.PostSend(&wr); err != nil {
		return fmt.Errorf("tell the other end: %w", err)
	}
	_, err = s.completion()
	return err
}

// nameLen is the payload of the datagram whose immediate data is the client's QPN.
const nameLen = 4

// needsName says whether the server has to send datagrams, too.
func (s *foreign) needsName() bool {
	return s.cfg.Transport == UD && (s.cfg.Test.Latency || s.cfg.Bidirectional)
}

// ready brings a UD QP to RTS.
func (s *foreign) ready(c *conn) error {
	a := &verbs.QPAttr{State: verbs.StateRTR}
	if err := c.qp.Modify(a, verbs.AttrState); err != nil {
		return err
	}
	a.State, a.SQPSN = verbs.StateRTS, verbs.PSN(c.psn)
	return c.qp.Modify(a, verbs.AttrState|verbs.AttrSQPSN)
}

// completion waits for one completion.
func (s *foreign) completion() (*verbs.WC, error) {
	var wc [1]verbs.WC
	for {
		if err := s.cq.Wait(s.ctx); err != nil {
			return nil, err
		}
		n, err := s.cq.Poll(wc[:])
		if err != nil || n > 0 && wc[0].Status != verbs.WCSuccess {
			return nil, errors.Join(err, fmt.Errorf("completion with %v", wc[0].Status))
		}
		if n > 0 {
			return &wc[0], nil
		}
	}
}

func (s *foreign) accept(l *cm.Listener, c *conn) error {
	req, err := l.Accept(s.ctx)
	if err != nil {
		return err
	}
	if s.cfg.Transport != UD {
		c.cm, err = req.Accept(s.ctx, c.qp, nil)
		return err
	}
	if s.needsName() {
		at := s.plan.controlAt(c.index)
		wr := verbs.RecvWR{WRID: workID(idClose, c.index, 0), SGList: []verbs.SGE{
			{Addr: s.mem.Addr() + uint64(at), Length: grhLen + nameLen, LKey: c.lkey}}}
		if err := c.qp.PostRecv(&wr); err != nil {
			return err
		}
	}
	if err := s.ready(c); err != nil {
		return err
	}
	if err := req.AcceptUD(c.qp, rcm.UDQKey, nil); err != nil || !s.needsName() {
		return err
	}
	wc, err := s.completion()
	if err != nil {
		return fmt.Errorf("learn the client's QPN: %w", err)
	}
	c.peer = verbs.QPN(wc.Imm)
	from := wire.GIDFromAddr(netip.AddrFrom16(req.RemoteAddr().Addr().As16()))
	c.ah, err = s.pd.CreateAH(&verbs.AHAttr{DGID: from, SGIDIndex: s.at, HopLimit: 64})
	if err != nil {
		return fmt.Errorf("address handle of %v: %w", netdev.AddrOf(from), err)
	}
	return nil
}

// hangUp waits until the client has disconnected, which leaves nobody without an answer.
func (s *foreign) hangUp() {
	late := time.After(cmFarewell)
	for _, c := range s.conns {
		if s.cfg.Server != "" || c.cm == nil {
			continue
		}
		select {
		case <-c.cm.Done():
		case <-late:
			return
		}
	}
}
