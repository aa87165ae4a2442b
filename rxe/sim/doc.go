// Package sim is a deterministic fabric for engines: nodes on a switch, a virtual clock, faults,
// one seed that decides everything.
//
// A [Fabric] holds [Node]s, each an rxe.Device with its shards. Frames that a shard transmits pass
// the fault model and reach the destination node after the link's delay, on the shard the sender's
// queue number maps to. Shards run when they have something to do. Everything happens in the
// goroutine that calls Run; the same seed and the same calls give the same frames, to the byte.
//
// To try out one exchange of packets, write it as a script: RunScript takes text and gives text. To
// build hosts of your own, take New, AddNode, Connect and Run, as rxe's ExampleQP does. Direct joins
// two engines without a fabric, to measure them. Package verbstest puts whole programs on such a wire.
package sim
