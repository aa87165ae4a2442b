package srp

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// This file makes the few SCSI commands that are needed (SPC, SBC), and reads their data.

// Operation codes.
const (
	scsiTestUnitReady  = 0x00
	scsiInquiry        = 0x12
	scsiReadCapacity10 = 0x25
	scsiRead10         = 0x28
	scsiWrite10        = 0x2a
	scsiRead16         = 0x88
	scsiWrite16        = 0x8a
	scsiServiceIn16    = 0x9e // with service action 0x10: READ CAPACITY (16)

	saReadCapacity16 = 0x10
)

// Lengths of data in bytes.
const (
	inquiryLen    = 36
	capacity16Len = 32
	limitsLen     = 64
)

const pageBlockLimits = 0xb0 // of vital product data

// LUN is a logical unit number's eight bytes, of the flat or, below 256, the peripheral method.
func LUN(n uint16) uint64 {
	v := uint64(n)
	if n >= 256 {
		v |= 1 << 14
	}
	return v << 48
}

// OfLUN is the number in what LUN returns.
func OfLUN(v uint64) uint16 { return uint16(v>>48) & 0x3fff }

func cdbTestUnitReady() (c [16]byte) { return c }

func cdbInquiry() (c [16]byte) {
	c[0] = scsiInquiry
	binary.BigEndian.PutUint16(c[3:], inquiryLen)
	return c
}

func cdbLimits() (c [16]byte) {
	c[0], c[1], c[2] = scsiInquiry, 1, pageBlockLimits
	binary.BigEndian.PutUint16(c[3:], limitsLen)
	return c
}

func cdbCapacity() (c [16]byte) {
	c[0], c[1] = scsiServiceIn16, saReadCapacity16
	binary.BigEndian.PutUint32(c[10:], capacity16Len)
	return c
}

// cdbTransfer is READ or WRITE of n blocks, with 10 or 16 bytes.
func cdbTransfer(write, long bool, lba uint64, n uint32) (c [16]byte) {
	be := binary.BigEndian
	if long {
		c[0] = scsiRead16
		if write {
			c[0] = scsiWrite16
		}
		be.PutUint64(c[2:], lba)
		be.PutUint32(c[10:], n)
		return c
	}
	c[0] = scsiRead10
	if write {
		c[0] = scsiWrite10
	}
	be.PutUint32(c[2:], uint32(lba))
	be.PutUint16(c[7:], uint16(n))
	return c
}

// Inquiry is what a logical unit says of itself.
type Inquiry struct {
	Type     uint8 // 0: disk
	Vendor   string
	Product  string
	Revision string
}

// Disk reports whether it is a disk.
func (q Inquiry) Disk() bool { return q.Type == 0 }

// String is the unit's name.
func (q Inquiry) String() string {
	kind := fmt.Sprintf("device of type %d", q.Type)
	if q.Disk() {
		kind = "disk"
	}
	return fmt.Sprintf("%s %s %s, a %s", q.Vendor, q.Product, q.Revision, kind)
}

// DecodeInquiry reads standard INQUIRY data.
func DecodeInquiry(b []byte) (Inquiry, error) {
	if len(b) < inquiryLen {
		return Inquiry{}, fmt.Errorf("INQUIRY brought %d bytes, not %d", len(b), inquiryLen)
	}
	if b[0] != 0 && b[0]>>5 != 0 {
		return Inquiry{}, fmt.Errorf("INQUIRY: no such logical unit")
	}
	text := func(b []byte) string { return strings.TrimRight(string(b), " \x00") }
	return Inquiry{b[0] & 0x1f, text(b[8:16]), text(b[16:32]), text(b[32:36])}, nil
}

// Encode returns standard INQUIRY data, for a target.
func (q Inquiry) Encode() []byte {
	b := make([]byte, inquiryLen)
	b[0], b[2], b[3], b[4] = q.Type, 5, 2, inquiryLen-5
	copy(b[8:36], strings.Repeat(" ", 28))
	copy(b[8:16], q.Vendor)
	copy(b[16:32], q.Product)
	copy(b[32:36], q.Revision)
	return b
}

// Capacity is a disk's size.
type Capacity struct {
	Blocks    uint64
	BlockSize uint32 // bytes
}

// Bytes is the size in bytes.
func (c Capacity) Bytes() uint64 { return c.Blocks * uint64(c.BlockSize) }

// DecodeCapacity reads data of READ CAPACITY (16).
func DecodeCapacity(b []byte) (Capacity, error) {
	if len(b) < 12 {
		return Capacity{}, fmt.Errorf("READ CAPACITY brought %d bytes", len(b))
	}
	c := Capacity{binary.BigEndian.Uint64(b) + 1, binary.BigEndian.Uint32(b[8:])}
	if c.Blocks == 0 || c.BlockSize == 0 || c.BlockSize&(c.BlockSize-1) != 0 || c.BlockSize > 1<<20 {
		return c, fmt.Errorf("READ CAPACITY tells of %d blocks of %d bytes", c.Blocks, c.BlockSize)
	}
	return c, nil
}

// Encode returns data of READ CAPACITY (16), for a target.
func (c Capacity) Encode() []byte {
	b := make([]byte, capacity16Len)
	binary.BigEndian.PutUint64(b, c.Blocks-1)
	binary.BigEndian.PutUint32(b[8:], c.BlockSize)
	return b
}

// maxTransfer reads the most blocks of one command from the block limits page; 0 if it does not
// say.
func maxTransfer(b []byte) uint32 {
	if len(b) < 12 || b[1] != pageBlockLimits {
		return 0
	}
	return binary.BigEndian.Uint32(b[8:])
}

// Transfer is a READ or WRITE, for a target.
type Transfer struct {
	Write  bool
	LBA    uint64
	Blocks uint32
}

// DecodeTransfer reads a CDB of READ or WRITE; ok is false for another one.
func DecodeTransfer(c *[16]byte) (t Transfer, ok bool) {
	be := binary.BigEndian
	switch c[0] {
	case scsiRead10, scsiWrite10:
		return Transfer{c[0] == scsiWrite10, uint64(be.Uint32(c[2:])), uint32(be.Uint16(c[7:]))}, true
	case scsiRead16, scsiWrite16:
		return Transfer{c[0] == scsiWrite16, be.Uint64(c[2:]), be.Uint32(c[10:])}, true
	}
	return t, false
}
