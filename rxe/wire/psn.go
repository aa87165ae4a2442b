package wire

// PSNMask has the 24 bits of a PSN, and of a QPN, set.
const PSNMask = 1<<24 - 1

// A PSN is a packet sequence number: 24 bits, the upper 8 are always zero. PSNs wrap around, so
// they are compared by [PSN.Diff] only.
type PSN uint32

// Add returns the PSN n packets after p.
func (p PSN) Add(n uint32) PSN { return (p + PSN(n)) & PSNMask }

// Next returns the PSN after p.
func (p PSN) Next() PSN { return (p + 1) & PSNMask }

// Diff returns how many packets p is ahead of q, negative when it is behind: -2^23 … 2^23-1.
func (p PSN) Diff(q PSN) int32 { return int32(uint32(p-q)<<8) >> 8 }

// A QPN is a queue pair number: 24 bits, the upper 8 are always zero.
type QPN uint32

// Queue pair numbers with a fixed meaning.
const (
	QPNGSI       QPN = 1        // the general services interface, QP1, which carries MADs
	QPNMulticast QPN = 0xffffff // the destination of every multicast packet
)
