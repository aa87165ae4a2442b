package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// The commands of a script. E is the name of an end, ID a work request ID, N a number of bytes. An
// end's memory counts from 0; at= is where the data lies at home, to= and from= where at the peer.
//
//	pair E E [type=RC|UC|UD] [pmtu=N] [psn=P] [timeout=X] [retry=N] [rnr=N] [rnrtimer=X] [rd=N] [v6]
//	    [credits] [deny=read,write,atomic]     two nodes with a QP each, connected
//	recv E ID N [at=]                          post a receive
//	send E ID N [imm=V] [inv=KEY] [at=]        post a send work request; all of these take
//	write E ID N [imm=V] [to=] [key=K] [at=]   fence, se, quiet (no completion), inline and sges=K
//	read E ID N [from=] [key=K] [at=]
//	fadd E ID ADD [to=]  cas E ID COMPARE SWAP [to=]  awrite E ID VALUE [to=]  flush E ID N [to=]
//	window K E                                 a type 2 window, called K
//	bind E ID K [at=] [len=]  inv E ID K       BIND_MW, LOCAL_INV
//	drop E [op=O] [psn=P] [n=K]                lose the next K frames (1) that E sends, of that
//	                                           opcode, with that PSN; likewise twice, late, corrupt
//	run [for=T]                                until nothing happens any more, or for some time
//	modify E STATE                             as ibv_modify_qp; state E prints it
//	word E OFF [=V]  same E OFF E OFF N        look at memory, or set 8 bytes of it
//
// key=K names the region of an end, a window, or "wrong": the right index with another variant.
func (s *script) command(line string) error {
	words := strings.Fields(line)
	a := parseScriptArgs(words[1:])
	var err error
	switch name := words[0]; name {
	case "pair":
		err = s.pair(a)
	case "recv":
		err = s.recv(a)
	case "window":
		err = s.window(a)
	case "drop", "twice", "late", "corrupt":
		err = s.rule(name, a)
	case "run":
		err = s.run(a)
	case "modify":
		err = s.modify(a)
	case "state":
		err = s.state(a)
	case "word":
		err = s.word(a)
	case "same":
		err = s.same(a)
	default:
		fill, ok := scriptPosts[name]
		if !ok {
			return errors.New("no such command")
		}
		err = s.post(a, fill)
	}
	if err != nil {
		return err
	}
	return a.done()
}

func (s *script) pair(a *scriptArgs) error {
	var two [2]string
	for i := range two {
		two[i] = a.word("two names")
		if _, err := s.key(two[i]); err == nil {
			return fmt.Errorf("%s exists", two[i])
		}
	}
	types := map[string]rxe.QPType{"RC": rxe.RC, "UC": rxe.UC, "UD": rxe.UD}
	typ, ok := types[a.opt("type", "RC")]
	if !ok {
		return errors.New("type= is RC, UC or UD")
	}
	access := AllAccess
	for _, what := range strings.FieldsFunc(a.opt("deny", ""), func(r rune) bool { return r == ',' }) {
		switch what {
		case "read":
			access &^= mr.RemoteRead
		case "write":
			access &^= mr.RemoteWrite
		case "atomic":
			access &^= mr.RemoteAtomic
		default:
			return fmt.Errorf("deny=%s: read, write or atomic", what)
		}
	}
	c := ConnAttr{PMTU: uint32(a.optNum("pmtu", 1024)), PSN: wire.PSN(a.optNum("psn", 0x100)),
		Timeout: uint8(a.optNum("timeout", 8)), Retry: uint8(a.optNum("retry", 7)),
		RNRRetry: uint8(a.optNum("rnr", 7)), RNRTimer: uint8(a.optNum("rnrtimer", 1)),
		RdAtomic: uint8(a.optNum("rd", 4)), Access: access}
	node := NodeConfig{V6: a.flag("v6"), Device: rxe.Config{Credits: a.flag("credits")}}
	var made [2]*scriptQP
	for i, name := range two {
		var err error
		if made[i], err = s.newEnd(name, typ, node); err != nil {
			return err
		}
	}
	x, y := made[0], made[1]
	x.peer, y.peer = y, x
	if typ != rxe.UD {
		return Connect(x.node, x.q, y.node, y.q, c)
	}
	for _, e := range made {
		if err := ReadyUD(e.q, scriptQKey); err != nil {
			return err
		}
		var err error
		if e.ah, err = e.node.Dev.CreateAH(e.pd, e.node.Path(e.peer.node)); err != nil {
			return err
		}
	}
	return nil
}

func (s *script) newEnd(name string, typ rxe.QPType, c NodeConfig) (e *scriptQP, err error) {
	e = &scriptQP{name: name}
	if e.node, err = s.f.AddNode(c); err != nil {
		return nil, err
	}
	e.node.OnEvent = func(x rxe.Event) { s.event(e, x) }
	e.pd = e.node.AllocPD()
	if e.cq, err = e.node.Dev.NewCQ(256); err != nil {
		return nil, err
	}
	e.q, err = e.node.Dev.CreateQP(e.node.Dev.Shards()[0], rxe.QPInit{Type: typ, PD: e.pd, SendCQ: e.cq,
		RecvCQ: e.cq, MaxSendWR: 64, MaxRecvWR: 64, MaxSend: 8, MaxRecv: 8, MaxInline: 256})
	if err != nil {
		return nil, err
	}
	buf := make([]byte, scriptMemory)
	for i := range buf {
		buf[i] = byte(i*7 + len(s.ends)*101 + i>>8)
	}
	addr := uint64(0x10000000 * (len(s.ends) + 1))
	if e.mem, err = e.node.Reg(e.pd, buf, addr, AllAccess); err != nil {
		return nil, err
	}
	s.ends = append(s.ends, e)
	s.keys = append(s.keys, &scriptKey{name, e.mem.Key})
	return e, nil
}

func (s *script) recv(a *scriptArgs) error {
	e, err := s.end(a.word("an end"))
	if err != nil {
		return err
	}
	id, n := a.num("an ID"), a.num("a number of bytes")
	sges, err := e.pieces(a.optNum("at", 0x8000), n, a.optNum("sges", 1))
	if err != nil {
		return err
	}
	return e.q.PostRecv(&rxe.RecvWR{ID: id, SGEs: sges})
}

func (s *script) window(a *scriptArgs) error {
	name := a.word("a name")
	if _, err := s.key(name); err == nil {
		return fmt.Errorf("%s exists", name)
	}
	e, err := s.end(a.word("an end"))
	if err != nil {
		return err
	}
	key, err := e.node.Dev.Keys().Alloc(mr.KindWindow2, e.pd)
	s.keys = append(s.keys, &scriptKey{name, key})
	return err
}

func (s *script) modify(a *scriptArgs) error {
	e, err := s.end(a.word("an end"))
	if err != nil {
		return err
	}
	name := a.word("a state")
	for st := rxe.StateReset; st <= rxe.StateErr; st++ {
		if st.String() == name {
			return e.q.Modify(&rxe.QPAttr{State: st}, rxe.AttrState)
		}
	}
	return fmt.Errorf("no state is called %s", name)
}

func (s *script) state(a *scriptArgs) error {
	e, err := s.end(a.word("an end"))
	if err == nil {
		fmt.Fprintf(&s.out, "%s is in %v\n", e.name, e.q.State())
	}
	return err
}

// memory takes an end and an offset at which n bytes of its memory lie.
func (s *script) memory(a *scriptArgs, n uint64) (e *scriptQP, off uint64, err error) {
	if e, err = s.end(a.word("an end")); err != nil {
		return nil, 0, err
	}
	if off = a.num("an offset"); off > scriptMemory || n > scriptMemory-off {
		return nil, 0, errors.New("outside the end's memory")
	}
	return e, off, nil
}

func (s *script) word(a *scriptArgs) error {
	e, off, err := s.memory(a, 8)
	if err != nil {
		return err
	}
	b := e.mem.Buf[off : off+8]
	if v := a.opt("", ""); v != "" {
		binary.NativeEndian.PutUint64(b, a.parse("the value", v))
		return nil
	}
	fmt.Fprintf(&s.out, "%s+%d holds %#x\n", e.name, off, binary.NativeEndian.Uint64(b))
	return nil
}

func (s *script) same(a *scriptArgs) error {
	x, xo, err := s.memory(a, 0)
	if err != nil {
		return err
	}
	y, yo, err := s.memory(a, 0)
	if err != nil {
		return err
	}
	n := a.num("a number of bytes")
	if n > scriptMemory-max(xo, yo) {
		return errors.New("outside the end's memory")
	}
	for i := range n {
		if x.mem.Buf[xo+i] != y.mem.Buf[yo+i] {
			fmt.Fprintf(&s.out, "%s+%d and %s+%d differ at byte %d\n", x.name, xo, y.name, yo, i)
			return nil
		}
	}
	fmt.Fprintf(&s.out, "%s+%d and %s+%d hold the same %d bytes\n", x.name, xo, y.name, yo, n)
	return nil
}
