package rxe_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file reads a recording: NAME.pcap, and NAME.txt, in which the program at both ends of the
// wire tells what it set up, posted and got. A post-send line is one work request; receives are not
// printed, they follow from the receive completions.

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

var textLines = []struct {
	re   *regexp.Regexp
	take func(r *textReader, m []string)
}{
	{regexp.MustCompile(`^([AB]): dev \S+ gid\[\d+\] (\S+) buf (\S+) len (\d+) lkey \S+ rkey (\S+) read-only-local-mr rkey (\S+)`), (*textReader).end},
	{regexp.MustCompile(`^(\w+): (.*)`), (*textReader).scenario},
	{regexp.MustCompile(`^QP type (RC|UC|UD): A qpn (\S+) sq_psn (\S+) \| B qpn (\S+) sq_psn (\S+) \| path mtu (\d+)(?: qkey (\S+))?`), (*textReader).qp},
	{regexp.MustCompile(`^  ([AB]) posts op (\d+) len (\d+) raddr (\S+) rkey (\S+) imm/inv (\S+) flags (\S+) cmp/add (\S+) swap (\S+)`), (*textReader).post},
	{regexp.MustCompile(`^  ([AB]) wc: status (\d+) \(.*\) op (\d+) len (\d+) flags (\S+) imm/inv (\S+) src_qp (\S+)`), (*textReader).wc},
	{regexp.MustCompile(`^  ([AB]): (\d+) completion\(s\) missing`), (*textReader).missing},
	{regexp.MustCompile(`^  ([AB])\+(\d+) holds (\S+)`), (*textReader).hold},
	{regexp.MustCompile(`^  returned (\S+), [AB] now (\S+)`), (*textReader).returned},
	{regexp.MustCompile(`^  ([AB])\+(\d+) now (\S+) \(wrote (\S+)\)`), (*textReader).wrote},
	{regexp.MustCompile(`^  ([AB]) bound MW type 2, rkey (\S+) addr (\S+) len (\d+)`), (*textReader).bound},
}

// textReader holds what has been read of a text so far.
type textReader struct {
	t     testing.TB
	file  string
	line  int
	what  string // description of the scenario
	rec   *recording
	conv  *conversation
	sends int // completions of posts seen
	recvs int // completions of receives seen
}

func (r *textReader) fail(format string, a ...any) {
	r.t.Helper()
	r.t.Fatalf("%s:%d: %s", r.file, r.line, fmt.Sprintf(format, a...))
}

// num reads a number of the text: 0x… or, where the producer prints %x, bare hexadecimal.
func (r *textReader) num(s string, base int) uint64 {
	r.t.Helper()
	v, err := strconv.ParseUint(s, base, 64)
	if err != nil {
		r.fail("%v", err)
	}
	return v
}

func endOf(s string) int {
	if s == "B" {
		return endB
	}
	return endA
}

// readText reads NAME.txt into rec.
func readText(t testing.TB, rec *recording, file string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r := &textReader{t: t, file: file, rec: rec}
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		r.line++
		for _, l := range textLines {
			if m := l.re.FindStringSubmatch(sc.Text()); m != nil {
				l.take(r, m)
				break
			}
		}
	}
	var kept []*conversation
	for _, c := range rec.convs {
		if len(c.posts) > 0 {
			c.number()
			kept = append(kept, c)
		}
	}
	rec.convs = kept
}

// number gives the posts their PSNs.
func (c *conversation) number() {
	next := c.psn[c.from]
	for _, p := range c.posts {
		n := uint32(1)
		switch p.op {
		case rxe.WRAtomicCmpSwap, rxe.WRAtomicFetchAdd, rxe.WRAtomicWrite, rxe.WRFlush:
		default:
			if p.length > 0 {
				n = (p.length-1)/c.pmtu + 1
			}
		}
		p.first, p.last = next, next.Add(n-1)
		next = next.Add(n)
	}
}

func (r *textReader) end(m []string) {
	a, err := netip.ParseAddr(m[2])
	if err != nil {
		r.fail("%v", err)
	}
	r.rec.ends[endOf(m[1])] = recordedEnd{
		gid: wire.GIDFromAddr(a), addr: r.num(m[3], 0), length: int(r.num(m[4], 10)),
		key: mr.Key(r.num(m[5], 0)), keyRead: mr.Key(r.num(m[6], 0)),
	}
}

func (r *textReader) scenario(m []string) { r.what = m[1] }

func (r *textReader) qp(m []string) {
	typ := map[string]rxe.QPType{"RC": rxe.RC, "UC": rxe.UC, "UD": rxe.UD}[m[1]]
	c := &conversation{line: r.line, scenario: r.what, typ: typ, pmtu: uint32(r.num(m[6], 10)),
		from: -1}
	c.qpn = [2]wire.QPN{wire.QPN(r.num(m[2], 0)), wire.QPN(r.num(m[4], 0))}
	c.psn = [2]wire.PSN{wire.PSN(r.num(m[3], 0)), wire.PSN(r.num(m[5], 0))}
	if m[7] != "" {
		c.qkey = uint32(r.num(m[7], 0))
	}
	r.conv, r.sends, r.recvs = c, 0, 0
	r.rec.convs = append(r.rec.convs, c)
}

func (r *textReader) add(s step) {
	if r.conv == nil {
		r.fail("before any QP line")
	}
	s.line = r.line
	r.conv.steps = append(r.conv.steps, s)
}

func (r *textReader) post(m []string) {
	r.addPost(endOf(m[1]), &post{
		op: rxe.WROpcode(r.num(m[2], 10)), length: uint32(r.num(m[3], 10)), raddr: r.num(m[4], 0),
		rkey: mr.Key(r.num(m[5], 0)), imm: uint32(r.num(m[6], 0)),
		flags: rxe.SendFlags(r.num(m[7], 16)), compareAdd: r.num(m[8], 0), swap: r.num(m[9], 0),
	})
}

func (r *textReader) addPost(end int, p *post) {
	r.add(step{kind: stepPost, end: end, post: p})
	if r.conv.from >= 0 && r.conv.from != end {
		r.fail("both ends post: one must be the requester")
	}
	r.conv.from = end
	r.conv.posts = append(r.conv.posts, p)
}

// wc takes a completion. An ATOMIC WRITE goes through an interface of the producer that prints no
// post: its completion stands for it.
func (r *textReader) wc(m []string) {
	w := recordedWC{status: rxe.WCStatus(r.num(m[2], 10)), op: rxe.WCOpcode(r.num(m[3], 10)),
		length: uint32(r.num(m[4], 10)), flags: uint32(r.num(m[5], 16)), imm: uint32(r.num(m[6], 0)),
		srcQP: wire.QPN(r.num(m[7], 0))}
	if r.conv == nil {
		r.fail("before any QP line")
	}
	end, c := endOf(m[1]), r.conv
	if w.op == rxe.WCAtomicWrite && r.sends == len(c.posts) {
		r.addPost(end, &post{op: rxe.WRAtomicWrite, length: 8, rkey: r.rec.ends[1-end].key})
	}
	if end == c.from {
		if r.sends >= len(c.posts) {
			r.fail("a completion of nothing")
		}
		c.posts[r.sends].wc = &w
		r.sends++
		r.add(step{kind: stepWC, end: end, wc: w, post: c.posts[r.sends-1]})
		return
	}
	if w.status == rxe.WCSuccess && w.op == rxe.WCBindMW {
		return // the line that follows tells more
	}
	n := r.recvs
	for _, p := range c.posts {
		if _, ok := p.consumes(); !ok {
			continue
		}
		if n == 0 {
			p.recv = &w
			r.recvs++
			return
		}
		n--
	}
	r.fail("a receive completion of nothing")
}

func (r *textReader) missing(m []string) { r.add(step{kind: stepMissing, end: endOf(m[1])}) }

func (r *textReader) hold(m []string) {
	r.add(step{kind: stepHold, end: endOf(m[1]), off: r.num(m[2], 10), value: r.num(m[3], 0)})
}

func (r *textReader) returned(m []string) {
	if r.conv == nil || len(r.conv.posts) == 0 {
		r.fail("before any post")
	}
	from, last := r.conv.from, r.conv.posts[len(r.conv.posts)-1]
	r.add(step{kind: stepReturned, end: from, off: atomicAt, value: r.num(m[1], 0)})
	r.add(step{kind: stepNow, end: 1 - from, off: last.raddr - r.rec.ends[1-from].addr,
		value: r.num(m[2], 0)})
}

func (r *textReader) wrote(m []string) {
	end, off := endOf(m[1]), r.num(m[2], 10)
	r.add(step{kind: stepNow, end: end, off: off, value: r.num(m[3], 0)})
	for _, p := range r.conv.posts {
		if p.op == rxe.WRAtomicWrite && p.raddr == 0 {
			p.raddr, p.compareAdd = r.rec.ends[end].addr+off, r.num(m[4], 0)
		}
	}
}

func (r *textReader) bound(m []string) {
	r.add(step{kind: stepBind, end: endOf(m[1]), key: mr.Key(r.num(m[2], 0)), off: r.num(m[3], 0),
		value: r.num(m[4], 10)})
}

// readPcap reads the packets of a capture of Ethernet frames, in pcap or pcapng format. All must be
// RoCEv2 packets with a right ICRC.
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
		if reason != wire.ReasonOK {
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
			if flags&wire.FlagReadResp != 0 && flags&wire.FlagStart == 0 && (!answered || v.p.PSN != answer.Next()) {
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
