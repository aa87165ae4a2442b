package wire

import "encoding/binary"

// A Frame is one Ethernet frame, without FCS, in two pieces of memory. Tail is empty for small
// frames. A piece may be empty, and the cut may be at any byte.
type Frame struct{ Head, Tail []byte }

// Len returns the number of bytes in both pieces.
func (f Frame) Len() int { return len(f.Head) + len(f.Tail) }

// at returns the byte at offset i.
func (f Frame) at(i int) *byte {
	if i < len(f.Head) {
		return &f.Head[i]
	}
	return &f.Tail[i-len(f.Head)]
}

// cut returns the bytes from offset from up to offset to, in two pieces. The first is only empty
// when the second is, too.
func (f Frame) cut(from, to int) (a, b []byte) {
	n := len(f.Head)
	switch {
	case to <= n:
		return f.Head[from:to], nil
	case from >= n:
		return f.Tail[from-n : to-n], nil
	}
	return f.Head[from:], f.Tail[:to-n]
}

// icrcAt returns the 4 bytes at offset i, read as the ICRC is.
func (f Frame) icrcAt(i int) uint32 {
	if i+icrcLen <= len(f.Head) {
		return binary.LittleEndian.Uint32(f.Head[i:])
	}
	if i >= len(f.Head) {
		return binary.LittleEndian.Uint32(f.Tail[i-len(f.Head):])
	}
	var v uint32
	for j := range icrcLen {
		v |= uint32(*f.at(i + j)) << (8 * j)
	}
	return v
}
