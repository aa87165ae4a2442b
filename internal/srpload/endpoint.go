package srpload

import (
	"errors"
	"fmt"

	"github.com/roxie-rdma/roxie/internal/netdev"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// endpoint is one end: the opened device and a QP for each channel.
type endpoint struct {
	cfg       Config
	dev       *verbs.Context
	gid       wire.GID
	at        int // of gid in the table
	pd        *verbs.PD
	cq        *verbs.CQ
	qps       []*verbs.QP
	psns      []verbs.PSN
	pattern   []byte
	recvs     *verbs.MR // commands or answers that arrive
	recvBytes int
	wc        [64]verbs.WC
	idles     int
	report    report
}

// report is what an end has counted.
type report struct {
	Errors      uint64
	First       string // the first error
	Verified    uint64 // bytes compared
	Mismatches  uint64 // of them wrong
	Packets     uint64
	Retransmits uint64
	XDPMode     string
	PMTU        int
}

// open opens the interface.
func open(cfg Config) (*endpoint, error) {
	vc := verbs.Config{Queues: cfg.Queues}
	if cfg.Progress == Caller {
		vc.Progress = verbs.ProgressCaller
	} else if cfg.CPU >= 0 {
		for q := range cfg.Queues {
			vc.Pin = append(vc.Pin, cfg.CPU+q)
		}
	}
	dev, err := verbs.Open(cfg.Interface, &vc)
	if err != nil {
		return nil, err
	}
	e, err := newEndpoint(cfg, dev)
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return e, nil
}

// newEndpoint takes over an opened device.
func newEndpoint(cfg Config, dev *verbs.Context) (*endpoint, error) {
	e := &endpoint{cfg: cfg, dev: dev}
	entries := dev.GIDs()
	if len(entries) == 0 {
		return nil, fmt.Errorf("%s has no IP address; give it one with `ip address add`", cfg.Interface)
	}
	e.at = entries[0].Index
	for _, g := range entries {
		if g.GID.IsIPv4() {
			e.at = g.Index
			break
		}
	}
	if cfg.GIDIndex >= 0 {
		e.at = cfg.GIDIndex
	}
	var err error
	if e.gid, err = dev.GID(e.at); err != nil {
		return nil, fmt.Errorf("-x %d: %w; `roxie devinfo -v` lists them", e.at, err)
	}
	return e, nil
}

// create makes the QPs and memory for what arrives, recvBytes each.
func (e *endpoint) create(recvBytes int) (err error) {
	e.recvBytes = recvBytes
	e.pattern = newPattern(e.cfg.Seed)
	if e.pd, err = e.dev.AllocPD(); err != nil {
		return err
	}
	depth, n := e.cfg.Depth, e.cfg.Channels
	sends, recvs := 8*depth, 2*depth
	if e.cq, err = e.dev.CreateCQ(n * (sends + recvs)); err != nil {
		return err
	}
	if e.recvs, err = e.pd.RegMR(make([]byte, n*recvs*recvBytes), verbs.LocalWrite); err != nil {
		return err
	}
	for range n {
		q, err := e.dev.CreateQP(e.pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq,
			Shard: -1, Cap: verbs.QPCap{MaxSendWR: sends, MaxRecvWR: recvs, MaxSendSGE: 1, MaxRecvSGE: 1,
				MaxInline: commandBytes}})
		if err != nil {
			return err
		}
		e.qps = append(e.qps, q)
		e.psns = append(e.psns, verbs.RandomPSN())
	}
	return nil
}

// postRecv posts the receive buffer of a number.
func (e *endpoint) postRecv(channel, buf int) error {
	wr := verbs.RecvWR{WRID: workID(idRecv, channel, buf), SGList: []verbs.SGE{
		e.recvs.SGE(buf*e.recvBytes, e.recvBytes)}}
	return e.qps[channel].PostRecv(&wr)
}

// addresses are what the peer needs for its QPs.
func (e *endpoint) addresses() []verbs.ConnInfo {
	var out []verbs.ConnInfo
	for i, q := range e.qps {
		out = append(out, verbs.ConnInfo{QPN: q.Num(), PSN: e.psns[i], GID: e.gid})
	}
	return out
}

// pmtu is the largest path MTU this end can do.
func (e *endpoint) pmtu() int {
	port := e.dev.Port()
	largest := port.MaxPMTU
	if !netdev.AddrOf(e.gid).Is4() {
		largest = port.MaxPMTU6
	}
	if e.cfg.PMTU != 0 {
		return min(largest, e.cfg.PMTU)
	}
	return largest
}

// connect brings the QPs up towards the peer's, with receives posted.
func (e *endpoint) connect(peer []verbs.ConnInfo, pmtu int) error {
	if len(peer) != len(e.qps) {
		return fmt.Errorf("the other end has %d channels, this one %d", len(peer), len(e.qps))
	}
	e.report.PMTU = pmtu
	for i, q := range e.qps {
		o := verbs.ConnOptions{SGIDIndex: e.at, PathMTU: pmtu}
		if err := q.ConnectRC(e.psns[i], peer[i], o); err != nil {
			return err
		}
		n := 2 * e.cfg.Depth
		for buf := i * n; buf < (i+1)*n; buf++ {
			if err := e.postRecv(i, buf); err != nil {
				return err
			}
		}
	}
	return nil
}

// What a completion is of, in the upper 8 bits of its number; the channel stands in the next 24.
const (
	idRecv = iota
	idSend
	idData // READ or WRITE
	idLocal
)

func workID(kind, channel, index int) uint64 {
	return uint64(kind)<<56 | uint64(channel)<<32 | uint64(index)
}

func ofID(id uint64) (kind, channel, index int) {
	return int(id >> 56), int(id >> 32 & 0xffffff), int(uint32(id))
}

// errFailed ends a loop; the report has the reason.
var errFailed = errors.New("a work request failed")

// fail notes a failed completion.
func (e *endpoint) fail(wc *verbs.WC) error {
	kind, channel, _ := ofID(wc.WRID)
	what := [...]string{"receive", "send", "READ or WRITE", "registration or invalidation"}[kind&3]
	text := fmt.Sprintf("channel %d: %s completed with %v (%v)", channel, what, wc.Status,
		wc.VendorErr)
	if wc.Status == verbs.WCWRFlushErr { // something else ended the QP, perhaps the peer's request
		text += fmt.Sprintf("; the last packet it refused: %v", e.qps[channel].Stats().LastDrop)
	}
	return e.failure(text)
}

func (e *endpoint) failure(text string) error {
	if e.report.Errors++; e.report.First == "" {
		e.report.First = text
	}
	return fmt.Errorf("%w: %s", errFailed, text)
}

// finish completes the report.
func (e *endpoint) finish() report {
	t := e.dev.Stats().Total
	e.report.Packets, e.report.Retransmits = t.SentPkts, t.Retransmits
	e.report.XDPMode = e.dev.XDPMode()
	return e.report
}

func (e *endpoint) close() error { return e.dev.Close() }
