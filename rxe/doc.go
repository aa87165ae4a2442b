// Package rxe is the RoCEv2 engine: the requester, completer and responder state machines of
// InfiniBand's reliable, unreliable and datagram services over frames, time and memory.
//
// The engine is pure. It owns no clock, socket, goroutine or random source; the same inputs give
// the same outputs to the byte, so the same code runs in production, in simulation, under fuzzing
// and over captures. A driver feeds each Shard:
//
//	s.Enter()                   // come online; once per activity
//	s.Turn(now)                 // quiescent point, doorbells, frames handed over by other shards
//	s.Receive(now, frame)       // zero or more, borrowed for the call
//	s.Expire(now)               // timers that are due
//	s.Turn(now)
//	n := s.Transmit(now, frame) // fills one frame; 0 = nothing to send
//	s.Wakeups()                 // shards that have work because of this one
//	s.Leave()                   // go offline before sleeping; Deadline() says for how long
//
// NewDevice makes an engine; ExampleShard is a whole driver by hand, and package sim has one with a
// clock, a wire and faults. Programs use package verbs instead, which drives the engine for them.
//
// Nothing in the engine calls upward. What an application may see crosses through flat memory
// (work queues, completion lanes) and the shard's event list.
//
// One owner: a QP belongs to one shard for life, and whoever holds the shard is the only one to
// touch it. From other goroutines only these are safe: posting to a Queue (one poster at a time),
// RingDoorbell, polling a CQ (one poller at a time) and arming it. All control calls (create,
// modify, destroy, query) need the shard of the object held by the caller.
//
// Roads through the files, in the order a packet meets them: device.go (dispatch), requester.go →
// wire → responder.go → execute.go → respres.go → wire → completer.go → cq.go.
package rxe
