package srp

import "github.com/roxie-rdma/roxie/rxe/mr"

// maxRuns is how many stretches of pages a load's lists have at most: each needs a region.
const maxRuns = 4

// buffer is a worker's memory: pages to lend, and two images to compare.
type buffer struct {
	pages     []byte // from a page's beginning
	got, want []byte
	list      [][]byte
}

func newBuffer() *buffer {
	const n = MaxIO + 2*maxRuns*pageSize
	b := &buffer{pages: make([]byte, n+pageSize), got: make([]byte, MaxIO), want: make([]byte, MaxIO)}
	at := int(-mr.AddrOf(b.pages) & (pageSize - 1))
	b.pages = b.pages[at : at+n]
	return b
}

// scatter makes a list of n bytes, whole blocks, of one to maxRuns stretches of pages. A stretch
// begins anywhere in a page, goes on in whole pages that lie in another order, and ends where it
// ends. It has whole blocks: ib_srpt gives a block device pieces as long as the descriptors are,
// and these go wrong there within a block.
func (b *buffer) scatter(n, block int, r *rng) [][]byte {
	runs := 1
	if r.below(4) == 0 {
		runs = min(1+r.below(maxRuns), n/block)
	}
	b.list = b.list[:0]
	pages := b.pages
	for ; runs > 0; runs-- {
		size := n
		if runs > 1 {
			size = block * (1 + r.below(n/block-runs+1))
		}
		n -= size
		at := r.below(pageSize)
		count := (at + size + pageSize - 1) / pageSize
		b.stretch(pages[:count*pageSize], at, size, r)
		pages = pages[count*pageSize:]
	}
	return b.list
}

func (b *buffer) stretch(mem []byte, at, size int, r *rng) {
	count := len(mem) / pageSize
	turn := r.below(count)
	for i := range count {
		p := (2*count - 1 - i - turn) % count
		piece := mem[p*pageSize+at : (p+1)*pageSize]
		if len(piece) > size {
			piece = piece[:size]
		}
		b.list = append(b.list, piece)
		size -= len(piece)
		at = 0
	}
}

// fill copies an image to the list.
func (b *buffer) fill(image []byte) {
	for _, p := range b.list {
		image = image[copy(p, image):]
	}
}

// gather copies the list to an image.
func (b *buffer) gather(image []byte) {
	for _, p := range b.list {
		image = image[copy(image, p):]
	}
}
