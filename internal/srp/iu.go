package srp

import (
	"encoding/binary"
	"fmt"
)

// This file knows the information units: what is where in them (T10 SRP revision 16a, section 6; the
// login request in RDMA-CM's private data is Linux's, include/scsi/srp.h). All numbers are
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
	OpLoginReq: "SRP_LOGIN_REQ", OpTskMgmt: "SRP_TSK_MGMT", OpCmd: "SRP_CMD", OpILogout: "SRP_I_LOGOUT",
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
	*r = LoginRej{Reason: LoginReason(be.Uint32(b[4:])), Tag: be.Uint64(b[8:]), Formats: be.Uint16(b[24:])}
	return nil
}

// A Desc is memory lent to the target.
type Desc struct {
	Addr uint64
	Key  uint32
	Len  uint32
}

func (d Desc) put(b []byte) {
	binary.BigEndian.PutUint64(b, d.Addr)
	binary.BigEndian.PutUint32(b[8:], d.Key)
	binary.BigEndian.PutUint32(b[12:], d.Len)
}

func descOf(b []byte) Desc {
	be := binary.BigEndian
	return Desc{be.Uint64(b), be.Uint32(b[8:]), be.Uint32(b[12:])}
}

// A Direction says which way a command's data goes.
type Direction uint8

// The directions.
const (
	NoData  Direction = iota
	DataIn            // to the initiator: the target writes
	DataOut           // to the target, which reads
)

// Kinds of descriptors in a command.
const (
	descNone     = 0
	descDirect   = 1
	descIndirect = 2
)

// MaxDescs is the most descriptors of one command: those that an indirect one names all stand in the
// command itself, where ib_srpt wants them.
const MaxDescs = 8

// MaxCmdSize is the longest command, in bytes.
const MaxCmdSize = CmdSize + indirectSize + MaxDescs*DescSize

// Cmd is a SCSI command with the memory for its data.
type Cmd struct {
	Tag   uint64
	LUN   uint64 // as it stands in the unit
	CDB   [16]byte
	Dir   Direction
	Data  []Desc // one: direct; several: indirect
	Table Desc   // indirect: where the list itself can be read; Key 0 if nowhere
}

// Append appends the unit to b.
func (q *Cmd) Append(b []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, CmdSize)...)
	u := b[at:]
	be := binary.BigEndian
	u[0] = byte(OpCmd)
	format, count := byte(descNone), byte(0)
	switch {
	case q.Dir == NoData:
	case len(q.Data) == 1:
		format = descDirect
	default:
		format, count = descIndirect, byte(len(q.Data))
	}
	if q.Dir == DataOut {
		u[5], u[6] = format<<4, count
	} else {
		u[5], u[7] = format, count
	}
	be.PutUint64(u[8:], q.Tag)
	be.PutUint64(u[20:], q.LUN)
	copy(u[32:], q.CDB[:])
	var d [DescSize]byte
	if format == descIndirect {
		table := q.Table
		table.Len = uint32(len(q.Data) * DescSize)
		table.put(d[:])
		b = append(b, d[:]...)
		total := uint32(0)
		for _, s := range q.Data {
			total += s.Len
		}
		b = be.AppendUint32(b, total)
	}
	for _, s := range q.Data {
		s.put(d[:])
		b = append(b, d[:]...)
	}
	return b
}

// Decode reads the unit. Data is reused. It fails for what an initiator of this package never
// sends: both directions, immediate data, a list that stands elsewhere.
func (q *Cmd) Decode(b []byte) error {
	if len(b) < CmdSize || Opcode(b[0]) != OpCmd {
		return errUnit(OpCmd, b)
	}
	be := binary.BigEndian
	q.Tag, q.LUN, q.CDB = be.Uint64(b[8:]), be.Uint64(b[20:]), [16]byte(b[32:])
	q.Dir, q.Data, q.Table = NoData, q.Data[:0], Desc{}
	out, in := b[5]>>4, b[5]&15
	format := in
	switch {
	case in != 0 && out != 0:
		return fmt.Errorf("a command with data in both directions")
	case in != 0:
		q.Dir = DataIn
	case out != 0:
		q.Dir, format = DataOut, out
	}
	rest := b[CmdSize:]
	if add := int(b[31] &^ 3); len(rest) < add {
		return fmt.Errorf("a command of %d bytes with %d more of its CDB", len(b), add)
	} else {
		rest = rest[add:]
	}
	return q.decodeData(format, int(b[6])+int(b[7]), rest)
}

// decodeData reads the descriptors.
func (q *Cmd) decodeData(format byte, count int, b []byte) error {
	switch format {
	case descNone:
		return nil
	case descDirect:
		count = 1
	case descIndirect:
		if len(b) < indirectSize {
			return fmt.Errorf("a command that ends in its indirect descriptor")
		}
		q.Table = descOf(b)
		if int(q.Table.Len) != count*DescSize {
			return fmt.Errorf("%d descriptors, of which %d stand in the command", q.Table.Len/DescSize, count)
		}
		b = b[indirectSize:]
	default:
		return fmt.Errorf("descriptors of format %d", format)
	}
	if len(b) < count*DescSize {
		return fmt.Errorf("%d descriptors in %d bytes", count, len(b))
	}
	for i := range count {
		q.Data = append(q.Data, descOf(b[i*DescSize:]))
	}
	return nil
}

// A TaskFunction is what a TskMgmt asks for.
type TaskFunction uint8

// The functions.
const (
	AbortTask    TaskFunction = 0x01
	AbortTaskSet TaskFunction = 0x02
	ClearTaskSet TaskFunction = 0x04
	LUNReset     TaskFunction = 0x08
	ClearACA     TaskFunction = 0x40
)

// TskMgmt asks the target to do something to tasks.
type TskMgmt struct {
	Tag     uint64
	LUN     uint64
	Func    TaskFunction
	TaskTag uint64 // of the command to abort
}

// Append appends the unit to b.
func (q *TskMgmt) Append(b []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, TskMgmtSize)...)
	u := b[at:]
	u[0] = byte(OpTskMgmt)
	binary.BigEndian.PutUint64(u[8:], q.Tag)
	binary.BigEndian.PutUint64(u[20:], q.LUN)
	u[30] = byte(q.Func)
	binary.BigEndian.PutUint64(u[32:], q.TaskTag)
	return b
}

// Decode reads the unit.
func (q *TskMgmt) Decode(b []byte) error {
	if len(b) < TskMgmtSize || Opcode(b[0]) != OpTskMgmt {
		return errUnit(OpTskMgmt, b)
	}
	be := binary.BigEndian
	*q = TskMgmt{Tag: be.Uint64(b[8:]), LUN: be.Uint64(b[20:]), Func: TaskFunction(b[30]), TaskTag: be.Uint64(b[32:])}
	return nil
}

// Bits of a Rsp's flags.
const (
	rspValid   = 1 << 0
	senseValid = 1 << 1
	outOver    = 1 << 2
	outUnder   = 1 << 3
	inOver     = 1 << 4
	inUnder    = 1 << 5
)

// Rsp answers a Cmd or a TskMgmt.
type Rsp struct {
	Tag     uint64
	Credits int32 // requests more that may be outstanding
	Status  Status
	OutRes  int64  // bytes of data out the target has not taken; negative: would have taken more
	InRes   int64  // likewise of data in
	Resp    []byte // response data: in its last byte a TaskStatus
	Sense   []byte
}

// Append appends the unit to b.
func (r *Rsp) Append(b []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, RspSize)...)
	u := b[at:]
	be := binary.BigEndian
	u[0] = byte(OpRsp)
	be.PutUint32(u[4:], uint32(r.Credits))
	be.PutUint64(u[8:], r.Tag)
	if len(r.Resp) > 0 {
		u[18] |= rspValid
	}
	if len(r.Sense) > 0 {
		u[18] |= senseValid
	}
	u[18] |= residue(r.OutRes, outOver, outUnder) | residue(r.InRes, inOver, inUnder)
	u[19] = byte(r.Status)
	be.PutUint32(u[20:], uint32(max(r.OutRes, -r.OutRes)))
	be.PutUint32(u[24:], uint32(max(r.InRes, -r.InRes)))
	be.PutUint32(u[28:], uint32(len(r.Sense)))
	be.PutUint32(u[32:], uint32(len(r.Resp)))
	return append(append(b, r.Resp...), r.Sense...)
}

func residue(n int64, over, under byte) byte {
	switch {
	case n < 0:
		return over
	case n > 0:
		return under
	}
	return 0
}

// Decode reads the unit; Resp and Sense are slices of b.
func (r *Rsp) Decode(b []byte) error {
	if len(b) < RspSize || Opcode(b[0]) != OpRsp {
		return errUnit(OpRsp, b)
	}
	be := binary.BigEndian
	flags := b[18]
	*r = Rsp{Credits: int32(be.Uint32(b[4:])), Tag: be.Uint64(b[8:]), Status: Status(b[19]),
		OutRes: signed(be.Uint32(b[20:]), flags, outOver, outUnder),
		InRes:  signed(be.Uint32(b[24:]), flags, inOver, inUnder)}
	sense, resp := uint64(be.Uint32(b[28:])), uint64(be.Uint32(b[32:]))
	b = b[RspSize:]
	if flags&rspValid == 0 {
		resp = 0
	}
	if flags&senseValid == 0 {
		sense = 0
	}
	if uint64(len(b)) < resp+sense {
		return fmt.Errorf("an answer with %d bytes of data that tells of %d", len(b), resp+sense)
	}
	r.Resp, r.Sense = b[:resp], b[resp:resp+sense]
	return nil
}

func signed(n uint32, flags, over, under byte) int64 {
	switch {
	case flags&over != 0:
		return -int64(n)
	case flags&under != 0:
		return int64(n)
	}
	return 0
}

// Task is the outcome of a TskMgmt in its answer; ok is false if there is none.
func (r *Rsp) Task() (s TaskStatus, ok bool) {
	if len(r.Resp) < 4 {
		return 0, false
	}
	return TaskStatus(r.Resp[3]), true
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
