package main

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/rxe/wire"
)

// captured is what both ends of a cell saw.
type captured struct{ linux, ours []*packet }

// good reads the captures of a good cell: ibv_rc_pingpong with messages of one byte and path MTU
// 512, with roxie as the server, the first 24 packets each way.
func good(t *testing.T) *captured {
	t.Helper()
	var c captured
	var err error
	if c.linux, err = readPackets("testdata/linux.pcap"); err != nil {
		t.Fatal(err)
	}
	if c.ours, err = readPackets("testdata/roxie.pcap"); err != nil {
		t.Fatal(err)
	}
	return &c
}

func goodCell() *scenario {
	return &scenario{Cell: base("ibv_rc_pingpong", "server", "RC", "events").with(1, 512)}
}

// clone copies a packet, parsed anew from its frame.
func (p *packet) clone() *packet {
	c := *p
	c.frame = slices.Clone(p.frame)
	c.parse()
	return &c
}

// mend makes the ICRC of a changed frame right.
func (p *packet) mend() {
	_, _, want := wire.CheckICRC(wire.Frame{Head: p.frame})
	binary.LittleEndian.PutUint32(p.frame[len(p.frame)-4:], want)
	p.parse()
}

// nth finds the n-th packet of a direction for which f holds.
func nth(all []*packet, n int, f func(*packet) bool) int {
	for i, p := range all {
		if f(p) {
			if n--; n == 0 {
				return i
			}
		}
	}
	panic("there is no such packet")
}

func fromRoxie(p *packet) bool { return !p.fromGuest }
func requestOf(guest bool) func(*packet) bool {
	return func(p *packet) bool {
		return p.fromGuest == guest && p.Info.Flags&wire.FlagRequest != 0
	}
}
func ackOfRoxie(p *packet) bool { return !p.fromGuest && p.Info.Flags&wire.FlagAck != 0 }

// wait has a packet, and all behind it, come later.
func wait(all []*packet, from int, d time.Duration) {
	for _, p := range all[from:] {
		p.at = p.at.Add(d)
		p.sent = p.at
	}
}

// repeat has one end send its n-th request again, each time when some time has passed, for both
// ends; behind the ACK or before it.
func (c *captured) repeat(guest bool, n, times int, after time.Duration, acked bool) {
	for _, all := range []*[]*packet{&c.linux, &c.ours} {
		i := nth(*all, n, requestOf(guest))
		p := (*all)[i]
		if acked {
			i++
		}
		for range times {
			again := p.clone()
			again.at = (*all)[i].at
			i++
			*all = slices.Insert(*all, i, again)
			wait(*all, i, after)
		}
	}
}

// TestJudge: a good cell passes, and each planted fault is found.
func TestJudge(t *testing.T) {
	remove := func(all []*packet, i int) []*packet { return slices.Delete(all, i, i+1) }
	const second = time.Second
	for _, c := range []struct {
		name  string
		plant func(c *captured)
		want  string // in the error; "": none
	}{
		{"nothing", func(*captured) {}, ""},
		{"a bit of the payload changes on its way", func(c *captured) {
			p := c.ours[nth(c.ours, 3, requestOf(true))]
			p.frame[len(p.frame)-8] ^= 1
			p.parse()
		}, "roxie's capture, packet"},
		{"roxie sends a wrong ICRC", func(c *captured) {
			for _, all := range [][]*packet{c.linux, c.ours} {
				p := all[nth(all, 3, ackOfRoxie)]
				p.frame[len(p.frame)-1] ^= 1
				p.parse()
			}
		}, "Linux's capture, packet 10: icrc"},
		{"the payload changes, with its ICRC", func(c *captured) {
			p := c.linux[nth(c.linux, 5, requestOf(false))]
			p.frame[len(p.frame)-8] ^= 1
			p.mend()
		}, "from roxie to Linux: packet"},
		{"a packet of roxie's is lost", func(c *captured) {
			c.linux = remove(c.linux, nth(c.linux, 7, fromRoxie))
		}, "from roxie to Linux: packet 7"},
		{"roxie's last packet is lost", func(c *captured) {
			c.linux = remove(c.linux, nth(c.linux, 24, fromRoxie))
		}, "was sent and did not arrive"},
		{"a packet of Linux's is lost", func(c *captured) {
			c.ours = remove(c.ours, nth(c.ours, 7, requestOf(true)))
		}, "from Linux to roxie"},
		{"roxie sends what its capture does not show", func(c *captured) {
			i := nth(c.ours, 24, fromRoxie)
			c.ours = remove(c.ours, i)
		}, "arrived and was not sent"},
		{"two packets change places", func(c *captured) {
			i, k := nth(c.linux, 3, fromRoxie), nth(c.linux, 4, fromRoxie)
			c.linux[i], c.linux[k] = c.linux[k], c.linux[i]
		}, "was sent as"},
		{"roxie leaves a PSN out", func(c *captured) {
			c.linux = remove(c.linux, nth(c.linux, 4, requestOf(false)))
			c.ours = remove(c.ours, nth(c.ours, 4, requestOf(false)))
		}, "1 PSNs are missing"},
		{"roxie asks for a PSN again", func(c *captured) {
			for _, all := range [][]*packet{c.linux, c.ours} {
				p := all[nth(all, 3, ackOfRoxie)]
				p.AETH().SetSyndrome(wire.NAKSyndrome(wire.NAKPSNSeq))
				p.mend()
			}
		}, "a NAK"},
		{"roxie repeats itself at once",
			func(c *captured) { c.repeat(false, 4, 1, 20*time.Millisecond, false) },
			"sent again after 20ms only"},
		{"roxie repeats itself a little", func(c *captured) { c.repeat(false, 4, 3, second, false) }, ""},
		{"roxie repeats itself too often", func(c *captured) { c.repeat(false, 4, 4, second, false) },
			"4 of 52 packets were sent again, more than 3"},
		{"Linux repeats what roxie does not acknowledge",
			func(c *captured) { c.repeat(true, 4, 4, second, false) },
			"4 of 52 packets were sent again, more than 3"},
		{"Linux repeats what roxie has acknowledged", func(c *captured) {
			c.repeat(true, 4, 4, second, true)
		}, ""},
		{"Linux repeats what roxie has acknowledged late", func(c *captured) {
			for _, all := range [][]*packet{c.linux, c.ours} {
				wait(all, nth(all, 4, ackOfRoxie), 50*time.Millisecond)
			}
			c.repeat(true, 4, 4, second, true)
		}, "more than 3"},
		{"Linux repeats what came to roxie late", func(c *captured) {
			c.repeat(true, 4, 4, second, false)
			for i := range 5 { // all of it came when it was sent for the last time
				c.ours[nth(c.ours, 4+i, requestOf(true))].at = c.ours[nth(c.ours, 8, requestOf(true))].at
			}
		}, "more than 3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			packets := good(t)
			c.plant(packets)
			f := findings{Packets: len(packets.linux)}
			err := f.judge(packets.linux, packets.ours, goodCell())
			t.Log(err)
			ok := c.want == "" && err == nil ||
				c.want != "" && err != nil && strings.Contains(err.Error(), c.want)
			if !ok {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestDrops: what the guest's capture misses does not count, a wrong ICRC does.
func TestDrops(t *testing.T) {
	c := good(t)
	c.linux = slices.Delete(c.linux, 10, 12)
	f := findings{Drops: 2}
	if err := f.judge(c.linux, c.ours, goodCell()); err != nil {
		t.Error(err)
	}
	p := c.linux[5]
	p.frame[len(p.frame)-1] ^= 1
	p.parse()
	if err := f.judge(c.linux, c.ours, goodCell()); err == nil || f.ICRCErrors != 1 {
		t.Errorf("got %v and %d ICRC errors, want 1", err, f.ICRCErrors)
	}
}

// TestTshark: Wireshark's decoder takes good captures, and finds a packet that is cut off and one that
// is none of RoCEv2.
func TestTshark(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil || os.Getuid() != 0 {
		t.Skip("needs tshark, and root for a priority")
	}
	c := good(t)
	if err := tshark(t.Context(), c.linux, c.ours); err != nil {
		t.Error(err)
	}
	const udpPort, bthEnd = 36, 54
	for _, plant := range []func(p *packet){
		func(p *packet) { p.frame = p.frame[:bthEnd-6] },
		func(p *packet) { p.frame[udpPort] ^= 0xff },
	} {
		c := good(t)
		plant(c.ours[4])
		err := tshark(t.Context(), c.linux, c.ours)
		if err == nil || !strings.Contains(err.Error(), "fault with 1 packets") {
			t.Errorf("a planted fault: %v", err)
		}
	}
}

// TestCutCapture: the capture of a roxie that was killed is read from the guest's, and removed with it.
func TestCutCapture(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil || os.Getuid() != 0 {
		t.Skip("needs tshark, and root for a priority")
	}
	dir := t.TempDir()
	rec := &recorded{guest: dir + "/linux.pcap", roxie: dir + "/roxie.pcapng"}
	whole, err := os.ReadFile("testdata/linux.pcap")
	if err == nil {
		err = errors.Join(os.WriteFile(rec.guest, whole, 0o600), os.WriteFile(rec.roxie, whole[:99], 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	s := goodCell()
	s.single, s.rough = true, true
	var o Outcome
	if o.judge(t.Context(), "true", s, rec, nil, false); !o.OK {
		t.Error(o.Reason)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("captures left: %v (%v)", left, err)
	}
}
