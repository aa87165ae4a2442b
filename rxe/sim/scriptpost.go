package sim

import (
	"encoding/binary"
	"errors"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file covers the commands of a script that post to the send queue.

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
