package cm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/roxie-rdma/roxie/verbs"
)

// This file moves a stream's bytes. Each SEND carries immediate data:
//
//	bits 0–15   credits: receive buffers that the sender of this has emptied since the last time
//	bit 30      a notice: no payload, and it costs no credit
//	bit 31      the end of the stream in this direction
//
// A SEND with payload costs one credit; an end starts with as many as the other has buffers. That
// is the backpressure: who does not read gives no credits back. Notices have receives of their own.
// Receives are used in the order they were posted, whatever they are for, so that a notice may fill
// a data buffer's and the reverse: they are all of one size, and only their number counts.

const (
	creditMask = 1<<16 - 1
	immNotice  = 1 << 30
	immEnd     = 1 << 31

	// An end sends a notice when half of its buffers are owed, so that of notices about credits two can
	// be on their way, and one about the end.
	spareRecvs = 4
	maxNotices = 3
	spareSends = maxNotices + 2 // and a keepalive

	closeFlush = 5 * time.Second // how long Close waits for what is on its way
)

// Stream is a reliable connection as a net.Conn: bytes in order, deadlines, half-close, backpressure.
// Write returns when the bytes are with the device; Close waits until the other end has them. All
// methods may be called from any goroutine.
type Stream struct {
	cfg    StreamConfig
	peer   StreamConfig
	conn   *Conn
	remote StreamAddr
	port   uint16 // own, of an accepted stream
	pd     *verbs.PD
	cq     *verbs.CQ
	qp     *verbs.QP
	mem    *verbs.MR // receive buffers, then send buffers

	readMu   sync.Mutex // one Read at a time
	writeMu  sync.Mutex // one Write or CloseWrite at a time
	readable chan struct{}
	writable chan struct{}

	mu       sync.Mutex // what follows
	filled   []piece    // received and not read, in order
	owed     int        // credits to give back
	ended    bool       // the other end has said that no more will come
	sendFree []int      // send buffers
	credits  int
	notices  int   // on their way
	finish   bool  // the end is to be told
	told     bool  // it has been
	err      error // why the connection has ended; see dead

	readLate  *alarm
	writeLate *alarm
	closeOnce sync.Once
	closing   chan struct{} // closed by Close
	dead      chan struct{} // closed when no more completions come
	stop      context.CancelFunc
	running   sync.WaitGroup
}

var _ net.Conn = (*Stream)(nil)

// piece is what is left of a receive buffer.
type piece struct{ slot, at, end int }

// Work request ids: a send buffer's number, or one of these.
const (
	idNotice = 1 << 32
	idRecv   = 1 << 33 // and the buffer's number
)

// recvBuffers is how many buffers come before the send buffers in memory.
func (s *Stream) recvBuffers() int { return s.cfg.Buffers + spareRecvs }

func (s *Stream) postRecv(slot int) error {
	return s.qp.PostRecv(&verbs.RecvWR{WRID: idRecv | uint64(slot),
		SGList: []verbs.SGE{s.mem.SGE(slot*s.cfg.BufferSize, s.cfg.BufferSize)}})
}

// Read returns what has come, at least one byte. After the other end's CloseWrite or Close it
// returns io.EOF; after Close net.ErrClosed, after the deadline os.ErrDeadlineExceeded, and when the
// connection is lost what ended it, the last three in a *net.OpError.
func (s *Stream) Read(b []byte) (int, error) {
	s.readMu.Lock()
	defer s.readMu.Unlock()
	for {
		if err := s.state(s.readLate); err != nil {
			return 0, s.opError("read", err)
		}
		n, err := s.take(b)
		if n > 0 || len(b) == 0 || errors.Is(err, io.EOF) {
			return n, err
		}
		if err != nil {
			return 0, s.opError("read", err)
		}
		select {
		case <-s.readable:
		case <-s.dead:
		case <-s.closing:
		case <-s.readLate.rings():
		}
	}
}

// state says why nothing can be done, whatever has come.
func (s *Stream) state(late *alarm) error {
	select {
	case <-s.closing:
		return net.ErrClosed
	default:
	}
	select {
	case <-late.rings():
		return os.ErrDeadlineExceeded
	default:
		return nil
	}
}

func (s *Stream) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "rdma", Source: s.LocalAddr(), Addr: s.remote, Err: err}
}

// take moves received bytes to b, and gives emptied buffers back.
func (s *Stream) take(b []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n < len(b) && len(s.filled) > 0 {
		p := &s.filled[0]
		k := copy(b[n:], s.mem.Bytes()[p.slot*s.cfg.BufferSize:][p.at:p.end])
		n += k
		if p.at += k; p.at < p.end {
			break
		}
		_ = s.postRecv(p.slot) // fails when the device is closed: run learns of that
		s.filled = s.filled[1:]
		s.owed++
	}
	s.notice()
	switch {
	case n > 0 || len(s.filled) > 0:
		return n, nil
	case s.ended:
		return 0, io.EOF
	}
	return 0, s.err
}

// Write sends b, as soon as the other end has room for it. Errors as Read's, and io.ErrClosedPipe
// after CloseWrite; n bytes are on their way then.
func (s *Stream) Write(b []byte) (n int, err error) {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	for first := true; first || n < len(b); first = false {
		if err := s.state(s.writeLate); err != nil {
			return n, s.opError("write", err)
		}
		k, err := s.put(b[n:])
		if err != nil {
			return n, s.opError("write", err)
		}
		if n += k; k > 0 || n == len(b) {
			continue
		}
		select {
		case <-s.writable:
		case <-s.dead:
		case <-s.closing:
		case <-s.writeLate.rings():
		}
	}
	return n, nil
}

// put sends one buffer's worth, or nothing if there is no buffer or no credit.
func (s *Stream) put(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return 0, s.err
	case s.finish:
		return 0, io.ErrClosedPipe
	case len(b) == 0 || s.credits == 0 || len(s.sendFree) == 0:
		return 0, nil
	}
	last := len(s.sendFree) - 1
	slot := s.sendFree[last]
	at := (s.recvBuffers() + slot) * s.cfg.BufferSize
	n := copy(s.mem.Bytes()[at:at+min(s.cfg.BufferSize, s.peer.BufferSize)], b)
	if err := s.post(uint64(slot), s.mem.SGE(at, n), 0); err != nil {
		return 0, err
	}
	s.sendFree = s.sendFree[:last]
	s.credits--
	return n, nil
}

// post sends a message, with the credits that are owed. s.mu is held.
func (s *Stream) post(id uint64, sge verbs.SGE, flags uint32) error {
	give := min(s.owed, creditMask)
	wr := verbs.SendWR{WRID: id, Opcode: verbs.WRSendWithImm, Flags: verbs.SendSignaled, Imm: flags | uint32(give)}
	if sge.Length > 0 {
		wr.SGList = []verbs.SGE{sge}
	}
	if err := s.qp.PostSend(&wr); err != nil {
		return fmt.Errorf("%w: %w", ErrEnded, err)
	}
	s.owed -= give
	return nil
}

// notice tells the other end of credits, when they are worth it, and of the end. s.mu is held.
func (s *Stream) notice() {
	end := s.finish && !s.told
	if s.err != nil || s.notices == maxNotices || !end && s.owed < max(s.cfg.Buffers/2, 1) {
		return
	}
	flags := uint32(immNotice)
	if end {
		flags |= immEnd
	}
	if s.post(idNotice, verbs.SGE{}, flags) == nil { // else run learns why
		s.notices++
		s.told = s.told || end
	}
}

// run takes completions until the connection ends.
func (s *Stream) run(ctx context.Context) {
	defer close(s.dead)
	var wc [32]verbs.WC
	for {
		err := s.cq.Wait(ctx)
		n := 0
		if err == nil {
			n, err = s.cq.Poll(wc[:])
		}
		s.mu.Lock()
		for i := 0; i < n && err == nil; i++ {
			err = s.completion(&wc[i])
		}
		if s.err = err; err == nil {
			s.notice()
		}
		s.mu.Unlock()
		signal(s.readable)
		signal(s.writable)
		if err != nil {
			return
		}
	}
}

// completion takes one. An error is the end. s.mu is held.
func (s *Stream) completion(wc *verbs.WC) error {
	switch {
	case wc.Status == verbs.WCWRFlushErr:
		return ErrEnded
	case wc.Status == verbs.WCRetryExcErr:
		return ErrUnreachable
	case wc.Status != verbs.WCSuccess:
		return fmt.Errorf("%w: %v (%v)", ErrEnded, wc.Status, wc.VendorErr)
	case wc.WRID == idNotice:
		s.notices--
	case wc.WRID < idNotice:
		s.sendFree = append(s.sendFree, int(wc.WRID))
	case wc.Opcode == verbs.WCRecv:
		return s.received(int(wc.WRID-idRecv), wc)
	}
	return nil
}

func (s *Stream) received(slot int, wc *verbs.WC) error {
	s.credits += int(wc.Imm & creditMask)
	notice := wc.Imm&immNotice != 0
	switch {
	case wc.Flags&verbs.WCWithImm == 0, notice != (wc.ByteLen == 0), s.credits > s.peer.Buffers,
		s.ended && !notice, len(s.filled) == s.cfg.Buffers && !notice:
		return ErrNotStream
	}
	s.ended = s.ended || wc.Imm&immEnd != 0
	if notice {
		return s.postRecv(slot)
	}
	s.filled = append(s.filled, piece{slot: slot, end: int(wc.ByteLen)})
	return nil
}

// CloseWrite tells the other end that no more will come: its Read returns io.EOF behind what was
// written. Reading goes on. A second call does nothing.
func (s *Stream) CloseWrite() error {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	if err := s.state(newAlarm()); err != nil {
		return s.opError("close", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.opError("close", s.err)
	}
	s.finish = true
	s.notice()
	return nil
}

// Close ends the stream. What was written is delivered first, if that takes no longer than five
// seconds; what was not read is lost. Read and Write return. A second call does nothing.
func (s *Stream) Close() error {
	s.closeOnce.Do(func() {
		close(s.closing)
		s.writeMu.Lock() // Write is over
		s.mu.Lock()
		s.finish = true
		s.notice()
		s.mu.Unlock()
		s.flush()
		s.writeMu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_ = s.conn.Disconnect(ctx) // a peer that is gone does not answer
		cancel()
		s.stop()
		s.running.Wait()
		s.readMu.Lock() // Read is over
		s.free()
		s.readMu.Unlock()
	})
	return nil
}

// flush waits until the other end has all that was sent.
func (s *Stream) flush() {
	late := time.NewTimer(closeFlush)
	defer late.Stop()
	for {
		s.mu.Lock()
		done := s.told && s.notices == 0 && len(s.sendFree) == s.cfg.Buffers
		s.mu.Unlock()
		if done {
			return
		}
		select {
		case <-s.writable:
		case <-s.dead:
			return
		case <-late.C:
			return
		}
	}
}

// Conn is the connection below, for its QP and its private data.
func (s *Stream) Conn() *Conn { return s.conn }

// LocalAddr is the own address; of an accepted stream, with the listener's port.
func (s *Stream) LocalAddr() net.Addr {
	return StreamAddr{netip.AddrPortFrom(s.conn.LocalAddr(), s.port)}
}

// RemoteAddr is the other end's address.
func (s *Stream) RemoteAddr() net.Addr { return s.remote }

// SetDeadline is SetReadDeadline and SetWriteDeadline.
func (s *Stream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

// SetReadDeadline ends Reads that wait at a time, now and later; the zero time takes that back.
func (s *Stream) SetReadDeadline(t time.Time) error { return s.setDeadline(s.readLate, t) }

// SetWriteDeadline does the same with Writes. What they have sent by then is on its way.
func (s *Stream) SetWriteDeadline(t time.Time) error { return s.setDeadline(s.writeLate, t) }

func (s *Stream) setDeadline(a *alarm, t time.Time) error {
	select {
	case <-s.closing:
		return s.opError("set", net.ErrClosed)
	default:
		a.set(t)
		return nil
	}
}

// alarm is a deadline that can be waited for, and moved meanwhile.
type alarm struct {
	mu    sync.Mutex
	timer *time.Timer
	rung  chan struct{} // closed when it has rung
}

func newAlarm() *alarm { return &alarm{rung: make(chan struct{})} }

// rings returns a channel that is closed at the deadline.
func (a *alarm) rings() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rung
}

// set moves the alarm to t, or turns it off.
func (a *alarm) set(t time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.timer != nil && !a.timer.Stop() {
		<-a.rung // it is ringing: let it
	}
	a.timer = nil
	select {
	case <-a.rung:
		a.rung = make(chan struct{})
	default:
	}
	if t.IsZero() {
		return
	}
	rung := a.rung
	if d := time.Until(t); d > 0 {
		a.timer = time.AfterFunc(d, func() { close(rung) })
		return
	}
	close(rung)
}
