package bench

import (
	"fmt"
	"slices"
	"strings"

	"github.com/roxie-rdma/roxie/internal/perf"
)

// This file says what is measured.

// Check says what makes no sense in the options.
func (o *Options) Check() error {
	if p := o.Progress; p != "" && p != perf.Caller && p != perf.Poller {
		return fmt.Errorf("--progress %s: caller or poller", p)
	}
	for _, s := range o.Only {
		if s != "raw" && !slices.ContainsFunc(names, func(n string) bool { return matches(s, n) }) {
			return fmt.Errorf("--only %s: there are raw, write, read, send, bw, lat, %s", s,
				strings.Join(names, ", "))
		}
	}
	return nil
}

// names are the tests that bench knows, in the order of the tables.
var names = []string{"write_bw", "read_bw", "send_bw", "write_lat", "send_lat", "read_lat"}

// matches says whether a word of --only means a test: its name, its operation or its kind.
func matches(word, test string) bool {
	op, kind, _ := strings.Cut(test, "_")
	return word == test || word == op || word == kind
}

// plan lists the cells.
func (o *Options) plan() ([]Cell, error) {
	var cells []Cell
	for _, name := range names {
		if !o.wants(name) {
			continue
		}
		t, err := perf.Lookup(name)
		if err != nil {
			return nil, err
		}
		for _, size := range o.sizes(t) {
			for _, pmtu := range []int{1024, 4096} {
				if size < 1024 && pmtu == 1024 || t.Latency && pmtu == 1024 {
					continue // the same packets as at 4096, or nearly
				}
				c := Cell{Test: name, Size: size, PMTU: pmtu, lat: t.Latency}
				c.small = !c.lat && size < 1024
				c.Frame = frameOf(t.Op, size, pmtu)
				cells = append(cells, c)
				if c.lat && o.Full && size == 64 && o.Progress == "" {
					c.poller = true
					cells = append(cells, c)
				}
			}
		}
	}
	if len(cells) == 0 {
		cells = []Cell{{Frame: 4154}, {Frame: 1082}, {Frame: 122}, {Frame: 82},
			{Frame: 4154, lat: true}, {Frame: 1082, lat: true}, {Frame: 122, lat: true},
			{Frame: 82, lat: true}}
		for i := range cells {
			cells[i].Test = "raw"
		}
	}
	return cells, nil
}

// sizes are the message sizes to measure a test with: WRITE has the most.
func (o *Options) sizes(t perf.Test) []int {
	switch {
	case t.Latency && o.Quick:
		return []int{64}
	case t.Latency:
		return []int{64, 4096}
	case t.Op == perf.Write && o.Quick:
		return []int{8, 65536}
	case t.Op == perf.Write && o.Full:
		return fullSizes
	case t.Op == perf.Write:
		return []int{8, 4096, 65536, 1 << 20}
	}
	return []int{65536}
}

// fullSizes are the message sizes of the plots.
var fullSizes = []int{8, 64, 512, 4096, 65536, 1 << 20}

// wants says whether a test was asked for. The word raw alone asks for none of them; beside
// others it says nothing, for raw always comes along.
func (o *Options) wants(name string) bool {
	return len(o.Only) == 0 ||
		slices.ContainsFunc(o.Only, func(word string) bool { return matches(word, name) })
}

// frameOf is the length of the frame that carries most of a message's bytes over IPv4: Ethernet 14,
// IP 20, UDP 8, BTH 12, ICRC 4, and in a WRITE of one packet RETH 16.
func frameOf(op perf.Op, size, pmtu int) int {
	const header = 14 + 20 + 8 + 12 + 4
	switch {
	case size >= pmtu:
		return header + pmtu
	case op == perf.Write:
		return header + 16 + (size+3)&^3
	case op == perf.Read:
		return header + 4 + (size+3)&^3
	}
	return header + (size+3)&^3
}
