package wire

// One line of text per packet, for `roxie decode`, traces and failure messages. Fields are
// key=value and stand in one order: addresses, opcode, BTH, extension headers in wire order,
// payload, MAD, ICRC.

import (
	"encoding/binary"
	"strconv"
)

// Decode describes a frame in one line and returns what [Parse] says about it. A frame with a wrong
// ICRC is described in full. For other frames that are refused, the line only names the reason.
func Decode(f Frame) (line string, r Reason) {
	p := new(Packet)
	if r = ParseNoICRC(f, p); r != ReasonOK {
		return "refused=" + r.String() + " bytes=" + strconv.Itoa(f.Len()), r
	}
	b := p.appendNet(make([]byte, 0, 256))
	b = p.AppendText(append(b, ' '))
	if want := p.computeICRC(f); want != p.icrc {
		b = appendHex(append(b, " icrc=wrong got="...), uint64(p.icrc), 8)
		return string(appendHex(append(b, " want="...), uint64(want), 8)), ReasonICRC
	}
	return string(append(b, " icrc=ok"...)), ReasonOK
}

// String describes the packet in one line, from the opcode on.
func (p *Packet) String() string { return string(p.AppendText(make([]byte, 0, 192))) }

// AppendText appends to b what [Packet.String] returns.
func (p *Packet) AppendText(b []byte) []byte {
	b = append(b, p.Op.String()...)
	b = appendHex(append(b, " qpn="...), uint64(p.DestQP), 6)
	b = appendHex(append(b, " psn="...), uint64(p.PSN), 6)
	b = p.appendFlags(append(b, " flags="...))
	if p.PKey != 0xffff {
		b = appendHex(append(b, " pkey="...), uint64(p.PKey), 4)
	}
	b = p.appendExt(b)
	if p.Info.Flags&FlagPayload != 0 {
		b = strconv.AppendInt(append(b, " len="...), int64(p.PayloadLen), 10)
		b = strconv.AppendInt(append(b, " pad="...), int64(p.Pad), 10)
	}
	if p.DestQP == QPNGSI && p.Info.Flags&FlagDETH != 0 {
		b = p.appendMAD(b)
	}
	return b
}

// appendHex appends v as 0x and at least so many digits.
func appendHex(b []byte, v uint64, digits int) []byte {
	b = append(b, "0x"...)
	for i := digits - 1; i > 0 && v>>(4*i) == 0; i-- {
		b = append(b, '0')
	}
	return strconv.AppendUint(b, v, 16)
}

// appendNet appends the addresses and what is unusual about the packet below the BTH.
func (p *Packet) appendNet(b []byte) []byte {
	b = append(b, "src="...)
	b = append(b, p.Src.Addr().String()...)
	b = append(b, " dst="...)
	b = append(b, p.Dst.Addr().String()...)
	if p.VLAN >= 0 {
		b = strconv.AppendInt(append(b, " vlan="...), int64(p.VLAN), 10)
	}
	if p.TClass != 0 {
		b = appendHex(append(b, " tclass="...), uint64(p.TClass), 2)
	}
	return b
}

// appendFlags appends the names of the BTH's bits that are set.
func (p *Packet) appendFlags(b []byte) []byte {
	n := len(b)
	for _, bit := range [...]struct {
		on   bool
		name string
	}{
		{p.Solicited, "se"},
		{p.MigReq, "mig"},
		{p.FECN, "fecn"},
		{p.BECN, "becn"},
		{p.AckReq, "ackreq"},
	} {
		if !bit.on {
			continue
		}
		if len(b) > n {
			b = append(b, ',')
		}
		b = append(b, bit.name...)
	}
	if len(b) == n {
		b = append(b, '-')
	}
	return b
}

// appendExt appends the extension headers.
func (p *Packet) appendExt(b []byte) []byte {
	flags := p.Info.Flags
	if flags&FlagDETH != 0 {
		b = appendHex(append(b, " qkey="...), uint64(p.DETH().QKey()), 8)
		b = appendHex(append(b, " srcqp="...), uint64(p.DETH().SrcQP()), 6)
	}
	if flags&FlagFETH != 0 {
		b = strconv.AppendInt(append(b, " placement="...), int64(p.FETH().Placement()), 10)
		b = strconv.AppendInt(append(b, " select="...), int64(p.FETH().Selectivity()), 10)
	}
	if flags&FlagRETH != 0 {
		b = appendHex(append(b, " va="...), p.RETH().VA(), 16)
		b = appendHex(append(b, " rkey="...), uint64(p.RETH().RKey()), 8)
		b = strconv.AppendUint(append(b, " dmalen="...), uint64(p.RETH().Length()), 10)
	}
	if flags&FlagAtomicETH != 0 {
		b = appendHex(append(b, " va="...), p.AtomicETH().VA(), 16)
		b = appendHex(append(b, " rkey="...), uint64(p.AtomicETH().RKey()), 8)
		b = appendHex(append(b, " swapadd="...), p.AtomicETH().SwapAdd(), 16)
		b = appendHex(append(b, " compare="...), p.AtomicETH().Compare(), 16)
	}
	if flags&FlagAETH != 0 {
		b = p.AETH().Syndrome().appendText(append(b, " syndrome="...))
		b = strconv.AppendUint(append(b, " msn="...), uint64(p.AETH().MSN()), 10)
	}
	if flags&FlagAtomicAckETH != 0 {
		b = appendHex(append(b, " orig="...), p.AtomicAckETH().Orig(), 16)
	}
	if flags&FlagImm != 0 {
		b = appendHex(append(b, " imm="...), uint64(p.Imm()), 8)
	}
	if flags&FlagInv != 0 {
		b = appendHex(append(b, " inv="...), uint64(p.Inv()), 8)
	}
	return b
}

// String returns the syndrome's number and meaning, as in 0x60(nak_psn_seq).
func (s Syndrome) String() string { return string(s.appendText(nil)) }

var nakNames = [...]string{"psn_seq", "invalid_request", "remote_access", "remote_op", "invalid_rd"}

func (s Syndrome) appendText(b []byte) []byte {
	b = append(appendHex(b, uint64(s), 2), '(')
	switch s.Kind() {
	case KindACK:
		b = append(b, "ack"...)
	case KindRNR:
		b = strconv.AppendFloat(append(b, "rnr_"...), float64(RNRDelay(s.Timer()))/1e6, 'f', -1, 64)
		b = append(b, "ms"...)
	case KindNAK:
		b = append(b, "nak_"...)
		if int(s.NAK()) < len(nakNames) {
			b = append(b, nakNames[s.NAK()]...)
		} else {
			b = append(b, "reserved"...)
		}
	default:
		b = append(b, "reserved"...)
	}
	return append(b, ')')
}

// What a MAD's header tells, and the first two words behind it, which are communication IDs in CM
// messages.
const (
	madHeader   = 24
	madClassCM  = 0x07
	madAttrREQ  = 0x10
	madAttrSIDR = 0x17
)

var cmNames = [...]string{
	"CM_REQ", "CM_MRA", "CM_REJ", "CM_REP", "CM_RTU", "CM_DREQ", "CM_DREP", "CM_SIDR_REQ",
	"CM_SIDR_REP", "CM_LAP", "CM_APR",
}

// MADName returns the name of a MAD by management class and attribute ID: those of CM messages as
// in CM_REQ, others by number.
func MADName(class uint8, attr uint16) string {
	if i := int(attr) - madAttrREQ; class == madClassCM && i >= 0 && i < len(cmNames) {
		return cmNames[i]
	}
	b := appendHex([]byte("class_"), uint64(class), 2)
	return string(appendHex(append(b, "_attr_"...), uint64(attr), 4))
}

// appendMAD appends the name of the MAD in the payload, its transaction and communication IDs.
func (p *Packet) appendMAD(b []byte) []byte {
	var m [madHeader + 8]byte
	n := copy(m[:], p.Data0)
	if n += copy(m[n:], p.Data1); n < len(m) {
		return append(b, " mad=short"...)
	}
	class, attr := m[1], binary.BigEndian.Uint16(m[16:18])
	b = append(append(b, " mad="...), MADName(class, attr)...)
	b = appendHex(append(b, " tid="...), binary.BigEndian.Uint64(m[8:16]), 16)
	if class != madClassCM {
		return appendHex(append(b, " method="...), uint64(m[3]), 2)
	}
	b = appendHex(append(b, " id="...), uint64(binary.BigEndian.Uint32(m[24:28])), 8)
	if attr != madAttrREQ && attr < madAttrSIDR {
		b = appendHex(append(b, " rid="...), uint64(binary.BigEndian.Uint32(m[28:32])), 8)
	}
	return b
}
