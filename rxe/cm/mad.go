package cm

import "encoding/binary"

const (
	MADSize    = 256 // bytes of every MAD
	headerSize = 24
	bodySize   = MADSize - headerSize
)

// Constant fields of the MAD header of every CM message (IBTA volume 1, chapter 13).
const (
	baseVersion  = 1
	classCM      = 0x07
	classVersion = 2
	methodSend   = 0x03
)

// A MAD is one management datagram, the payload of one UD packet to QP1.
//
//	0 base version │ 1 class │ 2 class version │ 3 method │ 4 status 2 │ 6 class specific 2
//	8 transaction id 8 │ 16 attribute id 2 │ 18 reserved 2 │ 20 modifier 4 │ 24 CM message 232
type MAD [MADSize]byte

// Attr returns the attribute id, which names the message.
func (m *MAD) Attr() Attr { return Attr(binary.BigEndian.Uint16(m[16:])) }

// TID returns the transaction id, which answers repeat.
func (m *MAD) TID() uint64 { return binary.BigEndian.Uint64(m[8:]) }

// check returns DropNone if b is a CM message this package knows.
func check(b []byte) Drop {
	switch {
	case len(b) != MADSize:
		return DropLength
	case b[0] != baseVersion || b[1] != classCM:
		return DropClass
	case b[3] != methodSend:
		return DropMethod
	case !Attr(binary.BigEndian.Uint16(b[16:])).Known():
		return DropAttr
	case b[2] != classVersion:
		return DropClassVersion
	}
	return DropNone
}

// An Attr is a MAD's attribute id: which CM message it is.
type Attr uint16

// The CM messages (IBTA volume 1, chapter 12).
const (
	AttrREQ     Attr = 0x10 + iota // request for communication
	AttrMRA                        // message receipt acknowledgment: the answer takes longer
	AttrREJ                        // reject
	AttrREP                        // reply to REQ
	AttrRTU                        // ready to use
	AttrDREQ                       // request for communication release
	AttrDREP                       // reply to DREQ
	AttrSIDRREQ                    // service id resolution request
	AttrSIDRREP                    // service id resolution response
	AttrLAP                        // load alternate path
	AttrAPR                        // alternate path response

	NumAttrs = 11 // messages; counters are indexed by Attr.Index
)

var attrNames = [NumAttrs]string{
	"REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR",
}

// Known reports whether a is a CM message.
func (a Attr) Known() bool { return a >= AttrREQ && a < AttrREQ+NumAttrs }

// Index returns a's place in arrays of NumAttrs; a must be Known.
func (a Attr) Index() int { return int(a - AttrREQ) }

// String returns the spec's name of the message.
func (a Attr) String() string {
	if !a.Known() {
		return "unknown"
	}
	return attrNames[a.Index()]
}

// A Message is one of the message structs of this package.
type Message interface {
	Attr() Attr
	String() string
	fields(l *layout)
}

// Encode returns the MAD that carries msg in transaction tid. Fields wider than their place on the
// wire lose their upper bits; reserved bits are zero.
func Encode(tid uint64, msg Message) (mad MAD) {
	mad[0], mad[1], mad[2], mad[3] = baseVersion, classCM, classVersion, methodSend
	binary.BigEndian.PutUint64(mad[8:], tid)
	binary.BigEndian.PutUint16(mad[16:], uint16(msg.Attr()))
	msg.fields(&layout{body: (*[bodySize]byte)(mad[headerSize:]), write: true})
	return mad
}

// Decode returns the message in b, or nil and why b is none. The message holds no part of b.
func Decode(b []byte) (Message, Drop) {
	if d := check(b); d != DropNone {
		return nil, d
	}
	var msg Message
	switch (*MAD)(b).Attr() {
	case AttrREQ:
		msg = new(REQ)
	case AttrMRA:
		msg = new(MRA)
	case AttrREJ:
		msg = new(REJ)
	case AttrREP:
		msg = new(REP)
	case AttrRTU:
		msg = new(RTU)
	case AttrDREQ:
		msg = new(DREQ)
	case AttrDREP:
		msg = new(DREP)
	case AttrSIDRREQ:
		msg = new(SIDRREQ)
	case AttrSIDRREP:
		msg = new(SIDRREP)
	case AttrLAP:
		msg = new(LAP)
	case AttrAPR:
		msg = new(APR)
	}
	decode((*MAD)(b), msg)
	return msg, DropNone
}

// decode fills msg from a MAD whose attribute is msg's.
func decode(mad *MAD, msg Message) {
	msg.fields(&layout{body: (*[bodySize]byte)(mad[headerSize:])})
}

// A layout walks a message's fields in one of two directions, so that each message describes its
// bytes once, for encoding and decoding alike. Offsets count from the end of the MAD header.
type layout struct {
	body  *[bodySize]byte
	write bool
}

// field moves width bits (up to 64, within 8 bytes) from bit, counted from the most significant one
// of the byte at off, to v or back.
func field[T ~uint8 | ~uint16 | ~uint32 | ~uint64](l *layout, off, bit, width int, v *T) {
	n := (bit + width + 7) / 8
	var word uint64
	for _, b := range l.body[off : off+n] {
		word = word<<8 | uint64(b)
	}
	shift := n*8 - bit - width
	mask := uint64(1)<<width - 1
	if !l.write {
		*v = T(word >> shift & mask)
		return
	}
	word = word&^(mask<<shift) | uint64(*v)&mask<<shift
	for i := n - 1; i >= 0; i-- {
		l.body[off+i] = byte(word)
		word >>= 8
	}
}

// bit moves one bit.
func bit(l *layout, off, n int, v *bool) {
	var x uint8
	if *v {
		x = 1
	}
	field(l, off, n, 1, &x)
	*v = x != 0
}

// raw moves bytes as they are.
func raw(l *layout, off int, v []byte) {
	if l.write {
		copy(l.body[off:], v)
	} else {
		copy(v, l.body[off:])
	}
}
