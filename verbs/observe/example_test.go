package observe_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/observe"
	"github.com/roxie-rdma/roxie/verbs/verbstest"
)

// exampleDevice is a device with a region and a QP. A real one comes from verbs.Open.
func exampleDevice() (*verbs.Context, func()) {
	n := orPanic(verbstest.New(verbstest.Config{}))
	d := n.Device(0)
	pd, cq := orPanic(d.AllocPD()), orPanic(d.CreateCQ(16))
	orPanic(pd.AllocMR(4096, verbs.LocalWrite|verbs.RemoteRead))
	orPanic(d.CreateQP(pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq,
		Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8}}))
	return d, func() { _ = n.Close() }
}

// One call makes a program visible to `roxie top`, `stat` and `dump`, and to Prometheus; with
// observe.DefaultPath they find it without --control. Then another program looks.
func ExampleServe() {
	device, closeDevice := exampleDevice()
	defer closeDevice()
	dir := orPanic(os.MkdirTemp("", "observe"))
	defer os.RemoveAll(dir)
	s := orPanic(observe.Serve(filepath.Join(dir, "control.sock"), device))
	defer s.Close()

	client := observe.NewClient(s.Path())
	state := orPanic(client.State(context.Background()))
	for _, d := range state.Devices {
		fmt.Println(d.Name, d.Port)
		for _, q := range d.QPs {
			fmt.Println("QP:", q.Type, q.State, q.SentPkts, "packets sent")
		}
		for _, r := range d.Regions {
			fmt.Println("region:", r.Length, "bytes,", r.Access)
		}
	}
	metrics := orPanic(client.Metrics(context.Background()))
	fmt.Println("metrics:", bytes.Contains(metrics, []byte("\nroxie_device_info{")))
	// Output:
	// mem0 PORT_ACTIVE
	// QP: RC RESET 0 packets sent
	// region: 4096 bytes, local-write|remote-read
	// metrics: true
}

// A program with a socket of its own for Prometheus adds roxie's metrics to its own.
func ExampleNewCollector() {
	device, err := verbs.Open("eth0", nil)
	if err != nil {
		panic(err)
	}
	defer device.Close()
	prometheus.MustRegister(observe.NewCollector(func() []*verbs.Context {
		return []*verbs.Context{device}
	}))
	http.Handle("/metrics", promhttp.Handler())
	panic(http.ListenAndServe("127.0.0.1:9400", nil))
}

// A program looks at its own devices, without a socket.
func ExampleTake() {
	device, closeDevice := exampleDevice()
	defer closeDevice()
	d := observe.Take(device).Devices[0]
	fmt.Println(len(d.QPs), "QP,", d.Counters["retransmits"], "packets sent again")
	// Output:
	// 1 QP, 0 packets sent again
}

func orPanic[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
