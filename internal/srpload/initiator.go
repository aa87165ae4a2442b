package srpload

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/roxie-rdma/roxie/verbs"
)

// initiator keeps Depth I/Os of each channel in work.
type initiator struct {
	*endpoint
	arena    []byte // what arrives, slot by slot
	channels []*channel
	rng      rng
	started  uint64 // I/Os, ever
	done     uint64
	bytes    uint64 // of I/Os that are done
	regs     uint64
	invs     uint64
	maps     uint64
	left     int // bytes to change before they are compared
}

// channel is a QP with its descriptors and slots.
type channel struct {
	index int
	slots []slot
	idle  []int       // slots
	pool  []*verbs.MR // SRP: descriptors that are free, the last one used first
	out   []*verbs.MR // RTRS, by slot: the pattern, mapped once; persistent: one, registered
	wrs   []verbs.SendWR
	buf   [][commandBytes]byte // of commands in wrs
	sends int                  // used of buf
}

// slot is an I/O of the initiator.
type slot struct {
	command
	mem  []byte
	list [][]byte  // pages of mem
	segs [][]byte  // of the I/O
	in   *verbs.MR // RTRS and persistent: mem, mapped once
	mr   *verbs.MR // in use by the I/O
	live bool      // its key is registered
}

const access = verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead

// iova is where all lists begin for the target.
const iova = 0x10_0000_0000

func newInitiator(e *endpoint) (*initiator, error) {
	in := &initiator{endpoint: e, rng: rng(e.cfg.Seed + 1), left: e.cfg.Inject}
	if err := e.create(answerBytes); err != nil {
		return nil, err
	}
	n := e.cfg.slotLen()
	in.arena = make([]byte, e.cfg.Channels*e.cfg.Depth*n)
	for i := range e.cfg.Channels {
		ch := &channel{index: i, slots: make([]slot, e.cfg.Depth)}
		for j := range ch.slots {
			at := (i*e.cfg.Depth + j) * n
			ch.slots[j].mem = in.arena[at : at+n]
			clear(ch.slots[j].mem) // touch every page now
			ch.idle = append(ch.idle, j)
		}
		ch.wrs = make([]verbs.SendWR, 0, 4*e.cfg.Depth)
		ch.buf = make([][commandBytes]byte, e.cfg.Depth)
		if err := in.allocate(ch); err != nil {
			return nil, err
		}
		in.channels = append(in.channels, ch)
	}
	return in, nil
}

// allocate makes a channel's descriptors.
func (in *initiator) allocate(ch *channel) error {
	if in.cfg.Workload == SRP && !in.cfg.Persistent {
		for range in.cfg.Depth {
			m, err := in.pd.AllocFastMR(maxSegs)
			if err != nil {
				return err
			}
			ch.pool = append(ch.pool, m)
		}
		return nil
	}
	outs := pages(in.pattern)
	n := in.cfg.Depth
	if in.cfg.Persistent {
		n = 1 // the pattern is read only: all slots can share one
	}
	for range n {
		m, err := in.mapOnce(outs)
		if err != nil {
			return err
		}
		ch.out = append(ch.out, m)
	}
	for j := range ch.slots {
		s := &ch.slots[j]
		s.list = pages(s.mem)
		var err error
		if s.in, err = in.mapOnce(s.list); err != nil {
			return err
		}
	}
	return nil
}

func (in *initiator) mapOnce(list [][]byte) (*verbs.MR, error) {
	m, err := in.pd.AllocFastMR(len(list))
	if err == nil {
		in.maps++
		err = m.MapSG(list, iova)
	}
	return m, err
}

// registerAll posts the registrations that stay, and waits for them.
func (in *initiator) registerAll(ctx context.Context) error {
	for _, ch := range in.channels {
		var all []*verbs.MR
		all = append(all, ch.out...)
		for j := range ch.slots {
			all = append(all, ch.slots[j].in)
		}
		for _, m := range all {
			wr := verbs.SendWR{WRID: workID(idLocal, ch.index, 0), Opcode: verbs.WRRegMR, MR: m,
				Access: access, Flags: verbs.SendSignaled}
			if err := in.qps[ch.index].PostSend(&wr); err != nil {
				return err
			}
			for n := 0; n == 0; {
				var err error
				if n, err = in.cq.Poll(in.wc[:1]); err != nil || ctx.Err() != nil {
					return err
				}
			}
			if in.wc[0].Status != verbs.WCSuccess {
				return in.fail(&in.wc[0])
			}
		}
	}
	return nil
}

// counts are what the rates are made of.
type counts struct {
	at                      time.Time
	done, bytes, regs, invs uint64
}

func (in *initiator) counts() counts {
	return counts{time.Now(), in.done, in.bytes, in.regs, in.invs}
}

// run issues I/Os for the duration and returns the counts of its beginning, behind the warm-up, and
// its end. All I/Os are through when it returns.
func (in *initiator) run(ctx context.Context) (first, last counts, err error) {
	start := time.Now()
	warm := false
	for {
		if !warm && time.Since(start) >= warmUp {
			warm, first = true, in.counts()
		}
		if warm && time.Since(first.at) >= in.cfg.Duration {
			last = in.counts()
			break
		}
		for range 64 {
			if err := in.turn(ctx, true); err != nil {
				return first, last, err
			}
		}
	}
	for in.done < in.started {
		if err := in.turn(ctx, false); err != nil {
			return first, last, err
		}
	}
	return first, last, nil
}

// turn takes completions and, if more is wanted, begins I/Os in the slots that are free: first all
// invalidations, then the new registrations and commands, in one list for each channel.
func (in *initiator) turn(ctx context.Context, more bool) error {
	n, err := in.cq.Poll(in.wc[:])
	if err != nil {
		return err
	}
	for i := range in.wc[:n] {
		if err := in.complete(&in.wc[i]); err != nil {
			return err
		}
	}
	if n == 0 {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
	}
	for _, ch := range in.channels {
		if more {
			for len(ch.idle) > 0 {
				if err := in.begin(ch); err != nil {
					return err
				}
			}
		}
		if err := in.flush(ch); err != nil {
			return err
		}
	}
	if err := in.rest(ctx, n); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// flush posts a channel's list.
func (in *initiator) flush(ch *channel) error {
	if len(ch.wrs) == 0 {
		return nil
	}
	posted, err := in.qps[ch.index].PostSendList(ch.wrs)
	if err != nil {
		return fmt.Errorf("post to channel %d, work request %d of %d: %w", ch.index, posted,
			len(ch.wrs), err)
	}
	ch.wrs, ch.sends = ch.wrs[:0], 0
	return nil
}

// begin starts an I/O in the next free slot.
func (in *initiator) begin(ch *channel) error {
	last := len(ch.idle) - 1
	index := ch.idle[last]
	ch.idle = ch.idle[:last]
	s := &ch.slots[index]
	size := in.cfg.Size
	if size == 0 {
		size = in.rng.size()
	}
	s.command = command{write: in.rng.next()&1 == 0, remoteInv: in.cfg.remoteInv(in.started),
		slot: uint16(index), size: uint32(size), seed: in.rng.next()}
	in.started++
	if err := in.choose(ch, s); err != nil {
		return err
	}
	if !in.cfg.Persistent {
		ch.wrs = append(ch.wrs, verbs.SendWR{WRID: workID(idLocal, ch.index, index),
			Opcode: verbs.WRRegMR, MR: s.mr, Access: access})
		in.regs++
		s.live = true
	}
	s.key, s.addr = uint32(s.mr.RKey()), iova+uint64(s.off)
	b := ch.buf[ch.sends][:]
	ch.sends++
	s.encode(b)
	ch.wrs = append(ch.wrs, verbs.SendWR{WRID: workID(idSend, ch.index, index), Opcode: verbs.WRSend,
		Flags: verbs.SendInline, Inline: b})
	return nil
}

// choose finds memory and descriptor of an I/O.
func (in *initiator) choose(ch *channel, s *slot) error {
	n := int(s.size)
	r := rng(s.seed)
	if in.cfg.Workload == SRP && !in.cfg.Persistent {
		mem := s.mem
		if s.write {
			mem = outbound(in.pattern, &r)
		} else {
			stretch(n, &r)
		}
		s.segs = scatter(s.segs[:0], mem, n, &r)
		last := len(ch.pool) - 1
		s.mr = ch.pool[last]
		ch.pool = ch.pool[:last]
		s.mr.UpdateKey(verbs.IncRKey(s.mr.RKey()).Variant())
		in.maps++
		return s.mr.MapSG(s.segs, iova)
	}
	if s.write {
		s.mr = ch.out[int(s.slot)%len(ch.out)]
		s.off = uint32(r.below(patternLen - n + 1))
	} else {
		s.mr = s.in
		s.off = uint32(r.below(len(s.mem) - n + 1))
		s.segs = window(s.segs[:0], s.list, int(s.off), n)
	}
	if !in.cfg.Persistent {
		s.mr.UpdateKey(verbs.IncRKey(s.mr.RKey()).Variant())
	}
	return nil
}

func (in *initiator) complete(wc *verbs.WC) error {
	if wc.Status != verbs.WCSuccess {
		return in.fail(wc)
	}
	kind, channel, buf := ofID(wc.WRID)
	if kind != idRecv {
		return nil
	}
	ch := in.channels[channel]
	index := int(binary.BigEndian.Uint16(in.recvs.Bytes()[buf*answerBytes:]))
	if err := in.postRecv(channel, buf); err != nil {
		return err
	}
	if index >= len(ch.slots) || ch.slots[index].mr == nil {
		return in.failure(fmt.Sprintf("channel %d: an answer for slot %d, which is free", channel, index))
	}
	return in.answered(ch, index, wc)
}

// answered ends an I/O: its key goes, its data is compared, its descriptor is free at once.
func (in *initiator) answered(ch *channel, index int, wc *verbs.WC) error {
	s := &ch.slots[index]
	gone := wc.Flags&verbs.WCWithInv != 0
	if gone != (s.live && s.remoteInv) || gone && uint32(wc.InvKey) != s.key {
		return in.failure(fmt.Sprintf("channel %d: an answer for key %#x with flags %v and key %#x",
			ch.index, s.key, wc.Flags, uint32(wc.InvKey)))
	}
	if s.live {
		in.invs++
		s.live = false
		if !gone {
			ch.wrs = append(ch.wrs, verbs.SendWR{WRID: workID(idLocal, ch.index, index),
				Opcode: verbs.WRLocalInv, RKey: verbs.Key(s.key)})
		}
	}
	if !s.write {
		in.compare(s)
	}
	if in.cfg.Workload == SRP && !in.cfg.Persistent {
		ch.pool = append(ch.pool, s.mr)
	}
	s.mr = nil
	ch.idle = append(ch.idle, index)
	in.done++
	in.bytes += uint64(s.size)
	return nil
}

// compare looks at what the target has written.
func (in *initiator) compare(s *slot) {
	r := rng(s.seed)
	at := stretch(int(s.size), &r)
	if in.left > 0 {
		in.left--
		s.segs[0][0] ^= 0xff
	}
	in.report.Mismatches += uint64(differ(s.segs, in.pattern[at:]))
	in.report.Verified += uint64(s.size)
}
