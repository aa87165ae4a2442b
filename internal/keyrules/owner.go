package keyrules

import (
	"time"

	"github.com/roxie-rdma/roxie/verbs"
)

// This file says what the rules need of the side whose memory is at stake. Two do it: roxie
// (own.go) and Linux, told by lines of text what to do (linux.go). Methods return nothing sensible after a
// fault was noted; the rule that runs is given up then.

// domain is one of an owner's two protection domains.
type domain int

const (
	home domain = iota
	abroad
)

// owner is one device with its two domains.
type owner interface {
	qp(domain) ownerQP
	memory(pages int) memory
	fast(d domain, pages int) region
	window(d domain, t verbs.MWType) window
	// user is memory of 64 KiB that is registered in both domains, with all rights and for ever, the
	// address that both registrations have, and the key of one.
	user(domain) (m memory, addr uint64, key verbs.Key)
	// visible makes memory as peers leave it visible to us, and as we leave it to peers.
	visible()
}

// ownerQP is a QP with its completion queue. All that it posts is signaled.
type ownerQP interface {
	info() verbs.ConnInfo
	connect(verbs.ConnInfo)
	state() verbs.QPState
	send()                    // 16 bytes
	recv()                    // for at least 64 bytes
	invalidate(key verbs.Key) // LOCAL_INV
	register(r region, access verbs.Access)
	bind(b binding)
	poll(time.Duration) completion // noCompletion after that time
	// take invalidates a key, waits, and uses the memory as soon as the completion is there: it
	// fills it with a byte, or notes what it holds when fill is negative.
	take(key verbs.Key, m memory, fill int) completion
	close()
}

// completion is what came out of a completion queue.
type completion struct {
	status      verbs.WCStatus
	invalidated bool // a receive with the flag that says so
}

// binding is a BIND_MW to the user memory's registration in a domain.
type binding struct {
	w      window
	to     domain
	off, n uint64 // in that memory
	access verbs.Access
}

// memory is some pages of the owner's.
type memory interface {
	fill(b byte)
	count(b byte) int // bytes that are b
	at(off int) byte
	taken() int // bytes that have changed since ownerQP.take
	size() int
	addr() uint64 // where the device sees it by nature
	close()
}

// region is a fast-register region: the application's side.
type region interface {
	mapTo(m memory, iova uint64) // 0: the memory's address
	bump()                       // the next key
	key() verbs.Key
	addr() uint64
	close()
}

// window is a memory window.
type window interface {
	key() verbs.Key
	close()
}

// A stopper can hold its responder between the check of a key and the copy that follows it.
type stopper interface {
	// held lets the peer access m through r while the responder is held there, invalidates the key
	// meanwhile, and lets the responder go once that is complete or 400 ms have passed. early says
	// that the completion came while the responder was held; m has then been used as take does.
	held(q ownerQP, r region, m memory, read bool, access func()) (early bool)
}
