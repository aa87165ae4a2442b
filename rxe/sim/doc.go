// Package sim is a deterministic fabric for engines: nodes on a switch, a virtual clock, faults,
// one seed that decides everything.
//
// A [Fabric] holds [Node]s, each an rxe.Device with its shards. Frames that a shard transmits pass
// the fault model and reach the destination node after the link's delay, on the shard the sender's
// queue number maps to. Shards run when they have something to do. Everything happens in the
// goroutine that calls Run; the same seed and the same calls give the same frames, to the byte.
package sim
