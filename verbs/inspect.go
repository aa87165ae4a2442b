package verbs

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
)

// inspectBatch is how many QPs are copied while a shard is held: some microseconds' worth.
const inspectBatch = 32

// QPInspection is the state of a QP at one moment, as plain values.
type QPInspection struct {
	rxe.QPInspection
	Local, Peer netip.Addr // of a connection; zero before it has a way
}

// Inspect returns all that there is to know of the QP, for diagnosis. It takes the shard for a moment
// between two batches.
func (q *QP) Inspect() QPInspection {
	q.poller.hold()
	defer q.poller.release()
	return q.inspect()
}

// inspect is Inspect with the shard held.
func (q *QP) inspect() QPInspection {
	i := QPInspection{QPInspection: q.qp.Inspect()}
	if p := i.Attr.AV.Path; !q.datagram && i.State != StateReset && i.State != StateInit {
		i.Local, i.Peer = p.Src.Addr(), p.Dst.Addr()
	}
	return i
}

// InspectQPs is QP.Inspect of all QPs of the device, by number. Each is whole; together they are of
// no single moment, because a shard goes on after every few of them.
func (c *Context) InspectQPs() []QPInspection {
	byShard := make([][]*QP, len(c.pollers))
	all := c.allQPs()
	for _, q := range all {
		byShard[q.poller.index] = append(byShard[q.poller.index], q)
	}
	out := make([]QPInspection, 0, len(all)) // nothing grows while a shard is held
	for i, p := range c.pollers {
		for batch := range slices.Chunk(byShard[i], inspectBatch) {
			p.hold()
			for _, q := range batch {
				out = append(out, q.inspect())
			}
			p.release()
		}
	}
	slices.SortFunc(out, func(a, b QPInspection) int { return cmp.Compare(a.QPN, b.QPN) })
	return out
}

// InspectQP is QP.Inspect of the QP with a number. It is false if there is none.
func (c *Context) InspectQP(n QPN) (QPInspection, bool) {
	for _, q := range c.allQPs() {
		if q.Num() == n {
			return q.Inspect(), true
		}
	}
	return QPInspection{}, false
}

// Regions returns what of regions and windows the device honours now, by key index.
func (c *Context) Regions() []mr.Info { return c.dev.Keys().List() }

// Latencies returns, for each shard, how long RC work requests took from the first packet to the
// completion; a sample, see rxe.Latency.
func (c *Context) Latencies() []rxe.Latencies {
	out := make([]rxe.Latencies, len(c.pollers))
	for i, p := range c.pollers {
		p.hold()
		out[i] = p.shard.Latency
		p.release()
	}
	return out
}

// Time turns a time of the engine into one of the day.
func (c *Context) Time(t rxe.Time) time.Time { return clockBase.Add(time.Duration(t)) }

// Closed reports whether Close has begun.
func (c *Context) Closed() bool { return c.isClosed() }
