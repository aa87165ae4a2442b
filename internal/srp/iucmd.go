package srp

import (
	"encoding/binary"
	"fmt"
)

// This file knows the units of commands and their answers.

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

// MaxDescs is the most descriptors of one command: those that an indirect one names all stand in
// the command itself, where ib_srpt wants them.
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
			return fmt.Errorf("%d descriptors, of which %d stand in the command", q.Table.Len/DescSize,
				count)
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
	*q = TskMgmt{Tag: be.Uint64(b[8:]), LUN: be.Uint64(b[20:]), Func: TaskFunction(b[30]),
		TaskTag: be.Uint64(b[32:])}
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
