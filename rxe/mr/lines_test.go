package mr

import (
	"runtime/debug"
	"syscall"
	"testing"
	"unsafe"
)

// TestCheckTouchesItsEntryOnly: a check reads nothing of a chunk but the entry it is about. The chunk
// lies in memory of which only the page with that entry can be read. An index expression of the
// language would read the first byte as well, in a line that others write.
func TestCheckTouchesItsEntryOnly(t *testing.T) {
	const page = 4096
	mem, err := syscall.Mmap(-1, 0, int(unsafe.Sizeof(chunk{})), syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Munmap(mem) }()
	const index = 3 * page / 8 // the first of page 3
	tab := New(MaxLimit, 0, nil)
	v, err := NewView(Region{Key: MakeKey(index, 9), PD: 7, Access: LocalWrite | RemoteWrite, IOVA: 0x1000,
		Length: 64, List: NewList(make([]byte, 64))})
	if err != nil {
		t.Fatal(err)
	}
	c := (*chunk)(unsafe.Pointer(&mem[0]))
	c.at(index).Store(v)
	for _, part := range [][]byte{mem[:3*page], mem[4*page:]} {
		if err := syscall.Mprotect(part, syscall.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	tab.chunks[0].Store(c)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("a check reads another page: %v", r)
		}
	}()
	if got, f := tab.Check(v.Key(), 7, 17, RemoteWrite, 0x1000, 64); got != v || f != FaultNone {
		t.Errorf("%v, %v", got, f)
	}
	if got, f := tab.Check(v.Key().Inc(), 7, 17, RemoteWrite, 0x1000, 64); got != nil || f != FaultVariant {
		t.Errorf("%v, %v", got, f)
	}
}
