// Package rping speaks the protocol of librdmacm's rping, as either end, over verbs/cm.
//
// One round: the client advertises its source buffer, the server READs it and says go ahead; the
// client advertises its sink buffer, the server WRITEs it and says go ahead; the client compares.
// Advertisements and go-aheads are SENDs of 16 bytes: address 8, rkey 4, size 4, big-endian; the
// content of a go-ahead means nothing.
package rping

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// Defaults of rping.
const (
	DefaultPort = 7174
	DefaultSize = 64
	MaxSize     = 65536 // rping's RPING_BUFSIZE
)

// Config is what both ends are told. Zero fields take rping's defaults.
type Config struct {
	Addr       netip.AddrPort // client: the server; server: own address to listen on
	Size       int            // bytes of a ping, 1 to MaxSize
	Count      int            // client: rounds; 0: until ctx is done
	Wait       time.Duration  // client: how long the server may take to answer; 0: as ctx says
	Verbose    bool           // print each ping
	Validate   bool           // client: compare what comes back
	Persistent bool           // server: serve connections one after the other, and at once
	Out        io.Writer
	Listening  func() // server: called once requests are taken
	Connected  func() // Serve: called once the client has confirmed
}

// Result is what a client measured.
type Result struct {
	Rounds  int           `json:"rounds"`
	Bytes   int64         `json:"verified_bytes"` // compared; 0 without Validate
	Seconds float64       `json:"seconds"`
	Round   time.Duration `json:"round_ns"` // mean
}

// ErrData is returned when what came back is not what was sent.
var ErrData = errors.New("data that came back differ from what was sent")

const infoBytes = 16

// Memory is how many bytes a connection takes.
const Memory = atBuf1 + 2*MaxSize

// Offsets in an end's memory. The two buffers of Size bytes follow.
const (
	atSend = 0
	atRecv = 64
	atBuf1 = 4096 // client: source; server: what it READs and WRITEs
)

// end is one end's QP and memory.
type end struct {
	cfg  *Config
	ctx  *verbs.Context
	pd   *verbs.PD
	cq   *verbs.CQ
	qp   *verbs.QP
	mem  *verbs.MR
	conn *cm.Conn
	wc   [8]verbs.WC
	got  int // receives not yet used
}

// newEnd makes the QP and posts the first receive.
func newEnd(dev *verbs.Context, cfg *Config) (_ *end, err error) {
	e := &end{cfg: cfg, ctx: dev}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	if e.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	access := verbs.LocalWrite | verbs.RemoteRead | verbs.RemoteWrite
	if e.mem, err = e.pd.AllocMR(Memory, access); err != nil {
		return nil, err
	}
	if e.cq, err = dev.CreateCQ(32); err != nil {
		return nil, err
	}
	e.qp, err = dev.CreateQP(e.pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq, SigAll: true,
		Shard: -1, Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 2}})
	if err != nil {
		return nil, err
	}
	if err = cm.Prepare(e.qp, access); err != nil {
		return nil, err
	}
	return e, e.postRecv()
}

func (e *end) close() {
	if e.qp != nil {
		_ = e.qp.Destroy()
	}
	if e.cq != nil {
		_ = e.cq.Destroy()
	}
	if e.mem != nil {
		_ = e.mem.Close()
	}
	if e.pd != nil {
		_ = e.pd.Dealloc()
	}
}

func (e *end) buf(i int) []byte { return e.mem.Bytes()[atBuf1+i*MaxSize:][:e.cfg.Size] }

func (e *end) bufSGE(i int) verbs.SGE { return e.mem.SGE(atBuf1+i*MaxSize, e.cfg.Size) }

func (e *end) postRecv() error {
	return e.qp.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{e.mem.SGE(atRecv, infoBytes)}})
}

// await polls until a completion of op has come. Receives that come early are kept.
func (e *end) await(ctx context.Context, op verbs.WCOpcode) error {
	for {
		if op == verbs.WCRecv && e.got > 0 {
			e.got--
			return nil
		}
		if err := e.cq.Wait(ctx); err != nil {
			return err
		}
		n, err := e.cq.Poll(e.wc[:])
		if err != nil {
			return err
		}
		seen := false
		for i := range e.wc[:n] {
			wc := &e.wc[i]
			switch {
			case wc.Status == verbs.WCWRFlushErr:
				return io.EOF // the peer has disconnected
			case wc.Status == verbs.WCRetryExcErr:
				return fmt.Errorf("the other end is gone or silent: %v: %v (%v)", wc.Opcode, wc.Status, wc.VendorErr)
			case wc.Status != verbs.WCSuccess:
				return fmt.Errorf("%v: %v (%v)", wc.Opcode, wc.Status, wc.VendorErr)
			case wc.Opcode == verbs.WCRecv:
				e.got++
			case wc.Opcode == op:
				seen = true
			}
		}
		if seen {
			return nil
		}
	}
}

// send tells the peer of n bytes at addr.
func (e *end) send(ctx context.Context, addr uint64, key verbs.Key, n int) error {
	b := e.mem.Bytes()[atSend:]
	binary.BigEndian.PutUint64(b, addr)
	binary.BigEndian.PutUint32(b[8:], uint32(key))
	binary.BigEndian.PutUint32(b[12:], uint32(n))
	err := e.qp.PostSend(&verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{e.mem.SGE(atSend, infoBytes)}})
	if err != nil {
		return e.gone(err)
	}
	return e.await(ctx, verbs.WCSend)
}

// gone turns an error of posting into the end of the connection, if that is why.
func (e *end) gone(err error) error {
	if e.conn.Err() != nil {
		return io.EOF
	}
	return err
}

// recv waits for the peer's message and posts the next receive.
func (e *end) recv(ctx context.Context) (addr uint64, key verbs.Key, n int, err error) {
	if err := e.await(ctx, verbs.WCRecv); err != nil {
		return 0, 0, 0, err
	}
	b := e.mem.Bytes()[atRecv:]
	addr, key = binary.BigEndian.Uint64(b), verbs.Key(binary.BigEndian.Uint32(b[8:]))
	n = int(binary.BigEndian.Uint32(b[12:]))
	if err := e.postRecv(); err != nil {
		return 0, 0, 0, e.gone(err)
	}
	return addr, key, n, nil
}

// text writes ping number i as rping does: a label, then letters that wander.
func text(b []byte, i, start int) {
	n := copy(b, fmt.Sprintf("rdma-ping-%d: ", i))
	for c := start; n < len(b); n++ {
		b[n] = byte(c)
		if c++; c > 'z' {
			c = 'A'
		}
	}
	b[len(b)-1] = 0
}

// Client connects to a server and runs rounds. It returns what it measured, also with an error.
func Client(ctx context.Context, dev *verbs.Context, m *cm.Manager, cfg Config) (Result, error) {
	cfg.fill()
	e, err := newEnd(dev, &cfg)
	if err != nil {
		return Result{}, err
	}
	defer e.close()
	dialing, cancel := ctx, context.CancelFunc(func() {})
	if cfg.Wait > 0 {
		dialing, cancel = context.WithTimeout(ctx, cfg.Wait)
	}
	e.conn, err = m.Dial(dialing, cfg.Addr, e.qp, &cm.Params{ResponderResources: 1, InitiatorDepth: 1})
	cancel()
	if err != nil {
		return Result{}, err
	}
	var r Result
	began := time.Now()
	start := 'A'
	for ; (cfg.Count == 0 || r.Rounds < cfg.Count) && ctx.Err() == nil; r.Rounds++ {
		if err = e.round(ctx, r.Rounds, int(start)); err != nil {
			break
		}
		if cfg.Validate {
			r.Bytes += int64(cfg.Size)
		}
		if start++; start > 'z' {
			start = 'A'
		}
	}
	r.Seconds = time.Since(began).Seconds()
	if r.Rounds > 0 {
		r.Round = time.Since(began) / time.Duration(r.Rounds)
	}
	if cfg.Count == 0 && errors.Is(err, context.Canceled) {
		err = nil
	}
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if e := e.conn.Disconnect(bye); err == nil {
		err = e
	}
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("the server ended the connection after %d rounds", r.Rounds)
	}
	return r, err
}

// round is one ping there and back.
func (e *end) round(ctx context.Context, i, start int) error {
	text(e.buf(0), i, start)
	clear(e.buf(1))
	for b := range 2 {
		if err := e.send(ctx, e.bufSGE(b).Addr, e.mem.RKey(), e.cfg.Size); err != nil {
			return err
		}
		if _, _, _, err := e.recv(ctx); err != nil { // go ahead
			return err
		}
	}
	if e.cfg.Validate && !bytes.Equal(e.buf(0), e.buf(1)) {
		return fmt.Errorf("round %d: %w", i, ErrData)
	}
	if e.cfg.Verbose {
		fmt.Fprintf(e.cfg.Out, "ping data: %s\n", bytes.TrimRight(e.buf(1), "\x00"))
	}
	return nil
}

// Server answers clients until ctx is done: one, or with Persistent any number at once.
func Server(ctx context.Context, dev *verbs.Context, m *cm.Manager, cfg Config) error {
	cfg.fill()
	lc := &cm.ListenConfig{}
	if a := cfg.Addr.Addr(); a.IsValid() && !a.IsUnspecified() {
		lc.Local = a
	}
	l, err := m.Listen(cfg.Addr.Port(), lc)
	if err != nil {
		return err
	}
	defer l.Close()
	if cfg.Listening != nil {
		cfg.Listening()
	}
	for {
		r, err := l.Accept(ctx)
		if err != nil {
			if cfg.Persistent && errors.Is(err, context.Canceled) {
				return nil
			}
			return err
		}
		if !cfg.Persistent {
			return Serve(ctx, dev, r, cfg)
		}
		go func() {
			if err := Serve(ctx, dev, r, cfg); err != nil {
				fmt.Fprintf(cfg.Out, "client %v: %v\n", r.RemoteAddr(), err)
			}
		}()
	}
}

// Serve is one connection of a server, until the client leaves or ctx ends.
func Serve(ctx context.Context, dev *verbs.Context, r *cm.Request, cfg Config) error {
	cfg.fill()
	e, err := newEnd(dev, &cfg)
	if err != nil {
		_ = r.Reject(nil)
		return err
	}
	defer e.close()
	if e.conn, err = r.Accept(ctx, e.qp, &cm.Params{ResponderResources: 1, InitiatorDepth: 1}); err != nil {
		return err
	}
	if cfg.Connected != nil {
		cfg.Connected()
	}
	for {
		err := e.answer(ctx)
		if errors.Is(err, io.EOF) {
			return nil // the client has disconnected
		}
		if err != nil {
			bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = e.conn.Disconnect(bye)
			return err
		}
	}
}

// answer is the server's half of a round.
func (e *end) answer(ctx context.Context) error {
	for i, op := range []verbs.WROpcode{verbs.WRRDMARead, verbs.WRRDMAWrite} {
		addr, key, n, err := e.recv(ctx)
		if err != nil {
			return err
		}
		if n < 1 || n > MaxSize {
			return fmt.Errorf("client advertises %d bytes; 1 to %d are possible", n, MaxSize)
		}
		done := verbs.WCRDMARead
		if op == verbs.WRRDMAWrite {
			done = verbs.WCRDMAWrite
		}
		wr := verbs.SendWR{Opcode: op, SGList: []verbs.SGE{e.mem.SGE(atBuf1, n)}, RemoteAddr: addr, RKey: key}
		if err := e.qp.PostSend(&wr); err != nil {
			return e.gone(err)
		}
		if err := e.await(ctx, done); err != nil {
			return err
		}
		if i == 0 && e.cfg.Verbose {
			fmt.Fprintf(e.cfg.Out, "server ping data: %s\n", bytes.TrimRight(e.mem.Bytes()[atBuf1:][:n], "\x00"))
		}
		if err := e.send(ctx, 0, 0, 0); err != nil { // go ahead
			return err
		}
	}
	return nil
}

func (c *Config) fill() {
	if c.Size == 0 {
		c.Size = DefaultSize
	}
	if c.Addr.Port() == 0 {
		c.Addr = netip.AddrPortFrom(c.Addr.Addr(), DefaultPort)
	}
	if c.Out == nil {
		c.Out = io.Discard
	}
}
