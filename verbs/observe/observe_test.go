package observe_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	dto "github.com/prometheus/client_model/go"

	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/observe"
	"github.com/roxie-rdma/roxie/verbs/verbstest"
)

func must[T any](tb testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return v
	}
}

const messageBytes = 8000

// load is a pair of devices, of which the first WRITEs to the second.
type load struct {
	net      *verbstest.Network
	from, to *verbs.Context
	qp, peer *verbs.QP
	cq       *verbs.CQ
	src, dst *verbs.MR
}

func newLoad(tb testing.TB, o verbs.ConnOptions) *load {
	l := &load{net: must[*verbstest.Network](tb)(verbstest.New(verbstest.Config{Seed: 1}))}
	tb.Cleanup(func() { _ = l.net.Close() })
	l.from, l.to = l.net.Device(0), l.net.Device(1)
	end := func(d *verbs.Context) (*verbs.MR, *verbs.CQ, *verbs.QP, verbs.ConnInfo) {
		pd := must[*verbs.PD](tb)(d.AllocPD())
		m := must[*verbs.MR](tb)(pd.AllocMR(messageBytes, verbs.LocalWrite|verbs.RemoteWrite))
		cq := must[*verbs.CQ](tb)(d.CreateCQ(64))
		qp := must[*verbs.QP](tb)(d.CreateQP(pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq,
			Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8}}))
		return m, cq, qp, verbs.ConnInfo{QPN: qp.Num(), PSN: verbs.RandomPSN(), GID: must[verbs.GID](tb)(d.GID(0))}
	}
	var a, b verbs.ConnInfo
	l.src, l.cq, l.qp, a = end(l.from)
	l.dst, _, l.peer, b = end(l.to)
	for _, err := range []error{l.qp.ConnectRC(a.PSN, b, o), l.peer.ConnectRC(b.PSN, a, o)} {
		if err != nil {
			tb.Fatal(err)
		}
	}
	return l
}

// write posts one WRITE and returns how it completed.
func (l *load) write() (verbs.WC, error) {
	err := l.qp.PostSend(&verbs.SendWR{WRID: 0x77, Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{l.src.SGE(0, messageBytes)}, RemoteAddr: l.dst.Addr(), RKey: l.dst.RKey()})
	var wc [1]verbs.WC
	for n := 0; n == 0 && err == nil; {
		if n, err = l.cq.Poll(wc[:]); n == 0 && err == nil {
			err = l.cq.Wait(context.Background())
		}
	}
	return wc[0], err
}

// writes runs some WRITEs that must succeed.
func (l *load) writes(tb testing.TB, n int) {
	tb.Helper()
	for range n {
		if wc := must[verbs.WC](tb)(l.write()); wc.Status != verbs.WCSuccess {
			tb.Fatalf("WRITE: %v, %v", wc.Status, wc.VendorErr)
		}
	}
}

func serve(tb testing.TB, devices ...*verbs.Context) (*observe.Server, *observe.Client) {
	s := must[*observe.Server](tb)(observe.Serve(filepath.Join(tb.TempDir(), "s"), devices...))
	tb.Cleanup(func() { _ = s.Close() })
	return s, observe.NewClient(s.Path())
}

func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	stale := must[net.Listener](t)(net.Listen("unix", path))
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = stale.Close()
	s, err := observe.Listen(path)
	if err != nil {
		t.Fatalf("over a dead process's socket: %v", err)
	}
	defer s.Close()
	if m := must[fs.FileInfo](t)(os.Stat(path)).Mode(); m != fs.ModeSocket|0o600 {
		t.Errorf("mode %v, want 0600", m)
	}
	if _, err := observe.Listen(path); !errors.Is(err, observe.ErrInUse) {
		t.Errorf("second server: %v, want ErrInUse", err)
	}
	entered := make(chan struct{})
	s.Handle("/wait", http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		close(entered)
		<-q.Context().Done()
	}))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if a, err := observe.Dial(path).Get(observe.Base + "/wait"); err == nil {
			_ = a.Body.Close()
		}
	}()
	<-entered
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	<-ended
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket stays: %v", err)
	}
	if left := must[[]os.DirEntry](t)(os.ReadDir(filepath.Dir(path))); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestSocketErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		file: "no socket", filepath.Join(dir, "none", "none", "s"): "make its directory"} {
		if _, err := observe.Listen(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("listen at %s: %v, want %q", path, err, want)
		}
	}
	if b := must[[]byte](t)(os.ReadFile(file)); string(b) != "keep" {
		t.Errorf("the file is %q", b)
	}
	_, err := observe.NewClient(filepath.Join(dir, "none")).State(context.Background())
	if err == nil || !strings.Contains(err.Error(), "--control") {
		t.Errorf("client: %v, want what to do", err)
	}
}

// scrape reads the metrics as Prometheus does.
func scrape(t *testing.T, c *observe.Client) map[string]*dto.MetricFamily {
	t.Helper()
	text := must[[]byte](t)(c.Metrics(context.Background()))
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Fatalf("promlint: %v, %v\n%s", err, problems, text)
	}
	p := expfmt.NewTextParser(model.UTF8Validation)
	return must[map[string]*dto.MetricFamily](t)(p.TextToMetricFamilies(bytes.NewReader(text)))
}

// value finds the value of a metric with labels, given as name and value by turns.
func value(t *testing.T, all map[string]*dto.MetricFamily, name string, labels ...string) float64 {
	t.Helper()
	if all[name] == nil {
		t.Fatalf("no metric %s", name)
	}
	for _, m := range all[name].Metric {
		fits := 0
		for i := 0; i < len(labels); i += 2 {
			if slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool {
				return l.GetName() == labels[i] && l.GetValue() == labels[i+1]
			}) {
				fits++
			}
		}
		if 2*fits == len(labels) {
			return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	t.Fatalf("no %s with %v", name, labels)
	return 0
}

func TestMetrics(t *testing.T) {
	l := newLoad(t, verbs.ConnOptions{})
	_, c := serve(t, l.from, l.to)
	l.writes(t, 10)
	first := scrape(t, c)
	l.writes(t, 30)
	second := scrape(t, c)
	dev, qpn := l.from.Port().LinkName, hex(l.qp.Num())
	for _, x := range []struct {
		name   string
		labels []string
		least  float64
	}{
		{"roxie_shard_sent_pkts_total", []string{"device", dev, "shard", "0"}, 30},
		{"roxie_shard_rdma_sends_total", []string{"device", dev}, 30},
		{"roxie_qp_payload_bytes_total", []string{"device", dev, "qpn", qpn, "direction", "sent"}, 30 * messageBytes},
		{"roxie_qp_completions_total", []string{"qpn", qpn}, 30},
		{"roxie_completion_latency_seconds", []string{"device", dev, "op", "write"}, 30},
	} {
		d := value(t, second, x.name, x.labels...) - value(t, first, x.name, x.labels...)
		if d < x.least || d > 100*x.least {
			t.Errorf("%s%v rose by %v for 30 WRITEs, want %v", x.name, x.labels, d, x.least)
		}
	}
	if v := value(t, second, "roxie_qp_state", "qpn", qpn, "state", "RTS"); v != 1 {
		t.Errorf("state is %v", v)
	}
	if v := value(t, second, "roxie_region_bytes", "device", dev); v != messageBytes {
		t.Errorf("region of %v bytes", v)
	}
	if v := value(t, second, "roxie_shard_drops_total", "device", dev, "reason", "no such QP"); v != 0 {
		t.Errorf("%v drops", v)
	}
	_ = l.to.Close()
	for _, m := range scrape(t, c)["roxie_device_info"].Metric {
		if m.Label[0].GetValue() != dev {
			t.Errorf("a closed device is still seen: %v", m)
		}
	}
}

func hex(n verbs.QPN) string { return fmt.Sprintf("%#x", uint32(n)) }

// What is read while the shards run, and while QPs come and go, is free of races and whole.
func TestWhileRunning(t *testing.T) {
	l := newLoad(t, verbs.ConnOptions{})
	_, c := serve(t, l.from, l.to)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	loop := func(f func() error) {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := f(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	loop(func() error {
		wc, err := l.write()
		if err == nil && wc.Status != verbs.WCSuccess {
			err = errors.New(wc.Status.String())
		}
		return err
	})
	loop(func() error {
		pd := must[*verbs.PD](t)(l.from.AllocPD())
		m, err := pd.AllocMR(4096, verbs.LocalWrite)
		if err != nil {
			return err
		}
		q, err := l.from.CreateQP(pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: l.cq, RecvCQ: l.cq})
		if err != nil {
			return err
		}
		return errors.Join(q.Destroy(), m.Close(), pd.Dealloc())
	})
	for range 8 {
		s := must[observe.Snapshot](t)(c.State(context.Background()))
		i := slices.IndexFunc(s.Devices[0].QPs, func(q observe.QP) bool { return q.QPN == uint32(l.qp.Num()) })
		if i < 0 {
			t.Fatal("the QP is missing")
		}
		if q := s.Devices[0].QPs[i]; q.InFlight > q.Window || q.SendQueue > 8 || q.PeerQPN != uint32(l.peer.Num()) {
			t.Errorf("a QP that cannot be: %+v", q)
		}
		scrape(t, c)
	}
	close(stop)
	wg.Wait()
}

func TestDump(t *testing.T) {
	l := newLoad(t, verbs.ConnOptions{})
	_, c := serve(t, l.from, l.to)
	l.writes(t, 3)
	get := func(asJSON bool) []byte {
		return must[[]byte](t)(c.Dump(context.Background(), uint32(l.qp.Num()), "", asJSON))
	}
	text := string(get(false))
	for _, want := range []string{"state       RTS", "last_error  none", "posted 3, taken 3, sending 3, acknowledged 3, " +
		"retired 3", "sent_bytes   24000", "retries_left  7 of 7", "una 0x"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing", want)
		}
	}
	l = newLoad(t, verbs.ConnOptions{Timeout: 8, RetryCnt: 1}) // 1 ms
	_, c = serve(t, l.from, l.to)
	// The peer goes: the WRITE fails, and the dump says of what.
	l.net.Partition(0, 1, true)
	if wc := must[verbs.WC](t)(l.write()); wc.Status != verbs.WCRetryExcErr {
		t.Fatalf("WRITE to nobody: %v", wc.Status)
	}
	var d map[string]map[string]string
	if err := json.Unmarshal(get(true), &d); err != nil {
		t.Fatal(err)
	}
	if q := d["qp"]; q["state"] != "ERR" || !strings.Contains(q["last_error"], verbs.WCRetryExcErr.String()) ||
		q["failed_wr"] != "id 0x77, RDMA_WRITE" {
		t.Errorf("after the failure: %v", q)
	}
	s := must[observe.Snapshot](t)(c.State(context.Background()))
	if q := s.Devices[0].QPs[0]; q.State != "ERR" || q.LastError == "" || q.FailedAt == nil ||
		time.Since(*q.FailedAt) > time.Minute || q.Timeouts == 0 {
		t.Errorf("state after the failure: %+v", q)
	}
	if t.Failed() {
		t.Log(text)
	}
	for qpn, want := range map[uint32]string{0xabcdef: "roxie top", 1 << 30: "24 bits"} {
		if _, err := c.Dump(context.Background(), qpn, "", false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("dump of %#x: %v, want %q", qpn, err, want)
		}
	}
}

// A refused request is the responder's last error.
func TestRefusal(t *testing.T) {
	l := newLoad(t, verbs.ConnOptions{})
	if err := l.dst.Dereg(); err != nil {
		t.Fatal(err)
	}
	if wc := must[verbs.WC](t)(l.write()); wc.Status != verbs.WCRemAccessErr {
		t.Fatalf("WRITE: %v", wc.Status)
	}
	if e := l.peer.Inspect().LastErr; e.Reason == 0 || e.Status != verbs.WCSuccess {
		t.Errorf("responder: %+v", e)
	}
	if e := l.qp.Inspect().LastErr; e.Status != verbs.WCRemAccessErr || e.WRID != 0x77 {
		t.Errorf("requester: %+v", e)
	}
}

func TestCollectorIsConsistent(t *testing.T) {
	l := newLoad(t, verbs.ConnOptions{})
	l.writes(t, 3)
	r := prometheus.NewPedanticRegistry() // compares what is collected with what was described
	r.MustRegister(observe.NewCollector(func() []*verbs.Context { return []*verbs.Context{l.from, l.to} }))
	if _, err := r.Gather(); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkState(b *testing.B) {
	l := newLoad(b, verbs.ConnOptions{})
	l.writes(b, 3)
	pd := must[*verbs.PD](b)(l.from.AllocPD())
	for range 255 {
		must[*verbs.QP](b)(l.from.CreateQP(pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: l.cq, RecvCQ: l.cq}))
	}
	b.Run("inspect-256-qps", func(b *testing.B) {
		for b.Loop() {
			l.from.InspectQPs()
		}
	})
	b.Run("scrape-256-qps", func(b *testing.B) {
		r := prometheus.NewRegistry()
		r.MustRegister(observe.NewCollector(func() []*verbs.Context { return []*verbs.Context{l.from} }))
		for b.Loop() {
			if _, err := r.Gather(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
