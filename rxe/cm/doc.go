// Package cm is the InfiniBand communication manager as RDMA-CM uses it over RoCE: the messages
// that two hosts exchange over QP1 to connect and disconnect queue pairs, and the state machine
// behind them (IBTA volume 1, chapter 12; the IP addressing of its annex A11).
//
// Like the engine it is pure: no clock, socket, goroutine or random source of its own. MADs of 256
// bytes, time and [Config] come in; MADs to send, events and deadlines come out; the same inputs
// give the same outputs to the byte. One goroutine at a time may use a [Machine].
//
//	m.Receive(now, addr, mad)     // one MAD from QP1, borrowed for the call
//	m.Expire(now)                 // when Deadline() has come
//	m.Connect, Listen, Accept, Establish, Reject, Disconnect, Destroy …
//	for m.Next(&out) { … }        // MADs to send, after any of the above
//	for ev, ok := m.Poll(); ok; … // what happened, after any of the above
//
// A connection, message by message; in brackets the calls and events:
//
//	active                                        passive
//	[Connect]       ──── REQ ───────────────────▶ [EventConnectRequest]
//	                ◀─── MRA (I need a while) ─── after half of the promised response time
//	[EventConnectResponse] ◀─── REP ───────────── [Accept]
//	[Establish]     ──── RTU ───────────────────▶ [EventEstablished], or by CommEst
//	[Disconnect]    ──── DREQ ──────────────────▶ [EventDisconnected]
//	[EventDisconnected] ◀─── DREP ─────────────── [Disconnect]
//	… time wait …                                 … time wait …
//	[EventTimewaitExit]                           [EventTimewaitExit]
//
// A datagram service is resolved by SIDR_REQ and SIDR_REP through the same calls.
//
// What the package refuses: reliable datagrams, XRC, alternate paths (a LAP is answered with an APR
// that says so), redirection, peer-to-peer connects. Nothing a peer sends makes it hold more than
// Config's limits, and nothing but a MAD from a connection's own peer changes that connection.
package cm
