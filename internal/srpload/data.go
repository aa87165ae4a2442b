package srpload

import (
	"bytes"
	"encoding/binary"
	"math"
)

// This file says which bytes travel: both ends work it out from an I/O's seed.

// rng is SplitMix64.
type rng uint64

func (r *rng) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	z := uint64(*r)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// below returns a number in 0..n-1.
func (r *rng) below(n int) int { return int(r.next() % uint64(n)) }

// size is log-uniform between MinSize and MaxSize.
func (r *rng) size() int {
	u := float64(r.next()>>11) / (1 << 53)
	return int(MinSize * math.Pow(MaxSize/MinSize, u))
}

// newPattern is the same on both ends.
func newPattern(seed uint64) []byte {
	b := make([]byte, patternLen)
	r := rng(seed)
	for at := 0; at < len(b); at += 8 {
		binary.LittleEndian.PutUint64(b[at:], r.next())
	}
	return b
}

// pages cuts memory into pages, in reverse order, so that no two neighbours of the list are
// neighbours in memory.
func pages(mem []byte) [][]byte {
	var out [][]byte
	for end := len(mem); end > 0; end -= page {
		out = append(out, mem[end-page:end:end])
	}
	return out
}

// window appends n bytes from offset off of a list of pages to dst.
func window(dst, list [][]byte, off, n int) [][]byte {
	for at := off % page; n > 0; off, at = off+page-at, 0 {
		p := list[off/page][at:]
		if len(p) > n {
			p = p[:n]
		}
		dst = append(dst, p)
		n -= len(p)
	}
	return dst
}

// scatter appends an unaligned list of n bytes inside mem (two pages longer than the largest) to dst: pages of which
// the first and the last are cut, or now and then pieces of any length with gaps between them.
func scatter(dst [][]byte, mem []byte, n int, r *rng) [][]byte {
	if r.below(4) == 0 {
		return pieces(dst, mem, n, r)
	}
	at := r.below(page)
	count := (at + n + page - 1) / page
	first := r.below(len(mem)/page - count + 1)
	turn := r.below(count)
	for i := range count {
		p := first + (2*count-1-i-turn)%count
		piece := mem[p*page+at : (p+1)*page]
		if len(piece) > n {
			piece = piece[:n]
		}
		dst = append(dst, piece)
		n -= len(piece)
		at = 0
	}
	return dst
}

// pieces are at most maxSegs: each has at least n/200 bytes.
func pieces(dst [][]byte, mem []byte, n int, r *rng) [][]byte {
	least := n/200 + 1
	for at := r.below(64); n > 0; at += r.below(16) {
		size := min(n, least+r.below(4*page))
		dst = append(dst, mem[at:at+size])
		at += size
		n -= size
	}
	for i := len(dst) - 1; i > 0; i-- {
		j := r.below(i + 1)
		dst[i], dst[j] = dst[j], dst[i]
	}
	return dst
}

// stretch is where in the pattern the n bytes from the target to the initiator begin.
func stretch(n int, r *rng) int { return r.below(patternLen - n + 1) }

// outbound is the part of the pattern that an outbound list of the initiator lies in.
func outbound(pattern []byte, r *rng) []byte {
	at := r.below((len(pattern)-slotBytes)/page+1) * page
	return pattern[at : at+slotBytes]
}

// differ counts the bytes of list that are not those of want.
func differ(list [][]byte, want []byte) (wrong int) {
	for _, p := range list {
		if !bytes.Equal(p, want[:len(p)]) {
			for i := range p {
				if p[i] != want[i] {
					wrong++
				}
			}
		}
		want = want[len(p):]
	}
	return wrong
}

// command is what the initiator sends: 32 bytes.
type command struct {
	write     bool // data goes to the target, which reads it
	remoteInv bool // the answer invalidates the key
	slot      uint16
	size      uint32
	key       uint32
	off       uint32 // with lists mapped once: of the data in them
	addr      uint64
	seed      uint64
}

const (
	commandBytes = 32
	answerBytes  = 8
)

func (c *command) encode(b []byte) {
	b[0], b[1] = 0, 0
	if c.write {
		b[0] = 1
	}
	if c.remoteInv {
		b[1] = 1
	}
	be := binary.BigEndian
	be.PutUint16(b[2:], c.slot)
	be.PutUint32(b[4:], c.size)
	be.PutUint32(b[8:], c.key)
	be.PutUint32(b[12:], c.off)
	be.PutUint64(b[16:], c.addr)
	be.PutUint64(b[24:], c.seed)
}

func (c *command) decode(b []byte) {
	be := binary.BigEndian
	*c = command{write: b[0] == 1, remoteInv: b[1] == 1, slot: be.Uint16(b[2:]),
		size: be.Uint32(b[4:]), key: be.Uint32(b[8:]), off: be.Uint32(b[12:]), addr: be.Uint64(b[16:]), seed: be.Uint64(b[24:])}
}
