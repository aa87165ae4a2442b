// Package mr is what a device honours of memory: from a key and an address to bytes, or a Fault.
//
//	key = index << 8 | variant
//	        │
//	        ▼
//	Table  ┌───┬───┬───┬───┬──     an entry is one atomic pointer; changed by compare-and-swap
//	       │ 0 │ 1 │ 2 │ 3 │ …
//	       └───┴─┬─┴───┴───┴──
//	             ▼
//	View   key, state, PD, rights, IOVA, length ─►  List   segment, segment, segment
//	       immutable                                        the application's memory
//
// Check is one load of the entry and compares: no lock, no count, no retry. A view is never changed
// while anybody can see it. It is replaced by another one, and what it was made of is used again
// only after grace: when every shard that could hold it has passed a quiescent point (Grace).
//
// New makes a table. A region's key comes from Alloc or AllocFast; what it shows, from Publish for
// memory that an application registers, from Stage and Register for a REG_MR. The package's example
// follows a region from its first key to its last.
//
// The package knows nothing of packets and queues. It counts no faults, logs nothing, waits for
// nobody and keeps no clock. The application's side of a region (the next key, the next list) is
// not here either: what this package holds is what packets see.
package mr
