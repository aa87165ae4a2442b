package rxe_test

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file compares packets: the kernel's with ours, field by field as `roxie decode` names them,
// then byte by byte. Free are IP ID, TTL, UDP source port, flow label, MigReq, credits, and AckReq
// on packets that are not the last of a message.

// packetView is one packet, the kernel's or ours.
type packetView struct {
	n      int // in the capture, from 1
	from   int // end that sent it
	frame  []byte
	p      *wire.Packet
	fields []field
}

type field struct{ name, value string }

// newPacketView takes a frame apart; it keeps a copy.
func newPacketView(frame []byte) (*packetView, wire.Reason) {
	v := &packetView{frame: bytes.Clone(frame), p: new(wire.Packet)}
	if r := wire.Parse(wire.Frame{Head: v.frame}, v.p); r != wire.ReasonOK {
		return nil, r
	}
	line, _ := wire.Decode(wire.Frame{Head: v.frame})
	for _, token := range strings.Fields(line) {
		name, value, ok := strings.Cut(token, "=")
		switch {
		case !ok: // the opcode: service, then operation
			if _, op, ok := strings.Cut(token, "_"); ok {
				token = op
			}
			name, value = "opcode", token
		case name == "icrc":
			continue
		case name == "flags":
			value = v.comparedFlags(value)
		case name == "syndrome" && v.p.AETH().Syndrome().Kind() == wire.KindACK:
			value = "ack"
		}
		v.fields = append(v.fields, field{name, value})
	}
	if v.p.PayloadLen > 0 {
		sum := crc32.ChecksumIEEE(v.p.Data0)
		v.fields = append(v.fields, field{"payload", fmt.Sprintf("crc32_%08x", sum)})
	}
	return v, wire.ReasonOK
}

// ackReqFree reports whether the packet's AckReq bit is the sender's affair.
func (v *packetView) ackReqFree() bool {
	return v.p.Info.Flags&(wire.FlagSend|wire.FlagWrite) != 0 && v.p.Info.Flags&wire.FlagEnd == 0
}

func (v *packetView) comparedFlags(s string) string {
	var kept []string
	for _, f := range strings.Split(s, ",") {
		if f != "mig" && (f != "ackreq" || !v.ackReqFree()) {
			kept = append(kept, f)
		}
	}
	if kept == nil {
		return "-"
	}
	return strings.Join(kept, ",")
}

func (v *packetView) field(name string) (string, bool) {
	for _, f := range v.fields {
		if f.name == name {
			return f.value, true
		}
	}
	return "-", false
}

// raw are the headers that count, with what is free set to zero.
func (v *packetView) raw() []byte {
	h := append(bytes.Clone(v.frame[:14]), v.p.IPHeader()...)
	if ip := h[14:]; v.p.V6 {
		ip[1], ip[2], ip[3], ip[7] = ip[1]&0xf0, 0, 0, 0 // flow label, hop limit
	} else {
		ip[4], ip[5], ip[8], ip[10], ip[11] = 0, 0, 0, 0, 0 // ID, TTL, checksum
	}
	at := len(h)
	h = append(h, v.p.Headers()...)
	bth := (*wire.BTH)(h[at:])
	bth.SetMigReq(false)
	if v.ackReqFree() {
		bth.SetAckReq(false)
	}
	if off := int(v.p.Info.AETHOff); off != 0 && v.p.AETH().Syndrome().Kind() == wire.KindACK {
		(*wire.AETH)(h[at+off:]).SetSyndrome(0)
	}
	return h
}

// psns is how many PSNs the packet takes.
func (v *packetView) psns(pmtu uint32) uint32 {
	if v.p.Info.Flags&wire.FlagRead == 0 || v.p.RETH().Length() == 0 {
		return 1
	}
	return (v.p.RETH().Length()-1)/pmtu + 1
}

// positiveAck reports whether the packet is an ACK without data.
func (v *packetView) positiveAck() bool {
	return v.p.Info.Flags&wire.FlagAck != 0 && v.p.AETH().Syndrome().Kind() == wire.KindACK
}

func (v *packetView) String() string {
	if v == nil {
		return "nothing"
	}
	return v.p.String()
}

// A difference is one field in which ours is not the kernel's.
type difference struct{ field, kernel, ours string }

// differences compares two packets. Where the opcodes differ, so do the headers: those that only one
// of the packets has are not listed.
func differences(kernel, ours *packetView) (all []difference) {
	k, _ := kernel.field("opcode")
	o, _ := ours.field("opcode")
	for _, f := range kernel.fields {
		if v, ok := ours.field(f.name); v != f.value && (ok || k == o) {
			all = append(all, difference{f.name, f.value, v})
		}
	}
	for _, f := range ours.fields {
		if _, ok := kernel.field(f.name); !ok && k == o {
			all = append(all, difference{f.name, "-", f.value})
		}
	}
	if all == nil && !bytes.Equal(kernel.raw(), ours.raw()) {
		all = append(all, difference{"headers", fmt.Sprintf("%x", kernel.raw()),
			fmt.Sprintf("%x", ours.raw())})
	}
	return all
}

func same(kernel, ours *packetView) bool { return len(differences(kernel, ours)) == 0 }

// exception is a line of rxe-differs.txt: a field in which the kernel breaks a rule.
type exception struct {
	line                int
	capture             string
	packet              int
	field, kernel, ours string
	rule                string
	used                bool
}

// exceptions are all of them.
type exceptions struct {
	file string
	all  []*exception
}

// readExceptions reads the file. Empty lines and those that begin with # are comments.
func readExceptions(t testing.TB, file string) *exceptions {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	x, err := parseExceptions(file, string(b))
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func parseExceptions(file, text string) (*exceptions, error) {
	x := &exceptions{file: file}
	for i, line := range strings.Split(text, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) != 6 {
			return nil, fmt.Errorf("%s:%d: %d fields, want capture, packet, field, kernel's, ours, rule",
				file, i+1, len(f))
		}
		n, err := strconv.Atoi(f[1])
		if err != nil || n < 1 || f[5] == "" {
			return nil, fmt.Errorf("%s:%d: no packet number, or no rule", file, i+1)
		}
		x.all = append(x.all, &exception{line: i + 1, capture: f[0], packet: n, field: f[2], kernel: f[3],
			ours: f[4], rule: f[5]})
	}
	return x, nil
}

// excuse reports whether every difference from packet n of a capture has its line, and marks them.
func (x *exceptions) excuse(capture string, n int, all []difference) bool {
	var used []*exception
	for _, d := range all {
		found := false
		for _, e := range x.all {
			if e.capture == capture && e.packet == n && (difference{e.field, e.kernel, e.ours}) == d {
				used = append(used, e)
				found = true
				break
			}
		}
		if !found {
			return false
		}
	}
	for _, e := range used {
		e.used = true
	}
	return true
}

// unused are the lines that did not matter, of the captures for which played is true or that do not
// exist.
func (x *exceptions) unused(played func(capture string) bool) (all []string) {
	for _, e := range x.all {
		if !e.used && played(e.capture) {
			all = append(all, fmt.Sprintf("%s:%d: %s packet %d %s: the line does not matter (any more)",
				x.file, e.line, e.capture, e.packet, e.field))
		}
	}
	return all
}

// A matcher compares what we send with what the kernel sent.
type matcher struct {
	t     testing.TB
	rec   *recording
	x     *exceptions
	ours  []*packetView
	next  int           // first of ours not yet matched
	acks  []*packetView // the kernel's ACKs that ours must cover in the end
	lossy bool
}

func (m *matcher) errorf(v *packetView, format string, a ...any) {
	m.t.Helper()
	m.t.Errorf("packet %d (%v): %s", v.n, v, fmt.Sprintf(format, a...))
}

// mismatch reports how ours, which stands where the kernel's should, differs.
func (m *matcher) mismatch(kernel, ours *packetView) {
	m.t.Helper()
	if ours == nil {
		m.errorf(kernel, "we send nothing like it")
		return
	}
	var b strings.Builder
	for _, d := range differences(kernel, ours) {
		fmt.Fprintf(&b, "\n  %s: kernel %s, ours %s", d.field, d.kernel, d.ours)
	}
	m.errorf(kernel, "we send %v%s", ours, b.String())
}

// matches reports whether ours is the kernel's packet, or differs as a line says.
func (m *matcher) matches(kernel, ours *packetView) bool {
	d := differences(kernel, ours)
	return len(d) == 0 || m.x.excuse(m.rec.name, kernel.n, d)
}

// response checks that the responder has sent the kernel's response: as the next one, ACKs coalesced
// differently apart; in lossy recordings as any later one.
func (m *matcher) response(kernel *packetView) {
	m.t.Helper()
	if m.lossy && m.rec.repeated(kernel) {
		return
	}
	rest := m.ours[m.next:]
	skippable := func(v *packetView) bool { return m.lossy || v.positiveAck() }
	for _, exact := range []bool{true, false} {
		for i, v := range rest {
			if exact && same(kernel, v) || !exact && kernel.p.PSN == v.p.PSN && m.matches(kernel, v) {
				m.next += i + 1
				return
			}
			if !skippable(v) {
				break
			}
		}
	}
	if kernel.positiveAck() {
		m.acks = append(m.acks, kernel)
		return
	}
	for _, v := range rest {
		if v.p.PSN == kernel.p.PSN || !m.lossy {
			m.mismatch(kernel, v)
			return
		}
	}
	m.mismatch(kernel, nil)
}

// finish checks what could be coalesced up to the end.
func (m *matcher) finish() {
	m.t.Helper()
	for _, kernel := range m.acks {
		if m.covered(kernel) {
			continue
		}
		var nearest *packetView
		for _, v := range m.ours {
			if v.p.PSN == kernel.p.PSN {
				nearest = v
			}
		}
		m.mismatch(kernel, nearest)
	}
}

// covered reports whether a response of ours acknowledges at least as much as the kernel's ACK, and
// none acknowledges the same in another way.
func (m *matcher) covered(kernel *packetView) (covered bool) {
	for _, v := range m.ours {
		if v.p.Info.Flags&wire.FlagAETH == 0 || v.p.AETH().Syndrome().Kind() != wire.KindACK {
			continue
		}
		if v.positiveAck() && v.p.PSN == kernel.p.PSN && !same(kernel, v) {
			return false
		}
		covered = covered || v.p.PSN.Diff(kernel.p.PSN) >= 0
	}
	return covered
}

// known reports whether any of ours is the kernel's request, or an excused form of it.
func (m *matcher) known(kernel *packetView) bool {
	for _, v := range m.ours {
		if same(kernel, v) {
			return true
		}
	}
	for _, v := range m.ours {
		if v.p.PSN == kernel.p.PSN && m.matches(kernel, v) {
			return true
		}
	}
	return false
}
