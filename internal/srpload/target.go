package srpload

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/roxie-rdma/roxie/verbs"
)

// target serves commands until it is told that there will be no more.
type target struct {
	*endpoint
	data  *verbs.MR // where READs go, slot by slot
	from  *verbs.MR // the pattern, from which WRITEs go
	list  [][]byte  // of the pattern, as the initiator has mapped it once
	slots [][]ioState
	segs  [][]byte
	left  int // bytes to change before they are compared
}

// ioState is an I/O in work.
type ioState struct {
	command
	busy bool
}

func newTarget(e *endpoint) (*target, error) {
	t := &target{endpoint: e, left: e.cfg.Inject}
	if err := e.create(commandBytes); err != nil {
		return nil, err
	}
	var err error
	n := e.cfg.Channels * e.cfg.Depth
	if t.data, err = e.pd.RegMR(make([]byte, n*e.cfg.largest()), verbs.LocalWrite); err != nil {
		return nil, err
	}
	clear(t.data.Bytes()) // touch every page now
	if t.from, err = e.pd.RegMR(e.pattern, 0); err != nil {
		return nil, err
	}
	t.list = pages(e.pattern)
	for range e.cfg.Channels {
		t.slots = append(t.slots, make([]ioState, e.cfg.Depth))
	}
	return t, nil
}

// serve works until ctx ends.
func (t *target) serve(ctx context.Context) error {
	for ctx.Err() == nil {
		n, err := t.cq.Poll(t.wc[:])
		if err != nil {
			return err
		}
		for i := range t.wc[:n] {
			if err := t.complete(&t.wc[i]); err != nil {
				return err
			}
		}
		if err := t.rest(ctx, n); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// rest sleeps when nothing happens for long, where another thread moves the packets.
func (e *endpoint) rest(ctx context.Context, n int) error {
	if n > 0 {
		e.idles = 0
		return nil
	}
	if e.idles++; e.cfg.Progress == Caller || e.idles < 64 {
		return nil
	}
	e.idles = 0
	return e.cq.Wait(ctx)
}

func (t *target) complete(wc *verbs.WC) error {
	if wc.Status != verbs.WCSuccess {
		return t.fail(wc)
	}
	kind, channel, index := ofID(wc.WRID)
	switch kind {
	case idRecv:
		return t.command(channel, index)
	case idData:
		return t.read(channel, index)
	}
	return nil
}

// command begins an I/O.
func (t *target) command(channel, buf int) error {
	var c command
	c.decode(t.recvs.Bytes()[buf*commandBytes:])
	if err := t.postRecv(channel, buf); err != nil {
		return err
	}
	if int(c.slot) >= t.cfg.Depth || c.size < MinSize || int(c.size) > t.cfg.largest() ||
		int(c.off)+int(c.size) > patternLen {
		return t.failure(fmt.Sprintf("channel %d: a command that makes no sense: %+v", channel, c))
	}
	io := &t.slots[channel][c.slot]
	if io.busy {
		return t.failure(fmt.Sprintf("channel %d: a command for slot %d, which is in use", channel,
			c.slot))
	}
	io.command, io.busy = c, true
	if c.write {
		return t.post(channel, verbs.SendWR{WRID: workID(idData, channel, int(c.slot)),
			Opcode: verbs.WRRDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{t.place(channel, io)},
			RemoteAddr: c.addr, RKey: verbs.Key(c.key)})
	}
	r := rng(c.seed)
	at := stretch(int(c.size), &r)
	if err := t.post(channel, verbs.SendWR{WRID: workID(idSend, channel, int(c.slot)),
		Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{t.from.SGE(at, int(c.size))},
		RemoteAddr: c.addr, RKey: verbs.Key(c.key)}); err != nil {
		return err
	}
	return t.answer(channel, io)
}

// place is the memory of an I/O's slot.
func (t *target) place(channel int, io *ioState) verbs.SGE {
	slot := channel*t.cfg.Depth + int(io.slot)
	return t.data.SGE(slot*t.cfg.largest(), int(io.size))
}

// read compares what a READ has brought.
func (t *target) read(channel, slot int) error {
	io := &t.slots[channel][slot]
	r := rng(io.seed)
	if t.cfg.Workload == SRP && !t.cfg.Persistent {
		t.segs = scatter(t.segs[:0], outbound(t.pattern, &r), int(io.size), &r)
	} else {
		t.segs = window(t.segs[:0], t.list, int(io.off), int(io.size))
	}
	at := (channel*t.cfg.Depth + slot) * t.cfg.largest()
	got := t.data.Bytes()[at : at+int(io.size)]
	t.spoil(got)
	t.report.Mismatches += uint64(differ(t.segs, got))
	t.report.Verified += uint64(io.size)
	return t.answer(channel, io)
}

// spoil changes a byte, if a test asks for it.
func (t *target) spoil(b []byte) {
	if t.left > 0 {
		t.left--
		b[0] ^= 0xff
	}
}

// answer ends an I/O.
func (t *target) answer(channel int, io *ioState) error {
	var b [answerBytes]byte
	binary.BigEndian.PutUint16(b[:], io.slot)
	wr := verbs.SendWR{WRID: workID(idSend, channel, int(io.slot)), Opcode: verbs.WRSend,
		Flags: verbs.SendInline, Inline: b[:]}
	if io.remoteInv {
		wr.Opcode, wr.InvKey = verbs.WRSendWithInv, verbs.Key(io.key)
	}
	io.busy = false
	return t.post(channel, wr)
}

func (t *target) post(channel int, wr verbs.SendWR) error {
	if err := t.qps[channel].PostSend(&wr); err != nil {
		return fmt.Errorf("post to channel %d: %w", channel, err)
	}
	return nil
}
