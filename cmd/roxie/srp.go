package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/roxie-rdma/roxie/internal/capture"
	"github.com/roxie-rdma/roxie/internal/netdev"
	"github.com/roxie-rdma/roxie/internal/srp"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// initiatorFlags are the command line of `roxie srp`.
type initiatorFlags struct {
	srp.LoadConfig
	iface string
	area  uint64 // MiB
	guid  string
	pcap  string
	json  jsonOutput
}

func newInitiatorCommand() *cobra.Command {
	var f initiatorFlags
	c := &cobra.Command{
		Use:   "srp INTERFACE TARGET[:PORT]",
		Short: "Log in to an SRP target and check its disk with random reads and writes",
		Long: "srp logs in to a target of the SCSI RDMA Protocol over RDMA-CM, such as Linux's\n" +
			"ib_srpt, and plays Linux's ib_srp: every command has memory of its own, registered by\n" +
			"REG_MR under a new key from a pool of regions, which the target reads and writes through,\n" +
			"and which LOCAL_INV takes away. It fills the beginning of the disk, does random READs and\n" +
			"WRITEs there, reads all back, and compares every block; other sessions log in and out\n" +
			"meanwhile.\n\n" +
			"It writes to the disk. One that holds anything but zeros and what an earlier run has left\n" +
			"is refused, unless --overwrite is given.",
		Example: "  roxie srp eth0 192.0.2.7    # port 5555, where ib_srpt's manual has it listen\n" +
			"  roxie srp eth0 192.0.2.7:5555 -n 1000 --logins 4 --abort 50 --json FILE",
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			f.iface = args[0]
			return f.run(c, args[1])
		},
	}
	fs := c.Flags()
	fs.SortFlags = false
	fs.IntVarP(&f.Count, "count", "n", 10000, "random READs and WRITEs")
	fs.IntVar(&f.Channels, "channels", 2, "channels of the session, a QP each")
	fs.IntVar(&f.Depth, "depth", 16, "commands of each channel at once")
	fs.IntVar(&f.Logins, "logins", 2, "sessions that log in and out meanwhile")
	fs.IntVar(&f.Abort, "abort", 0, "abort one command in `N`; 0: none")
	fs.Uint16Var(&f.LUN, "lun", 0, "logical unit")
	fs.IntVarP(&f.MaxBytes, "size", "s", srp.MaxIO, "most `bytes` of a command")
	fs.Uint64Var(&f.area, "area", 32, "`MiB` of the disk to use, from its beginning")
	fs.BoolVar(&f.Overwrite, "overwrite", false, "write over whatever the disk holds")
	fs.DurationVar(&f.Timeout, "timeout", 30*time.Second,
		"how long a command may take before it is aborted")
	fs.StringVar(&f.guid, "guid", "",
		"the target's service GUID, 16 hex digits; default: that of its MAC `address`")
	fs.Uint64Var(&f.Seed, "seed", 1, "of all that is random")
	fs.StringVar(&f.pcap, "pcap", "", "write all packets, both directions, to this pcapng `file`")
	f.json.declare(fs, "the report")
	return c
}

func (f *initiatorFlags) check(target string) (addr netip.AddrPort, err error) {
	if a, err := netip.ParseAddr(target); err == nil {
		addr = netip.AddrPortFrom(a, srp.DefaultPort)
	} else if addr, err = netip.ParseAddrPort(target); err != nil {
		return addr, usagef("%s is no address, nor ADDRESS:PORT", target)
	}
	if addr.Port() == 0 {
		return addr, usagef("%s: port 0 is none", target)
	}
	for _, n := range []struct {
		flag            string
		value, min, max int
	}{
		{"-n", f.Count, 1, 1 << 40}, {"--channels", f.Channels, 1, 64}, {"--depth", f.Depth, 1, 1024},
		{"--logins", f.Logins, 0, 64}, {"--abort", f.Abort, 0, 1 << 40}, {"--lun", int(f.LUN), 0,
			1<<14 - 1},
		{"-s", f.MaxBytes, 512, srp.MaxIO}, {"--area", int(f.area), 1, 1 << 24},
	} {
		if n.value < n.min || n.value > n.max {
			return addr, usagef("%s %d is out of range, %d to %d", n.flag, n.value, n.min, n.max)
		}
	}
	if f.Timeout <= 0 {
		return addr, usagef("--timeout %v: how long is that?", f.Timeout)
	}
	if f.guid != "" {
		if _, err := strconv.ParseUint(f.guid, 16, 64); err != nil || len(f.guid) > 16 {
			return addr, usagef("--guid %s: 16 hexadecimal digits are wanted", f.guid)
		}
	}
	f.Area = f.area << 20
	return addr, nil
}

func (f *initiatorFlags) run(c *cobra.Command, to string) (err error) {
	addr, err := f.check(to)
	if err != nil {
		return err
	}
	var vc verbs.Config
	file, err := capture.Attach(&vc, f.pcap, f.iface)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	dev, err := verbs.Open(f.iface, &vc)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	target := srp.Target{Addr: addr}
	if target.Port, err = f.portID(c, dev, addr.Addr()); err != nil {
		return err
	}
	m, err := cm.New(dev, &cm.Config{Keepalive: signOfLife})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	r, err := srp.Run(c.Context(), dev, m, target, f.LoadConfig)
	if r != nil {
		if err != nil {
			err = explainConnect(err, addr, "an SRP target (as Linux's ib_srpt)")
			r.Error, r.Errors = err.Error(), r.Errors+1
		}
		if e := f.print(c, r); err == nil {
			err = e
		}
	}
	return err
}

// signOfLife is how long a target may be silent before it is asked for a sign of life.
const signOfLife = 5 * time.Second

// portID is the target port's name: of ib_srpt, twice the GUID of the machine's first RDMA device,
// which for Soft-RoCE comes from the MAC address.
func (f *initiatorFlags) portID(c *cobra.Command, dev *verbs.Context, addr netip.Addr) (srp.PortID,
	error) {
	if f.guid != "" {
		guid, err := strconv.ParseUint(f.guid, 16, 64)
		return srp.PortID{Ext: guid, GUID: guid}, err
	}
	net, err := netdev.Open()
	if err != nil {
		return srp.PortID{}, err
	}
	defer net.Close()
	mac, err := net.Resolve(c.Context(), dev.Port().Ifindex, addr)
	if errors.Is(err, netdev.ErrNoNeighbour) {
		return srp.PortID{}, explainWay(err, addr)
	}
	if err != nil {
		return srp.PortID{}, fmt.Errorf("find the target's GUID by its MAC address: %w; --guid names it",
			err)
	}
	guid := guidOf(mac)
	return srp.PortID{Ext: guid, GUID: guid}, nil
}

// guidOf is the EUI-64 of a MAC address.
func guidOf(m wire.MAC) (g uint64) {
	for _, b := range []byte{m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]} {
		g = g<<8 | uint64(b)
	}
	return g
}

func (f *initiatorFlags) print(c *cobra.Command, r *srp.Report) error {
	r.Print(c.OutOrStdout())
	return f.json.write(r)
}
