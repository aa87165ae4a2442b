package xfer

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// Numbers of the protocol.
const (
	DefaultPort  = 7470    // RDMA-CM port of exports
	MaxName      = 40      // bytes of an export's name
	MessageSize  = 64      // bytes of a control message
	ControlSlots = 16      // control messages that a server takes at a time
	BlockSize    = 1 << 20 // bytes that are hashed and compared at once
	MaxDigest    = 4 << 20 // bytes that one DIGEST may ask for
	MaxText      = 120     // bytes of a refusal
)

const (
	magic   = "RXEX"
	version = 1
)

// Rights over an export.
type Rights uint8

// The rights.
const (
	Read    Rights = 1
	Write   Rights = 2
	Atomics Rights = 4
)

// ErrProtocol is returned for what does not follow the protocol.
var ErrProtocol = errors.New("not the protocol of exports")

// Hello is what a client asks for.
type Hello struct {
	Name  string
	Write bool // it will write: refused for a read-only export
}

// Marshal returns the private data of a REQ.
func (h Hello) Marshal() []byte {
	b := append([]byte(magic), version, 0, byte(len(h.Name)))
	if h.Write {
		b[5] = 1
	}
	return append(b, h.Name...)
}

// ParseHello reads the private data of a REQ.
func ParseHello(b []byte) (h Hello, err error) {
	if err := check(b, 7); err != nil {
		return h, err
	}
	n := int(b[6])
	if n == 0 || n > MaxName || len(b) < 7+n || b[5] > 1 {
		return h, fmt.Errorf("%w: malformed request", ErrProtocol)
	}
	return Hello{Name: string(b[7 : 7+n]), Write: b[5] == 1}, nil
}

// check looks at magic and version of at least n bytes.
func check(b []byte, n int) error {
	switch {
	case len(b) < n || !bytes.HasPrefix(b, []byte(magic)):
		return fmt.Errorf("%w: is an export served at this port?", ErrProtocol)
	case b[4] != version:
		return fmt.Errorf("%w: version %d, this is %d", ErrProtocol, b[4], version)
	}
	return nil
}

// Grant is what a client gets.
type Grant struct {
	Rights Rights
	RKey   uint32
	Slots  uint32 // control messages that may be on their way
	Addr   uint64
	Length uint64
}

// Marshal returns the private data of a REP.
func (g Grant) Marshal() []byte {
	b := append([]byte(magic), version, byte(g.Rights), 0, 0)
	b = binary.BigEndian.AppendUint32(b, g.RKey)
	b = binary.BigEndian.AppendUint32(b, g.Slots)
	b = binary.BigEndian.AppendUint64(b, g.Addr)
	return binary.BigEndian.AppendUint64(b, g.Length)
}

// ParseGrant reads the private data of a REP.
func ParseGrant(b []byte) (g Grant, err error) {
	if err := check(b, 32); err != nil {
		return g, err
	}
	g = Grant{Rights: Rights(b[5]), RKey: binary.BigEndian.Uint32(b[8:]), Slots: binary.BigEndian.Uint32(b[12:]),
		Addr: binary.BigEndian.Uint64(b[16:]), Length: binary.BigEndian.Uint64(b[24:])}
	if g.Slots == 0 || g.Addr+g.Length < g.Addr {
		return g, fmt.Errorf("%w: malformed answer", ErrProtocol)
	}
	return g, nil
}

// Refusal returns the private data of a REJ: why, for people to read.
func Refusal(text string) []byte {
	text = text[:min(len(text), MaxText)]
	return append(append([]byte(magic), version, byte(len(text))), text...)
}

// ParseRefusal reads the private data of a REJ; "" if there is no text.
func ParseRefusal(b []byte) string {
	if check(b, 6) != nil || len(b) < 6+int(b[5]) {
		return ""
	}
	return string(b[6 : 6+int(b[5])])
}

// Op says what a control message is about.
type Op uint8

// The operations.
const (
	OpStat   Op = 1
	OpResize Op = 2
	OpDigest Op = 3
	OpCommit Op = 4
)

// Status is the outcome of a control message.
type Status uint8

// The outcomes.
const (
	OK           Status = 0
	StatusBad    Status = 1 // unknown operation, or outside the region
	StatusRights Status = 2 // it would write a read-only export
	StatusIO     Status = 3 // the file behind the export does not give or take the bytes
)

// String describes the status.
func (s Status) String() string {
	switch s {
	case OK:
		return "done"
	case StatusBad:
		return "operation or range is not valid"
	case StatusRights:
		return "export is read-only"
	case StatusIO:
		return "file behind the export has gone or fails"
	}
	return fmt.Sprintf("status %d", uint8(s))
}

// Message is a control message.
type Message struct {
	Op     Op
	Status Status
	ID     uint32 // the answer has the request's
	Offset uint64
	Length uint64
	Digest [sha256.Size]byte
}

// Put writes the message to b, of MessageSize bytes.
func (m *Message) Put(b []byte) {
	clear(b[:MessageSize])
	b[0], b[1] = byte(m.Op), byte(m.Status)
	binary.BigEndian.PutUint32(b[4:], m.ID)
	binary.BigEndian.PutUint64(b[8:], m.Offset)
	binary.BigEndian.PutUint64(b[16:], m.Length)
	copy(b[24:], m.Digest[:])
}

// ParseMessage reads a control message of n = len(b) bytes.
func ParseMessage(b []byte) (m Message, err error) {
	if len(b) != MessageSize {
		return m, fmt.Errorf("%w: control message of %d bytes", ErrProtocol, len(b))
	}
	m = Message{Op: Op(b[0]), Status: Status(b[1]), ID: binary.BigEndian.Uint32(b[4:]),
		Offset: binary.BigEndian.Uint64(b[8:]), Length: binary.BigEndian.Uint64(b[16:])}
	copy(m.Digest[:], b[24:])
	return m, nil
}
