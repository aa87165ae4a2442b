//go:build !xdpdebug

package xdp

// owners checks who owns each chunk in builds with the tag xdpdebug; here it costs nothing.
type owners struct{}

// Who may own a chunk.
const (
	ownedFree     = iota // the free stack
	ownedReserved        // the application, writing a frame
	ownedTX              // the kernel, sending
	ownedFill            // the kernel, for receiving
	ownedRX              // the application, reading a frame
)

func (*owners) init(*Socket)          {}
func (*owners) move(uint32, int, int) {}
func (*owners) moveRX(uint32)         {}
func (*owners) reserve(*Socket)       {}
func (*owners) cancel(*Socket)        {}
