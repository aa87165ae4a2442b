package rxe_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file holds what a recording is: the packets of NAME.pcap, sorted into the conversations that
// NAME.txt tells of.

// A recording is one capture and what its producer printed.
type recording struct {
	name    string
	packets []*packetView
	ends    [2]recordedEnd
	convs   []*conversation
	lossy   bool // some conversation shows that packets were lost, repeated or out of order
}

const (
	endA = 0 // the requester of every recording so far
	endB = 1
)

// recordedEnd is one side's address and memory.
type recordedEnd struct {
	gid     wire.GID
	addr    uint64
	length  int
	key     mr.Key // region with all rights
	keyRead mr.Key // region of the same memory that the peer may not use
}

// fillEnd is what an end's memory holds at the beginning.
func fillEnd(end int, b []byte) {
	mul, add := 7, 1
	if end == endB {
		mul, add = 5, 2
	}
	for i := range b {
		b[i] = byte(i*mul + add)
	}
}

// Where the producer's buffers begin, from the start of an end's memory.
const (
	readAt   = 16384 // what a READ brings
	recvAt   = 32768 // what a receive brings
	atomicAt = 49152 // the original value an atomic brings
)

// A conversation is one pair of QPs: its attributes, what happened in order of the text, and its
// packets.
type conversation struct {
	line     int // of the text
	scenario string
	typ      rxe.QPType
	qpn      [2]wire.QPN
	psn      [2]wire.PSN // first PSN each end sends
	pmtu     uint32
	qkey     uint32
	from     int // the end that posts
	steps    []step
	posts    []*post
	packets  []*packetView
}

// A step is one line of the text that matters.
type step struct {
	line  int
	kind  stepKind
	end   int
	post  *post
	wc    recordedWC
	off   uint64 // offset in the memory of end; for stepBind the address
	value uint64
	key   mr.Key
}

type stepKind uint8

const (
	stepPost     stepKind = iota
	stepWC                // the posting end waits for this completion
	stepMissing           // it gave up waiting
	stepHold              // memory is set to value
	stepNow               // memory is found to hold value
	stepReturned          // the atomic's original value is found to be value
	stepBind              // a type 2 window is bound
)

type recordedWC struct {
	status rxe.WCStatus
	op     rxe.WCOpcode
	length uint32
	flags  uint32
	imm    uint32
	srcQP  wire.QPN
}

// post is one send work request of the text.
type post struct {
	op          rxe.WROpcode
	length      uint32
	raddr       uint64
	rkey        mr.Key
	imm         uint32
	flags       rxe.SendFlags
	compareAdd  uint64
	swap        uint64
	first, last wire.PSN
	wc          *recordedWC // its completion, if there was one
	recv        *recordedWC // the completion of the receive it took
}

// consumes is the PSN of the packet that takes a receive.
func (p *post) consumes() (psn wire.PSN, ok bool) {
	switch p.op {
	case rxe.WRSend, rxe.WRSendWithImm, rxe.WRSendWithInv:
		return p.first, true
	case rxe.WRRDMAWriteWithImm:
		return p.last, true
	}
	return 0, false
}

// GNU libibverbs of the producer names the receive flag "with invalidate" 4, IBV_WC_WITH_INV is 8.
const (
	recordedWithImm = 2
	recordedWithInv = 4 | 8
)

// readPcap reads the packets of a capture of Ethernet frames, in pcap or pcapng format. All that are
// to the RoCEv2 port must be whole and have a right ICRC.
func readPcap(t testing.TB, file string) (all []*packetView) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r interface {
		ReadPacketData() ([]byte, gopacket.CaptureInfo, error)
	}
	if bytes.HasPrefix(b, []byte{0x0a, 0x0d, 0x0d, 0x0a}) {
		r, err = pcapgo.NewNgReader(bytes.NewReader(b), pcapgo.DefaultNgReaderOptions)
	} else {
		r, err = pcapgo.NewReader(bytes.NewReader(b))
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	for n := 1; ; n++ {
		data, _, err := r.ReadPacketData()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatalf("%s: packet %d: %v", file, n, err)
		}
		v, reason := newPacketView(data)
		switch reason {
		case wire.ReasonOK:
		case wire.ReasonEthertype, wire.ReasonNotUDP, wire.ReasonPort:
			continue // other traffic
		default:
			t.Fatalf("%s: packet %d: %v", file, n, reason)
		}
		v.n = n
		all = append(all, v)
	}
}

// readRecording reads a pair and sorts its packets into its conversations.
func readRecording(t testing.TB, dir, name string) *recording {
	t.Helper()
	rec := &recording{name: name, packets: readPcap(t, dir+name+".pcap")}
	readText(t, rec, dir+name+".txt")
	for _, v := range rec.packets {
		for _, c := range rec.convs {
			for end := range rec.ends {
				if v.p.Src == rec.ends[end].gid && v.p.DestQP == c.qpn[1-end] {
					v.from = end
					c.packets = append(c.packets, v)
				}
			}
		}
	}
	for _, c := range rec.convs {
		rec.lossy = rec.lossy || c.lossy()
	}
	return rec
}

// lossy reports whether the packets show that some were lost, repeated or out of order: a NAK for a
// gap, a request that is not the next one and not the answer to an RNR NAK, a READ response that is
// not the next one. A peer that says nothing at all does not count.
func (c *conversation) lossy() bool {
	next := c.psn[c.from]
	var answer wire.PSN
	silent := c.typ == rxe.RC
	for _, v := range c.packets {
		silent = silent && v.from == c.from
	}
	answered := false
	for _, v := range c.packets {
		flags := v.p.Info.Flags
		if v.from != c.from {
			if flags&wire.FlagReadResp != 0 && flags&wire.FlagStart == 0 &&
				(!answered || v.p.PSN != answer.Next()) {
				return true
			}
			answered, answer = true, v.p.PSN
			if flags&wire.FlagAETH != 0 {
				syn := v.p.AETH().Syndrome()
				if syn == wire.NAKSyndrome(wire.NAKPSNSeq) {
					return true
				}
				if syn.Kind() == wire.KindRNR {
					next = v.p.PSN
				}
			}
			continue
		}
		if d := v.p.PSN.Diff(next); d > 0 || d < 0 && !silent {
			return true
		}
		next = v.p.PSN.Add(v.psns(c.pmtu))
	}
	return false
}

// repeated reports whether v is a copy that the network made: every packet that the kernel sends has an
// IP ID of its own.
func (r *recording) repeated(v *packetView) bool {
	if v.p.V6 || binary.BigEndian.Uint16(v.p.IPHeader()[4:]) == 0 {
		return false
	}
	for _, w := range r.packets {
		if w.n < v.n && bytes.Equal(w.frame, v.frame) {
			return true
		}
	}
	return false
}

// refused reports whether the recorded responder answered this transmission of a request with an
// RNR NAK.
func (c *conversation) refused(v *packetView) bool {
	later := false
	for _, w := range c.packets {
		if w == v {
			later = true
			continue
		}
		if !later || w.p.PSN != v.p.PSN {
			continue
		}
		if w.from == v.from {
			return false
		}
		if w.p.Info.Flags&wire.FlagAck != 0 {
			return w.p.AETH().Syndrome().Kind() == wire.KindRNR
		}
	}
	return false
}

// retries says how the requester was set up, which the text does not tell: it gave up after so many
// transmissions, or else never.
func (c *conversation) retries() (retry, rnr uint8) {
	retry, rnr = 7, 7
	for _, p := range c.posts {
		if p.wc == nil {
			continue
		}
		sent, naks := 0, 0
		for _, v := range c.packets {
			switch {
			case v.p.PSN != p.first:
			case v.from == c.from:
				sent++
			case v.p.Info.Flags&wire.FlagAck != 0 && v.p.AETH().Syndrome().Kind() == wire.KindRNR:
				naks++
			}
		}
		switch p.wc.status {
		case rxe.WCRetryExcErr:
			retry = uint8(max(sent-1, 0))
		case rxe.WCRNRRetryExcErr:
			rnr = uint8(max(naks-1, 0))
		}
	}
	return retry, rnr
}

// rnrTimer is the responder's RNR timer code.
func (c *conversation) rnrTimer() uint8 {
	for _, v := range c.packets {
		if v.p.Info.Flags&wire.FlagAck != 0 && v.p.AETH().Syndrome().Kind() == wire.KindRNR {
			return v.p.AETH().Syndrome().Timer()
		}
	}
	return 18
}
