package capture

import (
	"strings"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// frame builds a frame from 10.0.0.1 to 10.0.0.2, or from fd00::1 to fd00::2, with so many bytes of
// payload. ext are the extension headers.
func frame(v6 bool, op wire.Opcode, dest wire.QPN, payload int, ext ...byte) []byte {
	p := wire.Path{VLAN: -1, HopLimit: 64, Src: wire.GIDFromIPv4([4]byte{10, 0, 0, 1}),
		Dst: wire.GIDFromIPv4([4]byte{10, 0, 0, 2})}
	if v6 {
		p.Src, p.Dst = wire.GID{0: 0xfd, 15: 1}, wire.GID{0: 0xfd, 15: 2}
	}
	var t wire.Template
	t.Init(&p, dest, 0xffff)
	b := make([]byte, 4096)
	h := t.Begin(b, op)
	copy(h[12:], ext)
	return b[:t.Finish(wire.Frame{Head: b}, op, payload)]
}

// filterFrames are what filters of the table are tried on.
var filterFrames = map[string]verbs.Captured{
	"write": {Dir: verbs.Outbound, Head: frame(false, wire.RCWriteOnly, 0x22, 100, make([]byte, 16)...),
		Trace: verbs.Trace{QP: 0x11, HasQP: true, WRID: 7, HasWR: true, Drop: rxe.ReasonNone, Again: true}},
	"ack": {Dir: verbs.Inbound, Head: frame(false, wire.RCAck, 0x11, 0, 0x1f, 0, 0, 1),
		Trace: verbs.Trace{QP: 0x11, HasQP: true, Drop: rxe.ReasonNone}, Shard: 2},
	"nak": {Dir: verbs.Inbound, Head: frame(false, wire.RCAck, 0x11, 0, 0x60, 0, 0, 1),
		Trace: verbs.Trace{QP: 0x11, HasQP: true, Drop: rxe.ReasonNone}},
	"send6": {Dir: verbs.Inbound, Head: frame(true, wire.UDSendOnly, 0x33, 1000, make([]byte, 8)...),
		Trace: verbs.Trace{QP: 0x33, HasQP: true, Drop: rxe.ReasonQKey}},
	"bad": {Dir: verbs.Inbound, Head: frame(false, wire.RCReadRespOnly, 0x44, 4, 0, 0, 0, 0),
		Trace: verbs.Trace{Drop: verbs.Reason(wire.ReasonICRC)}},
	"short": {Dir: verbs.Inbound, Head: []byte{1, 2, 3}, Trace: verbs.Trace{Drop: 1}},
}

func TestFilter(t *testing.T) {
	for _, x := range []struct{ filter, want string }{
		{"", "write ack nak send6 bad short"},
		{"qp 0x11", "write ack nak"},
		{"qp 17", "write ack nak"},
		{"qp 0x22", "write"},
		{"wr 7", "write"},
		{"host 10.0.0.1", "write ack nak bad"},
		{"src 10.0.0.2", ""},
		{"dst host fd00::2", "send6"},
		{"host fd00::/16", "send6"},
		{"net 10.0.0.0/8 and out", "write"},
		{"opcode write", "write"},
		{"opcode send", "send6"},
		{"opcode READ or opcode ud_send_only", "send6 bad"},
		{"opcode read_resp_only", "bad"},
		{"opcode ack", "ack"},
		{"opcode nak", "nak"},
		{"ack or nak", "ack nak"},
		{"dropped", "send6 bad short"},
		{"icrc bad", "bad"},
		{"icrc ok", "write ack nak send6 short"},
		{"again", "write"},
		{"queue 2", "ack"},
		{"less 3", "short"},
		{"greater 500", "send6"},
		{"not dropped", "write ack nak"},
		{"!dropped && in", "ack nak"},
		{"in and not (qp 0x11 or icrc bad)", "send6 short"},
		{"qp 0x22 or qp 0x33 and dropped", "write send6"},
		{"(qp 0x22 or qp 0x33) and dropped", "send6"},
		{"not not in and not out", "ack nak send6 bad short"},
	} {
		f, err := ParseFilter(x.filter)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		var p wire.Packet
		for name, c := range filterFrames {
			c.Head, c.Tail = c.Head[:len(c.Head)/2], c.Head[len(c.Head)/2:]
			want := strings.Contains(" "+x.want+" ", " "+name+" ")
			if got := f.Match(&c, &p); got != want {
				t.Errorf("%q: %s: %v", x.filter, name, got)
			}
		}
	}
}

// TestFilterErrors: each mistake is told with what would be right.
func TestFilterErrors(t *testing.T) {
	for filter, want := range map[string]string{
		"qp":                      "the number of `qp` is missing",
		"qp x":                    "want a number",
		"host nowhere":            "want an address",
		"opcode wite":             "opcode wite: want write, send",
		"port 4791":               `"port" is no test, as qp, host`,
		"qp 1 qp 2":               "join tests with `and` or `or`",
		"(qp 1":                   "`)` is missing",
		"not":                     "a test is missing",
		"qp 1 and":                "a test is missing",
		"icrc maybe":              "want ok or bad",
		strings.Repeat("(", 1000): "nests more than",
	} {
		if _, err := ParseFilter(filter); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %q", filter, err, want)
		}
	}
}

// FuzzParseFilter: no text is too strange, and what parses can be tried on any frame.
func FuzzParseFilter(f *testing.F) {
	f.Add("qp 0x11 and not (host 10.0.0.1 or dropped)", []byte("frame"))
	f.Add("opcode write or ack && !out", frame(false, wire.RCAck, 1, 0, 0, 0, 0, 0))
	f.Fuzz(func(t *testing.T, text string, data []byte) {
		filter, err := ParseFilter(text)
		if err == nil {
			var p wire.Packet
			filter.Match(&verbs.Captured{Head: data}, &p)
		}
	})
}

// TestNoAllocation: what shards do for a capture allocates nothing.
func TestNoAllocation(t *testing.T) {
	f, err := ParseFilter("qp 0x11 or host 10.0.0.9 and opcode write")
	if err != nil {
		t.Fatal(err)
	}
	r, x := newRing(1<<16), filterFrames["write"]
	var p wire.Packet
	var out record
	if n := testing.AllocsPerRun(1000, func() {
		if f.Match(&x, &p) {
			r.put(&x, 0, maxFrame, 0)
		}
		if r.peek(&out) {
			r.pop(&out)
		}
	}); n != 0 {
		t.Errorf("%v allocations a packet", n)
	}
}

// TestRingOfRecords: records of all lengths come out as they went in, around the end again and again.
func TestRingOfRecords(t *testing.T) {
	r := newRing(1 << 12)
	data := make([]byte, 2000)
	for i := range data {
		data[i] = byte(i)
	}
	var queued []int
	next, lost := 0, uint64(0)
	for round := range 20000 {
		n := round * 7 % 1500
		x := verbs.Captured{Head: data[:n/2], Tail: data[n/2 : n], Trace: verbs.Trace{WRID: uint64(n)}}
		r.put(&x, 3, 1000, 0)
		if r.lost.Load() == lost {
			queued = append(queued, n)
		}
		lost = r.lost.Load()
		var out record
		for round%3 == 0 && r.peek(&out) {
			want := queued[next]
			if out.length != want || len(out.data) != min(want, 1000) || string(out.data) != string(data[:len(out.data)]) ||
				out.wr != uint64(want) || out.iface != 3 {
				t.Fatalf("record %d: %d of %d bytes, want of %d", next, len(out.data), out.length, want)
			}
			r.pop(&out)
			next++
		}
	}
	if next < 5000 || lost == 0 {
		t.Errorf("%d records came out, %d were lost", next, lost)
	}
}

// BenchmarkSee is what a frame costs its shard while a capture runs, besides the tracing.
func BenchmarkSee(b *testing.B) {
	for _, text := range []string{"", "qp 0x99", "host 10.0.0.1"} {
		b.Run("filter="+text, func(b *testing.B) {
			f, err := ParseFilter(text)
			if err != nil {
				b.Fatal(err)
			}
			r, x := newRing(1<<20), filterFrames["write"]
			var p wire.Packet
			var out record
			for b.Loop() {
				if f.Match(&x, &p) {
					r.put(&x, 0, maxFrame, 0)
				}
				if r.peek(&out) {
					r.pop(&out)
				}
			}
		})
	}
}
