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

// TestDistinct: a run that is resumed knows cells by what they are.
func TestDistinct(t *testing.T) {
	seen := make(map[Cell]bool)
	for _, f := range []flags{{}, {full: true}} {
		clear(seen)
		cells, err := f.cells()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range cells {
			if seen[c.Cell] {
				t.Errorf("twice: %v", c.Cell)
			}
			seen[c.Cell] = true
		}
	}
}

// TestFull: each combination of the six inner dimensions is in one cell or more, every three values
// are in some cell, and no cell is there twice.
func TestFull(t *testing.T) {
	type six struct {
		tool, role, transport, option string
		size, pmtu                    int
	}
	of := func(c *Cell) six { return six{c.Tool, c.Role, c.Transport, c.Option, c.Size, c.PMTU} }
	cells := full()
	seen, done := make(map[Cell]bool), make(map[six]bool)
	for i := range cells {
		if seen[cells[i]] {
			t.Errorf("twice: %v", cells[i])
		}
		seen[cells[i]], done[of(&cells[i])] = true, true
	}
	missing, have := new(tripleSet), new(tripleSet)
	points := all()
	for i := range points {
		c := points[i].cell()
		if !done[of(&c)] {
			t.Errorf("not there: %v", c)
		}
		for tr := range points[i].triples {
			*missing.at(tr) = true
			if seen[c] {
				*have.at(tr) = true
			}
		}
	}
	if *missing != *have {
		t.Error("some three values are in no cell")
	}
	t.Logf("%d cells of %d, %d of them for three values only", len(cells), len(points),
		len(cells)-len(done))
}
