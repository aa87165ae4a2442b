package main

import (
	"slices"
	"testing"
)

// maxCover is how many cells the pairwise cover may have.
const maxCover = 80

func TestCover(t *testing.T) {
	cells := cover()
	if len(cells) > maxCover {
		t.Errorf("%d cells, want at most %d", len(cells), maxCover)
	}
	if again := cover(); !slices.Equal(again, cells) {
		t.Error("two covers differ")
	}
	var have, missing pairSet
	points := all()
	for i := range points {
		if c := points[i].cell(); slices.Contains(cells, c) {
			for p := range points[i].pairs {
				have.add(p)
			}
		}
	}
	for i := range points {
		for p := range points[i].pairs {
			if !*have.at(p) && !*missing.at(p) {
				missing.add(p)
				t.Errorf("no cell has %s and %s of %v", dimensions[p.d1].name, dimensions[p.d2].name,
					points[i].cell())
			}
		}
	}
	t.Logf("%d cells of %d", len(cells), len(points))
	for _, c := range cells {
		if !c.valid() {
			t.Errorf("%v makes no sense", c)
		}
		t.Logf("%v iters=%d packets=%d", c, c.iters(), c.packets(c.iters()))
	}
}

// TestValues sees to it that no value is left out for want of a valid cell.
func TestValues(t *testing.T) {
	var seen [len(point{})][256]bool
	for _, p := range all() {
		for d, i := range p {
			seen[d][i] = true
		}
	}
	for d := range dimensions {
		for i := range dimensions[d].values {
			if !seen[d][i] {
				t.Errorf("%s: value %d is in no cell", dimensions[d].name, i)
			}
		}
	}
}
