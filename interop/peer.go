package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/roxie-rdma/roxie/internal/capture"
	"github.com/roxie-rdma/roxie/internal/qemu"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// peer is roxie in this process, for what none of its commands does.
type peer struct {
	dev  *verbs.Context
	m    *cm.Manager
	pd   *verbs.PD
	cq   *verbs.CQ
	mem  *verbs.MR
	pcap *capture.Writer
	wc   [16]verbs.WC
}

const (
	peerMemory = 1 << 20
	peerDepth  = 1 << 10
)

// open opens a peer beside the guest, with its capture.
func (r *rig) open(pcap string) (p *peer, err error) {
	p = &peer{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.pcap, err = capture.Create(pcap, qemu.TapName); err != nil {
		return p, err
	}
	cfg := &verbs.Config{Capture: func(dir verbs.Direction, shard int, t time.Time, head, tail []byte) {
		p.pcap.Frame(uint32(dir), shard, t, head, tail)
	}}
	err = r.g.Side.DoErr(func() error {
		p.dev, err = verbs.Open(qemu.TapName, cfg)
		return err
	})
	if err != nil {
		return p, err
	}
	if p.m, err = cm.New(p.dev, nil); err != nil {
		return p, err
	}
	if p.pd, err = p.dev.AllocPD(); err != nil {
		return p, err
	}
	access := verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead
	if p.mem, err = p.pd.AllocMR(peerMemory, access); err != nil {
		return p, err
	}
	p.cq, err = p.dev.CreateCQ(4 * peerDepth)
	return p, err
}

func (p *peer) close() error {
	var errs []error
	if p.m != nil {
		errs = append(errs, p.m.Close())
	}
	if p.dev != nil {
		errs = append(errs, p.dev.Close())
	}
	if p.pcap != nil {
		errs = append(errs, p.pcap.Close())
	}
	return errors.Join(errs...)
}

// qp makes a QP in INIT, so that receives can be posted.
func (p *peer) qp(t verbs.QPType) (*verbs.QP, error) {
	qp, err := p.dev.CreateQP(p.pd, &verbs.QPInitAttr{Type: t, SendCQ: p.cq, RecvCQ: p.cq, SigAll: true,
		Shard: -1, Cap: verbs.QPCap{MaxSendWR: peerDepth, MaxRecvWR: peerDepth}})
	if err != nil || t == verbs.UD {
		return qp, err
	}
	return qp, cm.Prepare(qp, verbs.RemoteWrite|verbs.RemoteRead)
}

// recvs posts n receives of some bytes, one behind the other.
func (p *peer) recvs(qp *verbs.QP, n, bytes int) error {
	for i := range n {
		wr := verbs.RecvWR{WRID: uint64(i * bytes), SGList: []verbs.SGE{p.mem.SGE(i*bytes, bytes)}}
		if err := qp.PostRecv(&wr); err != nil {
			return err
		}
	}
	return nil
}

// complete waits for n completions of one operation and hands them to f; others may come besides.
func (p *peer) complete(ctx context.Context, op verbs.WCOpcode, n int, f func(*verbs.WC) error) error {
	for n > 0 {
		if err := p.cq.Wait(ctx); err != nil {
			return fmt.Errorf("wait for %v, %d to come: %w", op, n, err)
		}
		got, err := p.cq.Poll(p.wc[:])
		if err != nil {
			return err
		}
		for i := range p.wc[:got] {
			wc := &p.wc[i]
			if wc.Status != verbs.WCSuccess {
				return &statusError{*wc}
			}
			if wc.Opcode != op {
				continue
			}
			n--
			if f == nil {
				continue
			}
			if err := f(wc); err != nil {
				return err
			}
		}
	}
	return nil
}

// statusError is a completion in error.
type statusError struct{ wc verbs.WC }

func (e *statusError) Error() string {
	return fmt.Sprintf("a completion with %v (%v)", e.wc.Status, e.wc.VendorErr)
}

// outAt is where messages to send stand in the memory, behind those received.
const outAt = peerMemory / 2

// send posts n SENDs of some bytes, filled with a pattern of librdmacm's examples.
func (p *peer) send(qp *verbs.QP, n, bytes int, address func(*verbs.SendWR)) error {
	out := p.mem.Bytes()[outAt : outAt+bytes]
	for i := range out {
		out[i] = byte(i)
	}
	for range n {
		wr := verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled,
			SGList: []verbs.SGE{p.mem.SGE(outAt, bytes)}}
		if address != nil {
			address(&wr)
		}
		if err := qp.PostSend(&wr); err != nil {
			return err
		}
	}
	return nil
}

// received returns what a receive got, without the first skip bytes.
func (p *peer) received(wc *verbs.WC, skip int) []byte {
	return p.mem.Bytes()[wc.WRID:][skip:wc.ByteLen]
}

// same compares data with what is expected.
func same(got, want []byte) error {
	if !bytes.Equal(got, want) {
		return fmt.Errorf("the data is %.40x, want %.40x", got, want)
	}
	return nil
}
