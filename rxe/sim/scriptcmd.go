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

// pieces cuts n bytes of an end's memory into k scatter/gather elements.
func (e *scriptQP) pieces(at, n, k uint64) (sges []rxe.SGE, err error) {
	if k < 1 || at > scriptMemory || n > scriptMemory-at {
		return nil, errors.New("outside the end's memory")
	}
	for i := range k {
		m := n / k
		if i == k-1 {
			m = n
		}
		sges = append(sges, e.mem.SGE(int(at), int(m)))
		at, n, k = at+m, n-m, k-1
	}
	return sges, nil
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

// scriptPosts are the commands that post to the send queue: they fill in the operation and take the
// arguments that it alone has. The result is the number of bytes and where they lie by default.
var scriptPosts = map[string]func(s *script, e *scriptQP, a *scriptArgs, wr *rxe.SendWR) (n, at uint64){
	"send": func(s *script, _ *scriptQP, a *scriptArgs, wr *rxe.SendWR) (n, at uint64) {
		wr.Opcode = rxe.WRSend
		if v := a.opt("imm", ""); v != "" {
			wr.Opcode, wr.Imm = rxe.WRSendWithImm, uint32(a.parse("imm", v))
		}
		if name := a.opt("inv", ""); name != "" {
			wr.Opcode, wr.Imm = rxe.WRSendWithInv, uint32(s.keyArg(a, name))
		}
		return a.num("a number of bytes"), 0
	},
	"write": func(s *script, e *scriptQP, a *scriptArgs, wr *rxe.SendWR) (n, at uint64) {
		wr.Opcode = rxe.WRRDMAWrite
		if v := a.opt("imm", ""); v != "" {
			wr.Opcode, wr.Imm = rxe.WRRDMAWriteWithImm, uint32(a.parse("imm", v))
		}
		return a.num("a number of bytes"), 0
	},
	"read": func(s *script, e *scriptQP, a *scriptArgs, wr *rxe.SendWR) (n, at uint64) {
		wr.Opcode = rxe.WRRDMARead
		return a.num("a number of bytes"), 0x4000
	},
	"fadd": func(s *script, e *scriptQP, a *scriptArgs, wr *rxe.SendWR) (n, at uint64) {
		wr.Opcode, wr.CompareAdd = rxe.WRAtomicFetchAdd, a.num("what to add")
		return 8, 0xc000
	},
	"cas": func(s *script, e *scriptQP, a *scriptArgs, wr *rxe.SendWR) (n, at uint64) {
		wr.Opcode = rxe.WRAtomicCmpSwap
		wr.CompareAdd, wr.Swap = a.num("what to compare with"), a.num("what to store")
		return 8, 0xc000
	},
	"awrite": func(s *script, e *scriptQP, a *scriptArgs, wr *rxe.SendWR) (n, at uint64) {
		wr.Opcode, wr.Flags = rxe.WRAtomicWrite, rxe.SendInline
		wr.Inline = binary.NativeEndian.AppendUint64(nil, a.num("what to store"))
		return 8, 0
	},
	"flush": func(s *script, e *scriptQP, a *scriptArgs, wr *rxe.SendWR) (n, at uint64) {
		wr.Opcode, wr.FlushType, wr.Length = rxe.WRFlush, wire.PlacementGlobal, a.num("a number of bytes")
		return 0, 0
	},
	"inv": func(s *script, e *scriptQP, a *scriptArgs, wr *rxe.SendWR) (n, at uint64) {
		wr.Opcode, wr.RKey = rxe.WRLocalInv, s.keyArg(a, a.word("a key"))
		return 0, 0
	},
	"bind": (*script).bind,
}

// keyArg is the key that an argument names.
func (s *script) keyArg(a *scriptArgs, name string) mr.Key {
	k, err := s.key(name)
	if err != nil {
		a.fail("%w", err)
		return 0
	}
	return k.key
}

// bind gives the window its next key; whoever names the window means that from now on.
func (s *script) bind(e *scriptQP, a *scriptArgs, wr *rxe.SendWR) (n, at uint64) {
	k, err := s.key(a.word("a window"))
	if err != nil {
		a.fail("%w", err)
		return 0, 0
	}
	num, err := e.node.Dev.Keys().StageBind(k.key.Index())
	if err != nil {
		a.fail("%w", err)
		return 0, 0
	}
	wr.Opcode, wr.MWKey, wr.Parent, wr.List = rxe.WRBindMW, k.key, e.mem.Key, num
	k.key = k.key.Inc()
	wr.RKey, wr.Access = k.key, mr.RemoteRead|mr.RemoteWrite|mr.RemoteAtomic
	wr.RemoteAddr, wr.Length = e.mem.Addr+a.optNum("at", 0), a.optNum("len", 4096)
	return 0, 0
}

// post posts one send work request and rings the doorbell.
func (s *script) post(a *scriptArgs,
	fill func(*script, *scriptQP, *scriptArgs, *rxe.SendWR) (n, at uint64)) error {
	e, err := s.end(a.word("an end"))
	if err != nil {
		return err
	}
	wr := rxe.SendWR{ID: a.num("an ID"), Flags: rxe.SendSignaled}
	for _, f := range []struct {
		name string
		flag rxe.SendFlags
	}{{"fence", rxe.SendFence}, {"se", rxe.SendSolicited}, {"inline", rxe.SendInline}} {
		if a.flag(f.name) {
			wr.Flags |= f.flag
		}
	}
	flags := wr.Flags
	n, at := fill(s, e, a, &wr)
	wr.Flags |= flags
	if a.flag("quiet") {
		wr.Flags &^= rxe.SendSignaled
	}
	switch wr.Opcode {
	case rxe.WRBindMW, rxe.WRLocalInv:
	default:
		if err := s.remote(e, a, &wr); err != nil {
			return err
		}
	}
	sges, err := e.pieces(a.optNum("at", at), n, a.optNum("sges", 1))
	switch {
	case err != nil:
		return err
	case a.err != nil:
		return a.err
	case wr.Inline != nil:
	case wr.Flags&rxe.SendInline != 0:
		off := sges[0].Addr - e.mem.Addr
		wr.Inline = e.mem.Buf[off : off+n]
	case n > 0:
		wr.SGEs = sges
	}
	if err := e.q.PostSend(&wr); err != nil {
		return err
	}
	e.q.RingDoorbell()
	return nil
}

// remote fills in what a work request names at the peer.
func (s *script) remote(e *scriptQP, a *scriptArgs, wr *rxe.SendWR) error {
	if e.ah != nil {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = e.ah.Num(), e.peer.q.QPN(), scriptQKey
	}
	switch wr.Opcode {
	case rxe.WRSend, rxe.WRSendWithImm, rxe.WRSendWithInv:
		return nil
	}
	wr.RemoteAddr = e.peer.mem.Addr + a.optNum("to", a.optNum("from", 0))
	switch name := a.opt("key", e.peer.name); name {
	case "wrong":
		wr.RKey = e.peer.mem.Key ^ 0x55
	default:
		wr.RKey = s.keyArg(a, name)
	}
	return nil
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
