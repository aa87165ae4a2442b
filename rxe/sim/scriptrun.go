package sim

import (
	"errors"
	"fmt"
	"strings"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file covers a script's run: which frames are lost, and how frames, completions and events are
// printed. Numbers that the engine draws at random are printed by name.

// scriptRule is a fault that waits for its frames.
type scriptRule struct {
	from *Node
	op   string // "" = any
	psn  int64  // -1 = any
	left uint64
	what Verdict
	says string
}

func (s *script) rule(name string, a *scriptArgs) error {
	e, err := s.end(a.word("an end"))
	if err != nil {
		return err
	}
	r := scriptRule{from: e.node, op: a.opt("op", ""), psn: -1, left: a.optNum("n", 1)}
	if v := a.opt("psn", ""); v != "" {
		r.psn = int64(a.parse("psn", v))
	}
	switch name {
	case "drop":
		r.what, r.says = Drop, "dropped"
	case "twice":
		r.what, r.says = Duplicate, "arrives twice"
	case "late":
		r.what, r.says = Late, "late"
	case "corrupt":
		r.what, r.says = Corrupt, "corrupted"
	}
	s.rules = append(s.rules, r)
	return nil
}

// run lets things happen.
func (s *script) run(a *scriptArgs) error {
	until := a.optTime("for", rxe.Never)
	s.start, s.lines = s.f.Now(), 0
	if until != rxe.Never {
		until += s.start
	}
	endless := s.f.RunUntil(until, func() bool {
		s.completions()
		return s.lines > scriptLines
	})
	s.completions()
	if endless {
		return errors.New("does not come to an end; for= ends it")
	}
	return nil
}

// judge prints a frame and decides what becomes of it. It is the fabric's fault script.
func (s *script) judge(_ uint64, from, to *Node, frame []byte) Verdict {
	s.completions() // what came before it stands before it
	var p wire.Packet
	if r := wire.Parse(rxe.Frame{Head: frame}, &p); r != wire.ReasonOK {
		s.line(s.nameOf(from)+">"+s.nameOf(to), "a frame that is refused: "+r.String())
		return Pass
	}
	what, says := Pass, ""
	for i := range s.rules {
		r := &s.rules[i]
		if r.left == 0 || r.from != from || r.op != "" && r.op != shortOp(p.Op) ||
			r.psn >= 0 && r.psn != int64(p.PSN) {
			continue
		}
		r.left--
		what, says = r.what, "  "+r.says
		break
	}
	s.line(s.nameOf(from)+">"+s.nameOf(to), s.packet(&p)+says)
	return what
}

func shortOp(op wire.Opcode) string {
	_, short, ok := strings.Cut(op.String(), "_")
	if !ok {
		return op.String()
	}
	return short
}

// packet describes a packet, with names for keys and addresses and without QPN.
func (s *script) packet(p *wire.Packet) string {
	var out []string
	for i, f := range strings.Fields(p.String()) {
		name, _, _ := strings.Cut(f, "=")
		switch {
		case i == 0:
			f = shortOp(p.Op)
		case name == "qpn", name == "srcqp":
			continue
		case f == "flags=mig": // always set, as long as the path is the only one
			f = "flags=-"
		case name == "flags":
			f = strings.Replace(f, "mig,", "", 1)
		case name == "rkey" && p.Info.RETHOff != 0:
			f = "rkey=" + s.keyName(p.RETH().RKey())
		case name == "rkey":
			f = "rkey=" + s.keyName(p.AtomicETH().RKey())
		case name == "inv":
			f = "inv=" + s.keyName(p.Inv())
		case name == "va" && p.Info.RETHOff != 0:
			f = "va=" + s.place(p.RETH().VA())
		case name == "va":
			f = "va=" + s.place(p.AtomicETH().VA())
		}
		out = append(out, f)
	}
	return strings.Join(out, " ")
}

func (s *script) nameOf(n *Node) string {
	for _, e := range s.ends {
		if e.node == n {
			return e.name
		}
	}
	return "?"
}

// keyName is the name of a key: that of its region or window if it is the one in force.
func (s *script) keyName(key uint32) string {
	for _, k := range s.keys {
		if uint32(k.key) == key {
			return k.name
		}
	}
	return "unknown"
}

// place is an address by end and offset.
func (s *script) place(va uint64) string {
	for _, e := range s.ends {
		if va >= e.mem.Addr && va-e.mem.Addr <= scriptMemory {
			return fmt.Sprintf("%s+%d", e.name, va-e.mem.Addr)
		}
	}
	return fmt.Sprintf("%#x", va)
}

// line prints what happened, and when since the run began.
func (s *script) line(who, what string) {
	s.lines++
	fmt.Fprintf(&s.out, "%.1fms %s %s\n", float64(s.f.Now()-s.start)/1e6, who, what)
}

// completions prints those that have come.
func (s *script) completions() {
	for _, e := range s.ends {
		for c := [1]rxe.CQE{}; e.cq.Poll(c[:]) == 1; {
			s.completion(e, &c[0])
		}
	}
}

func (s *script) completion(e *scriptQP, c *rxe.CQE) {
	var b strings.Builder
	fmt.Fprintf(&b, "completion %d %v: %v", c.WRID, c.Opcode, c.Status)
	if c.Status == rxe.WCSuccess && (c.Opcode >= rxe.WCRecv || c.ByteLen > 0) {
		fmt.Fprintf(&b, " len=%d", c.ByteLen)
	}
	if c.Flags&rxe.WCWithImm != 0 {
		fmt.Fprintf(&b, " imm=%#x", c.Imm)
	}
	if c.Flags&rxe.WCWithInv != 0 {
		fmt.Fprintf(&b, " inv=%s", s.keyName(c.Imm))
	}
	s.line(e.name, b.String())
}

func (s *script) event(e *scriptQP, x rxe.Event) {
	if x.Type != rxe.EventCompletion {
		s.completions()
		s.line(e.name, "event "+x.Type.String())
	}
}
