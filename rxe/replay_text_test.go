package rxe_test

import (
	"bufio"
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file reads NAME.txt, in which the program at both ends of the wire tells what it set up,
// posted and got. A line "posts" is one work request; receives are not printed, they follow from the
// receive completions.

// textLines are the lines that matter and who takes them, its groups given; the first that fits.
var textLines = []struct {
	re   *regexp.Regexp
	take func(r *textReader, m []string)
}{
	{textLine(`([AB]): dev \S+ gid\[\d+\] (\S+) buf # len # lkey \w+ rkey # read-only-local-mr rkey #`),
		(*textReader).end},
	{textLine(`(\w+): `), (*textReader).scenario},
	{textLine(`QP type (RC|UC|UD): A qpn # sq_psn # \| B qpn # sq_psn # \| path mtu #(?: qkey #)?`),
		(*textReader).qp},
	{textLine(`  ([AB]) posts op # len # raddr # rkey # imm/inv # flags # cmp/add # swap #`),
		(*textReader).post},
	{textLine(`  ([AB]) wc: status # \(.*\) op # len # flags # imm/inv # src_qp #`), (*textReader).wc},
	{textLine(`  ([AB]): # completion\(s\) missing`), (*textReader).missing},
	{textLine(`  ([AB])\+# holds #`), (*textReader).hold},
	{textLine(`  returned #, [AB] now #`), (*textReader).returned},
	{textLine(`  ([AB])\+# now # \(wrote #\)`), (*textReader).wrote},
	{textLine(`  ([AB]) bound MW type 2, rkey # addr # len #`), (*textReader).bound},
}

// textLine is an expression for the beginning of a line, in which # stands for a number.
func textLine(s string) *regexp.Regexp {
	return regexp.MustCompile("^" + strings.ReplaceAll(s, "#", `(\w+)`))
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

func (r *textReader) missing(m []string) {
	if r.conv != nil && endOf(m[1]) == r.conv.from {
		r.add(step{kind: stepMissing, end: r.conv.from})
	}
}

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
