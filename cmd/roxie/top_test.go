package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/observe"
	"github.com/roxie-rdma/roxie/verbs/verbstest"
)

// busy is a control socket of two devices, the first of which WRITEs on one QP of three.
type busy struct {
	path string
	qpn  verbs.QPN
	done int // WRITEs; read it after stop
	stop func()
}

func newBusy(t *testing.T) *busy {
	t.Helper()
	n, err := verbstest.New(verbstest.Config{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	b := &busy{path: filepath.Join(t.TempDir(), "s")}
	var qps [2]*verbs.QP
	var mem [2]*verbs.MR
	var info [2]verbs.ConnInfo
	var cqs [2]*verbs.CQ
	for i := range 2 {
		d := n.Device(i)
		pd, err := d.AllocPD()
		if err == nil {
			mem[i], err = pd.AllocMR(4<<10, verbs.LocalWrite|verbs.RemoteWrite)
		}
		if err == nil {
			cqs[i], err = d.CreateCQ(16)
		}
		for range 3 {
			if err == nil {
				qps[i], err = d.CreateQP(pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: cqs[i], RecvCQ: cqs[i],
					Cap: verbs.QPCap{MaxSendWR: 4}})
			}
		}
		if err == nil {
			info[i].GID, err = d.GID(0)
		}
		if err != nil {
			t.Fatal(err)
		}
		info[i].QPN, info[i].PSN = qps[i].Num(), verbs.RandomPSN()
	}
	for i := range 2 {
		if err := qps[i].ConnectRC(info[i].PSN, info[1-i], verbs.ConnOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s, err := observe.Serve(b.path, n.Device(0), n.Device(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	b.qpn = qps[0].Num()
	ctx, cancel := context.WithCancel(context.Background())
	var load sync.WaitGroup
	load.Go(func() {
		for wc := [1]verbs.WC{}; ctx.Err() == nil; b.done++ {
			err := qps[0].PostSend(&verbs.SendWR{Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled,
				SGList: []verbs.SGE{mem[0].SGE(0, 4<<10)}, RemoteAddr: mem[1].Addr(), RKey: mem[1].RKey()})
			for k := 0; k == 0 && err == nil; {
				if k, err = cqs[0].Poll(wc[:]); k == 0 && err == nil {
					err = cqs[0].Wait(context.Background())
				}
			}
			if err != nil || wc[0].Status != verbs.WCSuccess {
				t.Errorf("WRITE: %v %v", err, wc[0].Status)
				return
			}
		}
	})
	b.stop = sync.OnceFunc(func() {
		cancel()
		load.Wait()
	})
	t.Cleanup(b.stop)
	return b
}

// command runs a command line that must succeed.
func command(t *testing.T, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	if code := run(context.Background(), args, &out, &errs); code != 0 {
		t.Fatalf("roxie %s: exit %d: %s", strings.Join(args, " "), code, errs.String())
	}
	return out.String()
}

func TestTopJSON(t *testing.T) {
	b := newBusy(t)
	text := command(t, "top", "--json", "-i", "300ms", "--control", b.path)
	var table topTable
	if err := json.Unmarshal([]byte(text), &table); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	if len(table.Devices) != 2 || table.Interval < 0.3 {
		t.Fatalf("%d devices over %v s", len(table.Devices), table.Interval)
	}
	d := &table.Devices[0]
	if len(d.QPs) != 3 || len(d.Regions) != 1 || d.Regions[0].Length != 4<<10 {
		t.Fatalf("device: %+v", d)
	}
	q := &d.QPs[0] // by rate
	if q.QPN != uint32(b.qpn) || q.State != "RTS" || q.Sent.Pkts <= 0 || q.Sent.Bits < 8*4096*q.Sent.Pkts*0.99 ||
		d.QPs[1].Sent.Pkts != 0 || d.Sent.Pkts < q.Sent.Pkts*0.5 || d.Latency["write"].Count == 0 {
		t.Errorf("busy QP: %+v\nidle: %+v\ndevice: %+v %+v", q, d.QPs[1], d.Sent, d.Latency)
	}
}

func TestTopSorts(t *testing.T) {
	b := newBusy(t)
	for name := range topSorts {
		var table [2]topTable
		for i, flag := range []string{"--reverse=false", "--reverse"} {
			text := command(t, "top", "--json", "-i", "20ms", "--sort", name, flag, "--control", b.path)
			if err := json.Unmarshal([]byte(text), &table[i]); err != nil {
				t.Fatal(err)
			}
			order := func(x, y topQP) int { return (1 - 2*i) * topSorts[name](&x, &y) }
			if !slices.IsSortedFunc(table[i].Devices[0].QPs, order) {
				t.Errorf("--sort %s %s: %+v", name, flag, table[i].Devices[0].QPs)
			}
		}
	}
}

func TestTopText(t *testing.T) {
	b := newBusy(t)
	text := command(t, "top", "-n", "2", "-i", "50ms", "--rows", "2", "--control", b.path)
	for _, want := range []string{"QPN ", "LAST ERROR", fmt.Sprintf("%#x", uint32(b.qpn)), "…", "1 more", "4KiB", "RTS"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
	if n := strings.Count(text, "QPN "); n != 4 {
		t.Errorf("%d tables of two devices, want 2", n/2)
	}
}

func TestStatAndDump(t *testing.T) {
	b := newBusy(t)
	command(t, "top", "-n", "1", "-i", "100ms", "--control", b.path)
	b.stop()
	text := command(t, "stat", "--control", b.path)
	if !strings.Contains(text, fmt.Sprintf("rdma_sends  %d\n", b.done)) &&
		!strings.Contains(strings.Join(strings.Fields(text), " "), fmt.Sprintf("rdma_sends %d ", b.done)) {
		t.Errorf("%d WRITEs are not in:\n%s", b.done, text)
	}
	var s observe.Snapshot
	if err := json.Unmarshal([]byte(command(t, "stat", "--json", "--control", b.path)), &s); err != nil ||
		s.Devices[0].Counters["rdma_sends"] != uint64(b.done) {
		t.Errorf("stat --json: %v, %+v", err, s)
	}
	if text := command(t, "stat", "--metrics", "--control", b.path); !strings.Contains(text, "# TYPE roxie_qp_state gauge") {
		t.Errorf("stat --metrics: %s", text)
	}
	for _, n := range []string{fmt.Sprint(uint32(b.qpn)), fmt.Sprintf("%#x", uint32(b.qpn))} {
		text := command(t, "dump", n, "--control", b.path)
		if !strings.Contains(text, fmt.Sprintf("posted %d, taken %[1]d, sending %[1]d, acknowledged %[1]d", b.done)) {
			t.Errorf("dump of a QP with %d WRITEs:\n%s", b.done, text)
		}
	}
}

func TestTopUsage(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for _, x := range []struct {
		args string
		code int
		want string
	}{
		{"top --sort size", 2, "inflight"}, {"top -i 1ms", 2, "10ms"}, {"top -n -1", 2, "0 or more"},
		{"dump", 2, "arg"}, {"dump 0x1000000", 2, "24 bits"}, {"dump x", 2, "24 bits"}, {"dump 17x", 2, "24 bits"},
		{"stat --json --metrics", 2, "json"}, {"top", 1, "roxie serve"}, {"stat", 1, "roxie serve"},
		{"dump 17", 1, "roxie serve"},
	} {
		var out, errs bytes.Buffer
		args := append(strings.Fields(x.args), "--control", none)
		if code := run(context.Background(), args, &out, &errs); code != x.code || !strings.Contains(errs.String(), x.want) {
			t.Errorf("%s: exit %d, %q; want %d, %q", x.args, code, errs.String(), x.code, x.want)
		}
	}
}
