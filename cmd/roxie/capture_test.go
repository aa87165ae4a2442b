package main

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/capture"
	"github.com/roxie-rdma/roxie/verbs/verbstest"
)

// captured is an endpoint in this process, as its control socket offers it: two devices in memory
// with a connection between them.
type captured struct {
	t      testing.TB
	socket string
	hub    *capture.Hub
	net    *verbstest.Network
	ends   [2]struct {
		mr *verbs.MR
		cq *verbs.CQ
		qp *verbs.QP
	}
}

func newCaptured(t testing.TB) *captured {
	t.Helper()
	e := &captured{t: t, socket: filepath.Join(t.TempDir(), "s"), hub: &capture.Hub{}}
	var err error
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	e.net, err = verbstest.New(verbstest.Config{Seed: 1})
	must(err)
	t.Cleanup(func() { _ = e.net.Close() })
	var info [2]verbs.ConnInfo
	for i := range e.ends {
		x, d := &e.ends[i], e.net.Device(i)
		pd, err := d.AllocPD()
		must(err)
		x.mr, err = pd.AllocMR(1000, verbs.LocalWrite)
		must(err)
		x.cq, err = d.CreateCQ(16)
		must(err)
		x.qp, err = d.CreateQP(pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: x.cq, RecvCQ: x.cq,
			Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}})
		must(err)
		gid, err := d.GID(0)
		must(err)
		info[i] = verbs.ConnInfo{QPN: x.qp.Num(), PSN: verbs.RandomPSN(), GID: gid}
	}
	for i := range e.ends {
		must(e.ends[i].qp.ConnectRC(info[i].PSN, info[1-i], verbs.ConnOptions{Timeout: 12, RetryCnt: 7}))
	}
	e.hub.Attach(e.net.Device(0))
	l, err := net.Listen("unix", e.socket)
	must(err)
	mux := http.NewServeMux()
	mux.Handle("/capture/", http.StripPrefix("/capture", e.hub))
	srv := &http.Server{Handler: mux}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	return e
}

// send sends one message, which arrives.
func (e *captured) send(id uint64) {
	e.t.Helper()
	if s := e.try(id); s != verbs.WCSuccess {
		e.t.Fatalf("send: %v", s)
	}
}

// try sends one message, and returns its status.
func (e *captured) try(id uint64) verbs.WCStatus {
	e.t.Helper()
	a, b := &e.ends[0], &e.ends[1]
	_ = b.qp.PostRecv(&verbs.RecvWR{WRID: id, SGList: []verbs.SGE{b.mr.SGE(0, 1000)}}) // full: there are some
	if err := a.qp.PostSend(&verbs.SendWR{WRID: id, Opcode: verbs.WRSend, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{a.mr.SGE(0, 700)}}); err != nil {
		e.t.Fatal(err)
	}
	var wc [1]verbs.WC
	for {
		if n, err := a.cq.Poll(wc[:]); err != nil {
			e.t.Fatal(err)
		} else if n > 0 {
			break
		}
		if err := a.cq.Wait(e.t.Context()); err != nil {
			e.t.Fatal(err)
		}
	}
	_, _ = b.cq.Poll(make([]verbs.WC, 4)) // the receives' completions
	return wc[0].Status
}

// captureRun is `roxie capture` that runs.
type captureRun struct {
	stop     context.CancelFunc
	code     chan int
	mu       sync.Mutex
	out, err bytes.Buffer
}

func (r *captureRun) said() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err.String()
}

// capture starts the command and waits until it captures, if it gets that far.
func (e *captured) capture(args ...string) *captureRun {
	e.t.Helper()
	ctx, stop := context.WithCancel(e.t.Context())
	r := &captureRun{stop: stop, code: make(chan int, 1)}
	locked := func(b *bytes.Buffer) writer {
		return func(p []byte) (int, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return b.Write(p)
		}
	}
	go func() {
		r.code <- run(ctx, append([]string{"capture", "--control", e.socket}, args...), locked(&r.out), locked(&r.err))
	}()
	for !strings.Contains(r.said(), "capturing") {
		select {
		case c := <-r.code:
			r.code <- c
			return r
		case <-time.After(time.Millisecond):
		}
	}
	return r
}

// TestCaptureCommand: from Ctrl-C to what decode makes of the file.
func TestCaptureCommand(t *testing.T) {
	e := newCaptured(t)
	file := filepath.Join(t.TempDir(), "x.pcapng")
	r := e.capture("-o", file, "opcode", "send")
	for i := range 5 {
		e.send(uint64(i))
	}
	r.stop()
	if code := <-r.code; code != 0 || !strings.Contains(r.said(), "5 packets written to "+file+", ") {
		t.Fatalf("exit %d: %s", code, r.said())
	}
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"decode", file}, &out, &errs); code != 0 {
		t.Fatalf("decode: %s", &errs)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 5 || !strings.Contains(lines[3], "opcode=SEND_ONLY") || !strings.Contains(lines[3],
		" note=\"dir=out qp=0x") || !strings.Contains(lines[3], " send_wr=3 icrc=ok\"") {
		t.Errorf("%s", &out)
	}
}

// TestCaptureLimits: --count to standard output, with a snapshot length.
func TestCaptureLimits(t *testing.T) {
	e := newCaptured(t)
	r := e.capture("-o", "-", "-c", "3", "-s", "64", "-d", e.net.Device(0).Port().LinkName)
	for len(r.code) == 0 {
		e.send(1)
	}
	<-r.code // r.out is whole, and nobody's but ours
	var out bytes.Buffer
	if err := decodeCapture(&out, &r.out); err == nil || !strings.Contains(out.String(), "refused=cut_by_capture") {
		t.Errorf("%v: %s", err, &out)
	}
	if n := strings.Count(out.String(), "\n"); n != 3 {
		t.Errorf("%d packets, want 3: %s", n, &out)
	}
}

// TestCaptureRing: a ring writes nothing at Ctrl-C, and all when a QP fails or when told to.
func TestCaptureRing(t *testing.T) {
	e := newCaptured(t)
	dir := t.TempDir()
	quiet, told, failed := filepath.Join(dir, "quiet"), filepath.Join(dir, "told"), filepath.Join(dir, "failed")
	r := e.capture("-o", quiet, "--ring", "1m")
	e.send(1)
	r.stop()
	if code := <-r.code; code != 0 || !strings.Contains(r.said(), "no QP failed, nothing was written") {
		t.Errorf("exit %d: %s", code, r.said())
	}
	if _, err := os.Stat(quiet); err == nil {
		t.Error("a file was written")
	}

	r = e.capture("-o", told, "--ring", "1m")
	e.send(2)
	var out bytes.Buffer
	if code := run(t.Context(), []string{"capture", "--control", e.socket, "--trigger"}, &out, &out); code != 0 {
		t.Errorf("trigger: exit %d: %s", code, &out)
	}
	if code := <-r.code; code != 0 || !strings.Contains(r.said(), "triggered: told to") {
		t.Errorf("exit %d: %s", code, r.said())
	}

	r = e.capture("-o", failed, "--ring", "1m")
	e.send(3)
	e.net.Partition(0, 1, true)
	if s := e.try(4); s != verbs.WCRetryExcErr {
		t.Fatalf("status %v", s)
	}
	if code := <-r.code; code != 0 || !strings.Contains(r.said(), "failed: no answer within the ACK timeout") {
		t.Errorf("exit %d: %s", code, r.said())
	}
	for _, name := range []string{told, failed} {
		if b, err := os.ReadFile(name); err != nil || len(b) < 1000 {
			t.Errorf("%d bytes, %v", len(b), err)
		}
	}
}

// TestCaptureMistakes: each says what would be right.
func TestCaptureMistakes(t *testing.T) {
	e := newCaptured(t)
	for _, x := range []struct {
		args string
		code int
		want string
	}{
		{"", 2, "needs -o FILE"},
		{"-o x qp", 2, "the number of `qp` is missing"},
		{"-o x -s 10", 2, "want 64 to 65536 bytes"},
		{"-o x --ring 1s -c 3", 2, "give one of them"},
		{"-o x --ring-size lots", 2, "--ring-size"},
		{"-o x -d eth9", 1, "interface eth9 is not open; open are"},
		{"-o x --control /nonexistent", 1, "start `roxie serve` with --control"},
		{"-o /nonexistent/x", 1, "there is no directory /nonexistent"},
		{"--trigger", 1, "no capture with --ring runs"},
	} {
		r := e.capture(strings.Fields(x.args)...)
		if x.code == 1 {
			r.stop()
		}
		if code := <-r.code; code != x.code || !strings.Contains(r.said(), x.want) {
			t.Errorf("%q: exit %d: %s", x.args, code, r.said())
		}
	}
}

// TestCaptureEndpointEnds: a capture ends with its endpoint, in order.
func TestCaptureEndpointEnds(t *testing.T) {
	e := newCaptured(t)
	file := filepath.Join(t.TempDir(), "x.pcapng")
	r := e.capture("-o", file)
	e.send(1)
	e.hub.Close()
	if code := <-r.code; code != 0 || !strings.Contains(r.said(), "packets written to") {
		t.Errorf("exit %d: %s", code, r.said())
	}
	if r = e.capture("-o", file); <-r.code != 1 || !strings.Contains(r.said(), "about to end") {
		t.Errorf("%s", r.said())
	}
}
