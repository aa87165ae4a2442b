package observe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/verbs"
)

// section is a part of a dump: fields in the order they are printed in.
type section struct {
	name   string
	fields []field
}

type field struct{ name, value string }

func (s *section) add(name, format string, args ...any) {
	s.fields = append(s.fields, field{name, fmt.Sprintf(format, args...)})
}

// dump is all of a QP, for a maintainer.
func dump(c *verbs.Context, q *verbs.QPInspection) []section {
	return []section{dumpQP(c, q), dumpRequester(q), dumpResponder(q), dumpQueues(q), dumpCounters(q)}
}

func dumpQP(c *verbs.Context, q *verbs.QPInspection) section {
	s, a := section{name: "qp"}, &q.Attr
	s.add("device", "%s shard %d", c.Port().LinkName, q.Shard)
	s.add("qpn", "%#x", uint32(q.QPN))
	s.add("type", "%v", q.Type)
	s.add("state", "%v", q.State)
	s.add("pd", "%#x", uint32(q.PD))
	if q.Peer.IsValid() {
		s.add("path", "%v to %v QP %#x, MTU %d, hop limit %d, traffic class %#x, UDP source port %d", q.Local, q.Peer,
			uint32(a.DestQPN), a.PathMTU, a.AV.Path.HopLimit, a.AV.Path.TClass, a.AV.Path.SrcPort)
		vlan := "none"
		if a.AV.Path.VLAN >= 0 {
			vlan = fmt.Sprint(a.AV.Path.VLAN)
		}
		s.add("next_hop", "%v, VLAN %s, loopback %v", a.AV.Path.DstMAC, vlan, a.AV.Loopback)
	}
	s.add("access", "%v", a.AccessFlags)
	s.add("retry_cnt", "%d (ACK timeout code %d: %s)", a.RetryCnt, a.Timeout, spell(rxe.AckTimeout(a.Timeout)))
	s.add("rnr_retry", "%d (own RNR timer code %d)", a.RNRRetry, a.MinRNRTimer)
	s.add("rd_atomic", "own %d, peer's %d", a.MaxQPRdAtomic, a.MaxDestRdAtomic)
	s.add("scheduled", "%s", scheduled(q))
	if e := &q.LastErr; e.Reason == 0 {
		s.add("last_error", "none")
	} else {
		s.add("last_error", "%s", describeError(e))
		s.add("failed_at", "%s, %s ago", c.Time(e.At).Format(time.RFC3339Nano), spell(q.Now-e.At))
		if e.Status != rxe.WCSuccess {
			s.add("failed_wr", "id %#x, %v", e.WRID, e.Opcode)
		}
	}
	return s
}

func scheduled(q *verbs.QPInspection) string {
	switch {
	case q.Ready:
		return "ready to send"
	case q.Parked:
		return "waits for the shard's budget of packets in flight"
	}
	return "nothing to send"
}

// spell prints a length of engine time.
func spell(t rxe.Time) string {
	if t == rxe.Never {
		return "never"
	}
	return time.Duration(t).String()
}

// due prints a deadline.
func due(q *verbs.QPInspection, at rxe.Time) string {
	switch {
	case at == rxe.Never:
		return "not armed"
	case at < q.Now:
		return spell(q.Now-at) + " overdue"
	}
	return "in " + spell(at-q.Now)
}

func dumpRequester(q *verbs.QPInspection) section {
	s, r := section{name: "requester"}, &q.Requester
	s.add("psn", "una %#x, next to send %#x, never sent %#x, next message %#x", r.Una, r.PSN, r.Sent, r.Next)
	s.add("in_flight", "%d packets, window %d, threshold %d; READs and atomics %d", r.InFlight, r.Window,
		r.Threshold, r.Reads)
	s.add("timer", "%s", due(q, q.Timer))
	if r.InFlight > 0 {
		s.add("ack_timer", "%s", due(q, r.AckAt))
	}
	s.add("retries_left", "%d of %d, RNR %d of %d", r.Retries, q.Attr.RetryCnt, r.RNRRetries, q.Attr.RNRRetry)
	s.add("round_trip", "last %s, mean %s, deviation %s, least %s", spell(r.RTT), spell(r.RTTMean),
		spell(r.RTTSwing), spell(r.RTTLeast))
	if r.Limited {
		s.add("credits", "SSN %d of %d", r.SSN, r.CreditLimit)
	} else {
		s.add("credits", "SSN %d, no limit", r.SSN)
	}
	s.add("flags", "rnr_wait %v, draining %v, halted %v, recovering %v, lossy %v, probing %v", r.RNRWait, r.Draining,
		r.Halted, r.Recovering, r.Lossy, r.Probing)
	if o := &r.Oldest; r.HasOldest {
		s.add("oldest", "WQE %d, id %#x, %v, %d bytes, to %#x key %#x", o.Index, o.WRID, o.Opcode, o.Length,
			o.RemoteAddr, uint32(o.RKey))
		if o.Started {
			s.add("oldest_psns", "%#x to %#x", o.First, o.Last)
		}
	}
	return s
}

func dumpResponder(q *verbs.QPInspection) section {
	s, r := section{name: "responder"}, &q.Responder
	s.add("psn", "expected %#x", r.PSN)
	s.add("msn", "%#x", r.MSN)
	if r.InMessage {
		s.add("message", "in progress, %d bytes placed", r.Placed)
	} else {
		s.add("message", "none in progress")
	}
	s.add("reads_atomics", "%d to answer, %d remembered at most", r.Answers, r.Resources)
	s.add("owes", "ACK %v, NAK %v, NAK sent for the gap %v", r.AckOwed, r.NAKOwed, r.NAKSent)
	s.add("deferred", "%d completions wait for grace", r.Deferred)
	return s
}

func dumpQueues(q *verbs.QPInspection) section {
	s, r, p := section{name: "queues"}, &q.Requester, &q.Responder
	s.add("send", "depth %d, posted %d, taken %d, sending %d, acknowledged %d, retired %d", r.Depth, r.Posted, r.Head,
		r.Cur, r.Ack, r.Tail)
	if p.SRQ {
		s.add("receive", "of an SRQ")
	} else {
		s.add("receive", "depth %d, posted %d, consumed %d", p.Depth, p.Posted, p.Consumed)
	}
	for _, c := range []struct {
		name string
		cq   rxe.CQInspection
	}{{"send_cq", q.SendCQ}, {"recv_cq", q.RecvCQ}} {
		state := ""
		if c.cq.Dead {
			state = ", overflowed"
		}
		s.add(c.name, "%d, depth %d, %d wait%s", c.cq.Num, c.cq.Depth, c.cq.Len, state)
	}
	return s
}

func dumpCounters(q *verbs.QPInspection) section {
	s, n := section{name: "counters"}, &q.Counters
	for _, c := range []struct {
		name  string
		value uint64
	}{
		{"sent_pkts", n.SentPkts}, {"rcvd_pkts", n.RcvdPkts}, {"sent_bytes", n.SentBytes}, {"rcvd_bytes", n.RcvdBytes},
		{"completions", n.Completions}, {"retransmits", n.Retransmits}, {"timeouts", n.Timeouts},
		{"naks_sent", n.NAKsSent}, {"naks_rcvd", n.NAKsRcvd}, {"rnr_sent", n.RNRSent}, {"rnr_rcvd", n.RNRRcvd},
		{"duplicates", n.Duplicates}, {"out_of_seq", n.OutOfSeq}, {"drops", n.Drops},
	} {
		s.add(c.name, "%d", c.value)
	}
	if n.Drops > 0 {
		s.add("last_drop", "%v", n.LastDrop)
	}
	return s
}

// writeText writes a dump for people.
func writeText(w io.Writer, sections []section) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, s := range sections {
		fmt.Fprintf(t, "%s\n", s.name)
		for _, f := range s.fields {
			fmt.Fprintf(t, "  %s\t%s\n", f.name, f.value)
		}
	}
	return t.Flush()
}

// writeJSON writes it as an object of objects, in the same order.
func writeJSON(w io.Writer, sections []section) error {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, s := range sections {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%q:{", s.name)
		for j, f := range s.fields {
			if j > 0 {
				b.WriteByte(',')
			}
			value, err := json.Marshal(f.value)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, "%q:%s", f.name, value)
		}
		b.WriteByte('}')
	}
	b.WriteString("}\n")
	_, err := w.Write(b.Bytes())
	return err
}
