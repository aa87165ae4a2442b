package serve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/roxie-rdma/roxie/internal/xfer"
	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// This file connects peers to exports.

const (
	controlBytes = 2 * xfer.ControlSlots * xfer.MessageSize // receives, then sends
	warmPatience = 30 * time.Second                         // how long a peer waits for memory to be read
)

var (
	errNoExport = errors.New("no such export")
	errReadOnly = errors.New("export is read-only")
)

// serveExport is one connection. Domain and key are its own: they are gone with it.
func (h *host) serveExport(ctx context.Context, r *cm.Request, confirmed func()) error {
	hello, err := xfer.ParseHello(r.Private())
	if err != nil {
		h.refuse(r, rcm.ReasonConsumer, err)
		return nil
	}
	peer := r.RemoteAddr().Addr()
	s := h.export(hello.Name)
	switch {
	case r.Type() != verbs.RC:
		err = errors.New("an export needs RC")
	case s == nil || !s.allows(peer): // whoever is not on the list does not learn that it exists
		err = fmt.Errorf("%w: %s", errNoExport, hello.Name)
	case hello.Write && !s.write:
		err = errReadOnly
	}
	if err != nil {
		h.refuse(r, rcm.ReasonConsumer, err)
		return nil
	}
	if err := s.awaitWarm(ctx); err != nil {
		h.refuse(r, rcm.ReasonConsumer, err)
		return nil
	}
	ctx, leave, err := s.enter(ctx, peer)
	if err != nil {
		h.refuse(r, rcm.ReasonConsumer, err)
		return nil
	}
	defer leave()
	return h.grant(ctx, r, s, confirmed)
}

// grant lets a peer in and answers its control messages.
func (h *host) grant(ctx context.Context, r *cm.Request, s *store, confirmed func()) error {
	access, rights := verbs.RemoteRead, xfer.Read
	if s.write {
		access |= verbs.RemoteWrite | verbs.RemoteAtomic
		rights |= xfer.Write | xfer.Atomics
	}
	ses, err := newSession(h.dev, controlBytes, xfer.ControlSlots, access)
	if err != nil {
		_ = r.Reject(nil)
		return err
	}
	defer ses.close()
	region, err := s.register(ses.pd, access)
	if err != nil {
		_ = r.Reject(nil)
		return err
	}
	defer func() {
		ses.disconnect() // before the key goes: the peer hears of the end, not of a wrong key
		_ = region.Dereg()
	}()
	for i := range uint64(xfer.ControlSlots) {
		if err := ses.controlRecv(i); err != nil {
			return err
		}
	}
	g := xfer.Grant{Rights: rights, RKey: uint32(region.RKey()), Slots: xfer.ControlSlots,
		Addr: region.Addr(), Length: uint64(region.Len())}
	p := &cm.Params{Private: g.Marshal(), Access: access}
	if err := ses.accept(ctx, r, p, confirmed); err != nil {
		return err
	}
	s.log.Info("peer connected", "peer", r.RemoteAddr(), "write", s.write)
	defer s.log.Info("peer left", "peer", r.RemoteAddr())
	return ses.control(ctx, s)
}

// register makes an export's memory a region.
func (s *store) register(pd *verbs.PD, access verbs.Access) (*verbs.MR, error) {
	if s.write {
		access |= verbs.LocalWrite
	}
	if s.file != nil {
		return pd.RegMapped(s.mem, access)
	}
	return pd.RegMR(s.mem, access)
}

func (s *session) controlRecv(slot uint64) error {
	return s.qp.PostRecv(&verbs.RecvWR{WRID: slot,
		SGList: []verbs.SGE{s.mem.SGE(int(slot)*xfer.MessageSize, xfer.MessageSize)}})
}

// control answers control messages until the connection ends, or ctx.
func (s *session) control(ctx context.Context, st *store) error {
	var wc [xfer.ControlSlots]verbs.WC
	for {
		n, ok := s.next(ctx, wc[:])
		if !ok {
			if err := context.Cause(ctx); errors.Is(err, errGone) || errors.Is(err, errNotAllowed) {
				return err
			}
			return nil
		}
		for i := range wc[:n] {
			switch wc := &wc[i]; {
			case wc.Status == verbs.WCWRFlushErr || wc.WRID == cm.KeepaliveWRID:
				return nil
			case wc.Status != verbs.WCSuccess:
				return fmt.Errorf("control message: %v (%v)", wc.Status, wc.VendorErr)
			case wc.Opcode == verbs.WCRecv:
				if err := s.answer(st, wc); err != nil {
					return err
				}
			}
		}
	}
}

// answer carries out one control message. Its slot is free for the next one before the answer goes
// out: the peer counts by answers.
func (s *session) answer(st *store, wc *verbs.WC) error {
	in := int(wc.WRID) * xfer.MessageSize
	m, err := xfer.ParseMessage(s.mem.Bytes()[in : in+int(wc.ByteLen)])
	if err != nil {
		return err
	}
	st.control(&m)
	if err := s.controlRecv(wc.WRID); err != nil {
		return err
	}
	out := (xfer.ControlSlots + int(wc.WRID)) * xfer.MessageSize
	m.Put(s.mem.Bytes()[out:])
	err = s.qp.PostSend(&verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{s.mem.SGE(out, xfer.MessageSize)}})
	if err != nil && s.conn.Err() == nil {
		return err
	}
	return nil
}
