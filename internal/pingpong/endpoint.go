package pingpong

import (
	"errors"
	"fmt"

	"github.com/roxie-rdma/roxie/internal/capture"
	"github.com/roxie-rdma/roxie/internal/netdev"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// endpoint is one end: the opened interface with memory, queues and QPs.
type endpoint struct {
	cfg     Config
	dev     *verbs.Context
	gid     wire.GID
	gidAt   int // its index
	pd      *verbs.PD
	mem     *verbs.MR
	cq      *verbs.CQ
	srq     *verbs.SRQ // srq only
	qps     []*verbs.QP
	ah      *verbs.AH // ud only
	capture *capture.Writer

	ours, theirs []dest
}

// open opens the interface and makes everything up to QPs in INIT with receives posted.
func open(cfg *Config) (*endpoint, error) {
	e := &endpoint{cfg: *cfg}
	vc := verbs.Config{VLAN: cfg.VLAN, Mode: cfg.Mode, Progress: verbs.ProgressCaller}
	var err error
	if e.capture, err = capture.Attach(&vc, cfg.Capture, cfg.Interface); err != nil {
		return nil, err
	}
	if e.dev, err = verbs.Open(cfg.Interface, &vc); err != nil {
		return nil, errors.Join(err, e.close())
	}
	for _, step := range []func() error{e.choose, e.create, e.initialise} {
		if err := step(); err != nil {
			return nil, errors.Join(err, e.close())
		}
	}
	return e, nil
}

// choose picks the GID and checks the sizes against the link.
func (e *endpoint) choose() error {
	entries := e.dev.GIDs()
	if len(entries) == 0 {
		return fmt.Errorf("%s has no IP address; give it one with `ip address add`", e.cfg.Interface)
	}
	e.gidAt = entries[0].Index
	if e.cfg.GIDIndex >= 0 {
		e.gidAt = e.cfg.GIDIndex
	} else {
		for _, g := range entries {
			if netdev.AddrOf(g.GID).Is4() {
				e.gidAt = g.Index
				break
			}
		}
	}
	var err error
	if e.gid, err = e.dev.GID(e.gidAt); err != nil {
		return fmt.Errorf("-g %d: %w; `roxie devinfo -v` lists them", e.gidAt, err)
	}
	port := e.dev.Port()
	v6 := !netdev.AddrOf(e.gid).Is4()
	largest := port.MaxPMTU
	if v6 {
		largest = port.MaxPMTU6
	}
	need, flag, value := e.cfg.PMTU, "-m", e.cfg.PMTU
	if e.cfg.Kind == UD {
		flag, value = "-s", e.cfg.Size
		for need = 256; need < value && need < 4096; need *= 2 {
		}
		if value > need {
			return fmt.Errorf("-s %d: a datagram is one packet, at most 4096 bytes", value)
		}
	}
	if need > largest {
		mtu := netdev.LinkMTU(need, v6)
		if e.cfg.VLAN != 0 {
			mtu += 4
		}
		return fmt.Errorf("%s %d: link MTU %d of %s is too small for it; raise it: "+
			"`ip link set %s mtu %d`, or give at most %s %d", flag, value, port.LinkMTU,
			e.cfg.Interface, e.cfg.Interface, mtu, flag, largest)
	}
	return nil
}

// headroom is what comes before the payload in a receive buffer.
func (e *endpoint) headroom() int {
	if e.cfg.Kind == UD {
		return grhLen
	}
	return 0
}

func (e *endpoint) create() (err error) {
	if e.pd, err = e.dev.AllocPD(); err != nil {
		return fmt.Errorf("allocate PD: %w", err)
	}
	// One buffer for both directions, as in rdma-core's programs: what came is what goes back.
	if e.mem, err = e.pd.AllocMR(e.headroom()+e.cfg.Size, verbs.LocalWrite); err != nil {
		return fmt.Errorf("register %d bytes: %w", e.cfg.Size, err)
	}
	if e.cq, err = e.dev.CreateCQ(e.cfg.RXDepth + e.cfg.QPs); err != nil {
		return fmt.Errorf("create CQ: %w", err)
	}
	init := &verbs.QPInitAttr{Type: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq, Shard: -1,
		Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: e.cfg.RXDepth, MaxSendSGE: 1, MaxRecvSGE: 1}}
	switch e.cfg.Kind {
	case UC:
		init.Type = verbs.UC
	case UD:
		init.Type = verbs.UD
	case SRQ:
		init.Cap.MaxRecvWR = 0
		e.srq, err = e.dev.CreateSRQ(e.pd, verbs.SRQInitAttr{MaxWR: e.cfg.RXDepth, MaxSGE: 1, Shard: -1})
		if err != nil {
			return fmt.Errorf("create SRQ: %w", err)
		}
		init.SRQ = e.srq
	}
	for range e.cfg.QPs {
		qp, err := e.dev.CreateQP(e.pd, init)
		if err != nil {
			return fmt.Errorf("create QP: %w", err)
		}
		e.qps = append(e.qps, qp)
		e.ours = append(e.ours, dest{qpn: qp.Num(), psn: verbs.RandomPSN(), gid: e.gid})
	}
	if e.cfg.Kind == SRQ {
		e.ours = append(e.ours, make([]dest, wireDests-len(e.ours))...)
	}
	return nil
}

// initialise brings the QPs to INIT and posts the receives.
func (e *endpoint) initialise() error {
	attr := &verbs.QPAttr{State: verbs.StateInit, Port: 1, QKey: qkey}
	mask := verbs.AttrState | verbs.AttrPKeyIndex | verbs.AttrPort | verbs.AttrAccessFlags
	if e.cfg.Kind == UD {
		mask = verbs.AttrState | verbs.AttrPKeyIndex | verbs.AttrPort | verbs.AttrQKey
	}
	for _, qp := range e.qps {
		if err := qp.Modify(attr, mask); err != nil {
			return fmt.Errorf("QP to INIT: %w", err)
		}
	}
	for range e.cfg.RXDepth {
		if err := e.postRecv(); err != nil {
			return err
		}
	}
	return nil
}

// connect brings the QPs to RTS towards the other end's.
func (e *endpoint) connect(theirs []dest) error {
	e.theirs = theirs
	for i, qp := range e.qps {
		there := netdev.AddrOf(theirs[i].gid)
		if here := netdev.AddrOf(e.gid); here.Is4() != there.Is4() {
			return fmt.Errorf("the GID here is %v, at the other end %v: choose GIDs of one family "+
				"with -g", here, there)
		}
		if err := e.connectQP(qp, &e.ours[i], &theirs[i]); err != nil {
			return fmt.Errorf("connect to %v: %w", there, err)
		}
	}
	return nil
}

func (e *endpoint) connectQP(qp *verbs.QP, ours, theirs *dest) error {
	ah := verbs.AHAttr{DGID: theirs.gid, SGIDIndex: e.gidAt}
	a := &verbs.QPAttr{State: verbs.StateRTR, AH: ah, PathMTU: e.cfg.PMTU, DestQPN: theirs.qpn,
		RQPSN: theirs.psn, MaxDestRdAtomic: rdAtomic, MinRNRTimer: minRNRTimer,
		SQPSN: ours.psn, Timeout: uint8(e.cfg.Timeout), RetryCnt: retries, RNRRetry: retries,
		MaxQPRdAtomic: rdAtomic}
	rtr, rts := verbs.AttrState, verbs.AttrState|verbs.AttrSQPSN
	if e.cfg.Kind != UD {
		rtr |= verbs.AttrAV | verbs.AttrPathMTU | verbs.AttrDestQPN | verbs.AttrRQPSN
	}
	if qp.Type() == verbs.RC {
		rtr |= verbs.AttrMaxDestRdAtomic | verbs.AttrMinRNRTimer
		rts |= verbs.AttrTimeout | verbs.AttrRetryCnt | verbs.AttrRNRRetry | verbs.AttrMaxQPRdAtomic
	}
	if err := qp.Modify(a, rtr); err != nil {
		return err
	}
	a.State = verbs.StateRTS
	if err := qp.Modify(a, rts); err != nil {
		return err
	}
	if e.cfg.Kind == UD {
		var err error
		e.ah, err = e.pd.CreateAH(&ah)
		return err
	}
	return nil
}

// Work request numbers: of receives, and of sends with the QP's number added.
const (
	recvID = 0
	sendID = 1
)

func (e *endpoint) postRecv() error {
	wr := verbs.RecvWR{WRID: recvID, SGList: []verbs.SGE{e.mem.SGE(0, e.headroom()+e.cfg.Size)}}
	var err error
	if e.srq != nil {
		err = e.srq.PostRecv(&wr)
	} else {
		err = e.qps[0].PostRecv(&wr)
	}
	if err != nil {
		return fmt.Errorf("post receive: %w", err)
	}
	return nil
}

func (e *endpoint) postSend(i int) error {
	wr := verbs.SendWR{WRID: sendID + uint64(i), Opcode: verbs.WRSend, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{e.mem.SGE(e.headroom(), e.cfg.Size)}}
	if e.cfg.Kind == UD {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = e.ah, e.theirs[i].qpn, qkey
	}
	if err := e.qps[i].PostSend(&wr); err != nil {
		return fmt.Errorf("post send: %w", err)
	}
	return nil
}

// payload is the buffer, without what stands before a datagram.
func (e *endpoint) payload() []byte { return e.mem.Bytes()[e.headroom():] }

// close gives everything back. It may be called at any stage.
func (e *endpoint) close() error {
	var errs []error
	if e.dev != nil {
		errs = append(errs, e.dev.Close()) // with all that was made from it
	}
	return errors.Join(append(errs, e.capture.Close())...)
}
