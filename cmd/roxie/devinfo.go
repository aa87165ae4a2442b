package main

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/roxie-rdma/roxie/bpf"
	"github.com/roxie-rdma/roxie/internal/netdev"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

func newDevinfoCommand() *cobra.Command {
	var name string
	var verbose, list bool
	c := &cobra.Command{
		Use:   "devinfo",
		Short: "Tell which interfaces can be used, and what they offer",
		Long: "devinfo prints what ibv_devinfo prints of an RDMA device: of each network " +
			"interface that\n" +
			"roxie can open, its limits, its port and its GIDs. It opens and changes nothing.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			devices, err := findDevices(name)
			if err != nil {
				return err
			}
			return printDevices(c.OutOrStdout(), devices, list, verbose)
		},
	}
	c.Flags().StringVarP(&name, "ib-dev", "d", "", "only this network `interface`")
	c.Flags().BoolVarP(&list, "list", "l", false, "names only")
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "all limits and all GIDs")
	return c
}

// deviceInfo is what devinfo knows of one interface.
type deviceInfo struct {
	link    netdev.Link
	attr    verbs.DeviceAttr
	port    verbs.PortAttr
	gids    []verbs.GIDEntry
	program string // attached to the interface already
}

// findDevices describes one interface, or all that could be opened. There must be one.
func findDevices(name string) (devices []deviceInfo, err error) {
	conn, err := netdev.Open()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var links []netdev.Link
	if name != "" {
		link, err := conn.LinkByName(name)
		if err != nil {
			return nil, err
		}
		if link.MAC == (wire.MAC{}) {
			return nil, fmt.Errorf("%s is no Ethernet interface; roxie devinfo -l lists those "+
				"that are", name)
		}
		links = []netdev.Link{link}
	} else if links, err = conn.Links(); err != nil {
		return nil, err
	}
	var small []string
	for _, link := range links {
		if link.MAC == (wire.MAC{}) {
			continue
		}
		addrs, err := conn.Addrs(link.Index)
		if err != nil {
			return nil, err
		}
		d, err := describe(link, addrs)
		if err != nil && name != "" {
			return nil, err
		} else if err != nil {
			small = append(small, link.Name)
			continue
		}
		devices = append(devices, d)
	}
	if len(devices) > 0 {
		return devices, nil
	}
	if len(small) > 0 {
		return nil, fmt.Errorf("no interface has the link MTU of %d that the smallest path MTU "+
			"needs: %s",
			netdev.LinkMTU(netdev.MinPMTU, true), strings.Join(small, ", "))
	}
	return nil, errors.New("this network namespace has no Ethernet interface; `roxie lab up` " +
		"makes " +
		"namespaces that have one")
}

// describe asks a device of the same shape, on a link that carries nothing, for its attributes.
func describe(link netdev.Link, addrs []netip.Prefix) (deviceInfo, error) {
	dev, err := verbs.OpenLinks([]verbs.Link{make(nowhere, 1)},
		verbs.PortInfo{Name: link.Name, MAC: link.MAC, MTU: link.MTU, Addrs: addrs}, nil)
	if err != nil {
		return deviceInfo{}, err
	}
	d := deviceInfo{link: link, attr: dev.Device(), port: dev.Port(), gids: dev.GIDs()}
	d.attr.Shards = link.RXQueues
	d.port.State, d.port.LinkState = verbs.PortDown, link.State()
	if link.Running {
		d.port.State = verbs.PortActive
	}
	if id, name, ok := bpf.Foreign(link.Index); ok {
		d.program = fmt.Sprintf("program %d %s is attached", id, name)
	}
	return d, dev.Close()
}

// nowhere is a link without a wire.
type nowhere chan struct{}

func (nowhere) Receive(int) int                         { return 0 }
func (nowhere) Packet(int) (head, tail []byte)          { return nil, nil }
func (nowhere) Release()                                {}
func (nowhere) Reserve() (head, tail []byte, free bool) { return nil, nil, false }
func (nowhere) Submit(int)                              {}
func (nowhere) Cancel()                                 {}
func (nowhere) Kick()                                   {}
func (nowhere) Close() error                            { return nil }

func (n nowhere) Wait(d time.Duration) {
	var late <-chan time.Time
	if d >= 0 {
		late = time.After(d)
	}
	select {
	case <-n:
	case <-late:
	}
}

func (n nowhere) Wake() {
	select {
	case n <- struct{}{}:
	default:
	}
}

func printDevices(w io.Writer, devices []deviceInfo, list, verbose bool) error {
	var b strings.Builder
	if list {
		fmt.Fprintf(&b, "%d device(s) found:\n", len(devices))
		for _, d := range devices {
			fmt.Fprintf(&b, "\t%s\n", d.link.Name)
		}
	} else {
		for i := range devices {
			devices[i].print(&b, verbose)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// print writes one device in ibv_devinfo's layout.
func (d *deviceInfo) print(b *strings.Builder, verbose bool) {
	row := func(depth int, key string, value any) {
		fmt.Fprintf(b, "%s%-*s%v\n", strings.Repeat("\t", depth), 32-8*(depth-1), key+":", value)
	}
	a, p := &d.attr, &d.port
	fmt.Fprintf(b, "hca_id:\t%s\n", d.link.Name)
	row(1, "transport", "RoCE v2 over AF_XDP")
	row(1, "node_guid", guidText(a.NodeGUID))
	row(1, "sys_image_guid", guidText(a.NodeGUID))
	row(1, "driver", strings.Join(nonEmpty(d.link.Kind, d.link.Driver), ", "))
	row(1, "queues", a.Shards)
	if d.program != "" {
		row(1, "xdp", d.program)
	}
	if verbose {
		d.printLimits(row)
	}
	row(1, "phys_port_cnt", 1)
	row(2, "port", 1)
	row(3, "state", fmt.Sprintf("%v (%d)", p.State, uint8(p.State)))
	row(3, "link", fmt.Sprintf("%s, MTU %d", p.LinkState, p.LinkMTU))
	row(3, "max_mtu", mtuText(netdev.MaxPMTU))
	row(3, "active_mtu", mtuText(p.MaxPMTU))
	if p.MaxPMTU6 != p.MaxPMTU {
		row(3, "active_mtu on IPv6", mtuText(p.MaxPMTU6))
	}
	row(3, "sm_lid", 0)
	row(3, "port_lid", 0)
	row(3, "port_lmc", "0x00")
	row(3, "link_layer", "Ethernet")
	if verbose {
		row(3, "max_msg_sz", fmt.Sprintf("%#x", a.MaxMsgSize))
		row(3, "pkey_tbl_len", a.PKeys)
		row(3, "gid_tbl_len", len(d.gids))
	}
	if verbose {
		for _, g := range d.gids {
			row(3, fmt.Sprintf("GID[%3d]", g.Index),
				fmt.Sprintf("%v, %v", gidText(g.GID), g.Type))
		}
	}
	b.WriteString("\n")
}

func (d *deviceInfo) printLimits(row func(int, string, any)) {
	a := &d.attr
	for _, l := range []struct {
		name  string
		value any
	}{
		{"max_mr_size", "0xffffffffffffffff"},
		{"max_qp", a.MaxQP},
		{"max_qp_wr", a.MaxQPWR},
		{"max_sge", a.MaxSGE},
		{"max_sge_rd", a.MaxSGE},
		{"max_inline_data", a.MaxInline},
		{"max_cqe", a.MaxCQE},
		{"max_mr", a.MaxMR},
		{"max_fast_reg_page_list_len", a.MaxFastRegSeg},
		{"max_qp_rd_atom", a.MaxRdAtomic},
		{"max_qp_init_rd_atom", a.MaxRdAtomic},
		{"atomic_cap", "ATOMIC_HCA (1)"},
		{"max_ah", a.MaxAH},
		{"max_srq_wr", a.MaxSRQWR},
		{"max_srq_sge", a.MaxSGE},
		{"max_pkeys", a.PKeys},
	} {
		row(1, l.name, l.value)
	}
}

func nonEmpty(all ...string) (out []string) {
	for _, s := range all {
		if s != "" && (len(out) == 0 || out[len(out)-1] != s) {
			out = append(out, s)
		}
	}
	return out
}

// guidText is a GUID as ibv_devinfo prints it: four groups of four digits.
func guidText(g uint64) string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", uint16(g>>48), uint16(g>>32), uint16(g>>16), uint16(g))
}

// mtuText is a path MTU with its code (enum ibv_mtu).
func mtuText(bytes int) string {
	if bytes == 0 {
		return "none fits the link MTU"
	}
	return fmt.Sprintf("%d (%d)", bytes, bits.Len(uint(bytes))-8)
}

// gidText is a GID in full and, of an IPv4 address, the address.
func gidText(g wire.GID) string {
	if a := netdev.AddrOf(g); a.Is4() {
		return "::ffff:" + a.String()
	}
	return netip.AddrFrom16(g).String()
}
