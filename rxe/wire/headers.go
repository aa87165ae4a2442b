package wire

// Headers are fixed-size arrays laid over the frame's bytes: (*BTH)(b[:12]) checks the length once
// and costs nothing after that. They change the frame they lie on.

import "encoding/binary"

// Sizes of the headers in bytes.
const (
	bthLen          = 12
	rethLen         = 16
	aethLen         = 4
	atomicETHLen    = 28
	atomicAckETHLen = 8
	immDtLen        = 4
	iethLen         = 4
	dethLen         = 8
	fethLen         = 4
	icrcLen         = 4
)

// put24 stores the lower 24 bits of v, big-endian.
func put24(b *[3]byte, v uint32) {
	b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v)
}

func get24(b *[3]byte) uint32 {
	return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2])
}

// BTH is the base transport header, which every packet starts with.
//
//	byte 0     opcode
//	byte 1     SE 1 bit, MigReq 1, PadCnt 2, TVer 4
//	bytes 2-3  P_Key
//	byte 4     FECN 1 bit, BECN 1, reserved 6
//	bytes 5-7  destination QP
//	byte 8     AckReq 1 bit, reserved 7
//	bytes 9-11 PSN
type BTH [bthLen]byte

const (
	bthSolicited = 0x80 // byte 1
	bthMigReq    = 0x40
	bthFECN      = 0x80 // byte 4
	bthBECN      = 0x40
	bthAckReq    = 0x80 // byte 8
)

func setBit(b *byte, bit byte, on bool) {
	if on {
		*b |= bit
	} else {
		*b &^= bit
	}
}

// Opcode returns the opcode.
func (h *BTH) Opcode() Opcode { return Opcode(h[0]) }

// SetOpcode sets the opcode.
func (h *BTH) SetOpcode(op Opcode) { h[0] = byte(op) }

// Solicited reports the solicited event bit.
func (h *BTH) Solicited() bool { return h[1]&bthSolicited != 0 }

// SetSolicited sets the solicited event bit.
func (h *BTH) SetSolicited(on bool) { setBit(&h[1], bthSolicited, on) }

// MigReq reports the migration request bit.
func (h *BTH) MigReq() bool { return h[1]&bthMigReq != 0 }

// SetMigReq sets the migration request bit.
func (h *BTH) SetMigReq(on bool) { setBit(&h[1], bthMigReq, on) }

// Pad returns how many bytes of padding stand behind the payload, 0 … 3.
func (h *BTH) Pad() uint8 { return h[1] >> 4 & 3 }

// SetPad sets the pad count, 0 … 3.
func (h *BTH) SetPad(n uint8) { h[1] = h[1]&^0x30 | n&3<<4 }

// TVer returns the transport header version, 0 in every valid packet.
func (h *BTH) TVer() uint8 { return h[1] & 15 }

// SetTVer sets the transport header version, 0 … 15.
func (h *BTH) SetTVer(v uint8) { h[1] = h[1]&^15 | v&15 }

// PKey returns the partition key; bit 15 marks a full member.
func (h *BTH) PKey() uint16 { return binary.BigEndian.Uint16(h[2:4]) }

// SetPKey sets the partition key.
func (h *BTH) SetPKey(k uint16) { binary.BigEndian.PutUint16(h[2:4], k) }

// FECN reports the forward congestion bit.
func (h *BTH) FECN() bool { return h[4]&bthFECN != 0 }

// SetFECN sets the forward congestion bit.
func (h *BTH) SetFECN(on bool) { setBit(&h[4], bthFECN, on) }

// BECN reports the backward congestion bit.
func (h *BTH) BECN() bool { return h[4]&bthBECN != 0 }

// SetBECN sets the backward congestion bit.
func (h *BTH) SetBECN(on bool) { setBit(&h[4], bthBECN, on) }

// DestQP returns the destination QP.
func (h *BTH) DestQP() QPN { return QPN(get24((*[3]byte)(h[5:8]))) }

// SetDestQP sets the destination QP, 24 bits.
func (h *BTH) SetDestQP(q QPN) { put24((*[3]byte)(h[5:8]), uint32(q)) }

// AckReq reports the acknowledge request bit.
func (h *BTH) AckReq() bool { return h[8]&bthAckReq != 0 }

// SetAckReq sets the acknowledge request bit.
func (h *BTH) SetAckReq(on bool) { setBit(&h[8], bthAckReq, on) }

// PSN returns the packet sequence number.
func (h *BTH) PSN() PSN { return PSN(get24((*[3]byte)(h[9:12]))) }

// SetPSN sets the packet sequence number, 24 bits.
func (h *BTH) SetPSN(p PSN) { put24((*[3]byte)(h[9:12]), uint32(p)) }

// RETH is the RDMA extended transport header: virtual address 8, R_Key 4, DMA length 4.
type RETH [rethLen]byte

// VA returns the virtual address, an IOVA of the responder.
func (h *RETH) VA() uint64 { return binary.BigEndian.Uint64(h[0:8]) }

// SetVA sets the virtual address.
func (h *RETH) SetVA(va uint64) { binary.BigEndian.PutUint64(h[0:8], va) }

// RKey returns the R_Key.
func (h *RETH) RKey() uint32 { return binary.BigEndian.Uint32(h[8:12]) }

// SetRKey sets the R_Key.
func (h *RETH) SetRKey(k uint32) { binary.BigEndian.PutUint32(h[8:12], k) }

// Length returns the bytes of the whole message.
func (h *RETH) Length() uint32 { return binary.BigEndian.Uint32(h[12:16]) }

// SetLength sets the bytes of the whole message.
func (h *RETH) SetLength(n uint32) { binary.BigEndian.PutUint32(h[12:16], n) }

// AETH is the acknowledge extended transport header: syndrome 1, MSN 3.
type AETH [aethLen]byte

// Syndrome returns the syndrome.
func (h *AETH) Syndrome() Syndrome { return Syndrome(h[0]) }

// SetSyndrome sets the syndrome.
func (h *AETH) SetSyndrome(s Syndrome) { h[0] = byte(s) }

// MSN returns the message sequence number, 24 bits.
func (h *AETH) MSN() uint32 { return get24((*[3]byte)(h[1:4])) }

// SetMSN sets the message sequence number, 24 bits.
func (h *AETH) SetMSN(n uint32) { put24((*[3]byte)(h[1:4]), n) }

// AtomicETH is the atomic extended transport header: virtual address 8, R_Key 4, swap or add data
// 8, compare data 8.
type AtomicETH [atomicETHLen]byte

// VA returns the virtual address.
func (h *AtomicETH) VA() uint64 { return binary.BigEndian.Uint64(h[0:8]) }

// SetVA sets the virtual address.
func (h *AtomicETH) SetVA(va uint64) { binary.BigEndian.PutUint64(h[0:8], va) }

// RKey returns the R_Key.
func (h *AtomicETH) RKey() uint32 { return binary.BigEndian.Uint32(h[8:12]) }

// SetRKey sets the R_Key.
func (h *AtomicETH) SetRKey(k uint32) { binary.BigEndian.PutUint32(h[8:12], k) }

// SwapAdd returns the value to store (CMP_SWAP) or to add (FETCH_ADD).
func (h *AtomicETH) SwapAdd() uint64 { return binary.BigEndian.Uint64(h[12:20]) }

// SetSwapAdd sets the value to store or to add.
func (h *AtomicETH) SetSwapAdd(v uint64) { binary.BigEndian.PutUint64(h[12:20], v) }

// Compare returns the value CMP_SWAP compares with.
func (h *AtomicETH) Compare() uint64 { return binary.BigEndian.Uint64(h[20:28]) }

// SetCompare sets the value CMP_SWAP compares with.
func (h *AtomicETH) SetCompare(v uint64) { binary.BigEndian.PutUint64(h[20:28], v) }

// AtomicAckETH carries the value an atomic operation found in memory.
type AtomicAckETH [atomicAckETHLen]byte

// Orig returns the value found in memory.
func (h *AtomicAckETH) Orig() uint64 { return binary.BigEndian.Uint64(h[:]) }

// SetOrig sets the value found in memory.
func (h *AtomicAckETH) SetOrig(v uint64) { binary.BigEndian.PutUint64(h[:], v) }

// ImmDt is immediate data: 4 bytes for the receiving application, here read as big-endian.
type ImmDt [immDtLen]byte

// Get returns the immediate data.
func (h *ImmDt) Get() uint32 { return binary.BigEndian.Uint32(h[:]) }

// Set sets the immediate data.
func (h *ImmDt) Set(v uint32) { binary.BigEndian.PutUint32(h[:], v) }

// IETH names the R_Key that a SEND with invalidate invalidates.
type IETH [iethLen]byte

// RKey returns the R_Key to invalidate.
func (h *IETH) RKey() uint32 { return binary.BigEndian.Uint32(h[:]) }

// SetRKey sets the R_Key to invalidate.
func (h *IETH) SetRKey(k uint32) { binary.BigEndian.PutUint32(h[:], k) }

// DETH is the datagram extended transport header: Q_Key 4, reserved 1, source QP 3.
type DETH [dethLen]byte

// QKey returns the Q_Key.
func (h *DETH) QKey() uint32 { return binary.BigEndian.Uint32(h[0:4]) }

// SetQKey sets the Q_Key.
func (h *DETH) SetQKey(k uint32) { binary.BigEndian.PutUint32(h[0:4], k) }

// SrcQP returns the sender's QP.
func (h *DETH) SrcQP() QPN { return QPN(get24((*[3]byte)(h[5:8]))) }

// SetSrcQP sets the sender's QP, 24 bits, and clears the reserved byte.
func (h *DETH) SetSrcQP(q QPN) {
	h[4] = 0
	put24((*[3]byte)(h[5:8]), uint32(q))
}

// FETH is the flush extended transport header: reserved 26 bits, selectivity 2, placement type 4.
type FETH [fethLen]byte

// Placement types of a FLUSH, bits that may be combined.
const (
	PlacementGlobal     = 1 // make the data visible to everyone
	PlacementPersistent = 2 // make the data survive a loss of power
)

// Selectivity levels of a FLUSH.
const (
	SelectRange = 0 // flush the bytes the RETH names
	SelectMR    = 1 // flush the whole MR
)

// Placement returns the placement type, 4 bits.
func (h *FETH) Placement() uint8 { return h[3] & 15 }

// Selectivity returns the selectivity level, 2 bits.
func (h *FETH) Selectivity() uint8 { return h[3] >> 4 & 3 }

// Set sets both fields and clears the reserved bits.
func (h *FETH) Set(placement, selectivity uint8) {
	*h = FETH{3: selectivity&3<<4 | placement&15}
}
