package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/roxie-rdma/roxie/internal/xfer"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// This file is the load of the soak: QPs that connect, work and end again and again, with account of
// every work request.

const (
	soakDepth  = 16  // work requests of a queue at a time
	soakRounds = 300 // of a connection that nothing ends
	soakDrain  = 30 * time.Second
	soakLength = 64 << 10
)

// account is what all QPs have done.
type account struct{ posted, completed, failed, connected, refused atomic.Int64 }

// load is many QPs on one device.
type load struct {
	*account
	c       *client
	targets []netip.Addr
	gone    atomic.Bool // the device: nothing can be made on it any more
}

// run keeps n QPs going until ctx ends, and waits for the last completion.
func (l *load) run(ctx context.Context, n int) error {
	ctx, fault := context.WithCancelCause(ctx)
	defer fault(nil)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			for ctx.Err() == nil {
				if err := l.connection(ctx, r, i%3 == 0); err != nil {
					fault(fmt.Errorf("load: %w", err))
				}
			}
		})
	}
	all.Wait()
	if err := context.Cause(ctx); err != ctx.Err() {
		return err
	}
	return nil
}

// poster is one QP.
type poster struct {
	l      *load
	pd     *verbs.PD
	mem    *verbs.MR
	cq     *verbs.CQ
	qp     *verbs.QP
	conn   *cm.Conn
	grant  xfer.Grant
	echo   bool
	nextID uint64
	open   map[uint64]struct{} // posted, not completed
	sends  int                 // of them
	recvs  int
	ended  bool
}

const recvID = 1 << 63

// connection is the life of one QP. An error is a fault; that the peer is not there, or goes, is none.
func (l *load) connection(ctx context.Context, r *rand.Rand, echo bool) (err error) {
	p := &poster{l: l, echo: echo, open: map[uint64]struct{}{}}
	defer func() { err = errors.Join(err, p.destroy()) }()
	if err := p.make(); err != nil {
		if l.gone.Load() {
			return p.drain()
		}
		return err
	}
	if p.dial(ctx, l.targets[r.IntN(len(l.targets))]) != nil {
		l.refused.Add(1)
		select { // no storm of requests
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
		return p.drain()
	}
	l.connected.Add(1)
	for round := 0; round < soakRounds && ctx.Err() == nil && !p.ended; round++ {
		for p.sends < soakDepth && p.post(r) {
		}
		if err := p.poll(time.Second); err != nil {
			return err
		}
		if round%8 == 7 {
			time.Sleep(time.Millisecond) // many QPs, two cores
		}
	}
	return p.drain()
}

func (p *poster) make() (err error) {
	dev := p.l.c.dev
	if p.pd, err = dev.AllocPD(); err != nil {
		return err
	}
	if p.mem, err = p.pd.AllocMR(2*soakLength, verbs.LocalWrite); err != nil {
		return err
	}
	if p.cq, err = dev.CreateCQ(4*soakDepth + 2); err != nil {
		return err
	}
	p.qp, err = dev.CreateQP(p.pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: p.cq, RecvCQ: p.cq,
		Cap: verbs.QPCap{MaxSendWR: soakDepth + 1, MaxRecvWR: 2 * soakDepth}})
	if err != nil {
		return err
	}
	if err := cm.Prepare(p.qp, 0); err != nil {
		return err
	}
	for range soakDepth {
		if err := p.receive(); err != nil {
			return err
		}
	}
	return nil
}

func (p *poster) dial(ctx context.Context, to netip.Addr) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	port, private := uint16(7175), []byte(nil)
	if !p.echo {
		port, private = xfer.DefaultPort, xfer.Hello{Name: "scratch", Write: true}.Marshal()
	}
	if p.conn, err = p.l.c.m.Dial(ctx, netip.AddrPortFrom(to, port), p.qp, &cm.Params{Private: private}); err != nil {
		return err
	}
	if !p.echo {
		p.grant, err = xfer.ParseGrant(p.conn.Private())
	}
	return err
}

// take enters a work request into the account.
func (p *poster) take(id uint64) {
	p.open[id] = struct{}{}
	p.l.posted.Add(1)
}

func (p *poster) receive() error {
	p.nextID++
	id := p.nextID | recvID
	wr := verbs.RecvWR{WRID: id, SGList: []verbs.SGE{p.mem.SGE(soakLength, soakLength)}}
	if err := p.qp.PostRecv(&wr); err != nil {
		return err
	}
	p.take(id)
	p.recvs++
	return nil
}

// post posts one request. It is false when the QP takes no more.
func (p *poster) post(r *rand.Rand) bool {
	p.nextID++
	wr := verbs.SendWR{WRID: p.nextID, Flags: verbs.SendSignaled, RKey: verbs.Key(p.grant.RKey)}
	n := 1 + r.IntN(4096)
	if r.IntN(8) == 0 {
		n = 1 + r.IntN(soakLength)
	}
	switch at := uint64(r.IntN(1 << 19)); {
	case p.echo:
		wr.Opcode, n = verbs.WRSend, min(n, 4096)
	case r.IntN(8) == 0:
		wr.Opcode, wr.RemoteAddr, n = verbs.WRAtomicFetchAdd, p.grant.Addr+at&^7, 8
	case r.IntN(2) == 0:
		wr.Opcode, wr.RemoteAddr = verbs.WRRDMARead, p.grant.Addr+at
	default:
		wr.Opcode, wr.RemoteAddr = verbs.WRRDMAWrite, p.grant.Addr+at
	}
	wr.SGList = []verbs.SGE{p.mem.SGE(0, n)}
	if p.echo && p.recvs < soakDepth && p.receive() != nil || p.qp.PostSend(&wr) != nil {
		p.ended = true
		return false
	}
	p.take(wr.WRID)
	p.sends++
	return true
}

// poll waits for completions for a while, and takes them off the account.
func (p *poster) poll(d time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var wcs [32]verbs.WC
	n, err := p.cq.Poll(wcs[:])
	if err == nil && n == 0 {
		if err := p.cq.Wait(ctx); err != nil {
			return nil // nothing came
		}
		n, err = p.cq.Poll(wcs[:])
	}
	if err != nil {
		return err
	}
	for i := range wcs[:n] {
		wc := &wcs[i]
		if wc.WRID == cm.KeepaliveWRID {
			p.ended = p.ended || wc.Status != verbs.WCSuccess
			continue
		}
		if _, posted := p.open[wc.WRID]; !posted {
			return fmt.Errorf("completion %+v of no work request, or a second one", *wc)
		}
		delete(p.open, wc.WRID)
		p.l.completed.Add(1)
		if wc.WRID&recvID != 0 {
			p.recvs--
		} else {
			p.sends--
		}
		if wc.Status != verbs.WCSuccess {
			p.l.failed.Add(1)
			p.ended = true
		}
	}
	return nil
}

// drain ends the connection and waits until every work request has completed.
func (p *poster) drain() error {
	if p.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_ = p.conn.Disconnect(ctx) // the peer may have gone
		cancel()
	}
	if p.qp == nil {
		return nil
	}
	if p.qp.State() != verbs.StateErr {
		if err := p.qp.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState); err != nil {
			return err
		}
	}
	for end := time.Now().Add(soakDrain); len(p.open) > 0; {
		if time.Now().After(end) {
			return fmt.Errorf("QP %#x in %v: %d of its work requests have not completed: %d sends, %d receives",
				p.qp.Num(), p.qp.State(), len(p.open), p.sends, p.recvs)
		}
		if err := p.poll(time.Second); err != nil {
			return err
		}
	}
	return p.poll(time.Millisecond) // one too many?
}

func (p *poster) destroy() error {
	var errs []error
	if p.qp != nil {
		errs = append(errs, p.qp.Destroy())
	}
	if p.cq != nil {
		errs = append(errs, p.cq.Destroy())
	}
	if p.mem != nil {
		errs = append(errs, p.mem.Close())
	}
	if p.pd != nil {
		errs = append(errs, p.pd.Dealloc())
	}
	return errors.Join(errs...)
}
