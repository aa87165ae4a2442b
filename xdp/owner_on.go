//go:build xdpdebug

package xdp

import "fmt"

// owners knows who owns each chunk and panics when a chunk turns up where it cannot be. A chunk
// that is given back is overwritten, so that a use after that shows.
type owners struct {
	mem   []byte
	of    []uint8 // by chunk of the socket's span
	base  uint32
	shift uint32
	held  []uint32 // chunks of the present reservation
}

// Who may own a chunk.
const (
	ownedFree     = iota // the free stack
	ownedReserved        // the application, writing a frame
	ownedTX              // the kernel, sending
	ownedFill            // the kernel, for receiving
	ownedRX              // the application, reading a frame
)

var ownerNames = [...]string{"free", "reserved", "tx", "fill", "rx"}

// poison is what chunks given back are filled with.
const poison = 0xdb

func (o *owners) init(s *Socket) {
	*o = owners{
		mem:   s.mem,
		of:    make([]uint8, s.chunks.count),
		base:  s.rxBase,
		shift: s.shift,
		held:  make([]uint32, 0, MaxParts),
	}
}

// move passes the chunk at address a from one owner to the next.
func (o *owners) move(a uint32, from, to int) {
	i := (a - o.base) >> o.shift
	if int(i) >= len(o.of) {
		panic(fmt.Sprintf("xdp: chunk at %#x is not this socket's", a))
	}
	if int(o.of[i]) != from {
		panic(fmt.Sprintf("xdp: chunk at %#x goes from %s to %s, but its owner is %s",
			a, ownerNames[from], ownerNames[to], ownerNames[o.of[i]]))
	}
	o.of[i] = uint8(to)
	if from == ownedTX || from == ownedRX {
		chunk := o.mem[o.base+i<<o.shift:][:1<<o.shift]
		for j := range chunk {
			chunk[j] = poison
		}
	}
}

// moveRX passes a received chunk back to the kernel. One of an invalid entry never left it.
func (o *owners) moveRX(a uint32) {
	if i := (a - o.base) >> o.shift; o.of[i] != ownedFill {
		o.move(a, ownedRX, ownedFill)
	}
}

// reserve passes the chunks of a new reservation to the application.
func (o *owners) reserve(s *Socket) {
	o.cancel(s)
	for j := range s.reserved {
		a := s.free[len(s.free)-1-j]
		o.move(a, ownedFree, ownedReserved)
		o.held = append(o.held, a)
	}
}

// cancel takes them back.
func (o *owners) cancel(*Socket) {
	for _, a := range o.held {
		o.move(a, ownedReserved, ownedFree)
	}
	o.held = o.held[:0]
}
