package main

// The whole cross product has more than 20,000 cells and takes most of a day. What depends on what is
// known, however: how messages are cut into packets, what each test does with them and which end
// begins is a matter of tool, role, transport, option, message size and path MTU. IP family, link
// MTU, XDP mode and number of QPs change what is around that. So full is the cross product of the
// first six; the other four take turns, such that with any two more values of any dimensions each of
// their values is in some cell: every three values that make sense together.

// inner says which dimensions full takes the cross product of.
var inner = map[string]bool{"tool": true, "role": true, "transport": true, "option": true,
	"size": true, "pmtu": true}

// triple is three values of three dimensions, in their order.
type triple [3]struct{ d, i uint8 }

// tripleSet is a set of triples.
type tripleSet struct {
	in [len(point{}) * maxValues][len(point{}) * maxValues][len(point{}) * maxValues]bool
	n  int
}

func (s *tripleSet) at(t triple) *bool {
	at := func(k int) int { return int(t[k].d)*maxValues + int(t[k].i) }
	return &s.in[at(0)][at(1)][at(2)]
}

// triples yields all of a point.
func (p *point) triples(yield func(triple) bool) {
	var t triple
	for a := range p {
		t[0].d, t[0].i = uint8(a), p[a]
		for b := a + 1; b < len(p); b++ {
			t[1].d, t[1].i = uint8(b), p[b]
			for c := b + 1; c < len(p); c++ {
				t[2].d, t[2].i = uint8(c), p[c]
				if !yield(t) {
					return
				}
			}
		}
	}
}

// gain is how many triples of a point are in the set.
func (s *tripleSet) gain(p *point) (n int) {
	for t := range p.triples {
		if *s.at(t) {
			n++
		}
	}
	return n
}

// best is the first of some points that has the most triples in the set, and takes those out.
func (s *tripleSet) best(points []point) (best point) {
	most := -1
	for i := range points {
		if n := s.gain(&points[i]); n > most {
			best, most = points[i], n
		}
	}
	for t := range best.triples {
		if at := s.at(t); *at {
			*at = false
			s.n--
		}
	}
	return best
}

// full returns the cells of the product described above. It is the same each time.
func full() []Cell {
	points := all()
	open := new(tripleSet)
	groups := make(map[point][]point)
	var order []point
	for _, p := range points {
		for t := range p.triples {
			if at := open.at(t); !*at {
				*at = true
				open.n++
			}
		}
		key := p
		for d := range dimensions {
			if !inner[dimensions[d].name] {
				key[d] = 0
			}
		}
		if groups[key] == nil {
			order = append(order, key)
		}
		groups[key] = append(groups[key], p)
	}
	var chosen []Cell
	for _, key := range order {
		chosen = append(chosen, open.best(groups[key]).cell())
	}
	for open.n > 0 {
		chosen = append(chosen, open.best(points).cell())
	}
	sortCells(chosen)
	return chosen
}
