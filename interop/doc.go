// Command interop tests roxie against Linux: the kernel's rdma_rxe driver and the stock tools of
// rdma-core and perftest, in a guest that package internal/qemu boots.
//
// A cell is one run of a stock tool with roxie at the other end. The default is a pairwise cover:
// whichever two dimensions are looked at, every pair of their values that makes sense is in some
// cell. With -full the cross product of six of the ten dimensions runs, in which every three values
// meet (full.go). Scenarios follow: a VLAN, a network that loses, doubles and reorders packets,
// receivers that come late, RDMA-CM's examples, what has to be refused, ends that are killed.
//
// Each cell is captured at both ends, and what the wire says is checked:
//
//   - every ICRC is right, no packet is malformed, for roxie decode and for tshark;
//   - both captures hold the same packets in the same order;
//   - nothing is missing from the sequence of PSNs, no NAK asks for a packet again, and hardly
//     anything is sent twice, and that only after a timeout (sequence.go says what the emulated
//     machine is forgiven, and why);
//   - a capture of the guest's that missed packets is checked for ICRCs only, and counted.
//
// Nothing is tried twice, and nothing waits for a time: only for a condition. It needs root, and
// prints a table; -json writes it as JSON, the cells of the matrix in cells, the others in
// scenarios. A run of -full that was stopped goes on with -resume; -doc writes docs/interop.md.
//
// -bench measures roxie beside rxe, both in the guest, and -shell lets a user type commands there.
package main
