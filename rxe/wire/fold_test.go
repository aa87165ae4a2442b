package wire

import (
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// TestFold: advance, with vectors if the processor has them and without, says what the rule says of any
// run, bit by bit for short ones, by hash/crc32 for all.
func TestFold(t *testing.T) {
	has := hasFold
	defer func() { hasFold = has }()
	t.Logf("vectors: %v", has)
	testFold(t)
	hasFold = false
	testFold(t)
}

func testFold(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	buf := make([]byte, 64+9000)
	for i := range buf {
		buf[i] = byte(rng.Uint32())
	}
	check := func(s uint32, b []byte) {
		t.Helper()
		if got, want := advance(s, b), ^crc32.Update(^s, crc32.IEEETable, b); got != want {
			t.Fatalf("%d bytes from %#x: %#x, want %#x", len(b), s, got, want)
		}
	}
	for n := range 1100 { // every length around those where something else begins, at every place
		check(rng.Uint32(), buf[n%64:n%64+n])
	}
	if got := ^advance(^uint32(0), buf[:1024]); got != refCRC(buf[:1024]) {
		t.Fatalf("1024 bytes: %#x, want %#x", got, refCRC(buf[:1024]))
	}
	for range 2000 {
		off := rng.IntN(64)
		check(rng.Uint32(), buf[off:off+rng.IntN(9000)])
	}
}
