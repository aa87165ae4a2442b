package perf

import (
	"time"

	"github.com/roxie-rdma/roxie/verbs"
)

// probeEvery is how long an end sees no message move before it asks whether the other end is there.
const probeEvery = time.Second

// probe asks now and then, until stopped, whether the other end is still there, with a WRITE of no
// bytes on the first QP. A reliable connection finds out that its peer has vanished only while it
// has something to send, and an end that waits for an answer has not: all it sent is acknowledged.
// An unanswered probe completes with RETRY_EXC_ERR like any other request. perftest is not asked:
// it may be through, and not there any more, before this end is.
func (r *run) probe() (stop func()) {
	if r.cfg.Transport != RC || r.foreign {
		return func() {}
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(probeEvery)
		defer tick.Stop()
		ask := verbs.SendWR{WRID: workID(idProbe, 0, 0), Opcode: verbs.WRRDMAWrite,
			Flags: verbs.SendSignaled}
		for last := r.moved.Load(); ; {
			select {
			case <-quit:
				return
			case <-tick.C:
			}
			moved := r.moved.Load()
			if moved == last && !r.probing.Swap(true) && r.conns[0].qp.PostSend(&ask) != nil {
				r.probing.Store(false) // a full queue asks by itself
			}
			last = moved
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}
