package wire

// A Reason says why a frame is refused. The engine counts frames by it and continues the numbering
// with its own reasons at [NumReasons].
type Reason uint8

// The reasons of [Parse], in the order of its checks.
const (
	ReasonOK         Reason = iota
	ReasonShort             // ends before its Ethernet, IP or UDP header does
	ReasonEthertype         // neither IPv4 nor IPv6, or more than one tag
	ReasonIPVersion         // the IP version contradicts the EtherType
	ReasonIPHeader          // IPv4 header length below 20 bytes
	ReasonIPLength          // the IP length is longer than the frame or shorter than the headers
	ReasonIPChecksum        // IPv4 header checksum
	ReasonFragment          // an IP fragment
	ReasonNotUDP            // another protocol, or an IPv6 extension header
	ReasonPort              // not to UDP port 4791
	ReasonUDPLength         // the UDP length is not the IP payload's
	ReasonShortBTH          // no room for BTH and ICRC
	ReasonOpcode            // not in the opcode table
	ReasonTVer              // transport header version other than 0
	ReasonLength            // no room for the extension headers, or payload where none may be
	ReasonPad               // more padding than there are bytes, or a length not a multiple of 4
	ReasonICRC              // ICRC mismatch
	NumReasons
)

var reasonNames = [NumReasons]string{
	"ok", "short_frame", "ethertype", "ip_version", "ip_header", "ip_length", "ip_checksum",
	"fragment", "not_udp", "udp_port", "udp_length", "short_bth", "opcode", "tver", "length",
	"pad", "icrc",
}

// String returns the reason's name in lower case with underscores, fit for a counter.
func (r Reason) String() string {
	if r < NumReasons {
		return reasonNames[r]
	}
	return "unknown"
}
