package keyrules

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/roxie-rdma/roxie/verbs"
)

// This file is Linux as the owner: two programs there that take commands (interop/keys/linux).

// Talk hands a line to a program and returns its answer.
type Talk func(line string) (answer string, err error)

// RunLinux tries all rules with Linux as the owner: regions moves its fast regions, which only the
// kernel can, windows its memory windows, which only user space can. Its RDMA device and the
// peer's reach each other. report, if not nil, hears of each outcome as it comes.
func RunLinux(regions, windows Talk, peer *verbs.Context, report func(*Outcome)) (
	out []Outcome, err error) {
	for _, part := range []struct {
		talk  Talk
		rules []rule
	}{
		{regions, concat(heldRules(), patternRules(), streamRules(), oddRules())},
		{windows, windowRules()},
	} {
		f := new(faults)
		o, err := run(f, &there{f, part.talk}, peer, part.rules, report)
		if out = append(out, o...); err != nil {
			return out, err
		}
	}
	return out, nil
}

// there is a program in Linux.
type there struct {
	*faults
	talk Talk
}

// ask runs a command, and returns the words of its answer, n at least.
func (l *there) ask(n int, command string, args ...any) []string {
	words := make([]string, n)
	if l.err != nil {
		return words
	}
	var line strings.Builder
	line.WriteString(command)
	for _, a := range args {
		fmt.Fprintf(&line, " %v", a)
	}
	answer, err := l.talk(line.String())
	if err != nil {
		l.must(fmt.Errorf("%s: %w", line.String(), err))
		return words
	}
	values, ok := strings.CutPrefix(answer, "=")
	if got := strings.Fields(values); ok && len(got) >= n {
		return got
	}
	l.must(fmt.Errorf("%s: Linux says %q", line.String(), answer))
	return words
}

// numbers is ask for n numbers.
func (l *there) numbers(n int, command string, args ...any) []uint64 {
	out := make([]uint64, n)
	for i, w := range l.ask(n, command, args...)[:n] {
		if l.err == nil {
			v, err := strconv.ParseInt(w, 10, 64)
			if err != nil { // an address of the kernel's
				out[i], err = strconv.ParseUint(w, 10, 64)
				l.must(err)
				continue
			}
			out[i] = uint64(v)
		}
	}
	return out
}

func (l *there) visible() {}

func (l *there) memory(pages int) memory {
	v := l.numbers(2, "mem", pages)
	return &thereMemory{l, v[0], v[1], pages * pageLen}
}

func (l *there) user(d domain) (memory, uint64, verbs.Key) {
	v := l.numbers(3, "user", d)
	return &thereMemory{l, v[0], v[1], 1 << 16}, v[1], verbs.Key(v[2])
}

func (l *there) fast(d domain, pages int) region {
	v := l.numbers(2, "fast", d, pages)
	return &thereRegion{l, v[0], verbs.Key(v[1]), 0}
}

func (l *there) window(d domain, t verbs.MWType) window {
	v := l.numbers(2, "window", d, t)
	return &thereWindow{l, v[0], verbs.Key(v[1])}
}

type thereQP struct {
	*there
	id uint64
	at verbs.ConnInfo
}

func (l *there) qp(d domain) ownerQP {
	q := &thereQP{there: l}
	words := l.ask(4, "qp", d)
	if l.err != nil {
		return q
	}
	var err error
	if q.id, err = strconv.ParseUint(words[0], 10, 16); err != nil {
		l.must(err)
	}
	qpn, err := strconv.ParseUint(words[1], 10, 24)
	l.must(err)
	psn, err := strconv.ParseUint(words[2], 10, 24)
	l.must(err)
	gid, err := hex.DecodeString(words[3])
	if l.must(err); len(gid) != len(q.at.GID) {
		l.must(fmt.Errorf("GID %q", words[3]))
		return q
	}
	q.at.QPN, q.at.PSN = verbs.QPN(qpn), verbs.PSN(psn)
	copy(q.at.GID[:], gid)
	return q
}

func (q *thereQP) info() verbs.ConnInfo { return q.at }

func (q *thereQP) connect(peer verbs.ConnInfo) {
	q.ask(0, "connect", q.id, uint32(peer.QPN), uint32(peer.PSN), hex.EncodeToString(peer.GID[:]))
}

func (q *thereQP) state() verbs.QPState {
	// A QP goes to error behind the completion that says why.
	time.Sleep(20 * time.Millisecond)
	return verbs.QPState(q.numbers(1, "state", q.id)[0])
}

func (q *thereQP) send()                  { q.ask(0, "send", q.id) }
func (q *thereQP) recv()                  { q.ask(0, "recv", q.id) }
func (q *thereQP) invalidate(k verbs.Key) { q.ask(0, "inv", q.id, uint32(k)) }
func (q *thereQP) close()                 { q.ask(0, "close", q.id) }

func (q *thereQP) register(r region, a verbs.Access) {
	q.ask(0, "reg", q.id, r.(*thereRegion).id, uint32(a))
}

func (q *thereQP) bind(b binding) {
	w := b.w.(*thereWindow)
	w.k = verbs.Key(q.numbers(1, "bind", q.id, w.id, b.to, b.off, b.n, uint32(b.access))[0])
}

// completed is the answer about a completion.
func completed(status, flags uint64) completion {
	if int64(status) < 0 {
		return completion{status: noCompletion}
	}
	return completion{verbs.WCStatus(status), flags != 0}
}

func (q *thereQP) poll(patience time.Duration) completion {
	v := q.numbers(2, "poll", q.id, patience.Milliseconds())
	return completed(v[0], v[1])
}

// fillWord is how commands say what memory is filled with: 256 for nothing.
func fillWord(fill int) int {
	if fill < 0 {
		return 256
	}
	return fill
}

func (q *thereQP) take(key verbs.Key, m memory, fill int) completion {
	v := q.numbers(2, "take", q.id, uint32(key), m.(*thereMemory).id, fillWord(fill))
	return completed(v[0], v[1])
}

func (l *there) held(q ownerQP, r region, m memory, read bool, access func()) (early bool) {
	to, fill := 0, -1
	if read {
		to, fill = 1, reused
	}
	l.ask(0, "arm", r.(*thereRegion).id, to)
	access()
	v := l.numbers(2, "held", q.(*thereQP).id, uint32(r.key()), m.(*thereMemory).id, fillWord(fill))
	return v[1] != 0
}

type thereMemory struct {
	*there
	id    uint64
	at_   uint64
	bytes int
}

func (m *thereMemory) fill(b byte)      { m.ask(0, "fill", m.id, b) }
func (m *thereMemory) count(b byte) int { return int(m.numbers(1, "count", m.id, b)[0]) }
func (m *thereMemory) at(off int) byte  { return byte(m.numbers(1, "at", m.id, off)[0]) }
func (m *thereMemory) taken() int       { return int(m.numbers(1, "taken", m.id)[0]) }
func (m *thereMemory) size() int        { return m.bytes }
func (m *thereMemory) addr() uint64     { return m.at_ }
func (m *thereMemory) close()           { m.ask(0, "free", m.id) }

type thereRegion struct {
	*there
	id   uint64
	k    verbs.Key
	iova uint64
}

func (r *thereRegion) mapTo(m memory, iova uint64) {
	r.iova = r.numbers(1, "map", r.id, m.(*thereMemory).id, iova)[0]
}

func (r *thereRegion) bump()          { r.k = verbs.Key(r.numbers(1, "bump", r.id)[0]) }
func (r *thereRegion) key() verbs.Key { return r.k }
func (r *thereRegion) addr() uint64   { return r.iova }
func (r *thereRegion) close()         { r.ask(0, "dereg", r.id) }

type thereWindow struct {
	*there
	id uint64
	k  verbs.Key
}

func (w *thereWindow) key() verbs.Key { return w.k }
func (w *thereWindow) close()         { w.ask(0, "dealloc", w.id) }
