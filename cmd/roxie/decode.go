package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/spf13/cobra"

	"github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

func newDecodeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "decode FILE",
		Short: "Print the RoCEv2 packets of a capture, one a line, and check their ICRCs",
		Long: "decode reads a pcap or pcapng file of Ethernet or Linux cooked frames; - is standard input.\n" +
			"Each packet becomes one line: its number, the seconds since the first one, then fields as\n" +
			"key=value in the order of the wire: addresses, opcode, BTH, extension headers, payload length,\n" +
			"MAD, ICRC, and what `roxie capture` noted about it (note=). A frame that is no RoCEv2 packet says why (refused=). The exit code is 1 if an ICRC\n" +
			"is wrong or could not be checked.",
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			in := io.Reader(c.InOrStdin())
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				if err := noDirectory(f); err != nil {
					return err
				}
				in = f
			}
			err := decodeCapture(c.OutOrStdout(), in)
			if err != nil {
				return fmt.Errorf("decode %s: %w", args[0], err)
			}
			return nil
		},
	}
}

// A captureReader gives the packets of a capture file one by one, with their comments.
type captureReader interface {
	read() (data []byte, comments []string, info gopacket.CaptureInfo, err error)
}

// pcapReader reads the old format, which has no comments.
type pcapReader struct{ *pcapgo.Reader }

func (r pcapReader) read() (data []byte, comments []string, info gopacket.CaptureInfo, err error) {
	data, info, err = r.ReadPacketData()
	return data, nil, info, err
}

type pcapngReader struct{ *pcapgo.NgReader }

func (r pcapngReader) read() (data []byte, comments []string, info gopacket.CaptureInfo, err error) {
	data, info, o, err := r.ReadPacketDataWithOptions()
	return data, o.Comments, info, err
}

// openCapture finds out by the first bytes which format a capture has. link tells the link type of
// a packet that was read.
func openCapture(in io.Reader) (
	r captureReader, link func(gopacket.CaptureInfo) layers.LinkType, err error) {
	const sectionHeader = 0x0a0d0d0a // the same in both byte orders
	b := bufio.NewReader(in)
	magic, err := b.Peek(4)
	if err != nil {
		return nil, nil, errors.New("not a capture file: shorter than 4 bytes")
	}
	if binary.BigEndian.Uint32(magic) == sectionHeader {
		ng, err := pcapgo.NewNgReader(b, pcapgo.NgReaderOptions{WantMixedLinkType: true})
		if err != nil {
			return nil, nil, fmt.Errorf("read pcapng header: %w", err)
		}
		return pcapngReader{ng}, func(info gopacket.CaptureInfo) layers.LinkType {
			return info.AncillaryData[0].(layers.LinkType)
		}, nil
	}
	old, err := pcapgo.NewReader(b)
	if err != nil {
		return nil, nil, fmt.Errorf("not a pcap or pcapng file: %w", err)
	}
	return pcapReader{old}, func(gopacket.CaptureInfo) layers.LinkType { return old.LinkType() }, nil
}

// decodeCapture prints all packets of a capture. The error is about the file, or about packets that
// are not right.
func decodeCapture(w io.Writer, in io.Reader) error {
	r, link, err := openCapture(in)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	defer out.Flush()
	var start time.Time
	var wrong, unchecked, n int
	for n = 1; ; n++ {
		data, comments, info, err := r.read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("packet %d: %w", n, err)
		}
		if n == 1 {
			start = info.Timestamp
		}
		text, verdict := decodePacket(data, info.Length, link(info))
		switch verdict {
		case icrcWrong:
			wrong++
		case icrcUnknown:
			unchecked++
		}
		for _, c := range comments {
			text += fmt.Sprintf(" note=%q", c)
		}
		fmt.Fprintf(out, "%d %.6f %s\n", n, info.Timestamp.Sub(start).Seconds(), text)
	}
	if err := out.Flush(); err != nil {
		return err
	}
	switch {
	case wrong > 0:
		return fmt.Errorf("%d of %d packets have a wrong ICRC", wrong, n-1)
	case unchecked > 0:
		return fmt.Errorf("the ICRCs of %d of %d packets cannot be checked", unchecked, n-1)
	}
	return nil
}

// An icrcVerdict is what can be said about a packet's ICRC.
type icrcVerdict uint8

const (
	icrcNone    icrcVerdict = iota // not a RoCEv2 packet
	icrcRight                      //
	icrcWrong                      //
	icrcUnknown                    // cut by the capture, or too broken to have one
)

// decodePacket describes one captured packet, which was wireLen bytes long on the wire.
func decodePacket(data []byte, wireLen int, link layers.LinkType) (string, icrcVerdict) {
	frame, ok := toEthernet(data, link)
	if !ok {
		return fmt.Sprintf("refused=link_type_%d bytes=%d", uint16(link), len(data)), icrcNone
	}
	line, reason := wire.Decode(wire.Frame{Head: frame})
	if reason != wire.ReasonOK && reason != wire.ReasonICRC {
		if !mayBeRoCE(frame, reason) {
			return line, icrcNone
		}
		if wireLen > len(data) {
			line = fmt.Sprintf("refused=cut_by_capture bytes=%d of=%d", len(data), wireLen)
		}
		return line, icrcUnknown
	}
	verdict := icrcRight
	if reason == wire.ReasonICRC {
		verdict = icrcWrong
	}
	return splitOpcode(line, frame), verdict
}

// splitOpcode gives the opcode of a line of [wire.Decode] its key, and the transport service one of
// its own; and it says what a CM message holds.
func splitOpcode(line string, frame []byte) string {
	var p wire.Packet
	if wire.ParseNoICRC(wire.Frame{Head: frame}, &p) != wire.ReasonOK {
		return line
	}
	name := p.Op.String()
	service, op, ok := strings.Cut(name, "_")
	if !ok {
		op = service
	}
	line = strings.Replace(line, " "+name+" ", " service="+service+" opcode="+op+" ", 1)
	if p.DestQP != wire.QPNGSI || p.Info.Flags&wire.FlagDETH == 0 {
		return line
	}
	if msg, drop := cm.Decode(p.Data0); drop == cm.DropNone {
		line = strings.Replace(line, " icrc=", fmt.Sprintf(" cm=%q icrc=", msg), 1)
	}
	return line
}

// mayBeRoCE reports whether a frame that was refused is to the RoCEv2 port, as far as can be seen:
// it may be broken before that, or cut by the capture.
func mayBeRoCE(frame []byte, reason wire.Reason) bool {
	switch reason {
	case wire.ReasonEthertype, wire.ReasonNotUDP, wire.ReasonPort:
		return false
	}
	if reason > wire.ReasonPort {
		return true
	}
	const ether, vlan, v4, v6 = 14, 4, 20, 40
	at := ether
	if len(frame) >= ether && binary.BigEndian.Uint16(frame[ether-2:]) == 0x8100 {
		at += vlan
	}
	for _, ip := range []int{v4, v6} {
		if port := at + ip + 2; len(frame) >= port+2 &&
			binary.BigEndian.Uint16(frame[port:]) == wire.Port {
			return true
		}
	}
	return false
}

// toEthernet returns the Ethernet frame of a captured packet. Of a cooked capture, which holds no
// destination address, it is a frame to the address 0.
func toEthernet(data []byte, link layers.LinkType) (frame []byte, ok bool) {
	const ether = 14
	var typ, addr, rest []byte
	switch link {
	case layers.LinkTypeEthernet:
		return data, true
	case layers.LinkTypeLinuxSLL:
		// packet type 2 │ ARPHRD 2 │ address length 2 │ address 8 │ EtherType 2
		const size = 16
		if len(data) < size {
			return nil, false
		}
		addr, typ, rest = data[6:12], data[14:16], data[size:]
	case layers.LinkTypeLinuxSLL2:
		// EtherType 2 │ reserved 2 │ interface 4 │ ARPHRD 2 │ packet type 1 │ address length 1 │ address 8
		const size = 20
		if len(data) < size {
			return nil, false
		}
		addr, typ, rest = data[12:18], data[0:2], data[size:]
	default:
		return nil, false
	}
	frame = make([]byte, ether, ether+len(rest))
	copy(frame[6:], addr)
	copy(frame[12:], typ)
	return append(frame, rest...), true
}
