package verbs

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

const remoteAll = LocalWrite | RemoteWrite | RemoteRead | RemoteAtomic

// mappedFile maps a new file of n bytes into memory.
func mappedFile(t testing.TB, n int) (*os.File, []byte) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err == nil {
		err = f.Truncate(int64(n))
	}
	if err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Munmap(b)
		_ = f.Close()
	})
	return f, b
}

// TestMappedFileCut: whatever a peer does with the missing part of a file's memory, it gets a remote
// operational error and both QPs are in ERR; a neighbour on the same shard goes on.
func TestMappedFileCut(t *testing.T) {
	const size, cut = 64 << 10, 16 << 10
	onModes(t, func(t *testing.T, w wireKind, cfg Config) {
		ca, cb := w.open(t, cfg, cfg)
		a, b := newEnd(t, ca, endConfig{}), newEnd(t, cb, endConfig{})
		connect(t, a, b, ConnOptions{})
		for name, wr := range map[string]SendWR{
			"WRITE":        {Opcode: WRRDMAWrite},
			"WRITE across": {Opcode: WRRDMAWrite, RemoteAddr: 1}, // its first packet is good
			"READ":         {Opcode: WRRDMARead},
			"READ across":  {Opcode: WRRDMARead, RemoteAddr: 1},
			"FETCH_ADD":    {Opcode: WRAtomicFetchAdd, CompareAdd: 1},
			"CMP_SWP":      {Opcode: WRAtomicCmpSwap},
			"ATOMIC WRITE": {Opcode: WRAtomicWrite, Flags: SendInline, Inline: make([]byte, 8)},
		} {
			t.Run(name, func(t *testing.T) {
				f, mem := mappedFile(t, size)
				x, y := newEnd(t, ca, endConfig{}), newEnd(t, cb, endConfig{})
				connect(t, x, y, ConnOptions{})
				mr, err := y.pd.RegMapped(mem, remoteAll)
				y.must(err)
				t.Cleanup(func() { y.must(mr.Dereg()) })
				n, at := 8, uint64(cut)
				if wr.RemoteAddr == 1 {
					n, at = 4*4096, cut-2*4096
				}
				wr.RemoteAddr, wr.RKey = mr.Addr()+at, mr.RKey()
				if wr.Inline == nil {
					wr.SGList = []SGE{x.mr.SGE(0, n)}
				}
				x.send(wr)
				x.done(WCSuccess)
				y.must(f.Truncate(cut))
				x.send(wr)
				x.done(WCRemOpErr)
				until(t, func() bool { return x.qp.State() == StateErr && y.qp.State() == StateErr })
				testWrite(t, a, b, 3000)
			})
		}
	})
}

// TestMappedFileCutLocal: the same memory in own work requests.
func TestMappedFileCutLocal(t *testing.T) {
	const size, cut = 64 << 10, 16 << 10
	ca, cb := openMemory(t, Config{}, Config{})
	for name, op := range map[string]WROpcode{"gather": WRRDMAWrite, "scatter": WRRDMARead, "receive": WRSend} {
		t.Run(name, func(t *testing.T) {
			f, mem := mappedFile(t, size)
			x, y := newEnd(t, ca, endConfig{}), newEnd(t, cb, endConfig{})
			connect(t, x, y, ConnOptions{})
			mr, err := x.pd.RegMapped(mem, remoteAll)
			x.must(err)
			t.Cleanup(func() { x.must(mr.Dereg()) })
			x.must(f.Truncate(cut))
			if op == WRSend {
				x.recv(1, mr.SGE(cut, 100))
				y.send(SendWR{Opcode: op, SGList: []SGE{y.mr.SGE(0, 100)}})
				x.done(WCLocProtErr)
				y.done(WCRemOpErr)
				return
			}
			x.send(SendWR{Opcode: op, SGList: []SGE{mr.SGE(cut, 100)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()})
			x.done(WCLocProtErr)
		})
	}
}
