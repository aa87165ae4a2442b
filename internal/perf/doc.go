// Package perf measures two RDMA endpoints with the tests, flags, loops and tables of perftest
// (ib_write_bw and its family): one end is the server, the other the client, which reports.
//
//	server                               client
//	Open: interface, XDP program         Open
//	Listen on TCP                        Dial
//	        ◄── hello, keys, barrier ──►               exchange.go
//	passive loop   ◄── RDMA ──►          active loop   bandwidth.go, latency.go
//	        ◄────── report ──────►                     one for each message size
//
// Posting is as in perftest: a send queue kept tx-depth deep, posted in lists with one doorbell,
// with one signaled work request in cq-mod. Nothing is allocated for a message, on either side:
// while a test runs the garbage collector has no reason to start. Its settings (GOGC, GOMEMLIMIT)
// are left as the environment gives them; there is nothing to gain from changing them here.
//
// # Verification
//
// With Config.Verify every payload byte is compared on the side that received it, while the test
// runs. Message n of a QP is a stretch of a random pattern that both ends derive from the same
// seed; where the stretch starts depends on n, so that a byte in the wrong place, of another
// message or of an earlier lap through the buffer does not go unnoticed. The sender posts
// straight from the pattern, so that verifying costs it nothing, and the receiver one comparison.
//
// The receiver's buffer is a ring of slots. A WRITE may only overwrite a slot that was checked: the
// writer closes a stretch of messages by a SEND that says how many it has written, and the other
// side answers by a SEND that says how many it has checked. READ and atomic results are checked at
// their completion, SENDs at the completion of the receive.
package perf
