package capture

import (
	"runtime/debug"
	"strconv"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/roxie-rdma/roxie/verbs"
)

// This file is where records become blocks of a pcapng file.

// open begins the file. why is its comment.
func (c *Capture) open(why string) error {
	c.mu.Lock()
	name := c.names[0]
	c.mu.Unlock()
	var err error
	c.ng, err = pcapgo.NewNgWriterInterface(c.out, c.ngInterface(name), pcapgo.NgWriterOptions{
		SectionInfo: pcapgo.NgSectionInfo{Application: application(), Comment: why},
	})
	if err == nil {
		c.known = 1
		err = c.flush()
	}
	return err
}

func (c *Capture) ngInterface(name string) pcapgo.NgInterface {
	i := pcapgo.NgInterface{Name: name, LinkType: layers.LinkTypeEthernet,
		SnapLength: uint32(c.cfg.SnapLen), TimestampResolution: 9}
	if c.cfg.Filter != "" {
		i.Comment = "filter: " + c.cfg.Filter
	}
	return i
}

// application names the program that wrote the file.
func application() string {
	if i, ok := debug.ReadBuildInfo(); ok && i.Main.Version != "" {
		return "roxie " + i.Main.Version
	}
	return "roxie"
}

// describe makes the file know interfaces up to number i.
func (c *Capture) describe(i int) error {
	for ; c.known <= i; c.known++ {
		c.mu.Lock()
		name := c.names[c.known]
		c.mu.Unlock()
		if _, err := c.ng.AddInterface(c.ngInterface(name)); err != nil {
			return err
		}
	}
	return nil
}

// write writes a record. lost is how many frames of its queue were lost before it.
func (c *Capture) write(x *record, lost uint64) {
	if err := c.describe(int(x.iface)); err != nil {
		c.keep(err)
		return
	}
	var flags pcapgo.NgEpbFlags
	flags.FromUint32(uint32(x.dir))
	queue := uint32(x.shard)
	o := pcapgo.NgPacketOptions{Flags: &flags, Queue: &queue, Comments: []string{c.comment(x)}}
	if lost > 0 {
		o.DropCount = &lost
	}
	err := c.ng.WritePacketWithOptions(gopacket.CaptureInfo{
		Timestamp: c.began.Round(0).Add(x.at), CaptureLength: len(x.data), Length: x.length,
		InterfaceIndex: int(x.iface),
	}, x.data, o)
	if err != nil {
		c.keep(err)
		return
	}
	if c.stats.Written == 0 {
		c.first = x.at
	}
	c.stats.Written++
	c.stats.Bytes += uint64(len(x.data))
	c.stats.Span = max(c.stats.Span, x.at-c.first)
}

// comment is what is told about a packet, as key=value in an order that does not change.
func (c *Capture) comment(x *record) string {
	b := make([]byte, 0, 96)
	b = append(b, "dir=in"...)
	if x.dir == verbs.Outbound {
		b = append(b[:0], "dir=out"...)
	}
	if x.flags&hasQP != 0 {
		b = strconv.AppendUint(append(b, " qp=0x"...), uint64(x.qp), 16)
	}
	if x.flags&hasWR != 0 {
		key := " send_wr="
		if x.flags&isRecv != 0 {
			key = " recv_wr="
		}
		b = strconv.AppendUint(append(b, key...), x.wr, 10)
	}
	if x.flags&isAgain != 0 {
		b = append(b, " again"...)
	}
	if icrc := icrcOf(x, &c.scratch); icrc != "" {
		b = append(append(b, " icrc="...), icrc...)
	}
	if !reasonNone(x.drop) {
		b = strconv.AppendQuote(append(b, " drop="...), x.drop.String())
	}
	if x.flags&isHanded != 0 {
		b = append(b, " handed_over"...)
	}
	return string(b)
}

// writeStatistics ends the file with a block of statistics for each interface.
func (c *Capture) writeStatistics() error {
	c.mu.Lock()
	n := len(c.names)
	c.mu.Unlock()
	if err := c.describe(n - 1); err != nil {
		return err
	}
	for i := range n {
		seen, lost := c.past[i].seen, c.past[i].lost
		for _, s := range c.sources {
			for j := range s.lanes {
				if int(s.iface) == i {
					seen += s.lanes[j].seen.Load()
					lost += s.lanes[j].lost.Load()
				}
			}
		}
		err := c.ng.WriteInterfaceStats(i, pcapgo.NgInterfaceStatistics{
			LastUpdate: time.Now(), StartTime: c.began, EndTime: time.Now(),
			PacketsReceived: seen, PacketsDropped: lost,
		})
		if err != nil {
			return err
		}
	}
	return nil
}
