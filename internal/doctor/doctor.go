package doctor

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"github.com/roxie-rdma/roxie/internal/netdev"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// Config says what to look at.
type Config struct {
	// Interface is the one to look at; empty means each Ethernet interface of the namespace.
	Interface string
	// Queues is how many of its queues roxie will be told to use, 1 to 64; 0 means all.
	Queues int
	// VLAN is the tag of the traffic, 1 to 4094; 0 is none.
	VLAN int
	// Peer, if valid, is an address that should be reached through the interface.
	Peer netip.Addr
	// Try attaches the steering program for a moment, to see in which mode that works.
	Try bool
}

// Check says what is wrong with a configuration.
func (c *Config) Check() error {
	switch {
	case c.Queues < 0 || c.Queues > maxQueues:
		return fmt.Errorf("%d queues; 1 to %d can be used, 0 means all", c.Queues, maxQueues)
	case c.VLAN < 0 || c.VLAN > 4094:
		return fmt.Errorf("VLAN %d; they go from 1 to 4094, and 0 is none", c.VLAN)
	case c.Interface == "" && (c.Peer.IsValid() || c.Try || c.VLAN != 0 || c.Queues != 0):
		return errors.New("--queues, --vlan, --try and --peer are about one interface: roxie doctor IF …")
	}
	return nil
}

// maxQueues is the most queues a device uses (verbs.Config.Queues).
const maxQueues = 64

// Examine looks at the machine and its interfaces, in the network namespace and with the rights of
// the calling thread. Its errors are about the kernel that did not answer, not about what is
// broken: that is in the report.
func Examine(cfg Config) (*Report, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	conn, err := netdev.Open()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	machine := examineMachine()
	report := &Report{Grade: machine.Grade, Sections: []Section{machine.Section}}
	if cfg.Interface != "" {
		s := examineInterface(conn, &machine, cfg)
		report.Sections = append(report.Sections, s)
		report.Grade = max(report.Grade, s.Grade)
		return report, nil
	}
	links, err := conn.Links()
	if err != nil {
		return nil, err
	}
	best := Broken
	for _, l := range links {
		if l.MAC == (wire.MAC{}) {
			continue
		}
		cfg.Interface = l.Name
		s := examineInterface(conn, &machine, cfg)
		report.Sections = append(report.Sections, s)
		best = min(best, s.Grade)
	}
	if len(report.Sections) == 1 {
		s := Section{Name: "interfaces"}
		s.add("ethernet", Broken, "roxie lab up",
			"this network namespace has no Ethernet interface; a lab has two")
		report.Sections = append(report.Sections, s)
	}
	report.Grade = max(report.Grade, best)
	return report, nil
}
