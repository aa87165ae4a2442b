package rxe_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

const (
	captureDir  = "testdata/captures/"
	differsFile = captureDir + "rxe-differs.txt"
)

// TestReplay plays every recording of the kernel's rxe against our engine, in the responder's place
// and in the requester's. What the text of a pair has no posts for is only decoded.
func TestReplay(t *testing.T) {
	files, err := filepath.Glob(captureDir + "*.pcap")
	if err != nil || len(files) == 0 {
		t.Fatalf("no captures: %v", err)
	}
	x := readExceptions(t, differsFile)
	played := map[string]int{}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".pcap")
		played[name] = 0
		t.Run(name, func(t *testing.T) {
			rec := &recording{name: name, packets: readPcap(t, f)}
			if _, err := os.Stat(strings.TrimSuffix(f, ".pcap") + ".txt"); err == nil {
				rec = readRecording(t, captureDir, name)
			}
			if len(rec.convs) == 0 {
				t.Run("decode-only", func(t *testing.T) { decodeOnly(t, rec) })
				played[name] = 2
				return
			}
			t.Run("responder", func(t *testing.T) {
				played[name]++
				replay(t, rec, x, (*player).responder)
			})
			t.Run("requester", func(t *testing.T) {
				played[name]++
				replay(t, rec, x, (*player).requester)
			})
		})
	}
	for _, line := range x.unused(func(capture string) bool {
		n, exists := played[capture]
		return n == 2 || !exists
	}) {
		t.Error(line)
	}
}

// decodeOnly checks a capture without posts: its ICRCs, which reading it has checked, and that MADs
// are encoded to the bytes they were decoded from.
func decodeOnly(t *testing.T, rec *recording) {
	mads, others := 0, 0
	for _, v := range rec.packets {
		if v.p.DestQP != wire.QPNGSI || v.p.Info.Flags&wire.FlagDETH == 0 {
			continue
		}
		msg, drop := cm.Decode(v.p.Data0)
		if drop == cm.DropClass {
			others++
			continue
		}
		if drop != cm.DropNone {
			t.Errorf("packet %d: MAD refused: %v", v.n, drop)
			continue
		}
		mads++
		again := cm.Encode((*cm.MAD)(v.p.Data0).TID(), msg)
		if !bytes.Equal(again[:], v.p.Data0) {
			t.Errorf("packet %d: %v encoded again\n got %x\nwant %x", v.n, msg, again[:], v.p.Data0)
		}
	}
	t.Logf("decode-only: %d packets with right ICRCs, %d CM messages encoded again, %d MADs of other classes",
		len(rec.packets), mads, others)
}

// replay plays all conversations of a recording that have packets. Memory lives on from one to the
// next.
func replay(t testing.TB, rec *recording, x *exceptions, play func(*player)) {
	t.Helper()
	var want, live [2][]byte
	for end := range want {
		want[end] = make([]byte, rec.ends[end].length)
		fillEnd(end, want[end])
		live[end] = bytes.Clone(want[end])
	}
	for _, c := range rec.convs {
		if len(c.packets) == 0 {
			t.Logf("%s (line %d): no packets in the capture", c.scenario, c.line)
			continue
		}
		p := &player{t: t, rec: rec, c: c, want: want, live: live,
			m: &matcher{t: t, rec: rec, x: x, lossy: rec.lossy}, received: map[int]bool{}}
		play(p)
		if t.Failed() {
			return
		}
		for i, b := range live[p.e.me] {
			if b != want[p.e.me][i] {
				t.Fatalf("%s: byte %#x of our memory is %#x, want %#x", c.scenario, i, b, want[p.e.me][i])
			}
		}
	}
	t.Logf("%d conversations, lossy: %v", len(rec.convs), rec.lossy)
}
