// Package netdev asks Linux about network interfaces: links, addresses, routes, neighbours, and the
// rights of the process. It is the only production code that does.
//
// A [Conn] holds the sockets through which it asks. They belong to the network namespace in which
// the thread that called [Open] stood, for good: open it on a goroutine that is locked to a thread
// of the wanted namespace (runtime.LockOSThread, and let that thread end with its goroutine), then
// use it from any goroutine. The same holds for [NewMonitor]. An interface index means nothing
// outside its namespace.
//
// Addresses come as netip.Addr, without a zone: the interface index goes with them. On the wire
// they are GIDs, see [GIDOf] and [AddrOf].
//
// A [Snapshot] is the state of one interface as a plain value. It answers the same questions as a
// Conn without any kernel, for endpoints on a simulated wire and for tests.
//
// The package creates nothing: no namespace, link, address or route, and no neighbour entry other
// than by sending to the neighbour.
package netdev
