package mr

import "testing"

// TestLastByteAtTheEnd: the last byte of memory whose length does not divide by 8, of a small block and of one
// that has its pages for itself: the word around it reaches into the rest of the block. With -race, Go's own
// checks of pointers look on.
func TestLastByteAtTheEnd(t *testing.T) {
	for _, n := range []int{1, 9, 100, 4097, 65538} {
		b := make([]byte, n)
		if !NewList(b).CopyInLast(uint64(n-1), []byte{0x5a}) || LoadFlag(&b[n-1]) != 0x5a {
			t.Errorf("%d bytes: the last is %#x", n, b[n-1])
		}
	}
}
