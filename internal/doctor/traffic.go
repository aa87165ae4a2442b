package doctor

import (
	"context"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/roxie-rdma/roxie/internal/netdev"
)

// usual is the path MTU that fits the Internet's link MTU of 1500.
const usual = 1024

// mtu compares the link MTU with the packets that must fit.
func (p *patient) mtu() {
	mtu := p.link.MTU
	four, six := netdev.PMTU(mtu, false), netdev.PMTU(mtu, true)
	fix := "ip link set " + p.link.Name + " mtu 1500 (on both ends; 4200 and more for path MTU 4096)"
	switch {
	case four == 0:
		p.add("mtu", Broken, fix,
			"link MTU %d: the smallest path MTU, %d, needs %d over IPv4 and %d over IPv6",
			mtu, netdev.MinPMTU, netdev.LinkMTU(netdev.MinPMTU, false), netdev.LinkMTU(netdev.MinPMTU, true))
	case six == 0:
		p.add("mtu", Slow, fix, "link MTU %d: path MTU %d over IPv4, none over IPv6, which needs %d",
			mtu, four, netdev.LinkMTU(netdev.MinPMTU, true))
	case four < usual:
		p.add("mtu", Slow, fix, "link MTU %d: path MTU %d, four times the packets and more", mtu, four)
	case six != four:
		p.add("mtu", OK, "", "link MTU %d: path MTU %d over IPv4, %d over IPv6", mtu, four, six)
	default:
		p.add("mtu", OK, "", "link MTU %d: path MTU %d", mtu, four)
	}
}

func (p *patient) addresses() {
	addrs, err := p.conn.Addrs(p.link.Index)
	if err != nil {
		p.add("address", Broken, "", "%v", err)
		return
	}
	fix := "ip addr add 10.77.0.1/24 dev " + p.link.Name + " (an address of your network)"
	var text []string
	routable := false
	for _, a := range addrs {
		text = append(text, a.String())
		routable = routable || !a.Addr().IsLinkLocalUnicast()
	}
	switch {
	case len(addrs) == 0:
		p.add("address", Broken, fix, "none: roxie has no GID, and takes no frame")
	case !routable:
		p.add("address", OK, fix, "link-local only (%s): stock tools want an IPv4 address",
			strings.Join(text, ", "))
	default:
		p.add("address", OK, "", "%s", strings.Join(text, ", "))
	}
	p.flux(addrs)
}

// flux: by default Linux answers ARP for an address on any of its interfaces, so that with two in
// one network a peer may learn the other's MAC address, and its frames come where roxie does not
// listen.
func (p *patient) flux(addrs []netip.Prefix) {
	if n, _ := readNumber("/proc/sys/net/ipv4/conf/all/arp_ignore"); n != 0 {
		return
	}
	if n, _ := readNumber("/proc/sys/net/ipv4/conf/" + p.link.Name + "/arp_ignore"); n != 0 {
		return
	}
	links, err := p.conn.Links()
	if err != nil {
		return
	}
	for _, other := range links {
		if other.Index == p.link.Index || !other.Up {
			continue
		}
		theirs, _ := p.conn.Addrs(other.Index)
		for _, a := range addrs {
			for _, b := range theirs {
				if a.Addr().Is4() && b.Addr().Is4() && a.Overlaps(b) {
					p.add("arp", Slow, "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2",
						"%s (%v) is in the same network: the kernel answers ARP for one on the other, "+
							"and frames may arrive there", other.Name, b)
					return
				}
			}
		}
	}
}

// peerPatience bounds the wait for a peer's MAC address.
const peerPatience = 3 * time.Second

func (p *patient) neighbours() {
	if p.cfg.Peer.IsValid() {
		p.peer()
		return
	}
	all, err := p.conn.Neighbours(p.link.Index)
	if err != nil {
		p.add("neighbours", Broken, "", "%v", err)
		return
	}
	known := 0
	var failed []string
	for _, n := range all {
		switch {
		case n.State.Known():
			known++
		case n.State == netdev.NeighFailed:
			failed = append(failed, n.Addr.String())
		}
	}
	switch {
	case len(failed) > 0:
		p.add("neighbours", OK, "roxie doctor "+p.link.Name+" --peer "+failed[0],
			"%d known; no answer from %s", known, strings.Join(failed, ", "))
	default:
		p.add("neighbours", OK, "", "%d known; others are asked for when they are needed", known)
	}
}

// peer looks at the way to one address.
func (p *patient) peer() {
	if !p.link.Running {
		return // the link's line says so
	}
	dst := p.cfg.Peer
	route, err := p.conn.Route(p.link.Index, netip.Addr{}, dst)
	if err != nil {
		p.add("peer", Broken, "ip route add "+dst.String()+" dev "+p.link.Name, "%v", err)
		return
	}
	if route.Local {
		p.add("peer", Broken, "name the address of another host, or of the other namespace",
			"%v is this host's own address: packets to it do not leave", dst)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), peerPatience)
	defer cancel()
	mac, err := p.conn.Resolve(ctx, p.link.Index, route.NextHop)
	if err != nil {
		p.add("peer", Broken, "see that the other end is up and has that address: ip addr, there",
			"%v does not answer when asked for its MAC address", route.NextHop)
		return
	}
	mtu := p.link.MTU
	if route.MTU != 0 {
		mtu = min(mtu, route.MTU)
	}
	pmtu, here := netdev.PMTU(mtu, !dst.Is4()), netdev.PMTU(p.link.MTU, !dst.Is4())
	switch {
	case pmtu == 0:
		p.add("peer", Broken, "ip route change "+dst.String()+" dev "+p.link.Name+" mtu 1500",
			"the route to %v has MTU %d, which no path MTU fits", dst, mtu)
	case pmtu < here:
		p.add("peer", OK, "", "%v is at %v; the route's MTU of %d leaves path MTU %d: give -m %[4]d",
			dst, mac, mtu, pmtu)
	default:
		p.add("peer", OK, "ping -M do -s "+itoa(p.link.MTU-28)+" "+dst.String()+" (shows that the other "+
			"end takes frames as long)", "%v is at %v", dst, mac)
	}
}

// firewall: what filters the kernel's traffic does not see RoCEv2's. But ARP is the kernel's, and
// so is the TCP connection by which perftest's programs and their like agree.
func (p *patient) firewall() {
	n, _ := readNumber("/proc/sys/net/ipv4/conf/" + p.link.Name + "/rp_filter")
	if n != 0 {
		p.add("rp_filter", OK, "", "%d: concerns the kernel's packets only, RoCEv2 goes past it", n)
	}
	chains, err := netdev.Chains()
	if err != nil {
		return // without CAP_NET_ADMIN, whose line is there
	}
	rules := 0
	for _, c := range chains {
		rules += c.Rules
		where := c.Family + " " + c.Table + " " + c.Name
		if c.Family == "arp" && c.Drops {
			p.add("arp", Broken, "nft add rule "+where+" accept",
				"chain %s drops ARP, without which no peer finds this host", where)
		}
		if c.Hook == "input" && c.Drops && (c.Family == "inet" || c.Family == "ip") {
			p.add("firewall", OK, "nft add rule "+where+" tcp dport 18515 accept",
				"chain %s drops by default: RoCEv2 goes past it, but `roxie perf` and `pingpong` "+
					"as servers need their TCP port", where)
		}
	}
	if rules > 0 || legacyTables() {
		p.add("firewall", OK, "", "rules about UDP 4791 have no effect: XDP comes before them, "+
			"and AF_XDP sends past them")
	} else {
		p.add("firewall", OK, "", "no rules")
	}
}

// legacyTables reports whether iptables has tables of its own.
func legacyTables() bool {
	for _, name := range []string{"/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"} {
		if text, err := os.ReadFile(name); err == nil && len(text) > 0 {
			return true
		}
	}
	return false
}

func itoa(n int) string { return strconv.Itoa(n) }
