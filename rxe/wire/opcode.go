package wire

// An Opcode is the first byte of a BTH: the transport service in bits 7:5, the operation in 4:0.
type Opcode uint8

// The opcodes of reliable connections.
const (
	RCSendFirst      Opcode = 0x00
	RCSendMiddle     Opcode = 0x01
	RCSendLast       Opcode = 0x02
	RCSendLastImm    Opcode = 0x03
	RCSendOnly       Opcode = 0x04
	RCSendOnlyImm    Opcode = 0x05
	RCWriteFirst     Opcode = 0x06
	RCWriteMiddle    Opcode = 0x07
	RCWriteLast      Opcode = 0x08
	RCWriteLastImm   Opcode = 0x09
	RCWriteOnly      Opcode = 0x0a
	RCWriteOnlyImm   Opcode = 0x0b
	RCReadRequest    Opcode = 0x0c
	RCReadRespFirst  Opcode = 0x0d
	RCReadRespMiddle Opcode = 0x0e
	RCReadRespLast   Opcode = 0x0f
	RCReadRespOnly   Opcode = 0x10
	RCAck            Opcode = 0x11
	RCAtomicAck      Opcode = 0x12
	RCCmpSwap        Opcode = 0x13
	RCFetchAdd       Opcode = 0x14
	RCSendLastInv    Opcode = 0x16
	RCSendOnlyInv    Opcode = 0x17
	RCFlush          Opcode = 0x1c
	RCAtomicWrite    Opcode = 0x1d
)

// The opcodes of unreliable connections.
const (
	UCSendFirst    Opcode = 0x20
	UCSendMiddle   Opcode = 0x21
	UCSendLast     Opcode = 0x22
	UCSendLastImm  Opcode = 0x23
	UCSendOnly     Opcode = 0x24
	UCSendOnlyImm  Opcode = 0x25
	UCWriteFirst   Opcode = 0x26
	UCWriteMiddle  Opcode = 0x27
	UCWriteLast    Opcode = 0x28
	UCWriteLastImm Opcode = 0x29
	UCWriteOnly    Opcode = 0x2a
	UCWriteOnlyImm Opcode = 0x2b
)

// The opcodes of unreliable datagrams, and the congestion notification packet.
const (
	UDSendOnly    Opcode = 0x64
	UDSendOnlyImm Opcode = 0x65
	CNP           Opcode = 0x81
)

// Flags say what a packet with a certain opcode is, which headers it has and what it asks for.
type Flags uint32

// The flags of an opcode.
const (
	FlagRequest      Flags = 1 << iota // travels from requester to responder
	FlagResponse                       // travels from responder to requester
	FlagStart                          // first packet of a message: First or Only
	FlagMiddle                         // neither first nor last
	FlagEnd                            // last packet of a message: Last or Only
	FlagSend                           // part of a SEND
	FlagWrite                          // part of an RDMA WRITE
	FlagRead                           // an RDMA READ request
	FlagReadResp                       // part of a READ response
	FlagAtomic                         // a CMP_SWAP or FETCH_ADD request
	FlagAtomicWrite                    // an ATOMIC WRITE request
	FlagFlush                          // a FLUSH request
	FlagAck                            // an acknowledgement without data
	FlagAtomicAck                      // the response to a CMP_SWAP or FETCH_ADD
	FlagPayload                        // may carry payload
	FlagImm                            // has an ImmDt
	FlagInv                            // has an IETH
	FlagRETH                           // has a RETH
	FlagAETH                           // has an AETH
	FlagAtomicETH                      // has an AtomicETH
	FlagAtomicAckETH                   // has an AtomicAckETH
	FlagDETH                           // has a DETH
	FlagFETH                           // has a FETH
	FlagConsumesRecv                   // takes a receive WQE with this packet
)

// A Service is the transport service of an opcode, its upper three bits.
type Service uint8

// The transport services. Only RC, UC, UD and the congestion notification have known opcodes.
const (
	RC         Service = 0
	UC         Service = 1
	RD         Service = 2
	UD         Service = 3
	ServiceCNP Service = 4
	XRC        Service = 5
)

// Info is what the opcode table knows about an opcode. The offsets count from the first byte of the
// BTH; 0 means that the header is absent.
type Info struct {
	Name    string // upper case, e.g. RC_SEND_FIRST; empty for an unknown opcode
	Service Service
	Flags   Flags
	HdrLen  uint8 // bytes of BTH and extension headers

	RETHOff, AETHOff, ImmOff, InvOff uint8
	AtomicETHOff, AtomicAckOff       uint8
	DETHOff, FETHOff                 uint8
}

// Info returns the table's entry for the opcode: never nil, for unknown opcodes one without a name
// and without flags. It must not be changed.
func (op Opcode) Info() *Info { return &infos[op] }

// Known reports whether the opcode is in the table.
func (op Opcode) Known() bool { return infos[op].Flags != 0 }

// Service returns the transport service the opcode's upper bits name, for unknown opcodes too.
func (op Opcode) Service() Service { return Service(op >> 5) }

// String returns the opcode's name, or its number when it is unknown.
func (op Opcode) String() string {
	if name := infos[op].Name; name != "" {
		return name
	}
	const hex = "0123456789abcdef"
	return "OPCODE_0x" + string([]byte{hex[op>>4], hex[op&15]})
}

// Names of flag sets that the opcode table is written in.
const (
	first  = FlagStart
	middle = FlagMiddle
	last   = FlagEnd
	only   = FlagStart | FlagEnd

	send    = FlagRequest | FlagSend | FlagPayload
	write   = FlagRequest | FlagWrite | FlagPayload
	resp    = FlagResponse | FlagReadResp | FlagPayload
	consume = FlagConsumesRecv
)

// cnpReserved is the number of reserved bytes behind the BTH of a CNP.
const cnpReserved = 16

// opcodes is the one table of opcodes. Everything else about them is computed from it.
var opcodes = []struct {
	op    Opcode
	name  string
	flags Flags
}{
	{RCSendFirst, "RC_SEND_FIRST", send | first | consume},
	{RCSendMiddle, "RC_SEND_MIDDLE", send | middle},
	{RCSendLast, "RC_SEND_LAST", send | last},
	{RCSendLastImm, "RC_SEND_LAST_IMM", send | last | FlagImm},
	{RCSendOnly, "RC_SEND_ONLY", send | only | consume},
	{RCSendOnlyImm, "RC_SEND_ONLY_IMM", send | only | FlagImm | consume},
	{RCWriteFirst, "RC_WRITE_FIRST", write | first | FlagRETH},
	{RCWriteMiddle, "RC_WRITE_MIDDLE", write | middle},
	{RCWriteLast, "RC_WRITE_LAST", write | last},
	{RCWriteLastImm, "RC_WRITE_LAST_IMM", write | last | FlagImm | consume},
	{RCWriteOnly, "RC_WRITE_ONLY", write | only | FlagRETH},
	{RCWriteOnlyImm, "RC_WRITE_ONLY_IMM", write | only | FlagRETH | FlagImm | consume},
	{RCReadRequest, "RC_READ_REQUEST", FlagRequest | FlagRead | only | FlagRETH},
	{RCReadRespFirst, "RC_READ_RESP_FIRST", resp | first | FlagAETH},
	{RCReadRespMiddle, "RC_READ_RESP_MIDDLE", resp | middle},
	{RCReadRespLast, "RC_READ_RESP_LAST", resp | last | FlagAETH},
	{RCReadRespOnly, "RC_READ_RESP_ONLY", resp | only | FlagAETH},
	{RCAck, "RC_ACKNOWLEDGE", FlagResponse | FlagAck | only | FlagAETH},
	{RCAtomicAck, "RC_ATOMIC_ACKNOWLEDGE",
		FlagResponse | FlagAtomicAck | only | FlagAETH | FlagAtomicAckETH},
	{RCCmpSwap, "RC_CMP_SWAP", FlagRequest | FlagAtomic | only | FlagAtomicETH},
	{RCFetchAdd, "RC_FETCH_ADD", FlagRequest | FlagAtomic | only | FlagAtomicETH},
	{RCSendLastInv, "RC_SEND_LAST_INV", send | last | FlagInv},
	{RCSendOnlyInv, "RC_SEND_ONLY_INV", send | only | FlagInv | consume},
	{RCFlush, "RC_FLUSH", FlagRequest | FlagFlush | only | FlagFETH | FlagRETH},
	{RCAtomicWrite, "RC_ATOMIC_WRITE",
		FlagRequest | FlagAtomicWrite | only | FlagRETH | FlagPayload},

	{UCSendFirst, "UC_SEND_FIRST", send | first | consume},
	{UCSendMiddle, "UC_SEND_MIDDLE", send | middle},
	{UCSendLast, "UC_SEND_LAST", send | last},
	{UCSendLastImm, "UC_SEND_LAST_IMM", send | last | FlagImm},
	{UCSendOnly, "UC_SEND_ONLY", send | only | consume},
	{UCSendOnlyImm, "UC_SEND_ONLY_IMM", send | only | FlagImm | consume},
	{UCWriteFirst, "UC_WRITE_FIRST", write | first | FlagRETH},
	{UCWriteMiddle, "UC_WRITE_MIDDLE", write | middle},
	{UCWriteLast, "UC_WRITE_LAST", write | last},
	{UCWriteLastImm, "UC_WRITE_LAST_IMM", write | last | FlagImm | consume},
	{UCWriteOnly, "UC_WRITE_ONLY", write | only | FlagRETH},
	{UCWriteOnlyImm, "UC_WRITE_ONLY_IMM", write | only | FlagRETH | FlagImm | consume},

	{UDSendOnly, "UD_SEND_ONLY", send | only | FlagDETH | consume},
	{UDSendOnlyImm, "UD_SEND_ONLY_IMM", send | only | FlagDETH | FlagImm | consume},
	{CNP, "CNP", FlagRequest | only},
}

var infos = buildInfos()

// buildInfos lays out the extension headers of every opcode. They stand on the wire in the order of
// the assignments below: DETH, FETH, RETH, AtomicETH, AETH, AtomicAckETH, ImmDt, IETH.
func buildInfos() (t [256]Info) {
	for op := range t {
		t[op] = Info{Service: Opcode(op).Service(), HdrLen: bthLen}
	}
	for _, o := range opcodes {
		in := &t[o.op]
		in.Name, in.Flags = o.name, o.flags
		place := func(flag Flags, off *uint8, n int) {
			if o.flags&flag != 0 {
				*off = in.HdrLen
				in.HdrLen += uint8(n)
			}
		}
		place(FlagDETH, &in.DETHOff, dethLen)
		place(FlagFETH, &in.FETHOff, fethLen)
		place(FlagRETH, &in.RETHOff, rethLen)
		place(FlagAtomicETH, &in.AtomicETHOff, atomicETHLen)
		place(FlagAETH, &in.AETHOff, aethLen)
		place(FlagAtomicAckETH, &in.AtomicAckOff, atomicAckETHLen)
		place(FlagImm, &in.ImmOff, immDtLen)
		place(FlagInv, &in.InvOff, iethLen)
		if o.op == CNP {
			in.HdrLen += cnpReserved
		}
	}
	return t
}
