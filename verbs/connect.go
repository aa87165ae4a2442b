package verbs

import "math/rand/v2"

// ConnInfo is what two ends of a connection tell each other.
type ConnInfo struct {
	QPN QPN
	PSN PSN // first PSN this end sends
	GID GID
}

// ConnOptions are the attributes that ConnectRC sets. The zero value of each takes the default
// named.
type ConnOptions struct {
	SGIDIndex    int    // own address
	PathMTU      int    // bytes; 0: the port's largest
	Access       Access // what the peer may do; 0: remote write, read and atomics
	Timeout      uint8  // 0: 14 (67 ms); 4.096 µs × 2^n
	RetryCnt     uint8  // 0: 7
	RNRRetry     uint8  // 0: 7, for ever
	MinRNRTimer  uint8  // 0: 12 (0.64 ms)
	RdAtomic     uint8  // READs and atomics outstanding, own and the peer's; 0: 16
	TrafficClass uint8
	FlowLabel    uint32
	HopLimit     uint8 // 0: 64
}

// RandomPSN returns a PSN to start with.
func RandomPSN() PSN { return PSN(rand.Uint32() & 0xffffff) }

// ConnectRC takes a reliable connection from RESET to RTS towards a peer. psn is what the peer was
// told as this end's PSN. For a UC QP it sets what UC has.
func (q *QP) ConnectRC(psn PSN, peer ConnInfo, o ConnOptions) error {
	def := func(v *uint8, d uint8) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.Timeout, 14)
	def(&o.RetryCnt, 7)
	def(&o.RNRRetry, 7)
	def(&o.MinRNRTimer, 12)
	def(&o.RdAtomic, 16)
	if o.Access == 0 {
		o.Access = RemoteWrite | RemoteRead | RemoteAtomic
	}
	if o.PathMTU == 0 {
		p := q.ctx.Port()
		if o.PathMTU = p.MaxPMTU; !peer.GID.IsIPv4() {
			o.PathMTU = p.MaxPMTU6
		}
	}
	a := QPAttr{
		State: StateInit, Port: 1, AccessFlags: o.Access, PathMTU: o.PathMTU, DestQPN: peer.QPN,
		AH: AHAttr{DGID: peer.GID, SGIDIndex: o.SGIDIndex, TrafficClass: o.TrafficClass,
			FlowLabel: o.FlowLabel, HopLimit: o.HopLimit},
		RQPSN: peer.PSN, SQPSN: psn, Timeout: o.Timeout, RetryCnt: o.RetryCnt, RNRRetry: o.RNRRetry,
		MinRNRTimer: o.MinRNRTimer, MaxQPRdAtomic: o.RdAtomic, MaxDestRdAtomic: o.RdAtomic,
	}
	rtr := AttrState | AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN
	rts := AttrState | AttrSQPSN
	if q.Type() == RC {
		rtr |= AttrMaxDestRdAtomic | AttrMinRNRTimer
		rts |= AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrMaxQPRdAtomic
	}
	if err := q.Modify(&a, AttrState|AttrPKeyIndex|AttrPort|AttrAccessFlags); err != nil {
		return err
	}
	a.State = StateRTR
	if err := q.Modify(&a, rtr); err != nil {
		return err
	}
	a.State = StateRTS
	return q.Modify(&a, rts)
}
