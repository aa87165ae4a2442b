// Package capture records what devices send and receive as pcapng, which Wireshark, tshark and
// `roxie decode` read. tcpdump sees nothing of AF_XDP traffic: it has to be recorded from inside.
// A capture begins and ends while the device works.
//
//	shard ──► filter ──► copy ──► queue ──► goroutine ──► pcapng ──► writer
//	  (each shard its own queue)         └─► history ──► when a QP fails
//
// Each packet carries its time, its direction (epb_flags), its queue (epb_queue) and a comment
// (opt_comment) of what the engine knows of it and the wire does not tell:
//
//	dir=in qp=0x11 recv_wr=7 icrc=ok
//	dir=out qp=0x11 send_wr=42 again icrc=ok
//	dir=in qp=0x11 icrc=ok drop="PSN is ahead of the expected one"
//
// A shard never waits for a capture: with a queue that is full a frame is not recorded, which is
// counted, noted in the file (epb_dropcount, isb_osdrop) and in [Stats]. Frames between two QPs of
// one device are on no wire and not recorded.
//
// [Start] records to a writer. A [Hub] offers captures of a program's devices over HTTP, to
// `roxie capture` and to [Client].
package capture
