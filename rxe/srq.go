package rxe

import (
	"github.com/roxie-rdma/roxie/rxe/internal/mutant"
	"github.com/roxie-rdma/roxie/rxe/mr"
)

// SRQ is a shared receive queue. It lives on one shard, and so do the QPs that use it.
type SRQ struct {
	Q      Queue
	PD     mr.PD
	shard  *Shard
	maxSGE uint32
	limit  uint32 // event when fewer are left; 0 = not armed
	users  int
}

// NewSRQ makes a shared receive queue of depth work requests with up to maxSGE elements each.
func (d *Device) NewSRQ(s *Shard, pd mr.PD, depth, maxSGE uint32) (*SRQ, error) {
	if depth < 1 || depth > MaxQPDepth || maxSGE > MaxSGE || pd == 0 {
		return nil, ErrQPCap
	}
	maxSGE = max(maxSGE, 1)
	return &SRQ{Q: NewQueue(depth, recvStride(maxSGE)), PD: pd, shard: s, maxSGE: maxSGE}, nil
}

// Shard is where the SRQ and its QPs live.
func (r *SRQ) Shard() *Shard { return r.shard }

// Users is how many QPs draw from it. The shard must be held.
func (r *SRQ) Users() int { return r.users }

// Limit is the armed limit, 0 when none is. The shard must be held.
func (r *SRQ) Limit() uint32 { return r.limit }

// SetLimit arms the event SRQ_LIMIT_REACHED for when fewer than n work requests are left
// (IBTA 10.2.9.5); it fires once. The shard must be held.
func (r *SRQ) SetLimit(n uint32) error {
	if n > r.Q.depth {
		return ErrQPCap
	}
	r.limit = n
	r.checkLimit(r.shard)
	return nil
}

// taken follows the use of a work request.
func (r *SRQ) taken(s *Shard) { r.checkLimit(s) }

func (r *SRQ) checkLimit(s *Shard) {
	if r.limit > 0 && uint32(r.Q.Len()) < r.limit {
		if mutant.SRQLimitLost && mutant.Tick(2) {
			r.limit = 0
			return
		}
		if !mutant.SRQLimitTwice {
			r.limit = 0
		}
		s.emit(Event{Type: EventSRQLimit, SRQ: r})
	}
}

// Resize changes the depth; what is posted stays in order. The shard and the posters must be held.
func (r *SRQ) Resize(depth uint32) error {
	if depth < 1 || depth > MaxQPDepth || int(depth) < r.Q.Len() || depth < r.limit {
		return ErrQPCap
	}
	n := NewQueue(depth, r.Q.stride)
	from, to := r.Q.cons.Load(), r.Q.prod.Load()
	for i := from; i != to; i++ {
		copy(n.slot(i-from), r.Q.slot(i))
	}
	n.prod.Store(to - from)
	r.Q = n
	return nil
}

// PostRecv encodes wr into the SRQ. One poster at a time.
func (r *SRQ) PostRecv(wr *RecvWR) error {
	if len(wr.SGEs) > int(r.maxSGE) {
		return ErrTooManySGE
	}
	m, i := r.Q.reserve()
	if m == nil {
		return ErrQueueFull
	}
	encodeRecv(m, wr)
	r.Q.prod.Store(i + 1)
	return nil
}
