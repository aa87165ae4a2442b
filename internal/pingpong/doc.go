// Package pingpong plays messages back and forth like rdma-core's ibv_rc_pingpong, ibv_uc_pingpong,
// ibv_ud_pingpong and ibv_srq_pingpong, and with them: the two ends meet over TCP and tell each
// other their addresses in those programs' format, then the client sends, the server sends back, and
// so on.
//
//	client                                server
//	"LLLL:QQQQQQ:PPPPPP:<GID>\0" × n ──▶          connects its QPs
//	                  ◀── the same × n            (n: 1, or 256 for srq)
//	"done\0"                         ──▶
//	SEND                             ──▶
//	                                 ◀── SEND     and so on
package pingpong
