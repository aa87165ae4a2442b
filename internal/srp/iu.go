package srp

import (
	"encoding/binary"
	"fmt"
)

// This file knows the information units: what is where in them (T10 SRP revision 16a, section 6;
// the login request in RDMA-CM's private data is Linux's, include/scsi/srp.h). All numbers are
// big-endian but the tag, which only its owner reads: it is kept big-endian, too.

// An Opcode is the first byte of an information unit.
type Opcode uint8

// The information units.
const (
	OpLoginReq Opcode = 0x00
	OpTskMgmt  Opcode = 0x01
	OpCmd      Opcode = 0x02
	OpILogout  Opcode = 0x03
	OpCredRsp  Opcode = 0x41
	OpAERRsp   Opcode = 0x42
	OpTLogout  Opcode = 0x80
	OpCredReq  Opcode = 0x81
	OpAERReq   Opcode = 0x82
	OpLoginRsp Opcode = 0xc0
	OpRsp      Opcode = 0xc1
	OpLoginRej Opcode = 0xc2
)

var opcodeNames = map[Opcode]string{
	OpLoginReq: "SRP_LOGIN_REQ", OpTskMgmt: "SRP_TSK_MGMT", OpCmd: "SRP_CMD",
	OpILogout: "SRP_I_LOGOUT",
	OpCredRsp: "SRP_CRED_RSP", OpAERRsp: "SRP_AER_RSP", OpTLogout: "SRP_T_LOGOUT",
	OpCredReq: "SRP_CRED_REQ", OpAERReq: "SRP_AER_REQ", OpLoginRsp: "SRP_LOGIN_RSP", OpRsp: "SRP_RSP",
	OpLoginRej: "SRP_LOGIN_REJ",
}

// String returns the standard's name.
func (o Opcode) String() string {
	if s, ok := opcodeNames[o]; ok {
		return s
	}
	return fmt.Sprintf("SRP opcode %#02x", uint8(o))
}

// Buffer formats a target supports, in a login's request and answer.
const (
	FormatDirect   = 1 << 1
	FormatIndirect = 1 << 2
)

// Sizes in bytes. Those of units with a part of any length are of what comes before it.
const (
	LoginReqSize = 56 // as RDMA-CM carries it
	LoginRspSize = 52
	LoginRejSize = 32
	TskMgmtSize  = 48
	CmdSize      = 48
	RspSize      = 36
	CredReqSize  = 16
	CredRspSize  = 16
	AERReqSize   = 36
	TLogoutSize  = 16
	DescSize     = 16
	// indirectSize is what an indirect descriptor has before its list.
	indirectSize = DescSize + 4
)

// A PortID names a port: an extension that its owner chose, and a GUID.
type PortID struct{ Ext, GUID uint64 }

func (p PortID) put(b []byte) {
	binary.BigEndian.PutUint64(b, p.Ext)
	binary.BigEndian.PutUint64(b[8:], p.GUID)
}

func portID(b []byte) PortID {
	return PortID{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])}
}

// String is what Linux's sysfs shows: 32 hexadecimal digits.
func (p PortID) String() string { return fmt.Sprintf("%016x%016x", p.Ext, p.GUID) }

// LoginReq asks for a channel, as private data of the RDMA-CM request.
type LoginReq struct {
	Tag       uint64
	MaxITIU   uint32 // bytes of the longest unit the initiator will send
	Formats   uint16
	Multi     bool // keep the initiator's other channels; otherwise they end
	Initiator PortID
	Target    PortID
}

const multiChannel = 1

// Encode returns the unit.
func (q *LoginReq) Encode() []byte {
	b := make([]byte, LoginReqSize)
	be := binary.BigEndian
	be.PutUint64(b, q.Tag)
	be.PutUint16(b[8:], q.Formats)
	if q.Multi {
		b[10] = multiChannel
	}
	b[11] = byte(OpLoginReq)
	be.PutUint32(b[12:], q.MaxITIU)
	q.Initiator.put(b[16:])
	q.Target.put(b[32:])
	return b
}

// Decode reads the unit; more bytes may follow it.
func (q *LoginReq) Decode(b []byte) error {
	if len(b) < LoginReqSize || Opcode(b[11]) != OpLoginReq {
		return errUnit(OpLoginReq, b)
	}
	be := binary.BigEndian
	*q = LoginReq{Tag: be.Uint64(b), Formats: be.Uint16(b[8:]), Multi: b[10]&3 == multiChannel,
		MaxITIU: be.Uint32(b[12:]), Initiator: portID(b[16:]), Target: portID(b[32:])}
	return nil
}

// errUnit says why bytes are not a unit.
func errUnit(want Opcode, b []byte) error {
	return fmt.Errorf("%d bytes that begin with %.16x are no %v", len(b), b, want)
}

// LoginRsp grants a channel.
type LoginRsp struct {
	Tag     uint64
	Credits uint32 // requests that may be outstanding
	MaxITIU uint32 // bytes of the longest unit the initiator may send
	MaxTIIU uint32 // bytes of the longest unit the target will send
	Formats uint16
	Result  uint8 // what became of other channels: 0 there were none, 1 ended, 2 kept
}

// Encode returns the unit.
func (r *LoginRsp) Encode() []byte {
	b := make([]byte, LoginRspSize)
	be := binary.BigEndian
	b[0] = byte(OpLoginRsp)
	be.PutUint32(b[4:], r.Credits)
	be.PutUint64(b[8:], r.Tag)
	be.PutUint32(b[16:], r.MaxITIU)
	be.PutUint32(b[20:], r.MaxTIIU)
	be.PutUint16(b[24:], r.Formats)
	b[26] = r.Result
	return b
}

// Decode reads the unit; more bytes may follow it.
func (r *LoginRsp) Decode(b []byte) error {
	if len(b) < LoginRspSize || Opcode(b[0]) != OpLoginRsp {
		return errUnit(OpLoginRsp, b)
	}
	be := binary.BigEndian
	*r = LoginRsp{Credits: be.Uint32(b[4:]), Tag: be.Uint64(b[8:]), MaxITIU: be.Uint32(b[16:]),
		MaxTIIU: be.Uint32(b[20:]), Formats: be.Uint16(b[24:]), Result: b[26] & 3}
	return nil
}

// LoginRej refuses a channel, as private data of the RDMA-CM rejection.
type LoginRej struct {
	Tag     uint64
	Reason  LoginReason
	Formats uint16
}

// Encode returns the unit.
func (r *LoginRej) Encode() []byte {
	b := make([]byte, LoginRejSize)
	b[0] = byte(OpLoginRej)
	binary.BigEndian.PutUint32(b[4:], uint32(r.Reason))
	binary.BigEndian.PutUint64(b[8:], r.Tag)
	binary.BigEndian.PutUint16(b[24:], r.Formats)
	return b
}

// Decode reads the unit; more bytes may follow it.
func (r *LoginRej) Decode(b []byte) error {
	if len(b) < LoginRejSize || Opcode(b[0]) != OpLoginRej {
		return errUnit(OpLoginRej, b)
	}
	be := binary.BigEndian
	*r = LoginRej{Reason: LoginReason(be.Uint32(b[4:])), Tag: be.Uint64(b[8:]),
		Formats: be.Uint16(b[24:])}
	return nil
}

// Notice is a unit that a target sends unasked: CRED_REQ, AER_REQ, T_LOGOUT.
type Notice struct {
	Op      Opcode
	Tag     uint64
	Credits int32
	Reason  uint32 // of a T_LOGOUT
}

// Decode reads the unit.
func (n *Notice) Decode(b []byte) error {
	if len(b) < CredReqSize {
		return errUnit(OpCredReq, b)
	}
	v := binary.BigEndian.Uint32(b[4:])
	*n = Notice{Op: Opcode(b[0]), Tag: binary.BigEndian.Uint64(b[8:])}
	switch n.Op {
	case OpCredReq:
		n.Credits = int32(v)
	case OpAERReq:
		if len(b) < AERReqSize {
			return errUnit(OpAERReq, b)
		}
		n.Credits = int32(v)
	case OpTLogout:
		n.Reason = v
	default:
		return fmt.Errorf("%v from a target", n.Op)
	}
	return nil
}

// Append appends the unit to b, for a target's side.
func (n *Notice) Append(b []byte) []byte {
	size, v := CredReqSize, uint32(n.Credits)
	switch n.Op {
	case OpAERReq:
		size = AERReqSize
	case OpTLogout:
		v = n.Reason
	}
	at := len(b)
	b = append(b, make([]byte, size)...)
	b[at] = byte(n.Op)
	binary.BigEndian.PutUint32(b[at+4:], v)
	binary.BigEndian.PutUint64(b[at+8:], n.Tag)
	return b
}

// appendNoticeAnswer appends the answer to a CRED_REQ or AER_REQ.
func appendNoticeAnswer(b []byte, n *Notice) []byte {
	at := len(b)
	b = append(b, make([]byte, CredRspSize)...)
	b[at] = byte(OpCredRsp)
	if n.Op == OpAERReq {
		b[at] = byte(OpAERRsp)
	}
	binary.BigEndian.PutUint64(b[at+8:], n.Tag)
	return b
}
