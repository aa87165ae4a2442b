package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/roxie-rdma/roxie/internal/lab"
	"github.com/roxie-rdma/roxie/internal/netdev"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// ends are two devices in this process, joined by a laboratory's veth pair or in memory: for what
// perf's two processes cannot show, as many QPs of different use.
type ends struct {
	a, b *end
	mode string
}

// end is one of them.
type end struct {
	dev *verbs.Context
	pd  *verbs.PD
	gid int // index of its IPv4 address
}

// linked is a connected pair of QPs.
type linked struct{ a, b *verbs.QP }

// waitLimit is how long anything here may take until it counts as hanging.
const waitLimit = 60 * time.Second

// openEnds opens both ends in a lab; without one, on a wire in memory.
func openEnds(l *lab.Lab, cfg verbs.Config) (*ends, error) {
	e := &ends{a: &end{}, b: &end{}}
	open := [2]func() (*verbs.Context, error){}
	if l == nil {
		la, lb := verbs.NewLinkPair(1)
		for i, links := range [][]verbs.Link{la, lb} {
			open[i] = func() (*verbs.Context, error) { return verbs.OpenLinks(links, memoryPort(i), &cfg) }
		}
	} else {
		for i, n := range []*lab.Namespace{l.A, l.B} {
			open[i] = func() (c *verbs.Context, err error) {
				err = n.DoErr(func() error {
					c, err = verbs.Open(n.Interface, &cfg)
					return err
				})
				return c, err
			}
		}
	}
	for i, x := range []*end{e.a, e.b} {
		var err error
		if x.dev, err = open[i](); err == nil {
			err = x.init()
		}
		if err != nil {
			return nil, errors.Join(err, e.close())
		}
	}
	e.mode = e.a.dev.XDPMode()
	return e, nil
}

// memoryPort describes end i of a wire in memory.
func memoryPort(i int) verbs.PortInfo {
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 77, 0, byte(1 + i)}) }
	mac := func(i int) wire.MAC { return wire.MAC{2, 0, 0, 0, 0, byte(1 + i)} }
	return verbs.PortInfo{Name: fmt.Sprintf("mem%d", i), MAC: mac(i),
		Addrs:      []netip.Prefix{netip.PrefixFrom(addr(i), 24)},
		Neighbours: map[netip.Addr]wire.MAC{addr(1 - i): mac(1 - i)}}
}

func (x *end) init() (err error) {
	for _, g := range x.dev.GIDs() {
		if netdev.AddrOf(g.GID).Is4() {
			x.gid = g.Index
			break
		}
	}
	x.pd, err = x.dev.AllocPD()
	return err
}

// close closes both devices and all that belongs to them.
func (e *ends) close() error {
	var errs []error
	for _, x := range []*end{e.a, e.b} {
		if x.dev != nil {
			errs = append(errs, x.dev.Close())
		}
	}
	return errors.Join(errs...)
}

// memory gives an end n bytes that the other may do anything with.
func (x *end) memory(n int) (*verbs.MR, error) {
	return x.pd.AllocMR(n, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead|verbs.RemoteAtomic)
}

// connect makes a QP on each side and connects them.
func (e *ends) connect(ca, cb *verbs.CQ, c verbs.QPCap) (l linked, err error) {
	sides := [2]struct {
		x  *end
		cq *verbs.CQ
		to **verbs.QP
	}{{e.a, ca, &l.a}, {e.b, cb, &l.b}}
	var info [2]verbs.ConnInfo
	for i, s := range sides {
		*s.to, err = s.x.dev.CreateQP(s.x.pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: s.cq, RecvCQ: s.cq,
			Cap: c, Shard: -1})
		if err != nil {
			return l, err
		}
		info[i] = verbs.ConnInfo{QPN: (*s.to).Num(), PSN: verbs.RandomPSN()}
		if info[i].GID, err = s.x.dev.GID(s.x.gid); err != nil {
			return l, err
		}
	}
	for i, s := range sides {
		o := verbs.ConnOptions{SGIDIndex: s.x.gid, PathMTU: 4096, Timeout: patientTimeout}
		if err := (*s.to).ConnectRC(info[i].PSN, info[1-i], o); err != nil {
			return l, err
		}
	}
	return l, nil
}

// queues makes a CQ on each side.
func (e *ends) queues(depth int) (a, b *verbs.CQ, err error) {
	if a, err = e.a.dev.CreateCQ(depth); err == nil {
		b, err = e.b.dev.CreateCQ(depth)
	}
	return a, b, err
}

// next waits for completions and returns them; one that is no success is an error.
func next(ctx context.Context, cq *verbs.CQ, wc []verbs.WC) ([]verbs.WC, error) {
	for {
		n, err := cq.Poll(wc)
		if err != nil {
			return nil, err
		}
		for i := range wc[:n] {
			if wc[i].Status != verbs.WCSuccess {
				return nil, fmt.Errorf("completion with %v (%v)", wc[i].Status, wc[i].VendorErr)
			}
		}
		if n > 0 {
			return wc[:n], nil
		}
		if err := cq.Wait(ctx); err != nil {
			return nil, err
		}
	}
}
