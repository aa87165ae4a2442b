package observe

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/roxie-rdma/roxie/bpf"
	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/verbs"
)

// Snapshot is what GET /state answers, as JSON: the state of a program at one moment. Counters run
// since the device, or the QP, was made.
type Snapshot struct {
	Program string    `json:"program"`
	PID     int       `json:"pid"`
	Time    time.Time `json:"time"`
	Devices []Device  `json:"devices"`
}

// Device is a device of a Snapshot.
type Device struct {
	Name       string             `json:"name"` // the interface's
	Port       string             `json:"port"` // PORT_ACTIVE or PORT_DOWN
	LinkMTU    int                `json:"link_mtu"`
	GIDs       []string           `json:"gids"`
	XDPMode    string             `json:"xdp_mode,omitempty"`
	ZeroCopy   bool               `json:"zero_copy"`
	Counters   map[string]uint64  `json:"counters"` // of the engine, all shards together
	Drops      map[string]uint64  `json:"drops"`    // by reason, those that are not 0
	KeyFaults  map[string]uint64  `json:"key_faults"`
	Steering   map[string]uint64  `json:"steering"` // frames by verdict of the XDP program
	Shards     []Shard            `json:"shards"`
	Latency    map[string]Latency `json:"latency"` // of RC work requests by kind; sampled
	EventsLost uint64             `json:"events_lost"`
	LinkDowns  uint64             `json:"link_downs"`
	QPs        []QP               `json:"qps"`
	Regions    []Region           `json:"regions"`
}

// Shard is a queue of a device with its socket.
type Shard struct {
	SentPkts  uint64            `json:"sent_pkts"`
	RcvdPkts  uint64            `json:"rcvd_pkts"`
	SentBytes uint64            `json:"sent_bytes"`
	RcvdBytes uint64            `json:"rcvd_bytes"`
	XDP       map[string]uint64 `json:"xdp"` // of the socket, those that are not 0
}

// Latency sums up a histogram. Quantiles are upper bounds, right to a factor of two.
type Latency struct {
	Count uint64  `json:"count"`
	Mean  float64 `json:"mean_us"`
	P50   float64 `json:"p50_us"`
	P99   float64 `json:"p99_us"`
	P999  float64 `json:"p999_us"`
}

// QP is a queue pair of a Snapshot.
type QP struct {
	QPN         uint32     `json:"qpn"`
	Type        string     `json:"type"`
	State       string     `json:"state"`
	Shard       int        `json:"shard"`
	Peer        string     `json:"peer,omitempty"`
	PeerQPN     uint32     `json:"peer_qpn,omitempty"`
	SentPkts    uint64     `json:"sent_pkts"`
	RcvdPkts    uint64     `json:"rcvd_pkts"`
	SentBytes   uint64     `json:"sent_bytes"` // payload
	RcvdBytes   uint64     `json:"rcvd_bytes"`
	Completions uint64     `json:"completions"`
	InFlight    uint32     `json:"in_flight"`  // packets
	Window      uint32     `json:"window"`     // packets
	SendQueue   uint32     `json:"send_queue"` // WQEs posted and not retired
	RecvQueue   uint32     `json:"recv_queue"`
	RTT         float64    `json:"rtt_us"` // mean
	Retransmits uint64     `json:"retransmits"`
	Timeouts    uint64     `json:"timeouts"`
	NAKsSent    uint64     `json:"naks_sent"`
	NAKsRcvd    uint64     `json:"naks_rcvd"`
	RNRSent     uint64     `json:"rnr_sent"`
	RNRRcvd     uint64     `json:"rnr_rcvd"`
	Duplicates  uint64     `json:"duplicates"`
	OutOfSeq    uint64     `json:"out_of_seq"`
	Drops       uint64     `json:"drops"`
	LastDrop    string     `json:"last_drop,omitempty"`
	LastError   string     `json:"last_error,omitempty"`
	FailedAt    *time.Time `json:"failed_at,omitempty"`
}

// Region is a region or window of a Snapshot, as the device honours it.
type Region struct {
	Key     uint32 `json:"key"`
	Kind    string `json:"kind"`
	State   string `json:"state"`
	PD      uint32 `json:"pd"`
	Access  string `json:"access"`
	Addr    uint64 `json:"addr"`
	Length  uint64 `json:"length"`
	Windows int    `json:"windows"`       // bound to it
	QPN     uint32 `json:"qpn,omitempty"` // a window bound to this QP
}

// Take makes a Snapshot of devices. It holds each shard for some microseconds at a time.
func Take(devices ...*verbs.Context) Snapshot {
	s := Snapshot{Program: filepath.Base(os.Args[0]), PID: os.Getpid(), Time: time.Now(), Devices: []Device{}}
	for _, d := range devices {
		if !d.Closed() {
			s.Devices = append(s.Devices, takeDevice(d))
		}
	}
	return s
}

func takeDevice(c *verbs.Context) Device {
	port, st := c.Port(), c.Stats()
	d := Device{
		Name: port.LinkName, Port: port.State.String(), LinkMTU: port.LinkMTU, XDPMode: c.XDPMode(),
		ZeroCopy: c.ZeroCopy(), Counters: map[string]uint64{}, Drops: map[string]uint64{},
		KeyFaults: map[string]uint64{}, Steering: map[string]uint64{}, Latency: map[string]Latency{},
		EventsLost: st.EventsLost, LinkDowns: st.LinkDowned, GIDs: []string{}, QPs: []QP{}, Regions: []Region{},
	}
	for _, g := range c.GIDs() {
		d.GIDs = append(d.GIDs, g.GID.String())
	}
	for _, n := range st.Total.List() {
		switch {
		case n.Name == "drops":
			putIfAny(d.Drops, n.Label, n.Value)
		case n.Name == "key_faults":
			putIfAny(d.KeyFaults, n.Label, n.Value)
		default:
			d.Counters[n.Name] = n.Value
		}
	}
	for v, n := range st.BPF {
		putIfAny(d.Steering, bpf.Verdict(v).String(), n)
	}
	for i := range st.Shards {
		s := &st.Shards[i]
		sh := Shard{SentPkts: s.SentPkts, RcvdPkts: s.RcvdPkts, SentBytes: s.SentBytes, RcvdBytes: s.RcvdBytes,
			XDP: map[string]uint64{}}
		for _, n := range socketCounters(&s.XDP) {
			putIfAny(sh.XDP, n.name, n.value)
		}
		d.Shards = append(d.Shards, sh)
	}
	d.Latency = sumUp(c.Latencies())
	for _, q := range c.InspectQPs() {
		d.QPs = append(d.QPs, takeQP(c, &q))
	}
	for _, m := range c.Regions() {
		d.Regions = append(d.Regions, Region{Key: uint32(m.Key), Kind: m.Kind.String(), State: m.State.String(),
			PD: uint32(m.PD), Access: m.Access.String(), Addr: m.IOVA, Length: m.Length, Windows: m.Bound, QPN: m.QPN})
	}
	return d
}

func putIfAny(m map[string]uint64, name string, n uint64) {
	if n > 0 {
		m[name] = n
	}
}

func takeQP(c *verbs.Context, q *verbs.QPInspection) QP {
	r, n := &q.Requester, &q.Counters
	out := QP{
		QPN: uint32(q.QPN), Type: q.Type.String(), State: q.State.String(), Shard: q.Shard,
		PeerQPN: uint32(q.Attr.DestQPN), SentPkts: n.SentPkts, RcvdPkts: n.RcvdPkts, SentBytes: n.SentBytes,
		RcvdBytes: n.RcvdBytes, Completions: n.Completions, InFlight: r.InFlight, Window: r.Window,
		SendQueue: r.Posted - r.Tail, RecvQueue: q.Responder.Posted - q.Responder.Consumed,
		RTT: float64(r.RTTMean) / 1e3, Retransmits: n.Retransmits, Timeouts: n.Timeouts, NAKsSent: n.NAKsSent,
		NAKsRcvd: n.NAKsRcvd, RNRSent: n.RNRSent, RNRRcvd: n.RNRRcvd, Duplicates: n.Duplicates,
		OutOfSeq: n.OutOfSeq, Drops: n.Drops,
	}
	if q.Peer.IsValid() {
		out.Peer = q.Peer.String()
	}
	if n.Drops > 0 {
		out.LastDrop = n.LastDrop.String()
	}
	if q.LastErr.Reason != 0 {
		out.LastError = describeError(&q.LastErr)
		at := c.Time(q.LastErr.At)
		out.FailedAt = &at
	}
	return out
}

// describeError says what a QP failed of.
func describeError(e *rxe.LastError) string {
	if e.Status == rxe.WCSuccess {
		return fmt.Sprintf("refused the peer's request: %v", e.Reason)
	}
	return fmt.Sprintf("%v: %v", e.Status, e.Reason)
}

// sumUp adds the shards' histograms up, by kind.
func sumUp(shards []rxe.Latencies) map[string]Latency {
	out := map[string]Latency{}
	for op := range rxe.NumLatencyOps {
		var sum rxe.Latency
		for i := range shards {
			l := &shards[i][op]
			sum.Count += l.Count
			sum.Sum += l.Sum
			for b, n := range l.Buckets {
				sum.Buckets[b] += n
			}
		}
		if sum.Count > 0 {
			out[op.String()] = Latency{Count: sum.Count, Mean: float64(sum.Sum) / float64(sum.Count) / 1e3,
				P50: quantile(&sum, 0.5), P99: quantile(&sum, 0.99), P999: quantile(&sum, 0.999)}
		}
	}
	return out
}

// quantile returns the upper bound of the bucket that a quantile falls into, in µs.
func quantile(l *rxe.Latency, q float64) float64 {
	want, have := q*float64(l.Count), uint64(0)
	for b, n := range l.Buckets {
		if have += n; float64(have) >= want {
			return float64(uint64(1)<<b) / 1e3
		}
	}
	return float64(uint64(1)<<(rxe.LatencyBuckets-1)) / 1e3
}
