package capture

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// The file is read back by another implementation.
func TestReadBack(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x.pcapng")
	w, err := Create(name, "veth0")
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1700000000, 123456789)
	frames := [][2][]byte{
		{bytes.Repeat([]byte{1}, 60), nil},
		{bytes.Repeat([]byte{2}, 3840), bytes.Repeat([]byte{3}, 315)},
	}
	for i, f := range frames {
		w.Frame(uint32(i+1), i, at.Add(time.Duration(i)), f[0], f[1])
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.LinkType(); got != layers.LinkTypeEthernet {
		t.Errorf("link type %v", got)
	}
	for i, f := range frames {
		data, info, err := r.ReadPacketData()
		if err != nil {
			t.Fatal(err)
		}
		if want := append(bytes.Clone(f[0]), f[1]...); !bytes.Equal(data, want) {
			t.Errorf("frame %d: %d bytes differ from the %d written", i, len(data), len(want))
		}
		if want := at.Add(time.Duration(i)); !info.Timestamp.Equal(want) {
			t.Errorf("frame %d: time %v, want %v", i, info.Timestamp, want)
		}
	}
	if _, _, err := r.ReadPacketData(); err != io.EOF {
		t.Errorf("after the last frame: %v, want EOF", err)
	}
	in, err := r.Interface(0)
	if err != nil || in.Name != "veth0" {
		t.Errorf("interface %q, %v", in.Name, err)
	}
}

// sink is a file that a test looks into.
type sink struct{ write func([]byte) (int, error) }

func (s sink) Write(b []byte) (int, error) { return s.write(b) }
func (sink) Close() error                  { return nil }

func TestErrorShowsAtClose(t *testing.T) {
	full := false
	w, err := New(sink{func(b []byte) (int, error) {
		if full {
			return 0, errors.New("disk full")
		}
		return len(b), nil
	}}, "x")
	if err != nil {
		t.Fatal(err)
	}
	full = true
	w.Frame(1, 0, time.Now(), make([]byte, 60), nil)
	if err := w.Close(); err == nil {
		t.Error("Close hides that the disk is full")
	}
}

// TestSlowDisk: a shard never waits; what does not fit is counted, and noted in the file.
func TestSlowDisk(t *testing.T) {
	var file bytes.Buffer
	block := make(chan struct{})
	started := false
	w, err := New(sink{func(b []byte) (int, error) {
		if started {
			<-block
		}
		return file.Write(b)
	}}, "x")
	if err != nil {
		t.Fatal(err)
	}
	started = true
	const sent = 3 * backlog
	frame := make([]byte, 600) // the buffer takes some, the writer then hangs
	for range sent {
		w.Frame(2, 1, time.Now(), frame, nil)
	}
	lost := w.Dropped()
	if lost == 0 || lost > sent-backlog {
		t.Fatalf("%d of %d frames dropped with %d places", lost, sent, backlog)
	}
	close(block)
	for len(w.free) == 0 {
		time.Sleep(time.Millisecond)
	}
	w.Frame(2, 1, time.Now(), frame, nil)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := pcapgo.NewNgReader(&file, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	var got, noted uint64
	for {
		_, _, o, err := r.ReadPacketDataWithOptions()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if o.Flags == nil || o.Flags.Direction != pcapgo.NgEpbFlagDirectionOutbound || *o.Queue != 1 {
			t.Fatalf("options %+v", o)
		}
		if o.DropCount != nil {
			noted += *o.DropCount
		}
		got++
	}
	if got+lost != sent+1 || noted != lost {
		t.Errorf("%d frames in the file, %d lost, %d noted; %d sent", got, lost, noted, sent+1)
	}
}

func TestFrameAllocatesNothing(t *testing.T) {
	w, err := New(sink{func(b []byte) (int, error) { return len(b), nil }}, "x")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	head, tail, now := make([]byte, 3840), make([]byte, 315), time.Now()
	for range backlog { // every record has its memory
		w.Frame(2, 0, now, head, tail)
		for len(w.free) < backlog/2 {
			time.Sleep(time.Millisecond)
		}
	}
	w.stopForTest()
	if n := testing.AllocsPerRun(100, func() { w.Frame(2, 0, now, head, tail) }); n != 0 {
		t.Errorf("%v allocations a frame", n)
	}
}

// stopForTest ends the goroutine, whose allocations are not the shard's.
func (w *Writer) stopForTest() {
	close(w.stop)
	<-w.done
	w.stop = make(chan struct{})
}
