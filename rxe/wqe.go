package rxe

import (
	"encoding/binary"
	"errors"

	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// SGE names a piece of local memory: Length bytes at Addr in the region of LKey.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   mr.Key
}

// MaxMessage is the longest message in bytes (IBTA 9.7.2: 2^31).
const MaxMessage = 1 << 31

// Limits of one QP's work requests.
const (
	MaxSGE     = 32
	MaxInline  = 1024
	MaxQPDepth = 1 << 20
)

// What posting may refuse. They match libibverbs' ENOMEM and EINVAL.
var (
	ErrQueueFull  = errors.New("work queue is full")
	ErrTooManySGE = errors.New("more scatter/gather elements than the queue was created for")
	ErrInlineSize = errors.New("more inline data than the queue was created for")
	ErrInlineOp   = errors.New("operation cannot take inline data")
	ErrMsgSize    = errors.New("message is longer than 2^31 bytes")
	ErrBadOpcode  = errors.New("operation does not exist on this QP type")
	ErrBadState   = errors.New("QP state does not allow it")
	ErrAlignment  = errors.New("atomic operand is not 8 bytes at an address divisible by 8")
	ErrReadLen    = errors.New("READ needs more than 2^23-1 response packets at this path MTU")
)

// SendWR is a send work request as it enters a send queue's record.
type SendWR struct {
	ID     uint64
	Opcode WROpcode
	Flags  SendFlags
	SGEs   []SGE
	Inline []byte // with SendInline: the data itself, copied at post

	RemoteAddr uint64 // RDMA and atomics; REG_MR, BIND_MW: IOVA or address
	RKey       mr.Key // RDMA and atomics; LOCAL_INV: the key; REG_MR, BIND_MW: the new key
	Imm        uint32 // immediate data, or the key SEND_WITH_INV invalidates
	CompareAdd uint64
	Swap       uint64

	AH         uint32   // UD: number of the address handle
	RemoteQPN  wire.QPN // UD
	RemoteQKey uint32   // UD

	List    uint32    // REG_MR, BIND_MW: number of what was captured at post (mr.Table.Stage)
	MWType1 bool      // BIND_MW of a type 1 window
	MWKey   mr.Key    // BIND_MW: the window's current key
	Parent  mr.Key    // BIND_MW: the region bound to
	Length  uint64    // BIND_MW, FLUSH: bytes
	Access  mr.Access // BIND_MW

	FlushType  uint8 // FLUSH: bit 0 global visibility, bit 1 persistence
	FlushLevel uint8 // FLUSH: 0 range, 1 whole region
}

// RecvWR is a receive work request.
type RecvWR struct {
	ID   uint64
	SGEs []SGE
}

// Record layout in 64-bit words. SGEs (two words each) or inline bytes follow the header.
//
//	0  opcode | flags<<8 | SGEs<<16 | flush type<<24 | flush level<<28 | inline bytes<<32
//	1  work request id
//	2  remote address, IOVA
//	3  rkey | immediate or invalidated key << 32
//	4  compare or add | UD: AH number | destination QPN<<32 | binds: window key | parent key<<32
//	5  swap | UD: Q_Key | FLUSH: length | REG_MR, BIND_MW: number | BIND_MW: access<<32
//	   BIND_MW: its length stands in word 6, so it needs no SGE
const (
	sendHeaderWords = 6
	recvHeaderWords = 2
	sgeWords        = 2
)

// sendStride is the record size in words for a queue's capabilities: whole 64-byte lines.
func sendStride(maxSGE, maxInline uint32) uint32 {
	body := max(maxSGE*sgeWords, (maxInline+7)/8, sgeWords)
	return (sendHeaderWords + body + 7) &^ 7
}

// recvStride is the record size in words: whole 32-byte half lines.
func recvStride(maxSGE uint32) uint32 {
	return (recvHeaderWords + max(maxSGE, 1)*sgeWords + 3) &^ 3
}

// sendEntry is the private, checked copy of a send record from the moment it is taken until it is
// retired. Its SGEs lie in the requester's flat array, inline data stays in the ring.
type sendEntry struct {
	id         uint64
	remoteAddr uint64
	compareAdd uint64 // UD: AH | QPN<<32; BIND_MW: keys
	swap       uint64
	length     uint32 // message bytes
	rkey       mr.Key
	imm        uint32
	first      wire.PSN
	last       wire.PSN
	epoch      mr.Epoch // local operation: grace to wait for
	next       uint32   // READ: bytes received so far
	cut        wire.PSN // READ: where the older of two outstanding requests ends
	opcode     WROpcode
	flags      SendFlags
	nsge       uint8
	status     WCStatus // why it failed, if it did
	reason     Reason
	state      entryState
	flush      uint8
	asked      uint8 // requests of an answered operation outstanding
	inline     bool
}

type entryState uint8

const (
	entryNew     entryState = iota // taken, not yet started
	entryStarted                   // has PSNs, in flight
	entryDone                      // acknowledged, answered or executed
	entryGrace                     // executed, its completion awaits grace
	entryFailed                    // completes with status when its turn comes
)

// encodeSend writes wr into a record. The caller has checked sizes.
func encodeSend(m []uint64, wr *SendWR) {
	w0 := uint64(wr.Opcode) | uint64(wr.Flags)<<8 | uint64(len(wr.SGEs))<<16
	if wr.Flags&SendInline != 0 {
		w0 = w0&^(0xff<<16) | uint64(len(wr.Inline))<<32
	}
	m[0], m[1], m[2] = w0, wr.ID, wr.RemoteAddr
	m[3] = uint64(wr.RKey) | uint64(wr.Imm)<<32
	switch wr.Opcode {
	case WRBindMW:
		m[4] = uint64(wr.MWKey) | uint64(wr.Parent)<<32
		m[5] = uint64(wr.List) | uint64(wr.Access)<<32
		m[6] = wr.Length
		if wr.MWType1 {
			m[0] |= bindType1 << 24
		}
		return
	case WRRegMR:
		m[4], m[5] = 0, uint64(wr.List)
		return
	case WRAtomicCmpSwap, WRAtomicFetchAdd:
		m[4], m[5] = wr.CompareAdd, wr.Swap
	case WRFlush:
		m[0] = w0&^(0xff<<16) | uint64(wr.FlushType&15)<<24 | uint64(wr.FlushLevel&3)<<28
		m[5] = wr.Length
		return
	default:
		m[4] = uint64(wr.AH) | uint64(wr.RemoteQPN)<<32
		m[5] = uint64(wr.RemoteQKey)
	}
	body := m[sendHeaderWords:]
	if wr.Flags&SendInline != 0 {
		putInline(body, wr.Inline)
		return
	}
	putSGEs(body, wr.SGEs)
}

func putSGEs(m []uint64, sges []SGE) {
	for i := range sges {
		m[2*i] = sges[i].Addr
		m[2*i+1] = uint64(sges[i].Length) | uint64(sges[i].LKey)<<32
	}
}

// putInline packs bytes into words, lowest address in the lowest byte.
func putInline(m []uint64, b []byte) {
	for len(b) >= 8 {
		m[0] = binary.LittleEndian.Uint64(b)
		m, b = m[1:], b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		copy(last[:], b)
		m[0] = binary.LittleEndian.Uint64(last[:])
	}
}

// getInline copies len(dst) bytes from byte offset off of the inline area.
func getInline(dst []byte, m []uint64, off uint32) {
	var word [8]byte
	for len(dst) > 0 {
		binary.LittleEndian.PutUint64(word[:], m[off/8])
		n := copy(dst, word[off%8:])
		dst = dst[n:]
		off += uint32(n)
	}
}

// decodeSend copies record m into e and sges, once, and checks the copy. maxInline in bytes.
// A record that breaks the queue's limits fails with LOC_QP_OP_ERR or LOC_LEN_ERR.
func decodeSend(m []uint64, e *sendEntry, sges []SGE, maxInline uint32) {
	w0, w3, w5 := m[0], m[3], m[5]
	*e = sendEntry{} // field by field: a literal is made elsewhere and copied, which waits for its stores
	e.id, e.remoteAddr, e.compareAdd, e.swap = m[1], m[2], m[4], w5
	e.opcode, e.flags, e.nsge = WROpcode(w0), SendFlags(w0>>8), uint8(w0>>16)
	e.flush, e.rkey, e.imm = uint8(w0>>24)&0x3f, mr.Key(w3), uint32(w3>>32)
	switch e.opcode {
	case WRBindMW:
		e.nsge = 0
		e.epoch = mr.Epoch(m[6]) // the length, in a field that is free until execution
		return
	case WRFlush:
		e.nsge, e.length = 0, uint32(w5)
		return
	case WRRegMR, WRLocalInv:
		e.nsge = 0
		return
	}
	if e.flags&SendInline != 0 && inlineOK(e.opcode) {
		e.inline, e.nsge = true, 0
		e.length = uint32(w0 >> 32)
		if e.length > maxInline {
			e.fail(WCLocQPOpErr, ReasonBadWQE)
		}
		return
	}
	if int(e.nsge) > len(sges) {
		e.nsge = 0
		e.fail(WCLocQPOpErr, ReasonBadWQE)
		return
	}
	var total uint64
	for i := 0; i < int(e.nsge); i++ {
		w := m[sendHeaderWords+2*i+1]
		sges[i] = SGE{Addr: m[sendHeaderWords+2*i], Length: uint32(w), LKey: mr.Key(w >> 32)}
		total += uint64(sges[i].Length)
	}
	if total > MaxMessage {
		e.fail(WCLocLenErr, ReasonMsgTooLong)
		return
	}
	e.length = uint32(total)
}

func (e *sendEntry) fail(st WCStatus, why Reason) {
	e.state, e.status, e.reason = entryFailed, st, why
}

func inlineOK(op WROpcode) bool {
	switch op {
	case WRSend, WRSendWithImm, WRSendWithInv, WRRDMAWrite, WRRDMAWriteWithImm, WRAtomicWrite:
		return true
	}
	return false
}

// recvEntry is the private copy of a receive record.
type recvEntry struct {
	id     uint64
	length uint64 // bytes it can take
	nsge   uint8
	held   bool // taken from the queue and not yet completed
	bad    bool // breaks the queue's limits
}

// encodeRecv writes wr into a record.
func encodeRecv(m []uint64, wr *RecvWR) {
	m[0], m[1] = uint64(len(wr.SGEs)), wr.ID
	putSGEs(m[recvHeaderWords:], wr.SGEs)
}

// decodeRecv copies record m into e and sges, once.
func decodeRecv(m []uint64, e *recvEntry, sges []SGE) {
	n := m[0]
	*e = recvEntry{id: m[1], held: true}
	if n > uint64(len(sges)) {
		e.bad = true
		return
	}
	e.nsge = uint8(n)
	for i := 0; i < int(n); i++ {
		w := m[recvHeaderWords+2*i+1]
		sges[i] = SGE{Addr: m[recvHeaderWords+2*i], Length: uint32(w), LKey: mr.Key(w >> 32)}
		e.length += uint64(sges[i].Length)
	}
}

// putHost stores v in the byte order of this machine's integers.
func putHost(b *[8]byte, v uint64) { binary.NativeEndian.PutUint64(b[:], v) }
