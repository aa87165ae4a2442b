package netdev

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roxie-rdma/roxie/rxe/wire"
)

// prefixes parses addresses with or without a prefix length.
func prefixes(texts ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range texts {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			a := netip.MustParseAddr(s)
			p = netip.PrefixFrom(a, a.BitLen())
		}
		ps = append(ps, p)
	}
	return ps
}

func gid(s string) wire.GID {
	if s == "" {
		return wire.GID{}
	}
	return GIDOf(netip.MustParseAddr(s))
}

func TestGIDOfAddr(t *testing.T) {
	for _, s := range []string{"10.1.2.3", "fe80::1", "fd77::2", "ff02::1", "224.0.0.9"} {
		a := netip.MustParseAddr(s)
		if back := AddrOf(GIDOf(a)); back != a {
			t.Errorf("AddrOf(GIDOf(%v)) = %v", a, back)
		}
	}
	if got, want := gid("10.1.2.3"), wire.GIDFromIPv4([4]byte{10, 1, 2, 3}); got != want {
		t.Errorf("GIDOf(10.1.2.3) = %v, want %v", got, want)
	}
}

func TestOrderAddrs(t *testing.T) {
	got := orderAddrs(prefixes("fd77::1/64", "10.0.0.2/24", "fe80::9/64", "10.0.0.1/24",
		"2001:db8::1/64", "10.0.0.2/16", "fe80::3/64", "169.254.1.1/16"))
	want := prefixes("fe80::9/64", "fe80::3/64", "10.0.0.2/24", "10.0.0.1/24", "169.254.1.1/16",
		"fd77::1/64", "2001:db8::1/64")
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestUpdateGIDs(t *testing.T) {
	for _, tt := range []struct {
		name  string
		table []string // "" is an empty entry
		addrs []string
		want  []string
	}{
		{"new", nil, []string{"fe80::1", "10.0.0.1"}, []string{"fe80::1", "10.0.0.1"}},
		{"none", []string{"fe80::1"}, nil, []string{""}},
		{"same in another order", []string{"fe80::1", "10.0.0.1"}, []string{"10.0.0.1", "fe80::1"},
			[]string{"fe80::1", "10.0.0.1"}},
		{"one goes, others stay", []string{"fe80::1", "10.0.0.1", "fd00::1"},
			[]string{"fe80::1", "fd00::1"}, []string{"fe80::1", "", "fd00::1"}},
		{"one replaces another", []string{"fe80::1", "10.0.0.1", "fd00::1"},
			[]string{"fe80::1", "10.0.0.2", "fd00::1"}, []string{"fe80::1", "10.0.0.2", "fd00::1"}},
		{"holes are filled first", []string{"", "10.0.0.1", ""},
			[]string{"fe80::1", "10.0.0.1", "fd00::1", "fd00::2"},
			[]string{"fe80::1", "10.0.0.1", "fd00::1", "fd00::2"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var table, want []wire.GID
			for _, s := range tt.table {
				table = append(table, gid(s))
			}
			for _, s := range tt.want {
				want = append(want, gid(s))
			}
			before := slices.Clone(table)
			got := UpdateGIDs(table, prefixes(tt.addrs...))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("table differs (-want +got):\n%s", diff)
			}
			if !slices.Equal(table, before) {
				t.Error("the old table was changed")
			}
		})
	}
}
