// Package verbstest is a network in memory, for unit tests of programs that use package verbs. It needs
// no root, no interface and no second machine: [New] opens devices that are joined by a switch, and
// the program under test gets them instead of what verbs.Open returns. Everything above works as on
// real interfaces: connections of all services, the connection manager, multicast, several queues.
//
// The switch can do to frames what networks do, by probability (Faults) or by script: lose them, double
// them, change their order, flip bits, cut them, hold them back. Paths can be cut for a while. What a
// program makes of that is often what a test wants to know: whether it counts on an order that the
// fabric does not keep, frees a buffer before its completion, copes with a connection that ends.
//
//	n, err := verbstest.New(verbstest.Config{
//		Seed:   1,
//		Faults: sim.Faults{Drop: 0.02, Duplicate: 0.01, Reorder: 0.02, Corrupt: 0.005},
//	})
//	if err != nil {
//		t.Fatal(err)
//	}
//	defer n.Close()
//	server, client := n.Device(0), n.Device(1) // *verbs.Context
//	... // n.Addr(0) is the server's address
//	n.Partition(0, 1, true) // now nothing from the server reaches the client
//
// The seed decides what happens to the first, second, … frame that is sent. Which frame that is depends
// on the goroutines of the program, which run in real time: a test here is not repeated to the byte as
// one on [sim.Fabric] is, where the engine runs alone on a clock of its own. Times are real, too: a frame
// that is lost at the end of a message costs a timeout, of 67 ms unless ConnOptions.Timeout says less.
package verbstest
