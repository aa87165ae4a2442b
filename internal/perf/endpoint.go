package perf

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/roxie-rdma/roxie/bpf"
	"github.com/roxie-rdma/roxie/internal/capture"
	"github.com/roxie-rdma/roxie/internal/netdev"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
	"github.com/roxie-rdma/roxie/verbs/observe"
)

// endpoint is one end of a test: the opened interface, and after connect its memory and QPs.
type endpoint struct {
	cfg     Config
	dev     *verbs.Context
	watched *observe.Server // nil: none
	port    verbs.PortAttr
	gid     wire.GID
	at      int // of gid in the table

	pmtu     int
	sizes    []int
	plan     plan
	pd       *verbs.PD
	cq       *verbs.CQ
	mem      *verbs.MR
	pattern  []byte
	conns    []*conn
	foreign  bool         // the other end is perftest, or has to be treated like it
	plain    bool         // take any other end for perftest
	cmAddr   netip.Addr   // of the server, for -R, if it is not Server
	manager  *cm.Manager  // -R
	listener *cm.Listener // -R, of a server
	control  *control     // -R, of a server
	admit    func(*cm.Request) error
	cycle    int             // with that: bytes that its messages go round in
	capture  *capture.Writer // nil without -pcap
}

// conn is one QP with its peer.
type conn struct {
	index  int
	qp     *verbs.QP
	psn    uint32
	remote keys
	peer   verbs.QPN // the other end's, of a datagram QP
	cm     *cm.Conn  // -R
	ah     *verbs.AH
	ring   []byte // this end's slots
	lkey   verbs.Key
	base   uint64 // address of ring

	wrs  []verbs.SendWR // reused for every list
	sges []verbs.SGE

	primed bool // receives for control messages are posted
	counts
}

// counts are of a QP's messages, from the start of one size.
type counts struct {
	posted  uint64        // active end: handed to the send queue
	done    uint64        // of them, those complete
	target  uint64        // how many there will be
	closed  uint64        // of them, those that the other side was asked to check
	asked   time.Duration // when it was last asked
	acked   uint64        // of them, those it has checked
	heard   time.Duration // when it last answered, or was first asked
	checked uint64        // here, in order: compared, or known to be lost
	due     uint64        // here: to be compared up to this one
	arrived uint64        // passive end: received
	recvs   uint64        // receives posted
	owed    uint64        // used up and not posted again
}

// open opens the interface and attaches.
func open(cfg Config) (*endpoint, error) {
	if err := checkCPU(cfg.CPU); err != nil {
		return nil, err
	}
	e := &endpoint{cfg: cfg}
	vc := verbs.Config{Queues: cfg.Queues, VLAN: cfg.VLAN}
	switch cfg.Mode {
	case "native":
		vc.Mode = bpf.Native
	case "generic":
		vc.Mode = bpf.Generic
	}
	if cfg.Progress == Caller {
		vc.Progress = verbs.ProgressCaller
	}
	if cfg.CPU >= 0 && cfg.Progress == Poller {
		for q := range cfg.Queues {
			vc.Pin = append(vc.Pin, cfg.CPU+q)
		}
	}
	var err error
	if e.capture, err = capture.Attach(&vc, cfg.Capture, cfg.Interface); err != nil {
		return nil, err
	}
	if e.dev, err = verbs.Open(cfg.Interface, &vc); err != nil {
		return nil, errors.Join(err, e.close())
	}
	if cfg.Control != "" {
		if e.watched, err = observe.Serve(cfg.Control, e.dev); err != nil {
			return nil, errors.Join(err, e.close())
		}
	}
	if err := e.choose(); err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

// choose picks the GID and the largest path MTU.
func (e *endpoint) choose() error {
	e.port = e.dev.Port()
	entries := e.dev.GIDs()
	if len(entries) == 0 {
		return fmt.Errorf("%s has no IP address; give it one with `ip address add`", e.cfg.Interface)
	}
	e.at = entries[0].Index
	if e.cfg.GIDIndex >= 0 {
		e.at = e.cfg.GIDIndex
	} else {
		for _, g := range entries {
			if netdev.AddrOf(g.GID).Is4() {
				e.at = g.Index
				break
			}
		}
	}
	gid, err := e.dev.GID(e.at)
	if err != nil {
		return fmt.Errorf("-x %d: %w; `roxie devinfo -v` lists them", e.at, err)
	}
	e.gid = gid
	v6 := !netdev.AddrOf(gid).Is4()
	largest := e.port.MaxPMTU
	if v6 {
		largest = e.port.MaxPMTU6
	}
	raise := func(pmtu int) string {
		mtu := netdev.LinkMTU(pmtu, v6)
		if e.cfg.VLAN != 0 {
			mtu += tagBytes
		}
		return fmt.Sprintf("`ip link set %s mtu %d`", e.cfg.Interface, mtu)
	}
	switch {
	case largest == 0:
		return fmt.Errorf("%s has link MTU %d, too small for any path MTU; raise it: %s", e.cfg.Interface,
			e.port.LinkMTU, raise(netdev.MinPMTU))
	case e.cfg.PMTU > largest:
		return fmt.Errorf("-m %d: link MTU %d of %s is too small for it; raise it: %s, or give "+
			"-m %d",
			e.cfg.PMTU, e.port.LinkMTU, e.cfg.Interface, raise(e.cfg.PMTU), largest)
	case e.cfg.PMTU != 0:
		e.pmtu = e.cfg.PMTU
	default:
		e.pmtu = largest
	}
	return nil
}

func (e *endpoint) hello() hello {
	h := hello{Roxie: exchangeVersion, Test: e.cfg.Test.Name, Transport: e.cfg.Transport,
		Size: e.cfg.Size, All: e.cfg.All, QPs: e.cfg.QPs, Verify: e.cfg.Verify, PMTU: e.pmtu}
	if h.All {
		h.Iters = e.cfg.Iters
	}
	return h
}

// close gives everything back. It may be called at any stage, and twice.
func (e *endpoint) close() error {
	errs := []error{e.watched.Close()}
	if e.manager != nil {
		errs = append(errs, e.manager.Close())
	}
	if e.dev != nil {
		errs = append(errs, e.dev.Close()) // with all that was made from it
	}
	return errors.Join(append(errs, e.capture.Close())...)
}

// setup describes the run for the head of the table.
func (e *endpoint) setup() *Setup {
	s := &Setup{
		Test: e.cfg.Test, Transport: e.cfg.Transport, Interface: e.cfg.Interface,
		XDPMode: e.dev.XDPMode(), ZeroCopy: e.dev.ZeroCopy(), Progress: e.cfg.Progress,
		QPs: e.cfg.QPs, TXDepth: e.cfg.TXDepth, RXDepth: e.cfg.RXDepth, CQMod: e.cfg.CQMod,
		PMTU: e.pmtu, Inline: e.cfg.inline(), GIDIndex: e.at, VLAN: e.cfg.VLAN,
		Events: e.cfg.Events, Verify: e.cfg.Verify, Server: e.cfg.Server == "",
	}
	for _, c := range e.conns {
		s.Local = append(s.Local, addressOf(e.keys(c)))
		s.Remote = append(s.Remote, addressOf(c.remote))
	}
	return s
}

func addressOf(k keys) Address {
	return Address{QPN: k.QPN, PSN: k.PSN, RKey: k.RKey, VAddr: k.Addr,
		GID: netdev.AddrOf(k.GID).String()}
}
