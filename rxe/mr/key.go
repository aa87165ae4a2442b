package mr

import "strings"

// Key is an lkey or an rkey: the index of a table entry in the upper 24 bits and a variant in the
// lower 8, which belongs to the consumer for fast-register regions and type 2 windows. The zero
// Key never matches anything, because index 0 is never allocated.
type Key uint32

// MakeKey joins an index (0..2^24-1, higher bits are cut) and a variant.
func MakeKey(index uint32, variant uint8) Key { return Key(index<<8 | uint32(variant)) }

// Index returns the upper 24 bits.
func (k Key) Index() uint32 { return uint32(k) >> 8 }

// Variant returns the lower 8 bits.
func (k Key) Variant() uint8 { return uint8(k) }

// Inc returns the key of the same index whose variant is one higher, modulo 256.
func (k Key) Inc() Key { return k&^0xff | Key(uint8(k)+1) }

// PD identifies a protection domain. 0 is no domain: no key matches it.
type PD uint32

// Access is a set of rights, numbered as enum ibv_access_flags numbers them.
type Access uint32

// The rights. Reading locally needs none, so it has no bit.
const (
	LocalWrite      Access = 1 << 0
	RemoteWrite     Access = 1 << 1
	RemoteRead      Access = 1 << 2
	RemoteAtomic    Access = 1 << 3
	MWBind          Access = 1 << 4 // memory windows may be bound to the region
	ZeroBased       Access = 1 << 5 // addresses count from 0, the first byte
	FlushGlobal     Access = 1 << 8 // FLUSH for global visibility
	FlushPersistent Access = 1 << 9 // FLUSH for persistence
)

// AccessRemote holds every right a peer can use. A Check that asks for none of them is the check
// of an lkey.
const AccessRemote = RemoteWrite | RemoteRead | RemoteAtomic | FlushGlobal | FlushPersistent

const accessAll = AccessRemote | LocalWrite | MWBind | ZeroBased

var accessNames = [...]struct {
	bit  Access
	name string
}{
	{LocalWrite, "local-write"},
	{RemoteWrite, "remote-write"},
	{RemoteRead, "remote-read"},
	{RemoteAtomic, "remote-atomic"},
	{MWBind, "mw-bind"},
	{ZeroBased, "zero-based"},
	{FlushGlobal, "flush-global"},
	{FlushPersistent, "flush-persistent"},
}

// String lists the rights by name, joined by "|"; no right at all is "local-read".
func (a Access) String() string {
	if a == 0 {
		return "local-read"
	}
	var names []string
	for _, n := range accessNames {
		if a&n.bit != 0 {
			names = append(names, n.name)
		}
	}
	if a&^accessAll != 0 {
		names = append(names, "unknown")
	}
	return strings.Join(names, "|")
}
