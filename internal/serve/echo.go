package serve

import (
	"context"
	"fmt"
	"time"

	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

const (
	echoDepth = 16              // messages of a connection on their way
	echoDrain = 2 * time.Second // for answers that are on their way when the service ends
)

// echo sends each message of a connection back, with its immediate data, from the buffer that it
// came to. When ctx ends it takes no more messages, and waits for the answers on their way.
func (h *host) echo(ctx context.Context, r *cm.Request, size int, confirmed func()) error {
	s, err := newSession(h.dev, echoDepth*size, echoDepth, verbs.RemoteWrite)
	if err != nil {
		_ = r.Reject(nil)
		return err
	}
	defer s.close()
	e := echo{session: s, size: size}
	for i := range uint64(echoDepth) {
		if err := e.receive(i); err != nil {
			return err
		}
	}
	if err := s.accept(ctx, r, nil, confirmed); err != nil {
		return err
	}
	var wc [echoDepth]verbs.WC
	for {
		n, ok := s.next(ctx, wc[:])
		if !ok {
			break
		}
		if end, err := e.completions(wc[:n], true); end || err != nil {
			return err
		}
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), echoDrain)
	defer cancel()
	for e.sending > 0 {
		n, ok := s.next(drain, wc[:])
		if !ok {
			break
		}
		if end, err := e.completions(wc[:n], false); end || err != nil {
			return err
		}
	}
	return nil
}

type echo struct {
	*session
	size    int
	sending int
}

func (e *echo) receive(slot uint64) error {
	return e.qp.PostRecv(&verbs.RecvWR{WRID: slot, SGList: []verbs.SGE{e.mem.SGE(int(slot)*e.size, e.size)}})
}

// completions answers what has come. end is the connection's.
func (e *echo) completions(wcs []verbs.WC, more bool) (end bool, err error) {
	for i := range wcs {
		wc := &wcs[i]
		switch {
		case wc.Status == verbs.WCWRFlushErr || wc.WRID == cm.KeepaliveWRID:
			return true, nil
		case wc.Status != verbs.WCSuccess:
			return true, fmt.Errorf("%v: %v", wc.Opcode, wc.Status)
		case wc.Opcode == verbs.WCRecv:
			wr := verbs.SendWR{WRID: wc.WRID, Opcode: verbs.WRSend, Flags: verbs.SendSignaled,
				SGList: []verbs.SGE{e.mem.SGE(int(wc.WRID)*e.size, int(wc.ByteLen))}}
			if wc.Flags&verbs.WCWithImm != 0 {
				wr.Opcode, wr.Imm = verbs.WRSendWithImm, wc.Imm
			}
			if err := e.qp.PostSend(&wr); err != nil {
				return true, nil // the connection has ended: what is posted gets flushed
			}
			e.sending++
		default:
			e.sending--
			if more {
				if err := e.receive(wc.WRID); err != nil {
					return true, err
				}
			}
		}
	}
	return false, nil
}
