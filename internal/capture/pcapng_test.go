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

type failing struct{ io.Writer }

func (failing) Write([]byte) (int, error) { return 0, errors.New("disk full") }
func (failing) Close() error              { return nil }

func TestErrorShowsAtClose(t *testing.T) {
	w, err := New(failing{}, "x")
	if err != nil {
		t.Fatal(err)
	}
	big := make([]byte, 4154)
	for range 2 * bufferSize / len(big) {
		w.Frame(1, 0, time.Now(), big, nil)
	}
	if err := w.Close(); err == nil {
		t.Error("Close hides that the disk is full")
	}
}

func TestFrameAllocatesNothing(t *testing.T) {
	w, err := New(struct {
		io.Writer
		io.Closer
	}{io.Discard, io.NopCloser(nil)}, "x")
	if err != nil {
		t.Fatal(err)
	}
	head, tail, now := make([]byte, 3840), make([]byte, 315), time.Now()
	if n := testing.AllocsPerRun(100, func() { w.Frame(2, 0, now, head, tail) }); n != 0 {
		t.Errorf("%v allocations a frame", n)
	}
}
