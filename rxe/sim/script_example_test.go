package sim_test

import (
	"fmt"

	"github.com/roxie-rdma/roxie/rxe/sim"
)

// A script is run, and comes back with what happened.
func ExampleRunScript() {
	out, err := sim.RunScript(`# The ACK of a WRITE is lost.
pair a b timeout=8
write a 1 100
drop b
run
----
`, sim.ScriptConfig{})
	if err != nil {
		fmt.Println(err)
	}
	fmt.Print(out)
	// Output:
	// # The ACK of a WRITE is lost.
	// pair a b timeout=8
	// write a 1 100
	// drop b
	// run
	// ----
	// 0.0ms a>b WRITE_ONLY psn=0x000100 flags=ackreq va=b+0 rkey=b dmalen=100 len=100 pad=0
	// 0.0ms b>a ACKNOWLEDGE psn=0x000100 flags=- syndrome=0x1f(ack) msn=1  dropped
	// 1.1ms a>b WRITE_ONLY psn=0x000100 flags=ackreq va=b+0 rkey=b dmalen=100 len=100 pad=0
	// 1.1ms b>a ACKNOWLEDGE psn=0x000100 flags=- syndrome=0x1f(ack) msn=1
	// 1.1ms a completion 1 RDMA_WRITE: success
}
