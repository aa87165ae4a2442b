// Command interop tests roxie against Linux: the kernel's rdma_rxe driver and the stock tools of
// rdma-core and perftest, in a guest that package internal/qemu boots.
//
// A cell is one run of a stock tool with roxie at the other end. The default is a pairwise cover:
// whichever two dimensions are looked at, every pair of their values that makes sense is in some
// cell. With -full all combinations run. Each cell is captured at both ends, and what the wire
// says is checked:
//
//   - every ICRC is right, no packet is malformed, for our decoder and for tshark;
//   - both captures hold the same packets in the same order;
//   - nothing is missing from the sequence of PSNs, no NAK asks for a packet again, and hardly
//     anything is sent twice, and that only after a timeout.
//
// Nothing is tried twice. It needs root, and prints a table; -json writes it as JSON.
package main
