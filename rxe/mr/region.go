package mr

// open publishes the first view of a fresh index.
func (t *Table) open(s *slot, key Key) {
	v := new(View)
	if s.kind == KindWindow1 {
		v.set(s.kind, &Region{Key: key, PD: s.pd})
	} else {
		v.setFree(s.kind, key, s.pd)
	}
	t.entry(key.Index()).Store(v)
}
