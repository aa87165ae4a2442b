package srp

import (
	"fmt"

	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/verbs"
)

// pageSize is what a list for one region is cut by: it may begin and end anywhere in a page, and
// fills all pages between, as a device that has a table of pages needs it.
const pageSize = 4096

// maxSegs is the most pieces of one region: MaxIO, not aligned.
const maxSegs = MaxIO/pageSize + 1

// MaxIO is the most data of one command, in bytes.
const MaxIO = 1 << 20

// access is what a target may do with memory lent to it.
const access = verbs.LocalWrite | verbs.RemoteRead | verbs.RemoteWrite

// pool are a channel's regions that no command uses, the last one given back on top. The channel's
// lock is held.
type pool struct {
	all  []*verbs.MR
	free []*verbs.MR
}

func newPool(pd *verbs.PD, n int) (p pool, err error) {
	for range n {
		m, err := pd.AllocFastMR(maxSegs)
		if err != nil {
			return p, err
		}
		p.all = append(p.all, m)
	}
	p.free = append(p.free, p.all...)
	return p, nil
}

// close ends all regions. No memory is lent any more when it returns.
func (p *pool) close() (err error) {
	for _, m := range p.all {
		if e := m.Dereg(); err == nil {
			err = e
		}
	}
	p.all, p.free = nil, nil
	return err
}

// take maps data to regions, with fresh keys.
func (p *pool) take(dst []*verbs.MR, data [][]byte) ([]*verbs.MR, error) {
	for len(data) > 0 {
		n := run(data)
		if len(p.free) == 0 || len(dst) == MaxDescs {
			return dst, fmt.Errorf("memory in more than %d stretches of pages", len(dst))
		}
		m := p.free[len(p.free)-1]
		p.free = p.free[:len(p.free)-1]
		dst = append(dst, m)
		m.UpdateKey(verbs.IncRKey(m.RKey()).Variant())
		if err := m.MapSG(data[:n], mr.AddrOf(data[0])); err != nil {
			return dst, err
		}
		data = data[n:]
	}
	return dst, nil
}

func (p *pool) give(list []*verbs.MR) { p.free = append(p.free, list...) }

// run is how many pieces of a list one region can hold.
func run(data [][]byte) int {
	n := 1
	for ; n < len(data) && n < maxSegs; n++ {
		end := mr.AddrOf(data[n-1]) + uint64(len(data[n-1]))
		if end%pageSize != 0 || mr.AddrOf(data[n])%pageSize != 0 {
			break
		}
	}
	return n
}
