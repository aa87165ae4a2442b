package xdp

// The receive half of the road: RX ring → batch → caller → fill ring. Entries stay in the RX ring,
// and chunks with the caller, from Receive to Release.

// rxFrame is one received frame of the batch.
type rxFrame struct {
	head, headLen uint32 // offset in the UMEM and bytes of the first part
	tail, tailLen uint32 // the same of the second, tailLen 0 if there is none
	first         uint32 // index of its first RX entry
	parts         uint32
}

// Receive looks for up to max frames (at most MaxBatch and the RX ring's size) that have arrived
// and returns how many. Packet gives them by index, until Release or the next Receive, which
// releases what it finds unreleased. A frame of several parts counts only once all of them are
// there. Receive makes no system call, except that it wakes drivers that ask for it and polls with
// Config.BusyPoll on when nothing is there.
func (s *Socket) Receive(max int) int {
	if s.scanned != s.rx.next {
		s.Release()
	}
	batch := s.batch
	if max < len(batch) {
		batch = batch[:max]
	}
	r := &s.rx
	end := r.next + r.ready(uint32(len(batch)))
	at, n, size := r.next, 0, uint64(0)
	for at != end && n < len(batch) {
		d := r.entries[at&r.mask]
		if d.options&optContd != 0 {
			next, ok := s.chain(&batch[n], at, end)
			if next == at {
				break // the rest has not arrived yet
			}
			at = next
			if ok {
				size += uint64(s.chainLen(&batch[n]))
				n++
			}
			continue
		}
		if !s.validRX(d) {
			s.count.RXInvalid++
			at++
			continue
		}
		batch[n] = rxFrame{head: uint32(d.addr), headLen: d.len, first: at, parts: 1}
		size += uint64(d.len)
		s.owner.move(uint32(d.addr), ownedFill, ownedRX)
		at++
		n++
	}
	s.scanned, s.held = at, n
	if at == r.next {
		s.wakeRX()
		return 0
	}
	s.count.RXFrames += uint64(n)
	s.count.RXBytes += size
	return n
}

// chain gathers the frame of several parts that starts at entry at. It returns the entry behind it
// (at itself if the last part is not there yet), and whether all parts are sound.
func (s *Socket) chain(f *rxFrame, at, end uint32) (next uint32, ok bool) {
	last := at
	for s.rx.entries[last&s.rx.mask].options&optContd != 0 {
		last++
		if last == end {
			return at, false
		}
	}
	next = last + 1
	for i := at; i != next; i++ {
		d := s.rx.entries[i&s.rx.mask]
		if !s.validRX(d) {
			s.count.RXInvalid++
			return next, false
		}
	}
	for i := at; i != next; i++ {
		s.owner.move(uint32(s.rx.entries[i&s.rx.mask].addr), ownedFill, ownedRX)
	}
	head, tail := s.rx.entries[at&s.rx.mask], s.rx.entries[(at+1)&s.rx.mask]
	*f = rxFrame{
		head: uint32(head.addr), headLen: head.len,
		tail: uint32(tail.addr), tailLen: tail.len,
		first: at, parts: next - at,
	}
	return next, true
}

// chainLen is the length of a frame of several parts in bytes.
func (s *Socket) chainLen(f *rxFrame) uint32 {
	n := uint32(0)
	for i := f.first; i != f.first+f.parts; i++ {
		n += s.rx.entries[i&s.rx.mask].len
	}
	return n
}

// validRX checks that an entry lies in one of our receive chunks.
func (s *Socket) validRX(d desc) bool {
	return d.addr-uint64(s.rxBase) < uint64(s.rxSize) &&
		uint64(d.len) <= uint64(s.chunk)-d.addr&uint64(s.chunk-1)
}

// Packet returns frame i of the batch, 0 ≤ i < what Receive returned: its first part, its second
// (nil if there is none) and the number of parts. The split may fall anywhere. The slices are the
// packet memory itself and may be written to; they are valid until Release.
func (s *Socket) Packet(i int) (head, tail []byte, parts int) {
	f := &s.batch[i]
	head = s.mem[f.head : f.head+f.headLen : f.head+f.headLen]
	if f.parts > 1 {
		tail = s.mem[f.tail : f.tail+f.tailLen : f.tail+f.tailLen]
	}
	return head, tail, int(f.parts)
}

// Part returns part j of frame i, 0 ≤ j < parts. Parts 0 and 1 are what Packet returns.
func (s *Socket) Part(i, j int) []byte {
	f := &s.batch[i]
	if uint(j) >= uint(f.parts) {
		panic("xdp: Part beyond the frame's last")
	}
	d := s.rx.entries[(f.first+uint32(j))&s.rx.mask]
	at, end := uint32(d.addr), uint32(d.addr)+d.len
	return s.mem[at:end:end]
}

// Len returns the length of frame i in bytes, all parts together.
func (s *Socket) Len(i int) int {
	f := &s.batch[i]
	if f.parts <= 2 {
		return int(f.headLen + f.tailLen)
	}
	return int(s.chainLen(f))
}

// Release gives all frames of the batch back: their chunks go to the fill ring at once. The slices
// from Packet and Part must not be used any more. Releasing nothing is fine.
func (s *Socket) Release() {
	r, end := &s.rx, s.scanned
	if end == r.next {
		return
	}
	for i := r.next; i != end; i++ {
		a := r.entries[i&r.mask].addr &^ uint64(s.chunk-1)
		if a-uint64(s.rxBase) >= uint64(s.rxSize) {
			continue // counted as invalid; not ours to lend
		}
		s.owner.moveRX(uint32(a))
		s.fill.put(a)
	}
	// The chunks first: the kernel may need one for the entry that gets free.
	s.fill.publish()
	r.release(end)
	s.held = 0
	if s.zc {
		s.wakeRX()
	}
}

// wakeRX makes the call that drivers ask for after they ran out of receive chunks, and does the
// busy polling. In plain copy mode it only reads a flag.
func (s *Socket) wakeRX() {
	if !s.busy && !s.fill.needWakeup() || s.gone || s.backend != nil {
		return
	}
	s.count.RXWakeups++
	recvfrom(s.fd)
}
