package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/roxie-rdma/roxie/internal/qemu"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// record of one packet of a capture.
type packet struct {
	at        time.Time // when it was captured
	sent      time.Time // when its sender captured it; the two ends' clocks differ
	fromGuest bool
	frame     []byte
	ip        []byte // the IP packet
	wire.Packet
	refused wire.Reason // why our decoder does not take it, else ReasonOK
}

// readPackets reads the RoCEv2 packets of a capture, pcap or pcapng.
func readPackets(name string) ([]*packet, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, 1<<20)
	r, err := openCapture(in)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var all []*packet
	for {
		data, info, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s, packet %d: %w", name, len(all)+1, err)
		}
		if info.CaptureLength < info.Length {
			return nil, fmt.Errorf("%s, packet %d: %d of %d bytes were captured", name, len(all)+1,
				info.CaptureLength, info.Length)
		}
		all = append(all, newPacket(data, info))
	}
}

type captureReader interface {
	ReadPacketData() ([]byte, gopacket.CaptureInfo, error)
}

func openCapture(in *bufio.Reader) (captureReader, error) {
	magic, err := in.Peek(4)
	if err != nil {
		return nil, err
	}
	if binary.BigEndian.Uint32(magic) == 0x0a0d0d0a { // a section header, in either byte order
		return pcapgo.NewNgReader(in, pcapgo.DefaultNgReaderOptions)
	}
	return pcapgo.NewReader(in)
}

func newPacket(frame []byte, info gopacket.CaptureInfo) *packet {
	p := &packet{at: info.Timestamp, sent: info.Timestamp, frame: frame}
	p.parse()
	return p
}

// parse reads the frame.
func (p *packet) parse() {
	p.ip = afterEthernet(p.frame)
	p.Packet = wire.Packet{}
	p.refused = wire.Parse(wire.Frame{Head: p.frame}, &p.Packet)
	p.fromGuest = len(p.frame) > 12 && bytes.Equal(p.frame[6:12], qemu.GuestMAC)
}

// afterEthernet cuts the Ethernet header off, with a VLAN tag.
func afterEthernet(frame []byte) []byte {
	const etherLen, tagLen, etherTypeVLAN = 14, 4, 0x8100
	if len(frame) < etherLen+tagLen {
		return nil
	}
	if binary.BigEndian.Uint16(frame[etherLen-2:]) == etherTypeVLAN {
		return frame[etherLen+tagLen:]
	}
	return frame[etherLen:]
}

// writeBoth writes the packets of several captures into one pcap file.
func writeBoth(w io.Writer, captures ...[]*packet) error {
	out := bufio.NewWriter(w)
	pw := pcapgo.NewWriter(out)
	if err := pw.WriteFileHeader(1<<18, layers.LinkTypeEthernet); err != nil {
		return err
	}
	for _, c := range captures {
		for _, p := range c {
			err := pw.WritePacket(gopacket.CaptureInfo{Timestamp: p.at, CaptureLength: len(p.frame),
				Length: len(p.frame)}, p.frame)
			if err != nil {
				return err
			}
		}
	}
	return out.Flush()
}

// split parts packets by direction.
func split(all []*packet) (toGuest, fromGuest []*packet) {
	for _, p := range all {
		if p.fromGuest {
			fromGuest = append(fromGuest, p)
		} else {
			toGuest = append(toGuest, p)
		}
	}
	return toGuest, fromGuest
}

// agree compares what one end sent with what the other one saw. The receiver may have stopped
// before the last ones came.
func agree(sent, seen []*packet, early bool) error {
	for i := range seen {
		if i >= len(sent) {
			return fmt.Errorf("packet %d of %d arrived and was not sent: %v", i+1, len(seen), seen[i])
		}
		if !bytes.Equal(sent[i].ip, seen[i].ip) {
			return fmt.Errorf("packet %d of %d was sent as %v and arrived as %v", i+1, len(sent),
				sent[i], seen[i])
		}
	}
	if len(sent) > len(seen) && !early {
		return fmt.Errorf("packet %d of %d was sent and did not arrive: %v", len(seen)+1, len(sent),
			sent[len(seen)])
	}
	return nil
}

func (p *packet) String() string {
	if p.refused != wire.ReasonOK && p.refused != wire.ReasonICRC {
		return fmt.Sprintf("(%v, %d bytes)", p.refused, len(p.frame))
	}
	return fmt.Sprintf("%v to QP %#x PSN %#x, %d bytes", p.Op, uint32(p.DestQP), uint32(p.PSN),
		p.PayloadLen)
}
