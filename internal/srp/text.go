package srp

import "fmt"

// A LoginReason says why a target refuses a channel.
type LoginReason uint32

// The reasons.
const (
	LoginUnableToEstablish LoginReason = 0x00010000
	LoginNoResources       LoginReason = 0x00010001
	LoginUnitTooLong       LoginReason = 0x00010002
	LoginUnableToAssociate LoginReason = 0x00010003
	LoginUnsupportedFormat LoginReason = 0x00010004
	LoginNoMultiChannel    LoginReason = 0x00010005
	LoginTooManyChannels   LoginReason = 0x00010006
)

var loginReasons = [...]string{
	"unable to establish a channel",
	"insufficient resources",
	"the units the initiator wants to send are too long",
	"unable to associate the channel: no such target port, or nobody of this name may log in",
	"descriptor format not supported",
	"no second channel possible",
	"too many channels",
}

// String says it in words.
func (r LoginReason) String() string {
	if i := r - LoginUnableToEstablish; i < LoginReason(len(loginReasons)) {
		return loginReasons[i]
	}
	return fmt.Sprintf("reason %#x", uint32(r))
}

// A TaskStatus is what became of a task management function.
type TaskStatus uint8

// The outcomes.
const (
	TaskComplete     TaskStatus = 0
	TaskBadField     TaskStatus = 2
	TaskNotSupported TaskStatus = 4
	TaskFailed       TaskStatus = 5
)

// String says it in words.
func (s TaskStatus) String() string {
	switch s {
	case TaskComplete:
		return "complete"
	case TaskBadField:
		return "invalid field"
	case TaskNotSupported:
		return "not supported"
	case TaskFailed:
		return "failed"
	}
	return fmt.Sprintf("task management response %d", uint8(s))
}

// A Status is the outcome of a SCSI command (SAM).
type Status uint8

// The statuses.
const (
	Good                Status = 0x00
	CheckCondition      Status = 0x02
	ConditionMet        Status = 0x04
	Busy                Status = 0x08
	ReservationConflict Status = 0x18
	TaskSetFull         Status = 0x28
	ACAActive           Status = 0x30
	TaskAborted         Status = 0x40
)

var statusNames = map[Status]string{
	Good: "GOOD", CheckCondition: "CHECK CONDITION", ConditionMet: "CONDITION MET", Busy: "BUSY",
	ReservationConflict: "RESERVATION CONFLICT", TaskSetFull: "TASK SET FULL", ACAActive: "ACA ACTIVE",
	TaskAborted: "TASK ABORTED",
}

// String returns the standard's name.
func (s Status) String() string {
	if n, ok := statusNames[s]; ok {
		return n
	}
	return fmt.Sprintf("status %#02x", uint8(s))
}

// Sense keys that matter here (SPC).
const (
	SenseNone           = 0x0
	SenseIllegalRequest = 0x5
	SenseUnitAttention  = 0x6
)

var senseKeys = [16]string{
	"no sense", "recovered error", "not ready", "medium error", "hardware error", "illegal request",
	"unit attention", "data protect", "blank check", "vendor specific", "copy aborted",
	"aborted command", "reserved", "volume overflow", "miscompare", "completed",
}

// Sense is what a target tells beside CHECK CONDITION.
type Sense struct {
	Key       uint8
	ASC, ASCQ uint8 // additional sense code and its qualifier
}

// DecodeSense reads sense data of fixed or descriptor format; ok is false for anything else.
func DecodeSense(b []byte) (s Sense, ok bool) {
	if len(b) < 1 {
		return s, false
	}
	switch b[0] & 0x7f {
	case 0x70, 0x71:
		if len(b) < 14 {
			return s, false
		}
		return Sense{b[2] & 15, b[12], b[13]}, true
	case 0x72, 0x73:
		if len(b) < 4 {
			return s, false
		}
		return Sense{b[1] & 15, b[2], b[3]}, true
	}
	return s, false
}

// Encode returns sense data of fixed format.
func (s Sense) Encode() []byte {
	b := make([]byte, 18)
	b[0], b[2], b[7], b[12], b[13] = 0x70, s.Key, 10, s.ASC, s.ASCQ
	return b
}

// String says it in words.
func (s Sense) String() string {
	return fmt.Sprintf("%s (asc %#02x, ascq %#02x)", senseKeys[s.Key&15], s.ASC, s.ASCQ)
}

// StatusError is returned for a command that the target has carried out to another end than GOOD.
type StatusError struct {
	Status Status
	Sense  Sense // of CHECK CONDITION
}

// Error names the status and the sense.
func (e *StatusError) Error() string {
	if e.Status == CheckCondition {
		return fmt.Sprintf("%v: %v", e.Status, e.Sense)
	}
	return e.Status.String()
}
