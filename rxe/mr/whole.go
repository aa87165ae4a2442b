package mr

// CheckWhole is Check for all that a key grants, whatever its range: FLUSH of a whole region.
func (t *Table) CheckWhole(key Key, pd PD, qpn uint32, need Access) (*View, Fault) {
	v := t.load(key.Index())
	return t.Check(key, pd, qpn, need, v.iova, max(v.length, 1))
}
