// Package xfer moves files to and from exports of `roxie serve` with one-sided operations, and
// holds the protocol between the two.
//
// A client connects by RDMA-CM (port 7470 unless said otherwise). Private data of the REQ and the
// REP, all numbers big-endian:
//
//	REQ   0 magic "RXEX"   4 version 1   5 flags (1: will write)   6 length of name   7 name
//	REP   0 magic   4 version   5 rights (1 read, 2 write, 4 atomics)   6 zero   8 rkey
//	      12 control messages at a time   16 address   24 length of the region
//	REJ   0 magic   4 version   5 length of text   6 text: why, for people
//
// With that the client READs, WRITEs and does atomics as it likes; nothing else is needed. What
// `roxie get` and `roxie put` need besides goes in control messages, SENDs of 64 bytes on the same
// QP, each answered by one:
//
//	0 op   1 status   2 zero   4 id   8 offset   16 length   24 SHA-256 (32 bytes)   56 zero
//
//	STAT     →                answer: offset = size of the region, length = bytes of content
//	RESIZE   → length         makes room: the content is at least that long, its memory warm
//	DIGEST   → offset, length answer: SHA-256 of these bytes of the region
//	COMMIT   → length         the content is that long; a file behind it is written to its disk
//
// A file moves in blocks of 1 MiB. Both ends hash each block, and the client compares: that is the
// checksum end to end, and what resuming rests on. There is no state to be lost: a block whose
// hashes agree is there, whoever died in between.
//
// The hashes guard against damage, not against an enemy: RoCEv2 has no encryption.
package xfer
