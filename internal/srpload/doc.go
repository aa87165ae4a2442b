// Package srpload loads two RDMA endpoints as a storage initiator and its target do: every I/O has
// memory of its own registered under a fresh key, which the target reads or writes through.
//
//	initiator, each channel                       target
//	LOCAL_INV old key, unsignaled
//	key+1, MapSG, REG_MR, unsignaled
//	SEND command with the new key   ─────────►    RDMA READ the data, or RDMA WRITE it
//	compare, give the descriptor back  ◄──────    SEND answer, or SEND_WITH_INV
//
// The order of work requests is that of Linux's ib_srp: the descriptor of a finished I/O is taken
// by the next one at once, whether or not its invalidation has executed; the send queue sees to the
// order. Three variants show what registration costs: SRP maps a new list for every I/O, RTRS maps
// once and registers and invalidates for ever, and with Config.Persistent the same bytes go through
// keys that stay.
//
// # Data
//
// Both ends hold the same random pattern. An I/O's seed says which bytes of it travel, so that each
// end knows every byte that must arrive. What the initiator sends lies in the pattern itself, at
// the pieces of an unaligned list; the target makes the same list over its own and compares. What
// it receives it compares at the pieces of its list, in memory of that I/O's own. Nothing is copied
// but by RDMA, and every byte is compared.
package srpload
