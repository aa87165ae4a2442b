// Package wire knows the bytes of RoCEv2: it builds frames from prebuilt headers, parses and checks
// frames that arrive, and computes the invariant CRC. It keeps no state of a connection. Start
// with Parse and Packet to take frames apart, with Template to build them; Decode prints one as text.
//
// A frame, with the offsets of an untagged IPv4 frame (IPv6 adds 20, an 802.1Q tag 4):
//
//	0        14       34    42     54           54+e      54+e+n  +pad
//	┌────────┬────────┬─────┬──────┬────────────┬─────────┬───────┬──────┐
//	│Ethernet│IPv4/v6 │ UDP │ BTH  │ extension  │ payload │ pad   │ ICRC │ (FCS: not ours)
//	│14, +4  │20 / 40 │  8  │  12  │ headers, e │    n    │ 0..3  │  4   │
//	└────────┴────────┴─────┴──────┴────────────┴─────────┴───────┴──────┘
//	         ├───── covered by the ICRC, some fields masked ──────┤
//
// Every integer on the wire is big-endian, except the ICRC, which is sent least significant byte
// first. The extension headers follow from the opcode by one table, see [Opcode.Info].
//
// A frame lies in one or two pieces of memory ([Frame]), because AF_XDP hands long frames over in
// two buffers. Received frames may be cut anywhere. Frames being built are cut after the headers.
//
// The package allocates nothing per frame and reports no error values: [Parse] answers with a
// [Reason]. It refuses IPv6 extension headers, IP fragments and more than one VLAN tag, and it
// never looks at the UDP checksum: the ICRC decides.
package wire
