//go:build debug

package mr

// poisonView makes a recycled view match nothing.
func poisonView(v *View) {
	v.id, v.qpn, v.flags, v.parent = 0xdeaddeaddeaddead, 0xdeaddead, 0, 0xdeaddead
	v.iova, v.length, v.base, v.list = 0xdeaddeaddeaddead, 0, 0xdeaddeaddeaddead, nil
}

// poisonList makes a recycled list hold nothing.
func poisonList(l *List) { l.Reset(nil) }
