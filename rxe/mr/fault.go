package mr

import "errors"

// Fault says why a check or a change of an entry was refused. The package counts nothing: the
// caller does, one counter a Fault (NumFaults of them).
type Fault uint8

// The faults. The order in which a check tests is the order in which they stand here.
const (
	FaultNone     Fault = iota // no fault: the access or the change is good
	FaultKeyIndex              // nothing lives at the key's index (key 0 included)
	FaultVariant               // the index lives, but under another 8-bit variant
	FaultState                 // free where valid is needed, or valid where free is needed
	FaultPD                    // the entry belongs to another protection domain
	FaultQP                    // a type 2 window bound to another QP
	FaultKind                  // not for this kind: a window as lkey, LOCAL_INV of a user region
	FaultAccess                // a right is missing
	FaultRange                 // outside the registered range, or the range wraps past 2^64
	FaultBound                 // the region has windows bound to it
	FaultPending               // no list or view of that number is waiting for execution
	FaultMemory                // not of a check: the file behind mapped memory failed
	NumFaults
)

var faultNames = [NumFaults]string{
	FaultNone:     "none",
	FaultKeyIndex: "key-index",
	FaultVariant:  "key-variant",
	FaultState:    "state",
	FaultPD:       "pd",
	FaultQP:       "qp",
	FaultKind:     "kind",
	FaultAccess:   "access",
	FaultRange:    "range",
	FaultBound:    "bound",
	FaultPending:  "pending",
	FaultMemory:   "memory",
}

// String returns a short lower-case name, fit for a counter.
func (f Fault) String() string {
	if f < NumFaults {
		return faultNames[f]
	}
	return "unknown"
}

// Errors of the control side.
var (
	// ErrExhausted: every index of the table is in use.
	ErrExhausted = errors.New("key table is full")
	// ErrInUse: the entry is still published, so its index cannot be freed.
	ErrInUse = errors.New("key is still published")
	// ErrKey: the key does not belong to an allocated index of that kind.
	ErrKey = errors.New("no such key")
	// ErrRange: the range is not inside the list, or wraps past 2^64.
	ErrRange = errors.New("range outside the list or past 2^64")
	// ErrAccess: the rights are unknown or contradict each other.
	ErrAccess = errors.New("rights not possible here")
	// ErrPD: protection domain 0.
	ErrPD = errors.New("no protection domain")
	// ErrListSize: more segments than the region was allocated for, or no list mapped at all.
	ErrListSize = errors.New("list too long for the region, or none mapped")
	// ErrPipeline: too many registrations of one region are posted and not yet executed.
	ErrPipeline = errors.New("too many registrations pending for one region")
)
