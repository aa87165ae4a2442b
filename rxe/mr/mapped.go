package mr

import (
	"runtime"
	"runtime/debug"
)

// This file covers memory that is mapped from a file. The file can be cut short, and reading it can
// fail: the kernel then answers a touch with SIGBUS, which would end the process. Go turns it into
// a panic of the goroutine that asks for it (debug.SetPanicOnFault), and the accesses below turn
// that into a false, for a NAK. Lists of other memory pay one test of a flag that stands beside
// what they read anyway.

// NewMappedList makes a list over memory that is mapped from a file. Accesses report false when
// the file does not give or take the bytes; what they were to write may be written in part then.
func NewMappedList(b []byte) *List {
	l := NewList(b)
	l.mapped = true
	return l
}

// memoryFault is what a touch of absent memory panics with.
type memoryFault interface {
	runtime.Error
	Addr() uintptr
}

// caught ends an access: it gives the goroutine its old setting back and turns a fault in the list's
// memory into false. Anything else goes on panicking.
func (l *List) caught(ok *bool, was bool) {
	debug.SetPanicOnFault(was)
	e := recover()
	if e == nil {
		return
	}
	f, is := e.(memoryFault)
	if !is || uint64(f.Addr())-AddrOf(l.head) >= l.n {
		panic(e)
	}
	*ok = false
}

func (l *List) tryCopyIn(off uint64, src []byte) (ok bool) {
	defer l.caught(&ok, debug.SetPanicOnFault(true))
	return l.copyIn(off, src)
}

func (l *List) tryCopyOut(off uint64, dst []byte) (ok bool) {
	defer l.caught(&ok, debug.SetPanicOnFault(true))
	return l.copyOut(off, dst)
}

func (l *List) tryCopyInLast(off uint64, src []byte) (ok bool) {
	defer l.caught(&ok, debug.SetPanicOnFault(true))
	return l.copyInLast(off, src)
}

func (l *List) tryFetchAdd(p *uint64, off, add uint64) (old uint64, ok bool) {
	defer l.caught(&ok, debug.SetPanicOnFault(true))
	return l.fetchAdd(p, off, add), true
}

func (l *List) tryCmpSwap(p *uint64, off, cmp, swap uint64) (old uint64, ok bool) {
	defer l.caught(&ok, debug.SetPanicOnFault(true))
	return l.cmpSwap(p, off, cmp, swap), true
}

func (l *List) tryStore8(p *uint64, off, v uint64) (ok bool) {
	defer l.caught(&ok, debug.SetPanicOnFault(true))
	return l.store8(p, off, v)
}
