package observe

import (
	"fmt"
	"math"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/roxie-rdma/roxie/bpf"
	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/xdp"
)

// Collector gives Prometheus the metrics of devices. It reads them when it is asked, and only then.
type Collector struct {
	devices func() []*verbs.Context
}

// NewCollector makes a collector for the devices that a function returns at each scrape. Closed ones
// are left out.
func NewCollector(devices func() []*verbs.Context) *Collector { return &Collector{devices} }

// metric is a metric's name, help and labels, as it is described.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

var metrics []*metric

func declare(kind prometheus.ValueType, name, help string, labels ...string) *metric {
	m := &metric{prometheus.NewDesc("roxie_"+name, help, append([]string{"device"}, labels...), nil), kind}
	metrics = append(metrics, m)
	return m
}

func counter(name, help string, labels ...string) *metric {
	return declare(prometheus.CounterValue, name, help, labels...)
}

func gauge(name, help string, labels ...string) *metric {
	return declare(prometheus.GaugeValue, name, help, labels...)
}

func (m *metric) send(ch chan<- prometheus.Metric, v float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(m.desc, m.kind, v, labels...)
}

// The metrics. docs/observe.md explains those that are not plain.
var (
	deviceInfo = gauge("device_info", "1 for each device, with how it is attached.", "xdp_mode", "zero_copy")
	portUp     = gauge("device_port_up", "Whether the port is active.")
	linkDowns  = counter("device_link_downs_total", "How often the port went down.")
	evLost     = counter("device_events_lost_total", "Asynchronous events that nobody took in time.")
	steering   = counter("steering_frames_total", "Frames by what the XDP program did with them.", "verdict")

	drops     = counter("shard_drops_total", "Packets dropped or refused, by reason.", "shard", "reason")
	keyFaults = counter("shard_key_faults_total", "Keys refused, by cause.", "shard", "cause")
	latency   = declare(prometheus.UntypedValue, "completion_latency_seconds",
		"Time of RC work requests from first packet to completion; sampled, one at a time of each QP.", "shard", "op")

	qpState    = gauge("qp_state", "1 for the state that a QP is in.", "qpn", "type", "state", "peer")
	qpPkts     = counter("qp_packets_total", "Packets of a QP.", "qpn", "direction")
	qpBytes    = counter("qp_payload_bytes_total", "Payload of a QP's packets.", "qpn", "direction")
	qpDone     = counter("qp_completions_total", "Completions of a QP.", "qpn")
	qpResent   = counter("qp_retransmits_total", "Request packets a QP sent again.", "qpn")
	qpTimeouts = counter("qp_timeouts_total", "ACK timeouts of a QP.", "qpn")
	qpNAKs     = counter("qp_naks_total", "NAKs of a QP but RNR.", "qpn", "direction")
	qpRNR      = counter("qp_rnr_naks_total", "RNR NAKs of a QP.", "qpn", "direction")
	qpDups     = counter("qp_duplicates_total", "Requests that had been executed before.", "qpn")
	qpGaps     = counter("qp_out_of_sequence_total", "Requests behind a gap.", "qpn")
	qpDrops    = counter("qp_drops_total", "Packets dropped by a QP.", "qpn")
	qpInFlight = gauge("qp_in_flight_packets", "Request packets sent and not acknowledged.", "qpn")
	qpWindow   = gauge("qp_window_packets", "Request packets that may be in flight.", "qpn")
	qpSQ       = gauge("qp_send_queue_wqes", "Send WQEs posted and not retired.", "qpn")
	qpRQ       = gauge("qp_recv_queue_wqes", "Receive WQEs posted and not consumed.", "qpn")
	qpRTT      = gauge("qp_round_trip_seconds", "Mean round trip of a QP's packets.", "qpn")

	regionBytes   = gauge("region_bytes", "Length of a region or window that is in force.", "key", "kind")
	regionWindows = gauge("region_windows", "Memory windows bound to a region.", "key")
)

// shardCounters are the plain counters of the engine; socketMetrics those of the sockets.
var (
	shardCounters = map[string]*metric{}
	socketMetrics = map[string]*metric{}
)

// words tell what the engine's counters mean.
var words = map[string]string{
	"sent_pkts": "Packets sent.", "rcvd_pkts": "Packets received.",
	"sent_bytes": "Bytes of frames sent.", "rcvd_bytes": "Bytes of frames received.",
	"duplicate_request": "Requests that had been executed before.", "out_of_seq_request": "Requests behind a gap.",
	"rcvd_rnr_err": "RNR NAKs received.", "send_rnr_err": "RNR NAKs sent.",
	"rcvd_seq_err": "NAKs for PSN sequence errors received.", "ack_deferred": "ACKs that a later one covers.",
	"retry_exceeded_err": "QPs whose retries ran out.", "retry_rnr_exceeded_err": "QPs whose RNR retries ran out.",
	"completer_retry_err": "Rewinds of send queues.", "send_err": "Send errors.",
	"rdma_sends": "Send work requests completed.", "rdma_recvs": "Receive work requests completed.",
	"retransmits": "Request packets sent again.", "timeouts": "ACK timeouts.",
	"handovers": "Frames given to another shard.", "loopbacks": "Frames turned round inside the device.",
	"naks_sent": "NAKs sent.", "naks_rcvd": "NAKs received.", "cq_overflows": "Overflows of completion queues.",
	"events_lost": "Events that did not fit.", "grace_stalls": "Completions that waited for a quiescent point.",
	"local_ops": "Local operations executed.", "window_halved": "Losses that halved a window.",
}

func init() {
	for _, n := range new(rxe.Counters).List() {
		if n.Label == "" {
			shardCounters[n.Name] = counter("shard_"+n.Name+"_total", words[n.Name], "shard")
		}
	}
	for _, n := range socketCounters(new(xdp.Stats)) {
		socketMetrics[n.name] = counter("xdp_"+n.name+"_total", n.help, "shard")
	}
}

type socketCounter struct {
	name, help string
	value      uint64
}

// socketCounters lists what an AF_XDP socket counts; kernel_ are the kernel's own.
func socketCounters(s *xdp.Stats) []socketCounter {
	c, k := &s.Counters, &s.Kernel
	return []socketCounter{
		{"rx_frames", "Frames received.", c.RXFrames}, {"rx_bytes", "Bytes received.", c.RXBytes},
		{"rx_invalid", "RX entries outside the chunks.", c.RXInvalid},
		{"rx_wakeups", "Calls to wake the receive side.", c.RXWakeups},
		{"tx_frames", "Frames queued.", c.TXFrames}, {"tx_bytes", "Bytes queued.", c.TXBytes},
		{"tx_refused", "Frames refused for their length.", c.TXRefused},
		{"tx_full", "Reservations without room.", c.TXFull},
		{"tx_dropped", "Frames the driver dropped on the way out.", c.TXDropped},
		{"tx_again", "Kicks that left descriptors for later.", c.TXAgain},
		{"tx_down", "Kicks while the interface was down.", c.TXDown},
		{"tx_errors", "Kicks that ended in another error.", c.TXErrors},
		{"kicks", "System calls to send.", c.Kicks}, {"waits", "System calls to sleep.", c.Waits},
		{"bad_completions", "Completions of chunks that were not sent.", c.BadCompletions},
		{"kernel_rx_dropped", "Frames dropped for want of chunks or for their size.", k.RXDropped},
		{"kernel_rx_ring_full", "Frames dropped because the RX ring was full.", k.RXRingFull},
		{"kernel_fill_ring_empty", "Times no receive chunk was left.", k.FillRingEmpty},
		{"kernel_rx_invalid_descs", "Bad entries in the fill ring.", k.RXInvalidDescs},
		{"kernel_tx_invalid_descs", "Bad entries in the TX ring.", k.TXInvalidDescs},
		{"kernel_tx_ring_empty", "Times the TX ring ran empty.", k.TXRingEmpty},
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range metrics {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	seen := map[string]bool{}
	for _, d := range c.devices() {
		name := d.Port().LinkName
		if !d.Closed() && !seen[name] {
			seen[name] = true
			collectDevice(ch, d, name)
		}
	}
}

func collectDevice(ch chan<- prometheus.Metric, d *verbs.Context, dev string) {
	st := d.Stats()
	deviceInfo.send(ch, 1, dev, d.XDPMode(), strconv.FormatBool(d.ZeroCopy()))
	up := 0.0
	if d.Port().State == verbs.PortActive {
		up = 1
	}
	portUp.send(ch, up, dev)
	linkDowns.send(ch, float64(st.LinkDowned), dev)
	evLost.send(ch, float64(st.EventsLost), dev)
	if d.XDPMode() != "" {
		for v, n := range st.BPF {
			steering.send(ch, float64(n), dev, bpf.Verdict(v).String())
		}
	}
	for i, lat := range d.Latencies() {
		collectShard(ch, &st.Shards[i], &lat, d.XDPMode() != "", dev, strconv.Itoa(i))
	}
	for _, q := range d.InspectQPs() {
		collectQP(ch, &q, dev, fmt.Sprintf("%#x", uint32(q.QPN)))
	}
	for _, m := range d.Regions() {
		key := fmt.Sprintf("%#x", uint32(m.Key))
		regionBytes.send(ch, float64(m.Length), dev, key, m.Kind.String())
		regionWindows.send(ch, float64(m.Bound), dev, key)
	}
}

func collectShard(ch chan<- prometheus.Metric, s *verbs.ShardStats, lat *rxe.Latencies, socket bool,
	dev, shard string) {
	for _, n := range s.List() {
		switch n.Name {
		case "drops":
			drops.send(ch, float64(n.Value), dev, shard, n.Label)
		case "key_faults":
			keyFaults.send(ch, float64(n.Value), dev, shard, n.Label)
		default:
			shardCounters[n.Name].send(ch, float64(n.Value), dev, shard)
		}
	}
	if socket {
		for _, n := range socketCounters(&s.XDP) {
			socketMetrics[n.name].send(ch, float64(n.value), dev, shard)
		}
	}
	for op := range rxe.NumLatencyOps {
		if l := &lat[op]; l.Count > 0 {
			ch <- prometheus.MustNewConstHistogram(latency.desc, l.Count, float64(l.Sum)/1e9, buckets(l),
				dev, shard, op.String())
		}
	}
}

// Bounds of what is exported of a histogram, as powers of two of ns: 1 µs to 8.6 s.
const (
	firstBucket = 10
	lastBucket  = 33
)

// buckets are a histogram's, cumulated, with bounds in seconds.
func buckets(l *rxe.Latency) map[float64]uint64 {
	out := make(map[float64]uint64, lastBucket-firstBucket+1)
	sum := uint64(0)
	for b, n := range l.Buckets[:lastBucket+1] {
		if sum += n; b >= firstBucket {
			out[math.Ldexp(1e-9, b)] = sum
		}
	}
	return out
}

func collectQP(ch chan<- prometheus.Metric, q *verbs.QPInspection, dev, qpn string) {
	n, r := &q.Counters, &q.Requester
	peer := ""
	if q.Peer.IsValid() {
		peer = q.Peer.String()
	}
	qpState.send(ch, 1, dev, qpn, q.Type.String(), q.State.String(), peer)
	both := func(m *metric, sent, received uint64) {
		m.send(ch, float64(sent), dev, qpn, "sent")
		m.send(ch, float64(received), dev, qpn, "received")
	}
	both(qpPkts, n.SentPkts, n.RcvdPkts)
	both(qpBytes, n.SentBytes, n.RcvdBytes)
	both(qpNAKs, n.NAKsSent, n.NAKsRcvd)
	both(qpRNR, n.RNRSent, n.RNRRcvd)
	qpDone.send(ch, float64(n.Completions), dev, qpn)
	qpResent.send(ch, float64(n.Retransmits), dev, qpn)
	qpTimeouts.send(ch, float64(n.Timeouts), dev, qpn)
	qpDups.send(ch, float64(n.Duplicates), dev, qpn)
	qpGaps.send(ch, float64(n.OutOfSeq), dev, qpn)
	qpDrops.send(ch, float64(n.Drops), dev, qpn)
	qpInFlight.send(ch, float64(r.InFlight), dev, qpn)
	qpWindow.send(ch, float64(r.Window), dev, qpn)
	qpSQ.send(ch, float64(r.Posted-r.Tail), dev, qpn)
	qpRQ.send(ch, float64(q.Responder.Posted-q.Responder.Consumed), dev, qpn)
	qpRTT.send(ch, float64(r.RTTMean)/1e9, dev, qpn)
}
