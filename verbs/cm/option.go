package cm

import (
	"fmt"
	"net/netip"

	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/verbs"
)

// Option is something about an ID that can be chosen (rdma_set_option, level RDMA_OPTION_ID), with
// librdmacm's numbers.
type Option uint8

// The options. RDMA_OPTION_IB_PATH of level RDMA_OPTION_IB has no counterpart: over Ethernet the
// kernel's routes decide.
const (
	// OptionTOS is the traffic class of all packets, 0 to 255, unless Params say another one: of the
	// connection that Connect asks for, of both ends; of a datagram service and of groups. Before
	// Connect or JoinMulticast.
	OptionTOS Option = iota
	// OptionReuseAddr, 1 or 0: several IDs that say so may be bound to one address and port, if none
	// listens. It can be taken back before Bind only.
	OptionReuseAddr
	// OptionAFOnly, 1 or 0: an ID bound to any address has those of the IP version only by which it
	// was named. That is the default for 0.0.0.0, not for [::]. Before Bind.
	OptionAFOnly
	// OptionAckTimeout is the code n of the QP's ACK timeout, 4.096 µs × 2ⁿ, 1 to 31, unless Params
	// say another one; see Params.AckTimeout. Before Connect or Accept.
	OptionAckTimeout
)

var optionNames = [...]string{"TOS", "REUSEADDR", "AFONLY", "ACK_TIMEOUT"}

// String is librdmacm's name without its prefix.
func (o Option) String() string {
	if int(o) < len(optionNames) {
		return optionNames[o]
	}
	return fmt.Sprintf("Option(%d)", uint8(o))
}

// options are an ID's.
type options struct {
	tos        uint8
	ackTimeout uint8 // 0: computed
	reuse      bool
	afonly     *bool // nil: as the address says
}

// SetOption sets an option (rdma_set_option). The error wraps verbs.ErrInvalid for a value that is
// none, and when it comes too late.
func (id *ID) SetOption(o Option, v int) error {
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	limit := [...]int{OptionTOS: 255, OptionReuseAddr: 1, OptionAFOnly: 1, OptionAckTimeout: 31}
	if int(o) >= len(limit) || v < 0 || v > limit[o] || o == OptionAckTimeout && v == 0 {
		return fmt.Errorf("set option %v to %d: %w", o, v, verbs.ErrInvalid)
	}
	bound := id.state != idIdle
	late := id.state >= idConnecting || id.state == idListening
	switch o {
	case OptionTOS:
		if id.space == rcm.PortSpaceUDP && id.state == idConnected {
			late = false // for groups
		}
		if !late {
			id.options.tos = uint8(v)
		}
	case OptionReuseAddr:
		if late = late || bound && v == 0; !late {
			id.options.reuse = v == 1
			if id.place != nil {
				id.place.reuse = true
			}
		}
	case OptionAFOnly:
		if late = bound; !late {
			only := v == 1
			id.options.afonly = &only
		}
	case OptionAckTimeout:
		if id.space != rcm.PortSpaceTCP {
			return fmt.Errorf("set option %v of datagrams: %w", o, verbs.ErrInvalid)
		}
		if !late {
			id.options.ackTimeout = uint8(v)
		}
	}
	if late {
		return id.errState(fmt.Sprintf("set option %v", o))
	}
	return nil
}

// fill completes what a caller has left open.
func (o *options) fill(p *Params) {
	if p.TrafficClass == 0 {
		p.TrafficClass = o.tos
	}
	if p.AckTimeout == 0 {
		p.AckTimeout = o.ackTimeout
	}
}

// family is the IP version an ID is restricted to that is bound to an address.
func (o *options) family(addr netip.Addr) rcm.Family {
	only := addr.Is4()
	if o.afonly != nil {
		only = *o.afonly
	}
	switch {
	case !only || !addr.IsUnspecified():
		return rcm.AnyFamily
	case addr.Is4():
		return rcm.IPv4
	}
	return rcm.IPv6
}
