package wire

// A Syndrome is the first byte of an AETH: what kind of acknowledgement it is and the kind's value.
// Bit 7 is zero, bits 6:5 hold the kind, bits 4:0 the value.
type Syndrome uint8

// A SyndromeKind says what an AETH tells the requester.
type SyndromeKind uint8

// The kinds of syndrome, as they stand in bits 6:5.
const (
	KindACK      SyndromeKind = 0 // positive; the value is a credit code
	KindRNR      SyndromeKind = 1 // receiver not ready; the value is a timer code
	KindReserved SyndromeKind = 2 // never sent; also every syndrome with bit 7 set
	KindNAK      SyndromeKind = 3 // negative; the value is a NAKCode
)

// A NAKCode is the value of a NAK syndrome.
type NAKCode uint8

// The NAK codes. The syndromes on the wire are 0x60 … 0x64.
const (
	NAKPSNSeq         NAKCode = 0 // a request is missing
	NAKInvalidRequest NAKCode = 1
	NAKRemoteAccess   NAKCode = 2
	NAKRemoteOp       NAKCode = 3
	NAKInvalidRD      NAKCode = 4 // reliable datagram only
)

// CreditInvalid is the credit code of a responder that gives no credits, as one with an SRQ must.
const CreditInvalid = 31

const syndromeValue = 0x1f

// AckSyndrome returns the syndrome of a positive acknowledgement. The credit code is 0 … 31, see
// [CreditCode]; [CreditInvalid] gives none.
func AckSyndrome(creditCode uint8) Syndrome {
	return Syndrome(KindACK)<<5 | Syndrome(creditCode&syndromeValue)
}

// RNRSyndrome returns the syndrome of an RNR NAK with a timer code of 0 … 31, see [RNRDelay].
func RNRSyndrome(timer uint8) Syndrome {
	return Syndrome(KindRNR)<<5 | Syndrome(timer&syndromeValue)
}

// NAKSyndrome returns the syndrome of a NAK.
func NAKSyndrome(code NAKCode) Syndrome {
	return Syndrome(KindNAK)<<5 | Syndrome(code&syndromeValue)
}

// Kind returns what the syndrome is. One with bit 7 set is reserved.
func (s Syndrome) Kind() SyndromeKind {
	if s&0x80 != 0 {
		return KindReserved
	}
	return SyndromeKind(s >> 5)
}

// Credits returns the credit code of a positive acknowledgement.
func (s Syndrome) Credits() uint8 { return uint8(s & syndromeValue) }

// Timer returns the timer code of an RNR NAK.
func (s Syndrome) Timer() uint8 { return uint8(s & syndromeValue) }

// NAK returns the code of a NAK. Values past [NAKInvalidRD] are reserved.
func (s Syndrome) NAK() NAKCode { return NAKCode(s & syndromeValue) }

// creditCounts holds the receive WQEs a responder offers by credit code.
var creditCounts = [CreditInvalid]uint32{
	0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
	3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
}

// CreditCount returns how many receive WQEs a credit code stands for. It is false for
// [CreditInvalid] and for codes past it.
func CreditCount(code uint8) (n uint32, ok bool) {
	if code >= CreditInvalid {
		return 0, false
	}
	return creditCounts[code], true
}

// CreditCode returns the largest credit code that promises no more than n receive WQEs.
func CreditCode(n uint32) uint8 {
	code := uint8(CreditInvalid - 1)
	for creditCounts[code] > n {
		code--
	}
	return code
}

// rnrDelays holds the time a requester waits after an RNR NAK by timer code, in units of 10 µs.
var rnrDelays = [32]int64{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// RNRDelay returns how long a requester waits after an RNR NAK, in nanoseconds. The timer code is
// 0 … 31, higher bits are ignored; code 0 is the longest, 655.36 ms.
func RNRDelay(timer uint8) int64 { return rnrDelays[timer&syndromeValue] * 10_000 }
