package verbs

import (
	"fmt"
	"sync"

	"github.com/roxie-rdma/roxie/rxe"
)

// SRQInitAttr is what a shared receive queue is created with (struct ibv_srq_init_attr).
type SRQInitAttr struct {
	MaxWR  int // depth, 1 to 2^20
	MaxSGE int // SGEs a work request, 1 to 32 (0: 1)
	Shard  int // queue the SRQ and its QPs live on, from 0; negative: one after the other
}

// SRQAttr are the attributes of a shared receive queue (struct ibv_srq_attr).
type SRQAttr struct {
	MaxWR  int
	MaxSGE int
	Limit  int // event when fewer work requests are left; 0: none
}

// SRQ is a shared receive queue (struct ibv_srq).
type SRQ struct {
	handle
	srq    *rxe.SRQ
	pd     *PD
	poller *poller
	maxSGE int
	mu     sync.Mutex // posters
}

// CreateSRQ makes a shared receive queue (ibv_create_srq). All its QPs live on its shard.
func (c *Context) CreateSRQ(pd *PD, a SRQInitAttr) (*SRQ, error) {
	if pd == nil || a.MaxWR < 1 || a.MaxWR > rxe.MaxQPDepth || a.MaxSGE < 0 || a.MaxSGE > rxe.MaxSGE {
		return nil, fmt.Errorf("create SRQ: %w", ErrInvalid)
	}
	p, err := c.place(&QPInitAttr{Shard: a.Shard})
	if err == nil {
		err = c.use(&pd.handle)
	}
	if err != nil {
		return nil, fmt.Errorf("create SRQ: %w", err)
	}
	r, err := c.dev.NewSRQ(p.shard, pd.num, uint32(a.MaxWR), uint32(a.MaxSGE))
	if err != nil {
		c.unuse(&pd.handle)
		return nil, fmt.Errorf("create SRQ: %w", err)
	}
	s := &SRQ{handle: handle{ctx: c}, srq: r, pd: pd, poller: p, maxSGE: max(a.MaxSGE, 1)}
	c.srqs.Store(r, s)
	return s, nil
}

// PostRecv adds a work request (ibv_post_srq_recv). Errors: ErrQueueFull, ErrTooManySGE.
func (s *SRQ) PostRecv(wr *RecvWR) error {
	r := rxe.RecvWR{ID: wr.WRID, SGEs: wr.SGList}
	s.mu.Lock()
	err := s.srq.PostRecv(&r)
	s.mu.Unlock()
	return err
}

// SetLimit asks for the event SRQ_LIMIT_REACHED, once, when fewer than n work requests are left;
// 0 asks for none (ibv_modify_srq, IBV_SRQ_LIMIT).
func (s *SRQ) SetLimit(n int) error {
	if n < 0 || n > rxe.MaxQPDepth {
		return fmt.Errorf("set SRQ limit %d: %w", n, ErrInvalid)
	}
	s.poller.hold()
	defer s.poller.release()
	if err := s.srq.SetLimit(uint32(n)); err != nil {
		return fmt.Errorf("set SRQ limit %d: %w", n, err)
	}
	return nil
}

// Resize changes the depth (ibv_modify_srq, IBV_SRQ_MAX_WR). What is posted stays.
func (s *SRQ) Resize(maxWR int) error {
	if maxWR < 1 || maxWR > rxe.MaxQPDepth {
		return fmt.Errorf("resize SRQ to %d: %w", maxWR, ErrInvalid)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.poller.hold()
	defer s.poller.release()
	if err := s.srq.Resize(uint32(maxWR)); err != nil {
		return fmt.Errorf("resize SRQ to %d: %w", maxWR, err)
	}
	return nil
}

// Query returns the attributes (ibv_query_srq).
func (s *SRQ) Query() SRQAttr {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.poller.hold()
	defer s.poller.release()
	return SRQAttr{MaxWR: s.srq.Q.Depth(), MaxSGE: s.maxSGE, Limit: int(s.srq.Limit())}
}

// Destroy ends the queue (ibv_destroy_srq). It fails with ErrBusy while QPs use it.
func (s *SRQ) Destroy() error {
	first, err := s.bury()
	if err != nil {
		return fmt.Errorf("destroy SRQ: %w", err)
	}
	if first {
		s.ctx.srqs.Delete(s.srq)
		s.ctx.unuse(&s.pd.handle)
	}
	return nil
}
