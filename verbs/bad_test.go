package verbs

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/bpf"
	"github.com/roxie-rdma/roxie/internal/lab"
	"github.com/roxie-rdma/roxie/internal/netdev"
	"github.com/roxie-rdma/roxie/internal/nettest"
	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/xdp"
)

// openErr opens an interface that cannot be opened and returns the one-line message.
func openErr(t *testing.T, n *nettest.Namespace, ifname string, cfg *Config) error {
	t.Helper()
	var err error
	n.Do(func() {
		var c *Context
		if c, err = Open(ifname, cfg); err == nil {
			_ = c.Close()
		}
	})
	if err == nil {
		t.Fatal("opened")
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("message of several lines: %v", err)
	}
	t.Log(err)
	return err
}

// TestOpenErrors: what stands in the way of opening an interface is told in one line, and nothing
// is left behind.
func TestOpenErrors(t *testing.T) {
	l := nettest.New(t, nettest.Config{MTU: 1500})
	before := openFiles(t)
	t.Run("wrong interface", func(t *testing.T) {
		if err := openErr(t, l.A, "nosuch0", nil); !errors.Is(err, netdev.ErrNoLink) ||
			!strings.Contains(err.Error(), l.A.Interface) {
			t.Errorf("error does not name the interfaces there are: %v", err)
		}
	})
	t.Run("configuration", func(t *testing.T) {
		for _, cfg := range []Config{{Queues: 65}, {Queues: -1}, {VLAN: 4095}, {Progress: 7},
			{Window: -1}, {RingSize: 100}, {Queues: 2, Pin: []int{0}}} {
			openErr(t, l.A, l.A.Interface, &cfg)
		}
	})
	t.Run("queues", func(t *testing.T) {
		openErr(t, l.A, l.A.Interface, &Config{Queues: 2})
	})
	t.Run("capability", func(t *testing.T) {
		var lacking *netdev.CapError
		withoutCaps(t, l.A, []int{unix.CAP_NET_RAW, unix.CAP_BPF, unix.CAP_SYS_ADMIN}, func() {
			_, err := Open(l.A.Interface, nil)
			if !errors.As(err, &lacking) {
				t.Errorf("error %v", err)
			}
			t.Log(err)
		})
	})
	t.Run("memlock", func(t *testing.T) {
		var old unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old); err != nil {
			t.Fatal(err)
		}
		low := unix.Rlimit{Cur: 1 << 16, Max: old.Max}
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &low); err != nil {
			t.Fatal(err)
		}
		defer unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old)
		withoutCaps(t, l.A, []int{unix.CAP_IPC_LOCK, unix.CAP_SYS_RESOURCE}, func() {
			c, err := Open(l.A.Interface, &Config{FillDepth: 1 << 16, Frames: 1 << 16})
			if err == nil {
				_ = c.Close()
				t.Skip("this system's hard limit allows 512 MiB")
			}
			var limit *netdev.MemlockError
			if !errors.As(err, &limit) {
				t.Errorf("error %v", err)
			}
			t.Log(err)
		})
	})
	t.Run("other program", func(t *testing.T) {
		var p *bpf.Program
		err := l.A.DoErr(func() (err error) {
			if p, err = bpf.Load(bpf.Config{}); err != nil {
				return err
			}
			return p.Attach(l.A.Ifindex, bpf.Auto)
		})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		var foreign *bpf.ForeignError
		err = openErr(t, l.A, l.A.Interface, nil)
		if !errors.As(err, &foreign) || foreign.PID != os.Getpid() {
			t.Errorf("error does not name the program's process: %v", err)
		}
	})
	t.Run("queue held", func(t *testing.T) {
		var s *xdp.Socket
		if err := l.A.DoErr(func() (err error) {
			s, err = xdp.Open(xdp.Config{Interface: l.A.Interface})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		var busy *xdp.BusyError
		err := openErr(t, l.A, l.A.Interface, nil)
		if !errors.As(err, &busy) || len(busy.Holders) != 1 || busy.Holders[0].PID != os.Getpid() {
			t.Errorf("error does not name the holder: %v", err)
		}
	})
	t.Run("down", func(t *testing.T) {
		setLink(t, l.A, false)
		defer setLink(t, l.A, true)
		if err := openErr(t, l.A, l.A.Interface, nil); !errors.Is(err, ErrDown) {
			t.Errorf("error %v", err)
		}
	})
	if after := openFiles(t); after > before {
		t.Errorf("%d files open after the failures, %d before", after, before)
	}
	l.A.Do(func() {
		if id, name, ok := bpf.Foreign(l.A.Ifindex); ok {
			t.Errorf("program %d %s was left on the interface", id, name)
		}
	})
}

// withoutCaps runs f in a namespace on a thread that lacks capabilities.
func withoutCaps(t *testing.T, n *nettest.Namespace, caps []int, f func()) {
	t.Helper()
	n.Do(func() {
		runtime.LockOSThread() // the thread keeps its rights low and ends
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err := unix.Capget(&hdr, &data[0]); err != nil {
			t.Fatal(err)
		}
		for _, c := range caps {
			data[c/32].Effective &^= 1 << (c % 32)
		}
		if err := unix.Capset(&hdr, &data[0]); err != nil {
			t.Fatal(err)
		}
		f()
	})
}

func openFiles(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestSmallMTU: the path MTU must fit the link; the default does.
func TestSmallMTU(t *testing.T) {
	l := nettest.New(t, nettest.Config{MTU: 1500})
	a := newEnd(t, openIn(t, l.A, Config{}), endConfig{})
	b := newEnd(t, openIn(t, l.B, Config{}), endConfig{})
	if p := a.c.Port(); p.MaxPMTU != 1024 || p.LinkMTU != 1500 {
		t.Errorf("port of link MTU 1500: %+v", p)
	}
	g := gid(t, b.c, false)
	err := a.qp.ConnectRC(a.psn, ConnInfo{QPN: b.qp.Num(), PSN: b.psn, GID: g.GID},
		ConnOptions{PathMTU: 4096, SGIDIndex: gid(t, a.c, false).Index})
	if !errors.Is(err, ErrAttrValue) || !strings.Contains(err.Error(), "4176") {
		t.Errorf("path MTU 4096 on a link of 1500: %v", err)
	}
	t.Log(err)
	a.must(a.qp.Modify(&QPAttr{State: StateReset}, AttrState))
	connect(t, a, b, ConnOptions{})
	testSend(t, a, b, 5000)
}

// TestPeerVanishes: after the configured retries the work request fails, what is behind it is
// flushed, and another connection does not notice.
func TestPeerVanishes(t *testing.T) {
	onModes(t, func(t *testing.T, w wireKind, cfg Config) {
		ca, cb := w.open(t, cfg, cfg)
		a, b := newEnd(t, ca, endConfig{}), newEnd(t, cb, endConfig{})
		connect(t, a, b, ConnOptions{Timeout: 10, RetryCnt: 2}) // 4 ms, thrice
		self1, self2 := newEnd(t, ca, endConfig{}), newEnd(t, ca, endConfig{})
		connect(t, self1, self2, ConnOptions{})
		testWrite(t, a, b, 100)
		if err := cb.Close(); err != nil {
			t.Fatal(err)
		}
		a.peer = nil
		start := time.Now()
		for i := range 3 {
			a.send(SendWR{WRID: uint64(i), Opcode: WRRDMAWrite, SGList: []SGE{a.mr.SGE(0, 8)},
				RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
		}
		got := a.wait(3)
		if took := time.Since(start); took < 3*4194304*time.Nanosecond {
			t.Errorf("gave up after %v", took)
		}
		for i, want := range []WCStatus{WCRetryExcErr, WCWRFlushErr, WCWRFlushErr} {
			if got[i].WRID != uint64(i) || got[i].Status != want {
				t.Errorf("completion %d: %+v, want %v", i, got[i], want)
			}
		}
		if s := a.qp.State(); s != StateErr {
			t.Errorf("QP in %v", s)
		}
		a.recv(9)
		if c := a.done(WCWRFlushErr); c.WRID != 9 {
			t.Errorf("receive posted in ERR: %+v", c)
		}
		testWrite(t, self1, self2, 1000)
	})
}

// TestPostErrors: what posting refuses at once.
func TestPostErrors(t *testing.T) {
	ca, cb := openMemory(t, Config{}, Config{})
	a, b := newEnd(t, ca, endConfig{}), newEnd(t, cb, endConfig{})
	one := []SGE{a.mr.SGE(0, 8)}
	if err := a.qp.PostSend(&SendWR{Opcode: WRSend, SGList: one}); err != ErrBadState {
		t.Errorf("SEND in RESET: %v", err)
	}
	if err := a.qp.PostRecv(&RecvWR{SGList: one}); err != ErrBadState {
		t.Errorf("receive in RESET: %v", err)
	}
	connect(t, a, b, ConnOptions{})
	foreign := &AH{}
	uc := newEnd(t, ca, endConfig{typ: UC})
	uc.must(uc.qp.ConnectRC(uc.psn, ConnInfo{QPN: 5, GID: gid(t, cb, false).GID},
		ConnOptions{SGIDIndex: gid(t, ca, false).Index}))
	for _, c := range []struct {
		name string
		qp   *QP
		wr   SendWR
		want error
	}{
		{"SGEs", a.qp, SendWR{Opcode: WRSend, SGList: []SGE{one[0], one[0], one[0]}}, ErrTooManySGE},
		{"inline", a.qp, SendWR{Opcode: WRSend, Flags: SendInline, Inline: make([]byte, 2000)},
			ErrInlineSize},
		{"opcode", a.qp, SendWR{Opcode: 77}, ErrBadOpcode},
		{"READ on UC", uc.qp, SendWR{Opcode: WRRDMARead, SGList: one}, ErrBadOpcode},
		{"atomic size", a.qp, SendWR{Opcode: WRAtomicFetchAdd, SGList: []SGE{a.mr.SGE(0, 4)}},
			ErrAlignment},
		{"atomic address", a.qp, SendWR{Opcode: WRAtomicFetchAdd, SGList: one, RemoteAddr: 4},
			ErrAlignment},
		{"length", a.qp, SendWR{Opcode: WRSend, SGList: []SGE{{Length: 1<<32 - 1}}}, ErrMsgSize},
		{"REG_MR of nothing", a.qp, SendWR{Opcode: WRRegMR}, ErrInvalid},
		{"BIND_MW of nothing", a.qp, SendWR{Opcode: WRBindMW}, ErrInvalid},
	} {
		if err := c.qp.PostSend(&c.wr); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	ud := newEnd(t, ca, endConfig{typ: UD})
	ud.startUD(1)
	for _, ah := range []*AH{nil, foreign} {
		if err := ud.qp.PostSend(&SendWR{Opcode: WRSend, AH: ah, SGList: one}); err != ErrForeign {
			t.Errorf("datagram without a handle: %v", err)
		}
	}
	for i := range 128 {
		a.recv(uint64(i))
	}
	if err := a.qp.PostRecv(&RecvWR{}); err != ErrQueueFull {
		t.Errorf("receive 129 of 128: %v", err)
	}
	n, err := a.qp.PostSendList([]SendWR{{Opcode: WRSend, SGList: one}, {Opcode: 99}, {}})
	if n != 1 || err != ErrBadOpcode {
		t.Errorf("list with a bad one: %d posted, %v", n, err)
	}
	n, err = b.qp.PostRecvList([]RecvWR{{}, {SGList: make([]SGE, 3)}})
	if n != 1 || err != ErrTooManySGE {
		t.Errorf("list of receives with a bad one: %d posted, %v", n, err)
	}
}

// TestCompletionErrors: what only the wire or the keys can tell ends in a completion with the
// status the rules name, and the QP in ERR.
func TestCompletionErrors(t *testing.T) {
	onWires(t, func(t *testing.T, w wireKind) {
		ca, cb := w.open(t, Config{}, Config{})
		for _, c := range []struct {
			name string
			wr   func(a, b *end) SendWR
			opt  ConnOptions
			recv bool
			want WCStatus
			why  Reason
		}{
			{"lkey", func(a, b *end) SendWR {
				return SendWR{Opcode: WRSend,
					SGList: []SGE{{Addr: a.mr.Addr(), Length: 8, LKey: a.mr.LKey() ^ 1}}}
			}, ConnOptions{}, false, WCLocProtErr, rxe.ReasonKeyVariant},
			{"local range", func(a, b *end) SendWR {
				return SendWR{Opcode: WRSend, SGList: []SGE{a.mr.SGE(a.mr.Len()-4, 8)}}
			}, ConnOptions{}, false, WCLocProtErr, rxe.ReasonKeyRange},
			{"rkey", func(a, b *end) SendWR {
				return SendWR{Opcode: WRRDMAWrite, SGList: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(),
					RKey: b.mr.RKey() ^ 1}
			}, ConnOptions{}, false, WCRemAccessErr, rxe.ReasonRemote},
			{"remote range", func(a, b *end) SendWR {
				return SendWR{Opcode: WRRDMARead, SGList: []SGE{a.mr.SGE(0, 8)},
					RemoteAddr: b.mr.Addr() + uint64(b.mr.Len()) - 4, RKey: b.mr.RKey()}
			}, ConnOptions{}, false, WCRemAccessErr, rxe.ReasonRemote},
			{"operation not enabled", func(a, b *end) SendWR {
				return SendWR{Opcode: WRRDMARead, SGList: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(),
					RKey: b.mr.RKey()}
			}, ConnOptions{Access: RemoteWrite}, false, WCRemInvReqErr, rxe.ReasonRemote},
			{"receive buffer too small", func(a, b *end) SendWR {
				return SendWR{Opcode: WRSend, SGList: []SGE{a.mr.SGE(0, 100)}}
			}, ConnOptions{}, true, WCRemInvReqErr, rxe.ReasonRemote},
			{"no receive", func(a, b *end) SendWR {
				return SendWR{Opcode: WRSend, SGList: []SGE{a.mr.SGE(0, 100)}}
			}, ConnOptions{RNRRetry: 1, MinRNRTimer: 1}, false, WCRNRRetryExcErr, rxe.ReasonRNRNAK},
		} {
			t.Run(c.name, func(t *testing.T) {
				a, b := newEnd(t, ca, endConfig{}), newEnd(t, cb, endConfig{})
				connect(t, a, b, c.opt)
				if c.recv {
					b.recv(1, b.mr.SGE(0, 50))
				}
				a.send(c.wr(a, b))
				if got := a.done(c.want); got.VendorErr != c.why {
					t.Errorf("vendor error %v, want %v", got.VendorErr, c.why)
				}
				until(t, func() bool { return a.qp.State() == StateErr })
			})
		}
	})
}

// TestControlErrors: what creating, connecting and destroying refuse.
func TestControlErrors(t *testing.T) {
	ca, cb := openMemory(t, Config{}, Config{})
	a, b := newEnd(t, ca, endConfig{}), newEnd(t, cb, endConfig{})
	is := func(err, want error, what string) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	_, err := ca.CreateQP(b.pd, &QPInitAttr{Type: RC, SendCQ: a.cq, RecvCQ: a.cq})
	is(err, ErrForeign, "QP with another device's PD")
	_, err = ca.CreateQP(a.pd, &QPInitAttr{Type: RC, SendCQ: a.cq, RecvCQ: b.cq})
	is(err, ErrForeign, "QP with another device's CQ")
	_, err = ca.CreateQP(a.pd, &QPInitAttr{Type: RC, SendCQ: a.cq})
	is(err, ErrInvalid, "QP without CQ")
	_, err = ca.CreateQP(a.pd, &QPInitAttr{Type: 9, SendCQ: a.cq, RecvCQ: a.cq})
	is(err, rxe.ErrQPType, "QP of an unknown type")
	_, err = ca.CreateQP(a.pd, &QPInitAttr{Type: RC, SendCQ: a.cq, RecvCQ: a.cq, Shard: 1})
	is(err, ErrInvalid, "QP on a shard that is not there")
	_, err = ca.CreateQP(a.pd, &QPInitAttr{Type: RC, SendCQ: a.cq, RecvCQ: a.cq,
		Cap: QPCap{MaxSendWR: -1}})
	is(err, ErrInvalid, "QP of negative depth")
	_, err = ca.CreateQP(a.pd, &QPInitAttr{Type: RC, SendCQ: a.cq, RecvCQ: a.cq,
		Cap: QPCap{MaxSendSGE: 33}})
	is(err, rxe.ErrQPCap, "QP of 33 SGEs")
	_, err = ca.CreateCQ(0)
	is(err, rxe.ErrCQSize, "CQ of depth 0")
	_, err = a.pd.RegMR(nil, LocalWrite)
	is(err, ErrInvalid, "region of nothing")
	_, err = a.pd.RegMR(make([]byte, 8), RemoteWrite)
	is(err, ErrInvalid, "remote write without local write")
	_, err = a.pd.RegMR(make([]byte, 8), 1<<30)
	is(err, mr.ErrAccess, "a right that does not exist")
	_, err = a.pd.AllocMR(0, 0)
	is(err, ErrInvalid, "memory of 0 bytes")
	_, err = ca.GID(17)
	is(err, ErrInvalid, "GID 17")

	var attr *AttrError
	if err = a.qp.Modify(&QPAttr{State: StateRTS}, AttrState); !errors.As(err, &attr) {
		t.Errorf("RESET to RTS: %v", err)
	}
	if err = a.qp.Modify(&QPAttr{State: StateInit}, AttrState); !errors.As(err, &attr) ||
		attr.Missing != AttrPKeyIndex|AttrPort|AttrAccessFlags {
		t.Errorf("INIT without attributes: %v", err)
	}
	g4, g6 := gid(t, ca, false).Index, gid(t, ca, true).Index
	peer := ConnInfo{QPN: b.qp.Num(), GID: gid(t, cb, false).GID}
	connectErr := func(peer ConnInfo, o ConnOptions) error {
		t.Helper()
		err := a.qp.ConnectRC(0, peer, o)
		if err == nil {
			t.Error("connected")
		}
		a.must(a.qp.Modify(&QPAttr{State: StateReset}, AttrState))
		return err
	}
	is(connectErr(peer, ConnOptions{SGIDIndex: 9}), ErrAttrValue, "no such own address")
	is(connectErr(peer, ConnOptions{SGIDIndex: g6}), ErrAttrValue, "IPv6 to IPv4")
	is(connectErr(peer, ConnOptions{SGIDIndex: g4, PathMTU: 1000}), ErrAttrValue, "path MTU 1000")
	nowhere := ConnInfo{GID: GID{10: 0xff, 11: 0xff, 12: 192, 13: 0, 14: 2, 15: 1}}
	is(connectErr(nowhere, ConnOptions{SGIDIndex: g4}), netdev.ErrNoRoute, "no route")
	silent := ConnInfo{GID: GID{10: 0xff, 11: 0xff, 12: 10, 13: 77, 14: 0, 15: 99}}
	is(connectErr(silent, ConnOptions{SGIDIndex: g4}), netdev.ErrNoNeighbour, "no such neighbour")

	is(a.cq.Destroy(), ErrBusy, "CQ in use")
	is(a.pd.Dealloc(), ErrBusy, "PD in use")
	a.must(a.qp.Destroy())
	a.must(a.qp.Destroy())
	a.must(a.cq.Destroy())
	a.must(a.mr.Dereg())
	a.must(a.mr.Close())
	a.must(a.pd.Dealloc())
	_, err = a.pd.RegMR(make([]byte, 8), 0)
	is(err, ErrForeign, "region in a PD that is gone")
	a.must(ca.Close())
	a.must(ca.Close())
	_, err = ca.AllocPD()
	is(err, ErrClosed, "PD on a closed device")
	is(b.mustClosed(), ErrClosed, "QP on a closed device")
}

// mustClosed closes the device and tries to make a QP on it.
func (e *end) mustClosed() error {
	e.must(e.c.Close())
	_, err := e.c.CreateQP(e.pd, &QPInitAttr{Type: RC, SendCQ: e.cq, RecvCQ: e.cq})
	e.must(e.qp.Destroy())
	return err
}

// TestNoNeighbour: on a real network, a peer that does not answer is an error, not a hang.
func TestNoNeighbour(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	a := newEnd(t, openIn(t, l.A, Config{}), endConfig{})
	start := time.Now()
	err := a.qp.ConnectRC(0, ConnInfo{GID: GID{10: 0xff, 11: 0xff, 12: 10, 13: 77, 14: 0, 15: 99}},
		ConnOptions{SGIDIndex: gid(t, a.c, false).Index})
	limit := netdev.ResolveTimeout + time.Second
	if !errors.Is(err, netdev.ErrNoNeighbour) || time.Since(start) > limit {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
	t.Log(err)
}

// TestOpenClose: opening and closing leaves no file, goroutine or program behind.
func TestOpenClose(t *testing.T) {
	l := nettest.New(t, nettest.Config{Queues: 2})
	once := func() {
		a := openIn2(t, l.A, Config{Queues: 2})
		b := openIn2(t, l.B, Config{Queues: 2, Progress: ProgressCaller})
		x, y := newEnd(t, a, endConfig{}), newEnd(t, b, endConfig{})
		connect(t, x, y, ConnOptions{})
		testWrite(t, x, y, 100)
		x.must(a.Close())
		y.must(b.Close())
	}
	once()
	files, routines := openFiles(t), runtime.NumGoroutine()
	rounds := 50
	if testing.Short() || raceEnabled {
		rounds = 5
	}
	for range rounds {
		once()
	}
	until(t, func() bool { return runtime.NumGoroutine() <= routines })
	if n := openFiles(t); n > files {
		t.Errorf("%d files open, %d before", n, files)
	}
}

// openIn2 is openIn for a device that the test closes.
func openIn2(t *testing.T, n *lab.Namespace, cfg Config) (c *Context) {
	t.Helper()
	if err := n.DoErr(func() (err error) {
		c, err = Open(n.Interface, &cfg)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return c
}
