// Package capture writes what a device receives and sends to pcapng files, which Wireshark and
// tshark read. tcpdump sees nothing of AF_XDP traffic: it has to be recorded from inside.
//
//	shard ──► copy ──► bounded queue ──► goroutine ──► file
//
// Each packet carries its time in nanoseconds, its direction (epb_flags) and its queue
// (epb_queue). A disk that is slower than the traffic costs frames of the capture, which are
// counted and noted in the file (epb_dropcount), never time of the shard.
package capture

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

const (
	backlog    = 8192    // frames copied and not yet written
	bufferSize = 1 << 20 // bytes before a write
	flushEvery = 200 * time.Millisecond
)

// Writer is a capture file. Its methods may be called from any goroutine.
type Writer struct {
	queue   chan *record // never full: it holds all records
	free    chan *record
	dropped atomic.Uint64
	closed  atomic.Bool
	stop    chan struct{}
	done    chan struct{}
	close   sync.Once
	err     error // of writing; the goroutine's until done

	file io.Closer
	buf  *bufio.Writer
	out  *pcapgo.NgWriter
}

// record is the copy of one frame.
type record struct {
	at    time.Time
	flags uint32
	queue uint32
	drops uint64 // frames lost since the one before
	data  []byte
}

// Create makes a capture file of frames of one interface, and overwrites one that is there.
func Create(file, ifname string) (*Writer, error) {
	f, err := os.Create(file)
	if err != nil {
		return nil, fmt.Errorf("create capture: %w", err)
	}
	w, err := New(f, ifname)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return w, nil
}

// New starts a capture on out, which Close closes.
func New(out io.WriteCloser, ifname string) (*Writer, error) {
	w := &Writer{
		queue: make(chan *record, backlog), free: make(chan *record, backlog),
		stop: make(chan struct{}), done: make(chan struct{}),
		file: out, buf: bufio.NewWriterSize(out, bufferSize),
	}
	var err error
	w.out, err = pcapgo.NewNgWriterInterface(w.buf,
		pcapgo.NgInterface{Name: ifname, LinkType: layers.LinkTypeEthernet},
		pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: "roxie"}})
	if err == nil {
		err = w.flush()
	}
	if err != nil {
		return nil, fmt.Errorf("write capture: %w", err)
	}
	for range backlog {
		w.free <- &record{}
	}
	go w.run()
	return w, nil
}

// Frame records one frame, given in one or two pieces, which it copies. flags are pcapng's
// epb_flags: 1 for inbound, 2 for outbound. It never waits: with too much to write the frame is
// not recorded, see Dropped. Errors of writing show at Close.
func (w *Writer) Frame(flags uint32, queue int, t time.Time, head, tail []byte) {
	if w.closed.Load() {
		return
	}
	var r *record
	select {
	case r = <-w.free:
	default:
		w.dropped.Add(1)
		return
	}
	r.at, r.flags, r.queue, r.drops = t, flags, uint32(queue), w.dropped.Load()
	r.data = append(append(r.data[:0], head...), tail...)
	w.queue <- r
}

// Dropped is how many frames were not recorded.
func (w *Writer) Dropped() uint64 { return w.dropped.Load() }

// Close writes out what was recorded and closes the file. A second call does nothing, nor does one of
// no Writer.
func (w *Writer) Close() (err error) {
	if w == nil {
		return nil
	}
	w.close.Do(func() {
		w.closed.Store(true)
		close(w.stop)
		<-w.done
		if err = errors.Join(w.err, w.file.Close()); err != nil {
			err = fmt.Errorf("write capture: %w", err)
		}
	})
	return err
}

// run writes records until stop, and then what is left. What is written shows in the file soon, for
// who looks at it meanwhile.
func (w *Writer) run() {
	defer close(w.done)
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	var noted uint64
	for {
		select {
		case r := <-w.queue:
			w.write(r, &noted)
		case <-tick.C:
			w.keep(w.flush())
		case <-w.stop:
			for {
				select {
				case r := <-w.queue:
					w.write(r, &noted)
					continue
				default:
				}
				w.keep(w.flush())
				return
			}
		}
	}
}

// write writes one record. noted is how many lost frames the file knows of.
func (w *Writer) write(r *record, noted *uint64) {
	if w.err == nil {
		var flags pcapgo.NgEpbFlags
		flags.FromUint32(r.flags)
		o := pcapgo.NgPacketOptions{Flags: &flags, Queue: &r.queue}
		if r.drops -= *noted; r.drops > 0 {
			*noted += r.drops
			o.DropCount = &r.drops
		}
		w.keep(w.out.WritePacketWithOptions(gopacket.CaptureInfo{
			Timestamp: r.at, CaptureLength: len(r.data), Length: len(r.data),
		}, r.data, o))
	}
	w.free <- r
}

// keep remembers the first error.
func (w *Writer) keep(err error) {
	if w.err == nil {
		w.err = err
	}
}

func (w *Writer) flush() error {
	if err := w.out.Flush(); err != nil {
		return err
	}
	return w.buf.Flush()
}
