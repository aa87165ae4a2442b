package perf

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// This file is perftest's exchange over TCP, as version 6.06 has it (perftest_communication.c). All
// steps are alike: both ends send a message of the same length, the client first.
//
//	version      16 bytes, "6.06" and zeros
//	cycle buffer  4 bytes, big endian: the page size
//	cache line    4 bytes, big endian
//	path MTU      2 bytes, the digit '1' (256) to '5' (4096) and a zero
//	keys        108 bytes, one message for each QP; the same serves as a barrier
//	report        5 messages of 8 bytes: size, iterations; MiB/s peak and average, 10^6 messages/s
//	done          5 bytes, not answered
//
// The C program reads each message with one call and takes a short one for an error: they have to be
// written in one piece.

const (
	// perftestVersion is what this end claims to be. Versions from 5.70 on are alike in all that is
	// used here.
	perftestVersion = "6.06"
	oldestPerftest  = 5.70

	versionLen = 16
	// tagAt is where, behind the version's zero byte, an end tells another one like it what it is.
	tagAt      = len(perftestVersion) + 1
	keysLen    = 108
	cacheLine  = 64
	doneText   = "done\x00"
	mebi       = 1 << 20
	minPMTUExp = 8 // path MTU code 1 is 2^8 bytes
)

// tagOwn begins the tag. Options for which this program speaks perftest's exchange in any case
// follow. Both ends must have the same.
const tagOwn = "roxie"

func (e *endpoint) tag() string {
	tag := tagOwn
	if e.cfg.Bidirectional {
		tag += " -b"
	}
	if e.cfg.CM {
		tag += " -R"
	}
	if e.plain && tag == tagOwn {
		tag += " ."
	}
	return tag
}

// greet exchanges versions, which tell whether the other end is of this program's kind or perftest.
func (e *endpoint) greet(ctx context.Context, conn net.Conn, client bool) (foreign bool, err error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var ours, theirs [versionLen]byte
	copy(ours[:], perftestVersion)
	copy(ours[tagAt:], e.tag())
	if err := conn.SetDeadline(time.Now().Add(stepTimeout)); err != nil {
		return false, err
	}
	if client {
		_, err = conn.Write(ours[:])
	}
	if err == nil {
		_, err = io.ReadFull(conn, theirs[:])
	}
	if err == nil && !client {
		_, err = conn.Write(ours[:])
	}
	switch {
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return false, fmt.Errorf("the other end says nothing for %v", stepTimeout)
	case err != nil:
		return false, fmt.Errorf("%w: %w", errGone, err)
	}
	version, tag, _ := strings.Cut(string(theirs[:]), "\x00")
	tag = strings.TrimRight(tag, "\x00")
	number, err := strconv.ParseFloat(strings.TrimSpace(version), 64)
	switch {
	case err != nil:
		return false, fmt.Errorf("the other end sent %q: it is neither perftest nor roxie", version)
	case number < oldestPerftest:
		return false, fmt.Errorf("the other end is perftest %s; versions from %.2f on are understood",
			version, oldestPerftest)
	case !strings.HasPrefix(tag, tagOwn):
		return true, conn.SetDeadline(time.Time{})
	case tag != e.tag():
		return false, errors.New("-b, -R: start both ends with them, or none")
	}
	return tag != tagOwn, conn.SetDeadline(time.Time{})
}

// perftest is a connection to the other end that speaks perftest's exchange. It is used by one
// goroutine, and reads in another.
type perftest struct {
	attention
	conn   net.Conn
	client bool
	gone   context.CancelCauseFunc

	mu   sync.Mutex
	in   []byte        // read and not taken
	err  error         // of the last read
	more chan struct{} // there is news in in or err
}

// newPerftest starts to read. The returned context ends when the other end is gone.
func newPerftest(ctx context.Context, conn net.Conn, client bool) (*perftest, context.Context) {
	ctx, gone := context.WithCancelCause(ctx)
	p := &perftest{conn: conn, client: client, gone: gone, more: make(chan struct{}, 1)}
	context.AfterFunc(ctx, p.end)
	go p.read()
	return p, ctx
}

func (p *perftest) read() {
	var b [512]byte
	for {
		n, err := p.conn.Read(b[:])
		p.mu.Lock()
		fresh := n > 0 && len(p.in) == 0
		p.in = append(p.in, b[:n]...)
		p.err = err
		p.mu.Unlock()
		if fresh {
			p.wake()
		}
		select {
		case p.more <- struct{}{}:
		default:
		}
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				err = io.EOF
			}
			p.gone(fmt.Errorf("%w: %w", errGone, err))
			p.end()
			return
		}
	}
}

// take returns the next n bytes; it waits for them no longer than limit, if that is not 0.
func (p *perftest) take(ctx context.Context, n int, limit time.Duration) ([]byte, error) {
	var late <-chan time.Time
	if limit > 0 {
		t := time.NewTimer(limit)
		defer t.Stop()
		late = t.C
	}
	for {
		p.mu.Lock()
		if len(p.in) >= n {
			b := p.in[:n:n]
			p.in = p.in[n:]
			empty := len(p.in) == 0
			p.mu.Unlock()
			if empty {
				p.taken()
			}
			return b, nil
		}
		err := p.err
		p.mu.Unlock()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errGone, err)
		}
		select {
		case <-p.more:
		case <-late:
			return nil, fmt.Errorf("the other end is silent for %v: was it started with the same "+
				"options?", limit)
		case <-ctx.Done():
			if context.Cause(ctx) == nil || !errors.Is(context.Cause(ctx), errGone) {
				return nil, context.Cause(ctx)
			}
			// The reader has gone on to the end: look at what it left.
			p.mu.Lock()
			short := len(p.in) < n
			p.mu.Unlock()
			if short {
				return nil, context.Cause(ctx)
			}
		}
	}
}

func (p *perftest) write(b []byte) error {
	_ = p.conn.SetWriteDeadline(time.Now().Add(stepTimeout))
	if _, err := p.conn.Write(b); err != nil {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	return nil
}

// swap sends ours and returns theirs, which is as long. A server waits for the client's part as
// long as limit.
func (p *perftest) swap(ctx context.Context, ours []byte, limit time.Duration) ([]byte, error) {
	if p.client {
		if err := p.write(ours); err != nil {
			return nil, err
		}
		return p.take(ctx, len(ours), limit)
	}
	theirs, err := p.take(ctx, len(ours), limit)
	if err != nil {
		return nil, err
	}
	return theirs, p.write(ours)
}

// numbers exchanges cycle buffer, cache line and path MTU. It returns the greater cycle buffer and
// the smaller path MTU.
func (p *perftest) numbers(ctx context.Context, pmtu int) (cycle, agreed int, err error) {
	cycle = os.Getpagesize()
	for i, ours := range []uint32{uint32(cycle), cacheLine} {
		b, err := p.swap(ctx, binary.BigEndian.AppendUint32(nil, ours), stepTimeout)
		if err != nil {
			return 0, 0, err
		}
		theirs := binary.BigEndian.Uint32(b)
		if theirs > maxAllSize {
			return 0, 0, fmt.Errorf("the other end has pages of %d bytes: it is not perftest", theirs)
		}
		if i == 0 {
			cycle = max(cycle, int(theirs))
		}
	}
	code := bits.Len(uint(pmtu)) - minPMTUExp
	b, err := p.swap(ctx, []byte{byte('0' + code), 0}, stepTimeout)
	if err != nil {
		return 0, 0, err
	}
	theirs := int(b[0]) - '0'
	if theirs < 1 || theirs > 5 {
		theirs = code // as perftest does with a code that it does not know
	}
	return cycle, 1 << (min(code, theirs) + minPMTUExp - 1), nil
}

// appendTo appends the keys as perftest sends them: LID, outstanding READs, QPN, PSN, rkey, address,
// GID, SRQ number.
func (k *keys) appendTo(b []byte) []byte {
	b = fmt.Appendf(b, "%04x:%04x:%06x:%06x:%08x:%016x:", 0, k.RdAtomic, k.QPN, k.PSN, k.RKey, k.Addr)
	for _, v := range k.GID {
		b = fmt.Appendf(b, "%02x:", v)
	}
	return fmt.Appendf(b, "%08x:\x00", 0)
}

// parseKeys reads what the other end sent.
func parseKeys(b []byte) (k keys, err error) {
	text := strings.TrimRight(string(b), "\x00")
	fields := strings.Split(text, ":")
	const gidAt = 6
	if len(b) != keysLen || len(fields) != gidAt+len(k.GID)+2 {
		return k, fmt.Errorf("the other end sent %q instead of a key; perftest without -x on a "+
			"device without GIDs?", text)
	}
	var v [gidAt]uint64
	for i, width := range [gidAt]int{16, 16, 24, 24, 32, 64} {
		if v[i], err = strconv.ParseUint(fields[i], 16, width); err != nil {
			return k, fmt.Errorf("the other end's key %q: %w", text, err)
		}
	}
	k = keys{RdAtomic: int(v[1]), QPN: uint32(v[2]), PSN: uint32(v[3]), RKey: uint32(v[4]), Addr: v[5]}
	gid := strings.Join(fields[gidAt:gidAt+len(k.GID)], "")
	if n, err := hex.Decode(k.GID[:], []byte(gid)); err != nil || n != len(k.GID) {
		return k, fmt.Errorf("the other end's key %q has no GID", text)
	}
	return k, nil
}

// binaryKeysLen is the length of keys over RDMA: the C structure, in big endian.
//
//	LID 4, outstanding READs 4, QPN 4, PSN 4, rkey 4, gap 4, address 8, GID 16, SRQ number 4, GID index 4
const binaryKeysLen = 56

func (k *keys) appendBinary(b []byte) []byte {
	for _, v := range []uint32{0, uint32(k.RdAtomic), k.QPN, k.PSN, k.RKey, 0} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	b = append(binary.BigEndian.AppendUint64(b, k.Addr), k.GID[:]...)
	return append(b, make([]byte, 8)...)
}

func parseBinaryKeys(b []byte) keys {
	at := func(i int) uint32 { return binary.BigEndian.Uint32(b[i:]) }
	return keys{RdAtomic: int(at(4)), QPN: at(8), PSN: at(12), RKey: at(16),
		Addr: binary.BigEndian.Uint64(b[24:]), GID: [16]byte(b[32:])}
}

// swapKeys exchanges the keys of one QP.
func (p *perftest) swapKeys(ctx context.Context, ours keys, limit time.Duration) (keys, error) {
	if _, rdma := p.conn.(*control); rdma {
		b, err := p.swap(ctx, ours.appendBinary(nil), limit)
		if err != nil {
			return keys{}, err
		}
		return parseBinaryKeys(b), nil
	}
	b, err := p.swap(ctx, ours.appendTo(nil), limit)
	if err != nil {
		return keys{}, err
	}
	return parseKeys(b)
}

// bwReport is what an end of a bandwidth test tells the other.
type bwReport struct {
	size, iters        uint64
	peak, average, msg float64 // MiB/s, 10^6 messages/s
}

func (p *perftest) swapReport(ctx context.Context, ours bwReport) (theirs bwReport, err error) {
	words := [5]uint64{ours.size, ours.iters, math.Float64bits(ours.peak),
		math.Float64bits(ours.average), math.Float64bits(ours.msg)}
	for i := range words {
		b, err := p.swap(ctx, binary.BigEndian.AppendUint64(nil, words[i]), stepTimeout)
		if err != nil {
			return theirs, err
		}
		words[i] = binary.BigEndian.Uint64(b)
	}
	return bwReport{words[0], words[1], math.Float64frombits(words[2]),
		math.Float64frombits(words[3]), math.Float64frombits(words[4])}, nil
}
