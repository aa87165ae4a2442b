package rxe

// SetPath changes the way to a connected QP's peer, as when the neighbour's or the own link address
// has changed: packets built from now on take it. The addresses themselves stay. The shard must be
// held.
func (q *QP) SetPath(av AV) {
	if q.typ.datagram() || q.state < StateRTR {
		return
	}
	q.attr.AV = av
	q.tmpl.Init(&q.attr.AV.Path, q.attr.DestQPN, PKeyDefault)
}

// ReplaceAH puts a handle with another address vector in the place of a, under the same number. It
// returns a itself if that has been destroyed. Any goroutine.
func (d *Device) ReplaceAH(a *AH, av AV) *AH {
	n := &AH{PD: a.PD, AV: av, num: a.num}
	if !d.ahs.slots[a.num].CompareAndSwap(a, n) {
		return a
	}
	return n
}

// SetPortMTU makes a path MTU, at most Config.MaxPMTU, the port's present one, which datagram QPs
// take when they are made or reset. Any goroutine.
func (d *Device) SetPortMTU(pmtu uint32) { d.portMTU.Store(min(pmtu, d.cfg.MaxPMTU)) }

// FollowPortMTU makes a datagram QP that exists take the port's present path MTU. Other QPs keep
// the one they were given. The caller holds the QP's shard.
func (q *QP) FollowPortMTU() {
	if q.typ.datagram() {
		q.pmtu = q.dev.portMTU.Load()
	}
}
