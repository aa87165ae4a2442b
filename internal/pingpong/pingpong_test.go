package pingpong

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/roxie-rdma/roxie/internal/lab"
	"github.com/roxie-rdma/roxie/verbs"
)

// TestDest holds an address as ibv_rc_pingpong of rdma-core 44 sent it to this very text form.
func TestDest(t *testing.T) {
	const sent = "0000:000011:b45231:00000000000000000000ffff0a4d0002\x00"
	d, err := parseDest([]byte(sent))
	if err != nil {
		t.Fatal(err)
	}
	want := dest{qpn: 0x11, psn: 0xb45231, gid: netip.MustParseAddr("::ffff:10.77.0.2").As16()}
	if d != want {
		t.Errorf("got %v, want %v", &d, &want)
	}
	if back := string(d.appendTo(nil)); back != sent {
		t.Errorf("it goes out as %q, came as %q", back, sent)
	}
	const printed = "LID 0x0000, QPN 0x000011, PSN 0xb45231, GID ::ffff:10.77.0.2"
	if got := d.String(); got != printed {
		t.Errorf("printed %q, want %q", got, printed)
	}
}

func TestBadDest(t *testing.T) {
	const good = "0000:000011:b45231:00000000000000000000ffff0a4d0002\x00"
	for name, bad := range map[string]string{
		"short":       good[1:],
		"http":        "GET / HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\n\r\n..",
		"LID":         strings.Replace(good, "0000:", "00x0:", 1),
		"QPN":         strings.Replace(good, "000011", "-00011", 1),
		"GID":         strings.Replace(good, "ffff", "fffg", 1),
		"GID's end":   strings.Replace(good, "0002\x00", "02\x00\x00\x00", 1),
		"colon count": strings.Replace(good, "00000000000000000000ffff", "0000:0000:0000:00000000f", 1),
	} {
		if d, err := parseDest([]byte(bad)); err == nil {
			t.Errorf("%s: %q is taken for %v", name, bad, &d)
		}
	}
}

// TestExchange plays rdma-core's client, as the system calls of version 44 show it, to our server.
func TestExchange(t *testing.T) {
	ours := []dest{{qpn: 1, psn: 2}, {}}
	theirs := []dest{{qpn: 3, psn: 4}, {qpn: 5, psn: 6}}
	here, there := net.Pipe()
	result := make(chan error, 1)
	connected := false
	go func() {
		result <- exchangeDests(here, false, ours, func(d []dest) error {
			connected = len(d) == 2 && d[0] == theirs[0] && d[1] == theirs[1]
			return nil
		})
	}()
	for i := range theirs {
		if _, err := there.Write(theirs[i].appendTo(nil)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := receiveDests(there, 2)
	if err != nil || got[0] != ours[0] || got[1] != ours[1] {
		t.Fatalf("the server sent %v, %v", got, err)
	}
	if _, err := there.Write([]byte("done\x00")); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil || !connected {
		t.Errorf("the server ended with %v, connected: %v", err, connected)
	}
}

func newLab(t *testing.T) *lab.Lab {
	t.Helper()
	l, err := lab.New(lab.Config{})
	if errors.Is(err, os.ErrPermission) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// play runs both ends in a lab and returns what they gave.
func play(t *testing.T, l *lab.Lab, server, client Config) (s, c *Result) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	server.Interface, client.Interface = l.A.Interface, l.B.Interface
	client.Server = l.A.IPv4.String()
	ready := make(chan struct{})
	type end struct {
		res *Result
		err error
	}
	served := make(chan end, 1)
	go func() {
		var e end
		e.err = l.A.DoErr(func() (err error) {
			e.res, err = Run(ctx, server, Hooks{Ready: func(net.Addr) { close(ready) }})
			return err
		})
		if e.err != nil {
			cancel()
		}
		served <- e
	}()
	select {
	case <-ready:
	case <-ctx.Done():
		t.Fatal((<-served).err)
	}
	err := l.B.DoErr(func() (err error) {
		c, err = Run(ctx, client, Hooks{})
		return err
	})
	e := <-served
	if err != nil || e.err != nil {
		t.Fatalf("client: %v; server: %v", err, e.err)
	}
	return e.res, c
}

// TestRun plays every kind between two ends of ours, in both families.
func TestRun(t *testing.T) {
	l := newLab(t)
	for _, k := range Kinds() {
		for _, g := range []int{1, 2} { // after the link-local one: IPv4, IPv6
			name := string(k) + "/" + map[int]string{1: "IPv4", 2: "IPv6"}[g]
			t.Run(name, func(t *testing.T) {
				cfg := Config{Kind: k, Iters: 200, GIDIndex: g, RXDepth: 50, Events: g == 2}
				client := cfg
				client.ExpectEcho = k != SRQ
				s, c := play(t, l, cfg, client)
				if s.Iterations != 200 || c.Iterations != 200 {
					t.Errorf("%d and %d messages", s.Iterations, c.Iterations)
				}
				// The last message may stay on the way: the server ends with its last send.
				if want := uint64(199 * c.Size); client.ExpectEcho && c.Checked < want {
					t.Errorf("%d bytes were compared, want at least %d", c.Checked, want)
				}
			})
		}
	}
}

// TestLastAckLost: a client whose messages have all been answered is through, also if the acknowledgement
// of the last is lost and the peer has gone. A server cannot know.
func TestLastAckLost(t *testing.T) {
	lost := verbs.WC{WRID: sendID, Status: verbs.WCRetryExcErr}
	flushed := verbs.WC{WRID: recvID, Status: verbs.WCWRFlushErr}
	for _, test := range []struct {
		server string
		recv   int
		ok     bool
	}{{"peer", 3, true}, {"peer", 2, false}, {"", 3, false}} {
		g := &game{endpoint: &endpoint{cfg: Config{Server: test.server, Iters: 3}}, sent: 2, recv: test.recv}
		for _, wc := range []verbs.WC{lost, flushed} {
			if err := g.complete(&wc); (err == nil) != test.ok {
				t.Errorf("server %q, %d received: %v", test.server, test.recv, err)
			}
		}
		if test.ok && g.sent != 3 {
			t.Errorf("%d sent", g.sent)
		}
	}
}

// TestCapture counts the packets of a run in its capture.
func TestCapture(t *testing.T) {
	l := newLab(t)
	file := filepath.Join(t.TempDir(), "pingpong.pcapng")
	cfg := Config{GIDIndex: -1, Iters: 10, Size: 3000, PMTU: 1024}
	server := cfg
	server.Capture = file
	play(t, l, server, cfg)
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	sends := 0
	for {
		frame, _, err := r.ReadPacketData()
		if err != nil {
			break
		}
		p := gopacket.NewPacket(frame, r.LinkType(), gopacket.Default)
		if udp := p.ApplicationLayer(); udp != nil && udp.Payload()[0] <= 0x05 { // RC SENDs
			sends++
		}
	}
	if want := 10 * 2 * 3; sends < want {
		t.Errorf("%d SEND packets in the capture, want %d", sends, want)
	}
}

// TestPattern looks at what -c sends: it must differ from place to place and from round to round.
func TestPattern(t *testing.T) {
	var b, other [100]byte
	fill(b[:], 7)
	fill(other[:], 8)
	if b == other {
		t.Error("two rounds have one pattern")
	}
	if string(b[:8]) == string(b[8:16]) {
		t.Error("the pattern repeats itself")
	}
}

func TestConfig(t *testing.T) {
	for name, c := range map[string]Config{
		"there is no":  {Kind: "xrc"},
		"-m 1500":      {PMTU: 1500},
		"-r 4":         {Kind: SRQ, RXDepth: 4},
		"needs -q 1":   {Kind: SRQ, ExpectEcho: true},
		"-q 257":       {Kind: SRQ, QPs: 257},
		"-s -1":        {Size: -1},
		"no interface": {},
	} {
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%+v: %v, want something with %q", c, err, name)
		}
	}
}
