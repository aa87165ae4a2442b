// Package srp is an initiator of the SCSI RDMA Protocol (T10, SRP revision 16a), as Linux's ib_srp
// is one: it logs in to a target over RDMA-CM, sends SCSI commands as messages, and lends the
// target memory for their data, which the target reads and writes by RDMA.
//
//	initiator                                           target (Linux's ib_srpt, package ramdisk)
//	REQ, private data: LOGIN_REQ     ────────────────▶
//	                                 ◀────────────────  REP, private data: LOGIN_RSP, credits
//	REG_MR, a fresh key, unsignaled
//	SEND SRP_CMD with the key        ────────────────▶
//	                                 ◀────────────────  RDMA READ or WRITE of the data, by that key
//	                                 ◀────────────────  SEND SRP_RSP, credits
//	LOCAL_INV of the key, unsignaled
//
// A [Session] is what several channels, each a QP of its own, have in common: one initiator port
// and one target port. Each channel has a pool of regions. A command takes one, the last that was
// given back, counts its key up, maps its own list of memory to it and posts REG_MR before the
// command; the answer makes the channel post LOCAL_INV and put the region back at once, whether or
// not that has executed. The send queue sees to the order. That is ib_srp's way.
//
// [Run] is a load of random READs and WRITEs in which every block is compared, with sessions beside
// it that come and go.
//
// Not here: SRP over the IB connection manager, where a target is found by its service id;
// immediate data; bidirectional commands.
package srp
