package srp

import (
	"strings"
	"testing"

	"github.com/roxie-rdma/roxie/rxe/mr"
)

// TestScatter: lists have the length asked for, do not overlap, and are cut where regions must be.
func TestScatter(t *testing.T) {
	b := newBuffer()
	r := rng(1)
	indirect := 0
	for range 300 {
		n := minBlock * (1 + r.below(MaxIO/minBlock))
		if r.below(2) == 0 {
			n = minBlock * (1 + r.below(16))
		}
		list := b.scatter(n, minBlock, &r)
		total, regions := 0, 0
		seen := map[uint64]bool{}
		for _, p := range list {
			total += len(p)
			page := mr.AddrOf(p) / pageSize
			if len(p) == 0 || seen[page] || mr.AddrOf(p)%pageSize+uint64(len(p)) > pageSize {
				t.Fatalf("a piece of %d bytes at %#x", len(p), mr.AddrOf(p))
			}
			seen[page] = true
		}
		for rest := list; len(rest) > 0; regions++ {
			rest = rest[run(rest):]
		}
		if total != n || regions > maxRuns {
			t.Fatalf("%d bytes in %d regions, want %d", total, regions, n)
		}
		if regions > 1 {
			indirect++
		}
		image := make([]byte, n)
		for i := range image {
			image[i] = byte(r.next())
		}
		b.fill(image)
		b.gather(b.got[:n])
		if string(image) != string(b.got[:n]) {
			t.Fatal("what was filled in is not gathered")
		}
	}
	if indirect < 20 {
		t.Errorf("only %d lists of several regions", indirect)
	}
}

// TestArea: claims do not overlap, and each kind of wrong block is told.
func TestArea(t *testing.T) {
	a := newArea(100, 64, 512, 7)
	r := rng(3)
	got, want := make([]byte, 64*512), make([]byte, 64*512)
	all := span{0, 64}
	if _, yes := a.foreign(got, all); yes {
		t.Error("an empty disk is foreign")
	}
	a.render(got, all, 1)
	a.wrote(all)
	if err := a.compare(got, want, all); err != nil {
		t.Fatal(err)
	}
	if _, yes := a.foreign(got, all); yes {
		t.Error("our own blocks are foreign")
	}
	for _, tt := range []struct {
		change func(b []byte)
		says   string
	}{
		{func(b []byte) { b[511] ^= 1 }, "block 103 differs: byte 511 is"},
		{func(b []byte) { a.renderBlock(b, 104, 1) }, "it is block 104"},
		{func(b []byte) { a.renderBlock(b, 103, 5) }, "it is of generation 5, wanted generation 1"},
		{func(b []byte) { clear(b) }, "it begins with 0000"},
		{func(b []byte) { newArea(0, 1, 512, 8).renderBlock(b, 103, 1) }, "it is of another run"},
	} {
		bad := append([]byte{}, got...)
		tt.change(bad[3*512:][:512])
		if err := a.compare(bad, want, all); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%v, want %q", err, tt.says)
		}
	}
	got[5*512+100], got[5*512] = 1, 0
	if lba, yes := a.foreign(got, all); !yes || lba != 105 {
		t.Errorf("foreign block %d %v", lba, yes)
	}
	var claims []span
	for {
		s, ok, _ := a.claim(&r, 8)
		if !ok {
			break
		}
		for _, c := range claims {
			if s.at < c.at+c.n && c.at < s.at+s.n {
				t.Fatalf("%v and %v overlap", s, c)
			}
		}
		claims = append(claims, s)
	}
	_, _, freed := a.claim(&r, 64)
	a.release(claims[0])
	<-freed
}
