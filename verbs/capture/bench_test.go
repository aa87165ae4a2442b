package capture_test

import (
	"io"
	"net/netip"
	"testing"

	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/capture"
)

// BenchmarkEndpoint is a WRITE of 64 bytes and its ACK on a wire in memory, with nobody capturing,
// with a filter that chooses nothing, and with all packets recorded at both ends.
func BenchmarkEndpoint(b *testing.B) {
	for _, x := range []struct {
		name string
		cfg  *capture.Config
	}{{"off", nil}, {"filtered", &capture.Config{Filter: "qp 0x1"}}, {"all", &capture.Config{}}} {
		b.Run(x.name, func(b *testing.B) {
			la, lb := verbs.NewLinkPair(1)
			macs := [2]wire.MAC{{2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}}
			addrs := [2]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}
			var ends [2]end
			var info [2]verbs.ConnInfo
			var devs []*verbs.Context
			for i, l := range [][]verbs.Link{la, lb} {
				d := must(verbs.OpenLinks(l, verbs.PortInfo{Name: "mem", MAC: macs[i],
					Addrs:      []netip.Prefix{netip.PrefixFrom(addrs[i], 24)},
					Neighbours: map[netip.Addr]wire.MAC{addrs[1-i]: macs[1-i]}},
					&verbs.Config{Progress: verbs.ProgressCaller}))
				defer d.Close()
				ends[i], info[i] = newEnd(d)
				devs = append(devs, d)
			}
			for i := range ends {
				must(0, ends[i].qp.ConnectRC(info[i].PSN, info[1-i], verbs.ConnOptions{}))
			}
			if x.cfg != nil {
				c := must(capture.Start(io.Discard, *x.cfg, devs...))
				defer func() { b.ReportMetric(float64(must(c.Stop()).Lost)/float64(b.N), "lost/op") }()
			}
			target := must(ends[1].pd.AllocMR(64, verbs.LocalWrite|verbs.RemoteWrite))
			wr := verbs.SendWR{Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled,
				SGList: []verbs.SGE{ends[0].mr.SGE(0, 64)}, RemoteAddr: target.Addr(), RKey: target.RKey()}
			var wc [1]verbs.WC
			for b.Loop() {
				must(0, ends[0].qp.PostSend(&wr))
				for must(ends[0].cq.Poll(wc[:])) == 0 {
					must(ends[1].cq.Poll(wc[:]))
				}
				if wc[0].Status != verbs.WCSuccess {
					b.Fatal(wc[0].Status)
				}
			}
		})
	}
}
