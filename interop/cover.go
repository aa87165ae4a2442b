package main

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

// A dimension is one field of a cell and its values.
type dimension struct {
	name   string
	values int
	set    func(c *Cell, i int)
}

func dim[T any](name string, values []T, field func(*Cell) *T) dimension {
	return dimension{name, len(values), func(c *Cell, i int) { *field(c) = values[i] }}
}

var dimensions = []dimension{
	dim("tool", tools, func(c *Cell) *string { return &c.Tool }),
	dim("option", options, func(c *Cell) *string { return &c.Option }),
	dim("transport", transports, func(c *Cell) *string { return &c.Transport }),
	dim("size", sizes, func(c *Cell) *int { return &c.Size }),
	dim("pmtu", pmtus, func(c *Cell) *int { return &c.PMTU }),
	dim("link MTU", linkMTUs, func(c *Cell) *int { return &c.LinkMTU }),
	dim("family", families, func(c *Cell) *string { return &c.Family }),
	dim("qps", qpCounts, func(c *Cell) *int { return &c.QPs }),
	dim("role", roles, func(c *Cell) *string { return &c.Role }),
	dim("xdp", xdpModes, func(c *Cell) *string { return &c.XDP }),
}

// point is a cell as the indices of its values.
type point [10]uint8

func (p point) cell() (c Cell) {
	for d, i := range p {
		dimensions[d].set(&c, int(i))
	}
	return c
}

// pair is two values of two dimensions, the first before the second.
type pair struct{ d1, i1, d2, i2 uint8 }

// pairSet is a set of pairs. Looking into it is what making a cover mostly does.
type pairSet struct {
	in [len(point{}) * maxValues][len(point{}) * maxValues]bool
	n  int
}

// maxValues is how many values a dimension can have.
const maxValues = 16

func (s *pairSet) at(p pair) *bool {
	return &s.in[int(p.d1)*maxValues+int(p.i1)][int(p.d2)*maxValues+int(p.i2)]
}

func (s *pairSet) add(p pair) {
	if at := s.at(p); !*at {
		*at = true
		s.n++
	}
}

func (s *pairSet) remove(p pair) {
	if at := s.at(p); *at {
		*at = false
		s.n--
	}
}

func (p *point) pairs(yield func(pair) bool) {
	for a := range p {
		for b := a + 1; b < len(p); b++ {
			if !yield(pair{uint8(a), p[a], uint8(b), p[b]}) {
				return
			}
		}
	}
}

// all returns every valid cell, in the order of the dimensions.
func all() []point {
	var points []point
	var p point
	var fill func(d int)
	fill = func(d int) {
		if d == len(p) {
			if c := p.cell(); c.valid() {
				points = append(points, p)
			}
			return
		}
		for i := range dimensions[d].values {
			p[d] = uint8(i)
			fill(d + 1)
		}
	}
	fill(0)
	return points
}

// candidates is how many cells compete to be the next of a cover.
const candidates = 400

// cover returns few cells that hold every pair of values that any valid cell holds. It is the same
// each time.
func cover() []Cell {
	points := all()
	open := new(pairSet)
	for i := range points {
		for p := range points[i].pairs {
			open.add(p)
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var chosen []Cell
	for open.n > 0 {
		best, most := point{}, 0
		for range candidates {
			p := points[rng.IntN(len(points))]
			if n := gain(&p, open); n > most {
				best, most = p, n
			}
		}
		if most < enough(open) { // chance finds nothing good any more
			best = search(points, open, rng)
		}
		for p := range best.pairs {
			open.remove(p)
		}
		chosen = append(chosen, best.cell())
	}
	sortCells(chosen)
	return chosen
}

// enough is how many new pairs a cell found by chance has to bring.
func enough(open *pairSet) int { return min(open.n, 12) }

// search looks at all cells for those that bring most, and takes any one of them.
func search(points []point, open *pairSet, rng *rand.Rand) (best point) {
	most, ties := 0, 0
	for i := range points {
		n := gain(&points[i], open)
		switch {
		case n > most:
			best, most, ties = points[i], n, 1
		case n == most:
			if ties++; rng.IntN(ties) == 0 {
				best = points[i]
			}
		}
	}
	return best
}

func gain(p *point, open *pairSet) (n int) {
	for q := range p.pairs {
		if *open.at(q) {
			n++
		}
	}
	return n
}

// sortCells puts cells of one link MTU together, as changing it takes time, and those of one tool.
func sortCells(cells []Cell) {
	slices.SortStableFunc(cells, func(a, b Cell) int {
		return cmp.Or(cmp.Compare(a.LinkMTU, b.LinkMTU),
			cmp.Compare(slices.Index(tools, a.Tool), slices.Index(tools, b.Tool)))
	})
}
