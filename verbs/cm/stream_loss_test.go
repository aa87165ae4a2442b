package cm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	rxnettest "github.com/roxie-rdma/roxie/internal/nettest"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/verbs/verbstest"
)

// faultyHosts are two devices on a network that does to frames what networks do.
func faultyHosts(t *testing.T, seed uint64) (a, b *host, n *verbstest.Network) {
	t.Helper()
	n, err := verbstest.New(verbstest.Config{Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	at := func(i int) *host {
		h := &host{t: t, ctx: n.Device(i), ip4: n.Addr(i), ip6: n.Addr6(i)}
		h.manage(nil)
		return h
	}
	return at(0), at(1), n
}

// impatient writes and reads with deadlines that it mostly misses, and goes on after each.
type impatient struct {
	s   *Stream
	rng *rand.Rand
	n   int // deadlines missed
}

func (p *impatient) late() time.Time {
	return time.Now().Add(time.Duration(p.rng.IntN(3000)) * time.Microsecond)
}

func (p *impatient) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var k int
		_ = p.s.SetWriteDeadline(p.late())
		k, err = p.s.Write(b[n:min(n+1+p.rng.IntN(5000), len(b))])
		if n += k; errors.Is(err, os.ErrDeadlineExceeded) {
			p.n, err = p.n+1, nil
		}
	}
	return n, err
}

func (p *impatient) Read(b []byte) (int, error) {
	for {
		_ = p.s.SetReadDeadline(p.late())
		n, err := p.s.Read(b[:min(1+p.rng.IntN(5000), len(b))])
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		p.n++
	}
}

// TestStreamOverLoss: frames are lost, doubled and swapped, deadlines pass, one direction ends long
// before the other: each end gets what the other wrote, and then the end.
func TestStreamOverLoss(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			a, b, n := faultyHosts(t, seed)
			cfg := &StreamConfig{Buffers: 8, BufferSize: 3000}
			x, y, err := streams(a, b, streamListener(t, b, cfg), cfg)
			a.must(err)
			n.SetFaults(sim.Faults{Drop: 0.02, Duplicate: 0.02, Reorder: 0.02, Corrupt: 0.01})
			request, answer := make([]byte, 20_000), make([]byte, 200_000)
			fill := rand.NewChaCha8([32]byte{byte(seed)})
			_, _ = fill.Read(request)
			_, _ = fill.Read(answer)
			client := &impatient{s: x, rng: rand.New(rand.NewPCG(seed, 1))}
			server := &impatient{s: y, rng: rand.New(rand.NewPCG(seed, 2))}
			served := make(chan error, 1)
			go func() {
				got, err := io.ReadAll(server)
				if err == nil && !bytes.Equal(got, request) {
					err = fmt.Errorf("request of %d bytes differs", len(got))
				}
				if err == nil {
					_, err = server.Write(answer)
				}
				served <- errors.Join(err, y.Close()) // delivers first
			}()
			_, err = client.Write(request)
			a.must(errors.Join(err, x.CloseWrite()))
			got, err := io.ReadAll(client)
			if err != nil || !bytes.Equal(got, answer) {
				t.Errorf("answer of %d bytes of %d: %v", len(got), len(answer), err)
			}
			if err := errors.Join(<-served, x.Close()); err != nil {
				t.Error(err)
			}
			t.Logf("%d and %d deadlines missed, %+v", client.n, server.n, n.Stats())
		})
	}
}

// TestStreamMTU: the link MTU goes below the path MTU and comes back, again and again, under load.
func TestStreamMTU(t *testing.T) {
	a, b, lab := vethLab(t, nil)
	x, y, err := streams(a, b, streamListener(t, b, nil), nil)
	a.must(err)
	defer y.Close()
	defer x.Close()
	want := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(want)
	stop := make(chan struct{})
	wrote := make(chan error, 1)
	go func() {
		for {
			if _, err := x.Write(want); err != nil {
				wrote <- err
				return
			}
			select {
			case <-stop:
				wrote <- x.CloseWrite()
				return
			default:
			}
		}
	}()
	rounds := make(chan int, 1)
	go func() {
		got := make([]byte, len(want))
		for i := 0; ; i++ {
			if _, err := io.ReadFull(y, got); err != nil {
				if err != io.EOF {
					t.Error(err)
				}
				rounds <- i
				return
			}
			if !bytes.Equal(got, want) {
				t.Error("bytes differ")
			}
		}
	}()
	mtu := func(n *rxnettest.Namespace, mtu int) {
		rxnettest.OnLink(t, n, func(i netlink.Link) error { return netlink.LinkSetMTU(i, mtu) })
	}
	was := a.ctx.Port().LinkMTU
	for _, n := range []*rxnettest.Namespace{lab.A, lab.B, lab.A, lab.B} {
		mtu(n, 600)
		time.Sleep(10 * time.Millisecond) // a peer that retries has half a second
		mtu(n, was)
		time.Sleep(50 * time.Millisecond)
	}
	close(stop)
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	t.Logf("%d MiB, link MTU %d", <-rounds, was)
}
