package bpf

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/nettest"
)

// rawSocket is the least of an AF_XDP socket: eight frames to receive into, no more.
type rawSocket struct {
	fd       int
	umem, rx []byte
	producer uint64 // offset in rx
	descs    uint64
	mappings [][]byte
}

const (
	rawFrames = 8
	rawChunk  = 4096
)

// openRaw binds a socket to a queue of an interface of the calling thread's namespace and enters it
// in the map.
func openRaw(t testing.TB, p *Program, ifindex, queue int) *rawSocket {
	t.Helper()
	check := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	check("socket", err)
	s := &rawSocket{fd: fd}
	t.Cleanup(s.close)
	s.umem = s.mmap(t, -1, 0, rawFrames*rawChunk, unix.MAP_ANONYMOUS|unix.MAP_PRIVATE)
	reg := unix.XDPUmemReg{Addr: uint64(uintptr(unsafe.Pointer(&s.umem[0]))),
		Len: rawFrames * rawChunk, Size: rawChunk}
	check("register UMEM", s.sockopt(unix.SYS_SETSOCKOPT, unix.XDP_UMEM_REG,
		unsafe.Pointer(&reg), unsafe.Sizeof(reg)))
	for _, ring := range []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING,
		unix.XDP_RX_RING} {
		check("ring size", unix.SetsockoptInt(fd, unix.SOL_XDP, ring, rawFrames))
	}
	var off unix.XDPMmapOffsets
	size := uint32(unsafe.Sizeof(off))
	check("ring offsets", s.sockopt(unix.SYS_GETSOCKOPT, unix.XDP_MMAP_OFFSETS,
		unsafe.Pointer(&off), uintptr(unsafe.Pointer(&size))))
	fill := s.mmap(t, fd, unix.XDP_UMEM_PGOFF_FILL_RING, int(off.Fr.Desc)+rawFrames*8,
		unix.MAP_SHARED)
	s.rx = s.mmap(t, fd, unix.XDP_PGOFF_RX_RING, int(off.Rx.Desc)+rawFrames*16, unix.MAP_SHARED)
	s.producer, s.descs = off.Rx.Producer, off.Rx.Desc
	for i := range uint64(rawFrames) {
		binary.NativeEndian.PutUint64(fill[off.Fr.Desc+8*i:], i*rawChunk)
	}
	binary.NativeEndian.PutUint32(fill[off.Fr.Producer:], rawFrames)
	check("bind", unix.Bind(fd, &unix.SockaddrXDP{Flags: unix.XDP_COPY,
		Ifindex: uint32(ifindex), QueueID: uint32(queue)}))
	check("enter in map", p.XSKMap().Put(uint32(queue), uint32(fd)))
	return s
}

// close also unmaps the rings: the socket lives as long as one of them.
func (s *rawSocket) close() {
	for _, b := range s.mappings {
		unix.Munmap(b)
	}
	if s.fd >= 0 {
		unix.Close(s.fd)
	}
	s.fd, s.mappings = -1, nil
}

func (s *rawSocket) mmap(t testing.TB, fd int, offset int64, size, flags int) []byte {
	t.Helper()
	b, err := unix.Mmap(fd, offset, size, unix.PROT_READ|unix.PROT_WRITE,
		flags|unix.MAP_POPULATE)
	if err != nil {
		t.Fatalf("mmap: %v", err)
	}
	s.mappings = append(s.mappings, b)
	return b
}

func (s *rawSocket) sockopt(call uintptr, opt int, value unsafe.Pointer, size uintptr) error {
	_, _, errno := unix.Syscall6(call, uintptr(s.fd), unix.SOL_XDP, uintptr(opt),
		uintptr(value), size, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// received returns the frames that came in so far, at most rawFrames.
func (s *rawSocket) received() [][]byte {
	var frames [][]byte
	for i := range uint64(binary.NativeEndian.Uint32(s.rx[s.producer:])) {
		desc := s.rx[s.descs+16*i:]
		addr := binary.NativeEndian.Uint64(desc)
		frames = append(frames, s.umem[addr:][:binary.NativeEndian.Uint32(desc[8:])])
	}
	return frames
}

// await waits up to ten seconds for a condition.
func await(cond func() bool) bool {
	for end := time.Now().Add(10 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// TestVeth sends real frames through both modes: what is ours reaches the AF_XDP socket, all else
// the kernel's sockets, also RoCEv2 without a socket to take it.
func TestVeth(t *testing.T) {
	for _, mode := range []Mode{Native, Generic} {
		t.Run(mode.String(), func(t *testing.T) { testVeth(t, mode) })
	}
}

func testVeth(t *testing.T, mode Mode) {
	l := nettest.New(t, nettest.Config{Neighbours: true})
	p := load(t, Config{})
	l.A.Do(func() {
		if err := p.Attach(l.A.Ifindex, mode); err != nil {
			t.Fatal(err)
		}
	})
	kernelOther := newReceiver(t, l.A, ":4790")
	kernelRoCE := newReceiver(t, l.A, ":4791")
	send := func(dst netip.Addr, port uint16, payload string) {
		t.Helper()
		err := l.B.DoErr(func() error {
			conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(
				netip.AddrPortFrom(dst, port)))
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write([]byte(payload))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}

	// No address and no socket: the kernel's.
	send(l.A.IPv4, Port, "no address")
	for _, a := range []netip.Addr{l.A.IPv4, l.A.IPv6} {
		if err := p.Add(0, a); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Add(ourVLAN, l.A.IPv4); err != nil {
		t.Fatal(err)
	}
	send(l.A.IPv4, Port, "no socket")
	kernelRoCE.expect(t, "no address", "no socket")

	var s *rawSocket
	l.A.Do(func() { s = openRaw(t, p, l.A.Ifindex, 0) })
	send(l.A.IPv4, Port, "ours by IPv4")
	send(l.A.IPv6, Port, "ours by IPv6")
	sendTagged(t, l, "ours by VLAN")
	send(l.A.IPv4, 4790, "the kernel's")
	kernelOther.expect(t, "the kernel's")
	want := []string{"ours by IPv4", "ours by IPv6", "ours by VLAN"}
	if !await(func() bool { return len(s.received()) == len(want) }) {
		st, _ := p.Stats()
		t.Fatalf("%d frames on the AF_XDP socket, want %d; counters %v", len(s.received()),
			len(want), st)
	}
	for i, f := range s.received() {
		if got := string(f[len(f)-len(want[i]):]); got != want[i] {
			t.Errorf("frame %d ends in %q, want %q", i, got, want[i])
		}
	}
	st, err := p.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if st[VerdictRedirected] != 3 || st[VerdictOtherPort] != 1 || st[VerdictNoSocket] != 1 ||
		st[VerdictOtherAddress] != 1 || st.Frames() < 6 {
		t.Errorf("counters %v", st)
	}
	// Closing the socket gives its traffic back to the kernel.
	s.close()
	send(l.A.IPv4, Port, "socket closed")
	kernelRoCE.expect(t, "socket closed")
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	send(l.A.IPv4, Port, "program gone")
	kernelRoCE.expect(t, "program gone")
}

// receiver is a socket of the kernel's stack.
type receiver struct{ conn net.PacketConn }

func newReceiver(t testing.TB, ns *nettest.Namespace, addr string) *receiver {
	t.Helper()
	var r receiver
	if err := ns.DoErr(func() (err error) {
		r.conn, err = net.ListenPacket("udp", addr)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.conn.Close() })
	return &r
}

func (r *receiver) expect(t testing.TB, want ...string) {
	t.Helper()
	var got []string
	buf := make([]byte, 2048)
	for range want {
		r.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		n, _, err := r.conn.ReadFrom(buf)
		if err != nil {
			t.Fatalf("after %q: %v", got, err)
		}
		got = append(got, string(buf[:n]))
	}
	if !slices.Equal(got, want) {
		t.Errorf("the kernel got %q, want %q", got, want)
	}
}

// sendTagged sends a frame with a VLAN tag from B to A through a packet socket.
func sendTagged(t testing.TB, l *nettest.Lab, payload string) {
	t.Helper()
	f := frameSpec{dst: l.A.IPv4, port: Port, payload: len(payload), tags: []uint16{ourVLAN}}
	frame := f.build()
	copy(frame[len(frame)-len(payload):], payload)
	copy(frame, l.A.MAC)
	copy(frame[6:], l.B.MAC)
	if err := l.B.DoErr(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("packet socket: %w", err)
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: l.B.Ifindex})
	}); err != nil {
		t.Fatal(err)
	}
}
