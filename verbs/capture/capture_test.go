package capture_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/capture"
	"github.com/roxie-rdma/roxie/verbs/verbstest"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// end is one end of a connection.
type end struct {
	dev *verbs.Context
	pd  *verbs.PD
	mr  *verbs.MR
	cq  *verbs.CQ
	qp  *verbs.QP
}

func newEnd(d *verbs.Context) (e end, info verbs.ConnInfo) {
	pd := must(d.AllocPD())
	e = end{dev: d, pd: pd, mr: must(pd.AllocMR(16000, verbs.LocalWrite)), cq: must(d.CreateCQ(64))}
	e.qp = must(d.CreateQP(pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq,
		Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8}}))
	return e, verbs.ConnInfo{QPN: e.qp.Num(), PSN: verbs.RandomPSN(), GID: must(d.GID(0))}
}

// connect makes a connection between the two devices of a network.
func connect(t *testing.T, faults sim.Faults, o verbs.ConnOptions) (n *verbstest.Network, a, b end) {
	n = must(verbstest.New(verbstest.Config{Seed: 3, Faults: faults}))
	t.Cleanup(func() { _ = n.Close() })
	a, ia := newEnd(n.Device(0))
	b, ib := newEnd(n.Device(1))
	must(0, a.qp.ConnectRC(ia.PSN, ib, o))
	must(0, b.qp.ConnectRC(ib.PSN, ia, o))
	return n, a, b
}

// take waits for a completion.
func (e *end) take() verbs.WC {
	var wc [1]verbs.WC
	for must(e.cq.Poll(wc[:])) == 0 {
		must(0, e.cq.Wait(context.Background()))
	}
	return wc[0]
}

// send sends size bytes as WR id, received as WR id+1000.
func send(t *testing.T, a, b end, id uint64, size int) {
	t.Helper()
	must(0, b.qp.PostRecv(&verbs.RecvWR{WRID: id + 1000, SGList: []verbs.SGE{b.mr.SGE(0, 16000)}}))
	must(0, a.qp.PostSend(&verbs.SendWR{WRID: id, Opcode: verbs.WRSend, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{a.mr.SGE(0, size)}}))
	if x, y := b.take(), a.take(); x.Status != verbs.WCSuccess || y.Status != verbs.WCSuccess {
		t.Fatalf("received %v, sent %v", x.Status, y.Status)
	}
}

// packet is one of a file.
type packet struct {
	comment string
	flags   uint32
	length  int
	iface   int
	wire    wire.Packet
	parsed  wire.Reason
}

// read reads a file to its end.
func read(t *testing.T, file []byte) (out []*packet, in *pcapgo.NgReader) {
	t.Helper()
	in, err := pcapgo.NewNgReader(bytes.NewReader(file), pcapgo.NgReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		data, info, o, err := in.ReadPacketDataWithOptions()
		if err == io.EOF {
			return out, in
		}
		if err != nil {
			t.Fatal(err)
		}
		p := &packet{comment: strings.Join(o.Comments, "|"), flags: o.Flags.ToUint32(), length: info.Length,
			iface: info.InterfaceIndex}
		p.parsed = wire.ParseNoICRC(wire.Frame{Head: data}, &p.wire)
		out = append(out, p)
	}
}

// text is a file that may be read while it is written.
type text struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *text) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

// TestAnnotations: one message of three packets, seen from both ends.
func TestAnnotations(t *testing.T) {
	_, a, b := connect(t, sim.Faults{}, verbs.ConnOptions{PathMTU: 1024})
	send(t, a, b, 1, 10) // before the capture: not in it
	var fa, fb text
	ca := must(capture.Start(&fa, capture.Config{}, a.dev))
	cb := must(capture.Start(&fb, capture.Config{}, b.dev))
	send(t, a, b, 42, 2500)
	sa, sb := must(ca.Stop()), must(cb.Stop())
	send(t, a, b, 2, 10) // after it: the endpoint goes on
	for _, x := range []struct {
		name  string
		file  []byte
		stats capture.Stats
		want  []string
		ack   string
	}{
		{"sender", fa.Bytes(), sa, []string{fmt.Sprintf("dir=out qp=%#x send_wr=42 icrc=ok", a.qp.Num())},
			fmt.Sprintf("dir=in qp=%#x send_wr=42 icrc=ok", a.qp.Num())},
		{"receiver", fb.Bytes(), sb, []string{fmt.Sprintf("dir=in qp=%#x recv_wr=1042 icrc=ok", b.qp.Num())},
			fmt.Sprintf("dir=out qp=%#x icrc=ok", b.qp.Num())},
	} {
		packets, in := read(t, x.file)
		sends, acks := 0, 0
		for _, p := range packets {
			want := x.want[0]
			if p.wire.Op == wire.RCAck {
				want = x.ack
				acks++
			} else {
				sends++
			}
			if p.comment != want || p.flags != 1 && p.flags != 2 ||
				strings.HasPrefix(want, "dir=in") != (p.flags == 1) {
				t.Errorf("%s: %v: flags %d, comment %q, want %q", x.name, p.wire.Op, p.flags, p.comment, want)
			}
		}
		if sends != 3 || acks == 0 || int(x.stats.Written) != len(packets) || x.stats.Lost != 0 {
			t.Errorf("%s: %d packets, %d acks, stats %+v", x.name, sends, acks, x.stats)
		}
		i, err := in.Interface(0)
		if err != nil || i.Name == "" || i.Statistics.PacketsReceived != x.stats.Seen {
			t.Errorf("%s: interface %+v, %v; want statistics of %d packets", x.name, i, err, x.stats.Seen)
		}
	}
}

// TestDrops: what a bad wire does is told, each packet's own fault at that packet.
func TestDrops(t *testing.T) {
	faults := sim.Faults{Drop: 0.03, Duplicate: 0.05, Reorder: 0.05, Corrupt: 0.05}
	_, a, b := connect(t, faults, verbs.ConnOptions{PathMTU: 256, Timeout: 8})
	var f text
	c := must(capture.Start(&f, capture.Config{}, a.dev, b.dev))
	for i := range 40 {
		send(t, a, b, uint64(i), 3000)
	}
	must(c.Stop())
	packets, in := read(t, f.Bytes())
	seen := map[string]int{}
	for i, p := range packets {
		switch {
		case strings.Contains(p.comment, "icrc=bad"):
			seen["bad"]++
		case strings.Contains(p.comment, rxe.ReasonPSNAhead.String()):
			seen["ahead"]++
		case strings.Contains(p.comment, " again") && p.flags == 1:
			seen["duplicate"]++
		case strings.Contains(p.comment, " again") && strings.Contains(p.comment, "send_wr="):
			seen["retransmission"]++
		}
		if strings.Contains(p.comment, "icrc=bad") != strings.Contains(p.comment, `drop="icrc"`) {
			t.Errorf("packet %d: %q", i, p.comment)
		}
	}
	for _, kind := range []string{"bad", "ahead", "duplicate", "retransmission"} {
		if seen[kind] == 0 {
			t.Errorf("no packet of %d is %q", len(packets), kind)
		}
	}
	if in.NInterfaces() != 2 {
		t.Errorf("%d interfaces, want 2", in.NInterfaces())
	}
}

// TestLimits: count, snapshot length, duration.
func TestLimits(t *testing.T) {
	_, a, b := connect(t, sim.Faults{}, verbs.ConnOptions{PathMTU: 1024})
	var f, g text
	c := must(capture.Start(&f, capture.Config{Count: 3, SnapLen: 64}, a.dev))
	d := must(capture.Start(&g, capture.Config{Duration: 20 * time.Millisecond}, a.dev))
	send(t, a, b, 1, 2500)
	<-c.Done()
	<-d.Done()
	packets, _ := read(t, f.Bytes())
	if len(packets) != 3 {
		t.Errorf("%d packets, want 3", len(packets))
	}
	for _, p := range packets {
		if p.length > 1000 && p.parsed == wire.ReasonOK {
			t.Errorf("packet of %d bytes is not cut", p.length)
		}
	}
	send(t, a, b, 2, 10)
	if s := must(c.Stop()); s.Written != 3 {
		t.Errorf("written %d after the end", s.Written)
	}
}

// TestRing: nothing is written until a QP fails, then what came before is, with the reason.
func TestRing(t *testing.T) {
	n, a, b := connect(t, sim.Faults{}, verbs.ConnOptions{PathMTU: 1024, Timeout: 8, RetryCnt: 2})
	var f, g text
	c := must(capture.Start(&f, capture.Config{Ring: time.Hour}, a.dev))
	d := must(capture.Start(&g, capture.Config{Ring: time.Hour}, b.dev))
	for i := range 5 {
		send(t, a, b, uint64(i), 100)
	}
	if len(f.Bytes()) != 0 {
		t.Error("written before a failure")
	}
	n.Partition(0, 1, true)
	must(0, a.qp.PostSend(&verbs.SendWR{WRID: 77, Opcode: verbs.WRSend, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{a.mr.SGE(0, 100)}}))
	if wc := a.take(); wc.Status != verbs.WCRetryExcErr {
		t.Fatalf("status %v", wc.Status)
	}
	<-c.Done()
	stats := must(c.Stop())
	packets, in := read(t, f.Bytes())
	tries := 0
	for _, p := range packets {
		if strings.Contains(p.comment, "send_wr=77") && p.wire.Op == wire.RCSendOnly {
			tries++
		}
	}
	why := fmt.Sprintf("QP %#x of %s failed: %v", a.qp.Num(), a.dev.Port().LinkName, rxe.ReasonTimeout)
	if stats.Trigger != why || in.SectionInfo().Comment != why || tries != 3 || len(packets) < 13 {
		t.Errorf("trigger %q, file %q, want %q; %d tries, want 3; %d packets", stats.Trigger,
			in.SectionInfo().Comment, why, tries, len(packets))
	}
	if must(d.Stop()); len(g.Bytes()) != 0 {
		t.Error("a ring that nothing triggered wrote")
	}
}

// TestRingForgets: a ring holds the newest packets, of so many bytes and so long.
func TestRingForgets(t *testing.T) {
	_, a, b := connect(t, sim.Faults{}, verbs.ConnOptions{PathMTU: 4096})
	var f, g text
	c := must(capture.Start(&f, capture.Config{Ring: time.Hour, RingSize: 1 << 20}, a.dev))
	d := must(capture.Start(&g, capture.Config{Ring: time.Millisecond}, a.dev))
	for i := range 200 {
		send(t, a, b, uint64(i), 16000)
	}
	time.Sleep(5 * time.Millisecond) // the second ring's packets become too old: whatever the load
	c.Trigger("test")
	d.Trigger("test")
	<-c.Done()
	<-d.Done()
	stats := must(c.Stop())
	packets, _ := read(t, f.Bytes())
	if len(packets) < 100 || len(f.Bytes()) > 1<<20+1<<18 || stats.Pushed == 0 ||
		!strings.Contains(packets[len(packets)-1].comment, "send_wr=199") {
		t.Errorf("%d packets, %d bytes, %+v, last %q", len(packets), len(f.Bytes()), stats,
			packets[len(packets)-1].comment)
	}
	if stats := must(d.Stop()); stats.Written > 0 {
		t.Errorf("the short ring wrote %d packets", stats.Written)
	}
}

// stuck is a writer that waits, as a full disk or a slow peer does.
type stuck struct{ gate chan struct{} }

func (s *stuck) Write(b []byte) (int, error) {
	<-s.gate
	return len(b), nil
}

// TestNeverBlocks: a writer that stands still costs packets of the file, not of the connection, and
// the loss is told.
func TestNeverBlocks(t *testing.T) {
	_, a, b := connect(t, sim.Faults{}, verbs.ConnOptions{PathMTU: 4096})
	w := &stuck{gate: make(chan struct{}, 1)}
	w.gate <- struct{}{} // the head of the file
	c := must(capture.Start(w, capture.Config{Buffer: 1 << 20}, a.dev))
	for i := range 200 {
		send(t, a, b, uint64(i), 16000)
	}
	close(w.gate)
	stats := must(c.Stop())
	if stats.Lost == 0 || stats.Written == 0 || stats.Seen != stats.Written+stats.Lost {
		t.Errorf("%+v: want some lost, and all accounted for", stats)
	}
}

// failing is a writer that breaks.
type failing struct{ left int }

func (f *failing) Write(b []byte) (int, error) {
	if f.left--; f.left < 0 {
		return 0, io.ErrShortWrite
	}
	return len(b), nil
}

// TestWriteError: the capture ends and says why, the endpoint goes on.
func TestWriteError(t *testing.T) {
	_, a, b := connect(t, sim.Faults{}, verbs.ConnOptions{})
	c := must(capture.Start(&failing{left: 1}, capture.Config{}, a.dev))
	send(t, a, b, 1, 100)
	<-c.Done()
	send(t, a, b, 2, 100)
	if _, err := c.Stop(); err == nil {
		t.Error("no error")
	}
	if _, err := capture.Start(&failing{}, capture.Config{}, a.dev); err == nil {
		t.Error("no error of the head")
	}
}

// TestTshark: tshark reads every packet and finds none malformed.
func TestTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed")
	}
	_, a, b := connect(t, sim.Faults{}, verbs.ConnOptions{PathMTU: 1024})
	name := filepath.Join(t.TempDir(), "x.pcapng")
	f := must(os.Create(name))
	c := must(capture.Start(f, capture.Config{}, a.dev))
	for i := range 4 {
		send(t, a, b, uint64(i), 2500)
	}
	stats := must(c.Stop())
	must(0, f.Close())
	out, err := exec.Command(tshark, "-r", name, "-T", "fields", "-e", "frame.comment", "-e",
		"infiniband.bth.opcode", "-e", "_ws.malformed").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	lines := 0
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) < 3 { // a word of tshark about root
			continue
		}
		lines++
		if !strings.HasPrefix(f[0], "dir=") || f[1] == "" || f[2] != "" {
			t.Errorf("%q", line)
		}
	}
	if lines != int(stats.Written) || lines < 12 {
		t.Errorf("tshark shows %d packets of %d", lines, stats.Written)
	}
}
