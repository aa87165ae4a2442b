package pingpong

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// Result is what a run gave. Its JSON form is that of --json.
type Result struct {
	Kind        Kind    `json:"kind"`
	Size        int     `json:"size"` // bytes
	PMTU        int     `json:"pmtu"`
	QPs         int     `json:"qps"`
	Iterations  int     `json:"iterations"`
	Seconds     float64 `json:"seconds"`
	BWMbps      float64 `json:"bw_mbps"` // both directions together, as the programs count it
	USecPerIter float64 `json:"usec_per_iter"`
	Checked     uint64  `json:"checked_bytes"`
	Packets     uint64  `json:"packets"` // sent
	Retransmits uint64  `json:"retransmits"`
	Timeouts    uint64  `json:"timeouts"`
	ICRCErrors  uint64  `json:"icrc_errors"`
	XDPMode     string  `json:"xdp_mode"`
}

// Hooks are called while a run goes on, from its goroutine. Each may be nil.
type Hooks struct {
	Ready     func(net.Addr)              // a server: clients can come
	Addresses func(ours, theirs []string) // the QPs of both ends, as the programs print them
}

// Run plays one end and returns when both are through.
func Run(ctx context.Context, cfg Config, hooks Hooks) (res *Result, err error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	e, err := open(&cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	if err := e.meet(ctx, hooks); err != nil {
		return nil, err
	}
	g := &game{endpoint: e, wc: make([]verbs.WC, maxBatch), pending: make([]pending, cfg.QPs)}
	start := time.Now()
	if err := g.play(ctx); err != nil {
		return nil, err
	}
	took := time.Since(start)
	g.linger(ctx)
	return g.result(took), nil
}

// meet exchanges addresses with the other end and connects.
func (e *endpoint) meet(ctx context.Context, hooks Hooks) error {
	conn, err := meet(ctx, &e.cfg, hooks.Ready)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := exchangeDests(conn, e.cfg.Server != "", e.ours, e.connect); err != nil {
		return err
	}
	if hooks.Addresses != nil {
		hooks.Addresses(texts(e.ours[:e.cfg.QPs]), texts(e.theirs[:e.cfg.QPs]))
	}
	return nil
}

func texts(dests []dest) []string {
	var all []string
	for i := range dests {
		all = append(all, dests[i].String())
	}
	return all
}

// maxBatch is how many completions are polled at once.
const maxBatch = 16

// pollsPerCheck is how often a busy loop polls before it looks whether it should end.
const pollsPerCheck = 1 << 10

// pending is what a QP has to see before it sends again.
type pending uint8

const (
	pendingRecv pending = 1 << iota
	pendingSend
)

// game is the exchange of messages.
type game struct {
	*endpoint
	wc         []verbs.WC
	pending    []pending
	sent, recv int
	used       int    // receives used up and not posted again
	round      uint64 // what was sent last, with -c
	checked    uint64 // bytes
}

// play sends and receives until both directions have had Iters messages.
func (g *game) play(ctx context.Context) error {
	for i := range g.qps {
		g.pending[i] = pendingRecv
		if g.cfg.Server == "" {
			continue
		}
		if err := g.send(i); err != nil {
			return err
		}
	}
	for polls := 1; g.recv < g.cfg.Iters || g.sent < g.cfg.Iters; polls++ {
		if g.cfg.Events {
			if err := g.cq.Wait(ctx); err != nil {
				return g.stuck(err)
			}
		} else if polls%pollsPerCheck == 0 && ctx.Err() != nil {
			return g.stuck(context.Cause(ctx))
		}
		n, err := g.cq.Poll(g.wc)
		if err != nil {
			return err
		}
		for i := range g.wc[:n] {
			if err := g.complete(&g.wc[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// stuck says how far a game came that was ended.
func (g *game) stuck(err error) error {
	return fmt.Errorf("%w, after %d messages sent and %d received of %d", err, g.sent, g.recv,
		g.cfg.Iters)
}

// complete takes one completion.
func (g *game) complete(wc *verbs.WC) error {
	if wc.Status != verbs.WCSuccess {
		what := "receive"
		if wc.WRID != recvID {
			what = "send"
		}
		if g.answered() {
			if what == "send" {
				g.sent++
			}
			return nil
		}
		return fmt.Errorf("%s failed: %v (%v); %d messages were sent, %d received", what, wc.Status,
			wc.VendorErr, g.sent, g.recv)
	}
	i := slices.IndexFunc(g.qps, func(q *verbs.QP) bool { return q.Num() == wc.QPN })
	if i < 0 {
		return fmt.Errorf("a completion of QP %#x, which is not ours", uint32(wc.QPN))
	}
	if wc.WRID == recvID {
		g.recv++
		if err := g.received(wc); err != nil {
			return err
		}
		g.pending[i] &^= pendingRecv
	} else {
		g.sent++
		g.pending[i] &^= pendingSend
	}
	if g.pending[i] == 0 && g.sent < g.cfg.Iters {
		g.pending[i] = pendingRecv
		return g.send(i)
	}
	return nil
}

// answered reports whether the peer has answered all messages, so that it has had them. It may have
// ended by then, and its last acknowledgement may be lost: nobody repeats that.
func (g *game) answered() bool { return g.cfg.Server != "" && g.recv >= g.cfg.Iters }

// received looks at a message and keeps receives posted.
func (g *game) received(wc *verbs.WC) error {
	if got := int(wc.ByteLen) - g.headroom(); got != g.cfg.Size {
		return fmt.Errorf("a message of %d bytes came, not %d: was the other end given another -s?",
			got, g.cfg.Size)
	}
	if g.cfg.ExpectEcho && g.round > 0 {
		if err := g.verify(); err != nil {
			return err
		}
	}
	g.used++
	if g.cfg.RXDepth-g.used > g.cfg.QPs {
		return nil
	}
	for ; g.used > 0; g.used-- {
		if err := g.postRecv(); err != nil {
			return err
		}
	}
	return nil
}

// send posts a message; with -c, one that never was before.
func (g *game) send(i int) error {
	if g.cfg.ExpectEcho {
		g.round++
		fill(g.payload(), g.round)
	}
	g.pending[i] |= pendingSend
	return g.postSend(i)
}

// verify compares what came back with what was sent last.
func (g *game) verify() error {
	want := make([]byte, g.cfg.Size)
	fill(want, g.round)
	got := g.payload()
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("message %d came back wrong: byte %d is %#02x, not %#02x", g.recv, i,
				got[i], want[i])
		}
	}
	g.checked += uint64(len(want))
	return nil
}

// fill writes a pattern that depends on the round and is different in every 8 bytes.
func fill(b []byte, round uint64) {
	x := round * 0x9e3779b97f4a7c15
	var word [8]byte
	for len(b) > 0 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(word[:], x)
		b = b[copy(b, word[:]):]
	}
}

// lingerTime is a little more than the time after which the other end repeats a message whose
// acknowledgement was lost.
const lingerTime = 100 * time.Millisecond

// linger stays for the other end, which may not know yet that its last message came.
func (g *game) linger(ctx context.Context) {
	if g.qps[0].Type() != verbs.RC {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lingerTime)
	defer cancel()
	for g.cq.Wait(ctx) == nil {
		if _, err := g.cq.Poll(g.wc); err != nil {
			return
		}
	}
}

func (g *game) result(took time.Duration) *Result {
	s := g.dev.Stats().Total
	bytes := float64(g.cfg.Size) * float64(g.cfg.Iters) * 2
	r := &Result{
		Kind: g.cfg.Kind, Size: g.cfg.Size, PMTU: g.cfg.PMTU, QPs: g.cfg.QPs,
		Iterations: g.cfg.Iters, Seconds: took.Seconds(), Checked: g.checked,
		BWMbps:      bytes * 8 / 1e6 / took.Seconds(),
		USecPerIter: float64(took.Nanoseconds()) / 1e3 / float64(g.cfg.Iters),
		Packets:     s.SentPkts, Retransmits: s.Retransmits, Timeouts: s.Timeouts,
		XDPMode: g.dev.XDPMode(),
	}
	r.ICRCErrors = s.Drops[wire.ReasonICRC]
	return r
}

// Write prints the result as rdma-core's programs do.
func (r *Result) Write(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%d bytes in %.2f seconds = %.2f Mbit/sec\n"+
		"%d iters in %.2f seconds = %.2f usec/iter\n",
		2*r.Size*r.Iterations, r.Seconds, r.BWMbps, r.Iterations, r.Seconds, r.USecPerIter)
	return err
}
