//go:build !amd64

package wire

// hasFold is for the tests, which look at both ways where there are two.
var hasFold = false

// fold runs the register over none of b: hash/crc32 does as well.
func fold(s uint32, b []byte) (uint32, []byte) { return s, b }
