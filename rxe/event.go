package rxe

// EventType is an asynchronous event with libibverbs' numbers (enum ibv_event_type), or a
// completion event.
type EventType uint8

// Events. EventCompletion reports that an armed CQ got a completion.
const (
	EventCQErr          EventType = 0
	EventQPFatal        EventType = 1
	EventQPReqErr       EventType = 2
	EventQPAccessErr    EventType = 3
	EventCommEst        EventType = 4
	EventSQDrained      EventType = 5
	EventDeviceFatal    EventType = 8
	EventPortActive     EventType = 9
	EventPortErr        EventType = 10
	EventSRQErr         EventType = 14
	EventSRQLimit       EventType = 15
	EventQPLastWQE      EventType = 16
	EventGIDChange      EventType = 18
	EventCompletion     EventType = 200
	maxQueuedEvents               = 1 << 16
	initialQueuedEvents           = 64
)

var eventNames = map[EventType]string{
	EventCQErr: "CQ error", EventQPFatal: "local work queue catastrophic error",
	EventQPReqErr: "invalid request local work queue error", EventQPAccessErr: "local access violation work queue error",
	EventCommEst: "communication established", EventSQDrained: "send queue drained",
	EventDeviceFatal: "local catastrophic error", EventPortActive: "port active",
	EventPortErr: "port error", EventSRQErr: "SRQ catastrophic error", EventSRQLimit: "SRQ limit reached",
	EventQPLastWQE: "last WQE reached", EventGIDChange: "GID table change", EventCompletion: "completion",
}

// String is the text of ibv_event_type_str.
func (t EventType) String() string {
	if s, ok := eventNames[t]; ok {
		return s
	}
	return "unknown"
}

// Event tells the driver what happened to which object; one of QP, CQ and SRQ is set.
type Event struct {
	Type   EventType
	QP     *QP
	CQ     *CQ
	SRQ    *SRQ
	Reason Reason
}

// emit queues an event for the driver. Completion events are bounded by arming; a flood of others
// that nobody collects is cut off and counted.
func (s *Shard) emit(e Event) {
	if len(s.events) >= maxQueuedEvents {
		s.C.EventsLost++
		return
	}
	s.events = append(s.events, e)
}

// Events returns what happened since the last call. The slice is valid until the next call of any
// method of the shard.
func (s *Shard) Events() []Event {
	e := s.events
	s.events = s.events[:0]
	return e
}
