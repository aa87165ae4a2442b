package srpload

import (
	"math"
	"testing"

	"github.com/roxie-rdma/roxie/rxe/mr"
)

// TestScatter: a list has the bytes it is to have, all different, inside the memory, in no more
// pieces than a descriptor takes.
func TestScatter(t *testing.T) {
	mem := make([]byte, slotBytes)
	base := mr.AddrOf(mem)
	r := rng(1)
	aligned, uneven := 0, 0
	sizes := []int{MinSize, MinSize + 1, page, page + 1, MaxSize - 1, MaxSize}
	for i := range 400 {
		n := r.size()
		if i < len(sizes) {
			n = sizes[i]
		}
		list := scatter(nil, mem, n, &r)
		total := 0
		for j, p := range list {
			at := mr.AddrOf(p) - base
			if at >= slotBytes || at+uint64(len(p)) > slotBytes || len(p) == 0 {
				t.Fatalf("piece of %d bytes at %d", len(p), at)
			}
			for k := range p {
				if p[k]++; p[k] != 1 {
					t.Fatalf("%d bytes: a byte is in the list twice", n)
				}
			}
			if j > 0 && j < len(list)-1 && len(p) != page {
				uneven++
			}
			total += len(p)
		}
		if mr.AddrOf(list[0])%page == 0 {
			aligned++
		}
		if total != n || len(list) > maxSegs {
			t.Fatalf("%d bytes in %d pieces, want %d", total, len(list), n)
		}
		clear(mem)
	}
	if aligned > 40 || uneven == 0 {
		t.Errorf("%d aligned lists of 400, %d pieces that are no page", aligned, uneven)
	}
}

// TestWindow: a window of a list is the bytes from its offset on.
func TestWindow(t *testing.T) {
	mem := newPattern(3)[:8*page]
	list := pages(mem)
	var flat []byte
	for _, p := range list {
		flat = append(flat, p...)
	}
	r := rng(2)
	for range 200 {
		n := 1 + r.below(3*page)
		off := r.below(len(flat) - n + 1)
		w := window(nil, list, off, n)
		if differ(w, flat[off:off+n]) != 0 {
			t.Fatalf("window of %d at %d differs", n, off)
		}
		w[len(w)-1][0] ^= 1
		if differ(w, flat[off:off+n]) != 1 {
			t.Fatal("one changed byte is not seen as one")
		}
		w[len(w)-1][0] ^= 1
	}
}

// TestSizes: as many I/Os in each octave.
func TestSizes(t *testing.T) {
	octaves := map[int]int{}
	r := rng(4)
	const n = 11000
	for range n {
		s := r.size()
		if s < MinSize || s >= MaxSize {
			t.Fatalf("size %d", s)
		}
		octaves[int(math.Log2(float64(s)/MinSize))]++
	}
	for o := range 11 {
		if got := octaves[o]; got < n/11*8/10 || got > n/11*12/10 {
			t.Errorf("octave %d has %d of %d", o, got, n)
		}
	}
}

// TestCommand: what is encoded is decoded.
func TestCommand(t *testing.T) {
	want := command{true, true, 0x1234, 0x56789abc, 0xdef01234, 0x123456, 0x0123456789abcdef, 42}
	var b [commandBytes]byte
	want.encode(b[:])
	var got command
	if got.decode(b[:]); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestConfig: what makes no sense is refused, with the flag's name.
func TestConfig(t *testing.T) {
	for _, c := range []Config{{Channels: -1}, {Depth: 1 << 20}, {Size: 100}, {Size: MaxSize + 1},
		{Workload: "nvme"}, {Inv: "never"}, {Progress: "both"}, {PMTU: 1500}, {Duration: -1}, {Port: 1 << 16}} {
		if err := c.Check(); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
	if err := (Config{}).Check(); err != nil {
		t.Error(err)
	}
}
