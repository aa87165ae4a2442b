package sim

import (
	"errors"
	"fmt"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// NodeConfig sets up a node. Zero values take the defaults named.
type NodeConfig struct {
	Shards  int // default 1
	Device  rxe.Config
	V6      bool // the node's address is fd00::n instead of 10.0.0.n
	TxBurst int  // frames a shard may send per step, default 64: its TX ring
	TxHead  int  // bytes of the first piece of a transmit frame, default 3840
}

// Node is one device on the fabric.
type Node struct {
	Dev *rxe.Device
	MAC wire.MAC
	GID wire.GID

	// OnEvent, if set, gets the device's events.
	OnEvent func(rxe.Event)

	fabric  *Fabric
	id      int // from 0
	ports   []*port
	txBurst int
	txHead  int
	cut     []bool // by id of the peer
	nextPD  mr.PD
}

// maxNodes is how many nodes the addresses of a fabric can tell apart.
const maxNodes = 1<<16 - 2

// AddNode puts a device on the fabric.
func (f *Fabric) AddNode(c NodeConfig) (*Node, error) {
	id := len(f.nodes) + 1
	c.Shards = max(c.Shards, 1)
	if id > maxNodes || len(f.ports)+c.Shards > maxPorts {
		return nil, errors.New("add node: the fabric is full")
	}
	c.Device.Shards = c.Shards
	if c.Device.Rand == nil {
		c.Device.Rand = f.rng.Uint64
	}
	dev, err := rxe.NewDevice(c.Device, f.now)
	if err != nil {
		return nil, fmt.Errorf("add node: %w", err)
	}
	hi, lo := byte(id>>8), byte(id)
	n := &Node{Dev: dev, MAC: wire.MAC{2, 0, 0, 0, hi, lo}, fabric: f, id: id - 1, nextPD: 1,
		txBurst: c.TxBurst, txHead: c.TxHead}
	n.GID = wire.GIDFromIPv4([4]byte{10, 0, hi, lo})
	if c.V6 {
		n.GID = wire.GID{0: 0xfd, 14: hi, 15: lo}
	}
	if n.txBurst == 0 {
		n.txBurst = 64
	}
	if n.txHead == 0 {
		n.txHead = 3840
	}
	dev.SetGIDs([]wire.GID{n.GID})
	for _, s := range dev.Shards() {
		p := &port{num: uint32(len(f.ports)), node: n, shard: s, next: rxe.Never, place: -1,
			scratch: make([]byte, bufSize)}
		if f.cfg.Straddle != nil {
			s.TestHook = func() { f.straddle(p) }
		}
		n.ports = append(n.ports, p)
		f.ports = append(f.ports, p)
	}
	f.nodes = append(f.nodes, n)
	return n, nil
}

// ID is the node's number on its fabric, from 0.
func (n *Node) ID() int { return n.id }

// Partition cuts (or joins again) the path from n to peer, in this direction only.
func (n *Node) Partition(peer *Node, cut bool) {
	for len(n.cut) <= peer.id {
		n.cut = append(n.cut, false)
	}
	n.cut[peer.id] = cut
}

func (n *Node) cuts(peer *Node) bool { return peer.id < len(n.cut) && n.cut[peer.id] }

// Sleep stops shard i from running until Sleep with false: frames pile up in its ring.
func (n *Node) Sleep(i int, asleep bool) {
	p := n.ports[i]
	if p.asleep = asleep; asleep {
		n.fabric.unschedule(p)
		return
	}
	n.fabric.schedule(p, n.fabric.now)
}

// Busy reports whether shard i is in the middle of a step, which a call from a straddle can find it in
// (Config.Straddle). What needs the shard held must wait then.
func (n *Node) Busy(i int) bool { return n.ports[i].busy }

// FillTx makes the TX ring of shard i full, so that it can send nothing, until FillTx with false.
func (n *Node) FillTx(i int, full bool) {
	p := n.ports[i]
	if p.txFull = full; !full {
		n.fabric.schedule(p, n.fabric.now)
	}
}

// HoldTx withholds the TX completions of shard i until HoldTx with false. With Config.TxRing its ring
// then fills up.
func (n *Node) HoldTx(i int, hold bool) {
	p := n.ports[i]
	if p.holdTx = hold; !hold {
		n.fabric.sent(p, p.withheld)
		p.withheld = 0
	}
}

// AllocPD returns a new protection domain.
func (n *Node) AllocPD() mr.PD {
	n.nextPD++
	return n.nextPD - 1
}

// Region is registered memory of a node.
type Region struct {
	Buf  []byte
	Key  mr.Key
	Addr uint64
}

// SGE names n bytes from offset off.
func (r *Region) SGE(off, n int) rxe.SGE {
	return rxe.SGE{Addr: r.Addr + uint64(off), Length: uint32(n), LKey: r.Key}
}

// Reg registers buf at addr (0: its own address).
func (n *Node) Reg(pd mr.PD, buf []byte, addr uint64, access mr.Access) (*Region, error) {
	key, err := n.Dev.Keys().Alloc(mr.KindUser, pd)
	if err != nil {
		return nil, err
	}
	if addr == 0 {
		addr = mr.AddrOf(buf)
	}
	v, err := mr.NewView(mr.Region{Key: key, PD: pd, Access: access, IOVA: addr,
		Length: uint64(len(buf)), List: mr.NewList(buf)})
	if err != nil {
		return nil, err
	}
	if err := n.Dev.Keys().Publish(v); err != nil {
		return nil, err
	}
	return &Region{Buf: buf, Key: key, Addr: addr}, nil
}

// Path is the address vector from n to peer.
func (n *Node) Path(peer *Node) rxe.AV {
	return rxe.AV{Loopback: n == peer, Path: wire.Path{
		SrcMAC: n.MAC, DstMAC: peer.MAC, VLAN: -1, Src: n.GID, Dst: peer.GID, HopLimit: 64,
		SrcPort: wire.SourcePort(wire.FlowLabel(1, 2)),
	}}
}

// ConnAttr are the attributes of a connection that differ from the defaults of Connect.
type ConnAttr struct {
	PMTU      uint32    // default 1024
	PSN       wire.PSN  // first PSN of the first QP; the second starts at PSN+0x1000
	Timeout   uint8     // default 8: 1.05 ms
	Retry     uint8     // default 7
	RNRRetry  uint8     // default 7
	RNRTimer  uint8     // default 1: 10 µs
	RdAtomic  uint8     // default 4; 255 means 0
	Access    mr.Access // default everything
	NoTimeout bool
}

// AllAccess are the rights of a QP or region that may do everything.
const AllAccess = mr.LocalWrite | mr.RemoteWrite | mr.RemoteRead | mr.RemoteAtomic | mr.MWBind |
	mr.FlushGlobal | mr.FlushPersistent

func (c *ConnAttr) defaults() {
	def := func(v *uint8, d uint8) {
		if *v == 0 {
			*v = d
		}
	}
	if c.PMTU == 0 {
		c.PMTU = 1024
	}
	def(&c.Timeout, 8)
	def(&c.Retry, 7)
	def(&c.RNRRetry, 7)
	def(&c.RNRTimer, 1)
	def(&c.RdAtomic, 4)
	if c.RdAtomic == 255 {
		c.RdAtomic = 0
	}
	if c.Access == 0 {
		c.Access = AllAccess
	}
	if c.NoTimeout {
		c.Timeout = 0
	}
}

// Connect brings a and b, of nodes na and nb, to RTS as each other's peers.
func Connect(na *Node, a *rxe.QP, nb *Node, b *rxe.QP, c ConnAttr) error {
	c.defaults()
	if err := c.bring(na, a, nb, b.QPN(), c.PSN, c.PSN.Add(0x1000)); err != nil {
		return err
	}
	return c.bring(nb, b, na, a.QPN(), c.PSN.Add(0x1000), c.PSN)
}

func (c *ConnAttr) bring(n *Node, q *rxe.QP, peer *Node, dest wire.QPN, sq, rq wire.PSN) error {
	a := rxe.QPAttr{
		Port: 1, AccessFlags: c.Access, AV: n.Path(peer), PathMTU: c.PMTU, DestQPN: dest,
		RQPSN: rq, SQPSN: sq, MaxDestRdAtomic: c.RdAtomic, MaxQPRdAtomic: c.RdAtomic,
		MinRNRTimer: c.RNRTimer, Timeout: c.Timeout, RetryCnt: c.Retry, RNRRetry: c.RNRRetry,
	}
	if q.Type() == rxe.UC {
		return modifyAll(q, a,
			rxe.AttrPKeyIndex|rxe.AttrPort|rxe.AttrAccessFlags,
			rxe.AttrAV|rxe.AttrPathMTU|rxe.AttrDestQPN|rxe.AttrRQPSN,
			rxe.AttrSQPSN)
	}
	return modifyAll(q, a,
		rxe.AttrPKeyIndex|rxe.AttrPort|rxe.AttrAccessFlags,
		rxe.AttrAV|rxe.AttrPathMTU|rxe.AttrDestQPN|rxe.AttrRQPSN|rxe.AttrMaxDestRdAtomic|rxe.AttrMinRNRTimer,
		rxe.AttrTimeout|rxe.AttrRetryCnt|rxe.AttrRNRRetry|rxe.AttrSQPSN|rxe.AttrMaxQPRdAtomic)
}

func modifyAll(q *rxe.QP, a rxe.QPAttr, masks ...rxe.AttrMask) error {
	for i, m := range masks {
		a.State = rxe.StateInit + rxe.QPState(i)
		if err := q.Modify(&a, m|rxe.AttrState); err != nil {
			return err
		}
	}
	return nil
}

// ReadyUD brings a UD QP to RTS with the Q_Key.
func ReadyUD(q *rxe.QP, qkey uint32) error {
	return modifyAll(q, rxe.QPAttr{Port: 1, QKey: qkey},
		rxe.AttrPKeyIndex|rxe.AttrPort|rxe.AttrQKey, 0, rxe.AttrSQPSN)
}
