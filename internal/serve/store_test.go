package serve

import (
	"crypto/sha256"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/xfer"
)

func testStore(t testing.TB, e Export) *store {
	t.Helper()
	l := newLimiter(Limits{QPs: 1, Memory: 1 << 30, PerPeer: 1})
	s, err := openStore(e, l, make(hashing, 1), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.close()
		if u := l.usage(); u.Memory != 0 {
			t.Errorf("%d bytes are still accounted for", u.Memory)
		}
	})
	return s
}

// resident counts the pages of a mapping that are in memory.
func resident(t testing.TB, b []byte) (in, all int) {
	t.Helper()
	vec := make([]byte, (len(b)+os.Getpagesize()-1)/os.Getpagesize())
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
		uintptr(unsafe.Pointer(&vec[0])))
	if errno != 0 {
		t.Fatal(errno)
	}
	for _, v := range vec {
		in += int(v & 1)
	}
	return in, len(vec)
}

// coldFile makes a file whose pages are not in memory, where the file system has a disk behind it.
func coldFile(t testing.TB, n int) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	content := make([]byte, n)
	r := rand.NewChaCha8([32]byte{3})
	_, _ = r.Read(content)
	f, err := os.Create(name)
	if err == nil {
		_, err = f.Write(content)
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return name
}

// touch reads a byte of each page and returns the longest it took: what a shard would have stood
// still for.
func touch(b []byte) (worst, total time.Duration) {
	var sum byte
	begin := time.Now()
	for last := begin; len(b) > 0; b = b[min(os.Getpagesize(), len(b)):] {
		sum += b[0]
		now := time.Now()
		worst, last = max(worst, now.Sub(last)), now
	}
	touched = sum
	return worst, time.Since(begin)
}

var touched byte // keeps the loads from being optimised away

// TestStoreWarm: no page is missing when the first peer may come in, and none goes when the kernel is
// told that it may drop them. The log compares with memory that nobody has warmed.
func TestStoreWarm(t *testing.T) {
	const size = 32<<20 + 5
	name := coldFile(t, size)
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cold, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	in, all := resident(t, cold)
	worst, total := touch(cold)
	t.Logf("not warmed: %d of %d pages there; longest wait for one %v, for all %v", in, all, worst, total)
	if err := unix.Munmap(cold); err != nil {
		t.Fatal(err)
	}
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)

	s := testStore(t, Export{Name: "a", File: name})
	if err := s.awaitWarm(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = unix.Fadvise(int(s.file.Fd()), 0, 0, unix.FADV_DONTNEED)
	if in, all := resident(t, s.mem); in != all {
		t.Errorf("%d of %d pages there", in, all)
	}
	worst, total = touch(s.mem)
	t.Logf("warmed: longest wait for a page %v, for all %v", worst, total)

	m := testStore(t, Export{Name: "b", Size: 8 << 20, Write: true})
	if err := m.awaitWarm(t.Context()); err != nil {
		t.Fatal(err)
	}
	if in, all := resident(t, m.mem); in != all {
		t.Errorf("memory: %d of %d pages there", in, all)
	}
}

// TestStoreControl sends every control message to every kind of export.
func TestStoreControl(t *testing.T) {
	const size = 1 << 20
	file := filepath.Join(t.TempDir(), "disk")
	stores := map[string]*store{
		"memory":   testStore(t, Export{Name: "m", Size: size, Write: true}),
		"file":     testStore(t, Export{Name: "f", File: file, Size: size, Write: true}),
		"readonly": testStore(t, Export{Name: "r", File: coldFile(t, 5000)}),
	}
	for _, tt := range []struct {
		store string
		m     xfer.Message
		want  xfer.Status
		n     uint64 // length in the answer
	}{
		{"memory", xfer.Message{Op: xfer.OpStat}, xfer.OK, size},
		{"file", xfer.Message{Op: xfer.OpStat}, xfer.OK, 0},
		{"readonly", xfer.Message{Op: xfer.OpStat}, xfer.OK, 5000},
		{"readonly", xfer.Message{Op: xfer.OpResize, Length: 1}, xfer.StatusRights, 1},
		{"readonly", xfer.Message{Op: xfer.OpCommit, Length: 1}, xfer.StatusRights, 1},
		{"memory", xfer.Message{Op: xfer.OpResize, Length: size + 1}, xfer.StatusBad, size + 1},
		{"file", xfer.Message{Op: xfer.OpCommit, Length: 1<<64 - 1}, xfer.StatusBad, 1<<64 - 1},
		{"memory", xfer.Message{Op: 9}, xfer.StatusBad, 0},
		{"memory", xfer.Message{Op: xfer.OpDigest, Offset: size, Length: 1}, xfer.StatusBad, 1},
		{"memory", xfer.Message{Op: xfer.OpDigest, Offset: 1<<64 - 1, Length: 2}, xfer.StatusBad, 2},
		{"memory", xfer.Message{Op: xfer.OpDigest, Offset: size - 1, Length: 1}, xfer.OK, 1},
		{"file", xfer.Message{Op: xfer.OpDigest, Length: 4096}, xfer.StatusIO, 4096}, // nothing is there yet
		{"file", xfer.Message{Op: xfer.OpResize, Length: 9000}, xfer.OK, 9000},
		{"file", xfer.Message{Op: xfer.OpDigest, Length: 4096}, xfer.OK, 4096},
		{"file", xfer.Message{Op: xfer.OpCommit, Length: 100}, xfer.OK, 100},
		{"file", xfer.Message{Op: xfer.OpStat}, xfer.OK, 100},
		{"memory", xfer.Message{Op: xfer.OpCommit, Length: 100}, xfer.OK, 100},
		{"memory", xfer.Message{Op: xfer.OpStat}, xfer.OK, 100},
	} {
		m := tt.m
		stores[tt.store].control(&m)
		if m.Status != tt.want || m.Length != tt.n {
			t.Errorf("%s, %+v: %v, length %d; want %v, %d", tt.store, tt.m, m.Status, m.Length, tt.want, tt.n)
		}
		if m.Op == xfer.OpDigest && m.Status == xfer.OK {
			at := stores[tt.store].mem[m.Offset:]
			if m.Digest != sha256.Sum256(at[:m.Length]) {
				t.Errorf("%s, %+v: wrong hash", tt.store, tt.m)
			}
		}
	}
	if info, err := os.Stat(file); err != nil || info.Size() != 100 {
		t.Errorf("file: %v %v", info, err)
	}
}

// TestStoreEnds: closing an export ends who is connected, and lets nobody in.
func TestStoreEnds(t *testing.T) {
	s := testStore(t, Export{Name: "a", Size: 4096, Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	ctxA, leaveA, err := s.enter(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	ctxB, leaveB, err := s.enter(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	s.relist(Export{Name: "a", Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/32")}})
	if ctxA.Err() == nil || ctxB.Err() != nil || s.allows(a) || !s.allows(b) {
		t.Error("the new list does not hold")
	}
	leaveA()
	closed := make(chan struct{})
	go func() {
		s.close()
		close(closed)
	}()
	<-ctxB.Done()
	select {
	case <-closed:
		t.Error("closed while a peer is connected")
	case <-time.After(20 * time.Millisecond):
	}
	leaveB()
	<-closed
	if _, _, err := s.enter(t.Context(), b); err == nil {
		t.Error("a closed export lets peers in")
	}
}

// TestOpenStoresGoesOn: an export that cannot be opened keeps neither the others from being opened nor
// a peer that a list has lost from being put out.
func TestOpenStoresGoesOn(t *testing.T) {
	limits := Limits{QPs: 1, Memory: 3 << 12, PerPeer: 1}
	s := New(&Config{Limits: limits}, slog.New(slog.DiscardHandler))
	t.Cleanup(func() { s.closeStores(nil) })
	one, two := netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("192.0.2.2/32")
	kept := Export{Name: "kept", Size: 1 << 12, Allow: []netip.Prefix{one, two}}
	if err := s.openStores([]Export{kept}); err != nil {
		t.Fatal(err)
	}
	ctx, leave, err := s.export("kept").enter(t.Context(), two.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	kept.Allow = []netip.Prefix{one}
	err = s.openStores([]Export{
		{Name: "missing", File: filepath.Join(t.TempDir(), "none"), Allow: []netip.Prefix{one}},
		{Name: "large", Size: 1 << 20, Allow: []netip.Prefix{one}}, kept,
		{Name: "fresh", Size: 1 << 12, Allow: []netip.Prefix{one}},
	})
	if err == nil || !strings.Contains(err.Error(), "export missing") || !strings.Contains(err.Error(), "export large") {
		t.Errorf("two exports that cannot be opened: %v", err)
	}
	if s.export("fresh") == nil {
		t.Error("an export was not opened because another could not be")
	}
	if s.export("kept").allows(two.Addr()) || ctx.Err() == nil {
		t.Error("a peer that the list has lost stays because an export could not be opened")
	}
}
