package netdev

// Bytes that a RoCEv2 packet may need in an IP packet besides its payload. rxe counts 80 whatever
// the family; on IPv6 a WRITE ONLY with immediate has 84: IPv6 40, UDP 8, BTH 12, RETH 16, ImmDt 4,
// ICRC 4.
const (
	overhead4 = 80
	overhead6 = 84
)

// Smallest and largest path MTU in payload bytes; the others are the powers of two between.
const (
	MinPMTU = 256
	MaxPMTU = 4096
)

// PMTU returns the largest path MTU whose packets fit a link MTU, for peers reached over IPv6 or
// IPv4: 256, 512, 1024, 2048 or 4096 bytes, or 0 if not even the smallest fits.
func PMTU(linkMTU int, ipv6 bool) int {
	for pmtu := MaxPMTU; pmtu >= MinPMTU; pmtu /= 2 {
		if LinkMTU(pmtu, ipv6) <= linkMTU {
			return pmtu
		}
	}
	return 0
}

// LinkMTU returns the smallest link MTU on which packets of a path MTU fit.
func LinkMTU(pmtu int, ipv6 bool) int {
	if ipv6 {
		return pmtu + overhead6
	}
	return pmtu + overhead4
}
