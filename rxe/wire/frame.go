package wire

import "encoding/binary"

// A Frame is one Ethernet frame, without FCS, in two pieces of memory. Tail is empty for small
// frames. A piece may be empty, and the cut may be at any byte.
type Frame struct{ Head, Tail []byte }

// Len returns the number of bytes in both pieces.
func (f *Frame) Len() int { return len(f.Head) + len(f.Tail) }

// cut returns the bytes from offset from up to offset to, in two pieces. The second is only
// used when the first does not suffice.
func (f *Frame) cut(from, to int) (a, b []byte) {
	n := len(f.Head)
	switch {
	case to <= n:
		return f.Head[from:to], nil
	case from >= n:
		return f.Tail[from-n : to-n], nil
	}
	return f.Head[from:], f.Tail[:to-n]
}

// icrc returns the ICRC at offset i.
func (f *Frame) icrc(i int) uint32 {
	if i+icrcLen <= len(f.Head) {
		return binary.LittleEndian.Uint32(f.Head[i:])
	}
	return f.icrcBehind(i)
}

// icrcBehind is icrc for an ICRC that does not lie in the head alone.
func (f *Frame) icrcBehind(i int) uint32 {
	if i >= len(f.Head) {
		return binary.LittleEndian.Uint32(f.Tail[i-len(f.Head):])
	}
	var v [icrcLen]byte
	n := copy(v[:], f.Head[i:])
	copy(v[n:], f.Tail)
	return binary.LittleEndian.Uint32(v[:])
}

// setICRCBehind stores an ICRC that does not lie in the head alone.
func (f *Frame) setICRCBehind(i int, crc uint32) {
	if i >= len(f.Head) {
		binary.LittleEndian.PutUint32(f.Tail[i-len(f.Head):], crc)
		return
	}
	var v [icrcLen]byte
	binary.LittleEndian.PutUint32(v[:], crc)
	n := copy(f.Head[i:], v[:])
	copy(f.Tail, v[n:])
}
