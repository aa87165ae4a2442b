package xdp

// The transmit half of the road: free stack → Reserve → caller fills it → Submit → TX ring → Kick
// → kernel → completion ring → Reap → free stack. The stack is last in, first out, so that few
// chunks stay in use and in the caches. The TX and completion rings hold all transmit chunks, so
// they are never full.

import "golang.org/x/sys/unix"

// What the kernel has of a transmit chunk. A completion that finds its chunk home is spurious.
const (
	txHome uint8 = iota // free or reserved
	txPart              // sent, more parts of the frame follow
	txLast              // sent, last part: its completion ends the frame
)

// Kicked is the outcome of a Kick.
type Kicked uint8

// What Kick may say.
const (
	KickIdle  Kicked = iota // nothing to do, no system call made
	KickSent                // the kernel has taken everything
	KickAgain               // descriptors are left: receive, reap, then kick again
	KickDown                // the interface is down; descriptors are kept, kick again when it is up
	KickGone                // the interface is gone for good, or the socket closed
)

// String returns the name as in the source.
func (k Kicked) String() string {
	names := [...]string{"KickIdle", "KickSent", "KickAgain", "KickDown", "KickGone"}
	if int(k) < len(names) {
		return names[k]
	}
	return "Kicked(?)"
}

// Reserve gives the memory for one frame to send: head of Config.TXHead bytes and, with Config.SG,
// tail of one chunk, for the bytes that do not fit in head. ok is false if chunks or the in-flight
// cap are used up even after a Reap: kick, receive and try later. Reserve is a plan only: without
// Submit nothing happens, and the next Reserve gives the same memory.
func (s *Socket) Reserve() (head, tail []byte, ok bool) {
	n := len(s.free)
	if n < s.need || s.inFlight >= s.limit {
		if !s.makeRoom(s.need) {
			return nil, nil, false
		}
		n = len(s.free)
	}
	a := s.free[n-1]
	head = s.mem[a : a+s.txHead : a+s.txHead]
	if s.need > 1 {
		b := s.free[n-2]
		tail = s.mem[b : b+s.chunk : b+s.chunk]
	}
	s.reserved = s.need
	s.owner.reserve(s)
	return head, tail, true
}

// ReserveParts is Reserve for one frame of size bytes, in as many parts as it takes (with
// Config.SG; at most MaxParts). ReservedPart gives them.
func (s *Socket) ReserveParts(size int) (parts int, ok bool) {
	if size > s.maxFrame {
		return 0, false
	}
	parts = s.partsOf(size)
	if len(s.free) < parts || s.inFlight >= s.limit {
		if !s.makeRoom(parts) {
			return 0, false
		}
	}
	s.reserved = parts
	s.owner.reserve(s)
	return parts, true
}

// ReservedPart returns part j of the present reservation: Config.TXHead bytes for part 0, a chunk
// for the others.
func (s *Socket) ReservedPart(j int) []byte {
	if uint(j) >= uint(s.reserved) {
		panic("xdp: ReservedPart beyond what was reserved")
	}
	a, size := s.free[len(s.free)-1-j], s.chunk
	if j == 0 {
		size = s.txHead
	}
	return s.mem[a : a+size : a+size]
}

func (s *Socket) makeRoom(parts int) bool {
	s.Reap()
	if len(s.free) < parts || s.inFlight >= s.limit {
		s.count.TXFull++
		return false
	}
	return true
}

// partsOf is the number of parts of a frame of n bytes.
func (s *Socket) partsOf(n int) int {
	if n <= int(s.txHead) {
		return 1
	}
	return 1 + (n-int(s.txHead)+int(s.chunk)-1)>>s.shift
}

// Submit queues the first n bytes of the reserved memory as one frame, in one descriptor or as
// many as it has parts. The kernel takes it with the next Kick. Submit refuses, returns false and
// counts frames shorter than MinFrame or longer than MaxFrame, which the kernel would drop. It
// panics if n is more than was reserved, or if nothing was.
func (s *Socket) Submit(n int) bool {
	if uint(n-MinFrame) > uint(s.maxFrame-MinFrame) {
		s.count.TXRefused++
		s.Cancel()
		return false
	}
	top := len(s.free) - 1
	if n > int(s.txHead) || s.reserved == 0 {
		s.submitParts(n)
	} else {
		a := s.free[top]
		s.owner.cancel(s)
		s.owner.move(a, ownedFree, ownedTX)
		s.free = s.free[:top]
		s.state[(a-s.txBase)>>s.shift] = txLast
		s.tx.put(desc{addr: uint64(a), len: uint32(n)})
	}
	s.reserved = 0
	s.inFlight++
	s.count.TXFrames++
	s.count.TXBytes += uint64(n)
	return true
}

// submitParts is Submit for a frame of more than one part.
func (s *Socket) submitParts(n int) {
	parts := s.partsOf(n)
	if parts > s.reserved {
		panic("xdp: Submit of more than was reserved")
	}
	s.owner.cancel(s)
	room := s.txHead
	for left := uint32(n); left != 0; {
		top := len(s.free) - 1
		a := s.free[top]
		s.free = s.free[:top]
		s.owner.move(a, ownedFree, ownedTX)
		d := desc{addr: uint64(a), len: left, options: 0}
		state := txLast
		if left > room {
			d.len, d.options, state = room, optContd, txPart
		}
		s.state[(a-s.txBase)>>s.shift] = state
		s.tx.put(d)
		left -= d.len
		room = s.chunk
	}
}

// Cancel gives a reservation up. It is only needed to say so: the next Reserve does it too.
func (s *Socket) Cancel() {
	s.owner.cancel(s)
	s.reserved = 0
}

// Reap takes the completions of frames the kernel has done with and returns how many chunks came
// free. On veth, a completion means that the peer has taken the frame.
func (s *Socket) Reap() int {
	c := &s.comp
	ready := c.ready(uint32(len(c.entries)))
	if ready == 0 {
		return 0
	}
	end, before := c.next+ready, len(s.free)
	for i := c.next; i != end; i++ {
		a := c.entries[i&c.mask] - uint64(s.txBase)
		idx := a >> s.shift
		if idx >= uint64(len(s.state)) || s.state[idx] == txHome {
			s.count.BadCompletions++
			continue
		}
		if s.state[idx] == txLast {
			s.inFlight--
		}
		s.state[idx] = txHome
		chunk := s.txBase + uint32(idx)<<s.shift
		s.owner.move(chunk, ownedTX, ownedFree)
		s.home(chunk)
	}
	c.release(end)
	return len(s.free) - before
}

// home puts a chunk on the stack of free ones, below those of a reservation. The stack never grows
// beyond its capacity, as state lets each chunk come home once.
func (s *Socket) home(chunk uint32) {
	s.free = append(s.free, chunk)
	if s.reserved != 0 {
		top := len(s.free) - 1
		copy(s.free[top-s.reserved+1:], s.free[top-s.reserved:top])
		s.free[top-s.reserved] = chunk
	}
}

// InFlight returns how many frames were submitted and are not completed, as far as Reap has seen.
func (s *Socket) InFlight() int { return s.inFlight }

// Room returns how many more frames the in-flight cap and the free chunks allow, each taken to
// need as much as Reserve gives.
func (s *Socket) Room() int { return max(0, min(s.limit-s.inFlight, len(s.free)/s.need)) }

// Pending returns how many descriptors were submitted and are not completed, as far as Reap has
// seen.
func (s *Socket) Pending() int { return len(s.state) - len(s.free) }

// Kick shows everything submitted to the kernel and makes it send, if need be with several system
// calls; it makes none if there is nothing to send. EAGAIN means that descriptors are left in the
// ring (KickAgain; kick again after receiving, even if nothing new is submitted). EBUSY means that
// the driver dropped one frame, which is counted in Counters.TXDropped; the rest is still sent.
// Kick then reaps.
func (s *Socket) Kick() Kicked {
	if s.gone {
		return KickGone
	}
	if s.tx.next == s.tx.published && !s.again {
		// In zero-copy mode the driver may ask for a call while frames are under way.
		if !s.zc || s.Pending() == 0 {
			return KickIdle
		}
	} else {
		s.tx.publish()
	}
	k := KickSent
	if s.tx.needWakeup() {
		k = s.send()
	} else {
		s.again = false
	}
	s.Reap() // on veth what was sent is completed now: use its chunks again while they are warm
	return k
}

// send makes system calls for as long as they get somewhere.
func (s *Socket) send() Kicked {
	before := s.tx.seen
	for {
		var e unix.Errno
		if s.backend == nil {
			e = sendto(s.fd)
		} else {
			e = s.backend.send(s)
		}
		s.count.Kicks++
		s.again = false
		switch e {
		case 0:
			return KickSent
		case unix.EINTR:
			continue
		case unix.EBUSY:
			s.count.TXDropped++
		case unix.EAGAIN, unix.ENOBUFS:
			s.count.TXAgain++
		case unix.ENETDOWN:
			s.count.TXDown++
			s.again = true
			return KickDown
		case unix.ENXIO, unix.EBADF:
			s.gone = true
			return KickGone
		default:
			s.count.TXErrors++
		}
		if s.tx.drained() {
			return KickSent
		}
		if s.tx.seen == before {
			s.again = true
			return KickAgain
		}
		before = s.tx.seen
	}
}
