// Package capture writes what a device receives and sends to pcapng files, which Wireshark and tshark
// read. tcpdump sees nothing of AF_XDP traffic: it has to be recorded from inside.
//
//	section header │ interface │ packet │ packet │ …
//
// Each packet carries its time in nanoseconds, its direction (epb_flags) and its queue (epb_queue).
package capture

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Block types, option codes and constants of pcapng (draft-ietf-opsawg-pcapng).
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockPacket    = 6

	byteOrderMagic = 0x1a2b3c4d
	linkEthernet   = 1

	optEnd           = 0
	optShbUserAppl   = 4
	optIfName        = 2
	optIfTsResol     = 9
	optEpbFlags      = 2
	optEpbQueue      = 6
	nanosecond       = 9 // if_tsresol: 10^-9
	maxFrame         = 1 << 16
	bufferSize       = 1 << 20
	application      = "roxie"
	unlimitedSection = 1<<64 - 1
)

// Writer is a capture file. Its methods may be called from any goroutine.
type Writer struct {
	mu    sync.Mutex
	out   *bufio.Writer
	file  io.Closer
	block []byte // reused: writing a frame allocates nothing
	err   error
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
	w := &Writer{out: bufio.NewWriterSize(out, bufferSize), file: out,
		block: make([]byte, 0, maxFrame)}
	w.start(blockSection)
	w.u32(byteOrderMagic)
	w.u16(1) // version 1.0
	w.u16(0)
	w.block = binary.NativeEndian.AppendUint64(w.block, unlimitedSection)
	w.option(optShbUserAppl, []byte(application))
	w.option(optEnd, nil)
	w.finish()
	w.start(blockInterface)
	w.u16(linkEthernet)
	w.u16(0)
	w.u32(0) // no snap length
	w.option(optIfName, []byte(ifname))
	w.option(optIfTsResol, []byte{nanosecond})
	w.option(optEnd, nil)
	w.finish()
	if w.err != nil {
		return nil, fmt.Errorf("write capture: %w", w.err)
	}
	return w, nil
}

// Frame records one frame, given in one or two pieces. flags are pcapng's epb_flags: 1 for inbound, 2
// for outbound. Errors show at Close.
func (w *Writer) Frame(flags uint32, queue int, t time.Time, head, tail []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return
	}
	at, n := uint64(t.UnixNano()), uint32(len(head)+len(tail))
	w.start(blockPacket)
	w.u32(0) // the interface
	w.u32(uint32(at >> 32))
	w.u32(uint32(at))
	w.u32(n)
	w.u32(n)
	w.block = append(append(w.block, head...), tail...)
	w.pad()
	w.u16(optEpbFlags)
	w.u16(4)
	w.u32(flags)
	w.u16(optEpbQueue)
	w.u16(4)
	w.u32(uint32(queue))
	w.option(optEnd, nil)
	w.finish()
}

// Close writes out what is buffered and closes the file. A second call does nothing.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil {
		return nil
	}
	err := w.err
	if err == nil {
		err = w.out.Flush()
	}
	err = errors.Join(err, w.file.Close())
	w.file, w.err = nil, os.ErrClosed
	if err != nil {
		return fmt.Errorf("write capture: %w", err)
	}
	return nil
}

// start begins a block; its length is filled in by finish.
func (w *Writer) start(kind uint32) {
	w.block = w.block[:0]
	w.u32(kind)
	w.u32(0)
}

func (w *Writer) finish() {
	n := uint32(len(w.block) + 4)
	binary.NativeEndian.PutUint32(w.block[4:], n)
	w.u32(n)
	if _, err := w.out.Write(w.block); err != nil && w.err == nil {
		w.err = err
	}
}

func (w *Writer) option(code uint16, value []byte) {
	w.u16(code)
	w.u16(uint16(len(value)))
	w.block = append(w.block, value...)
	w.pad()
}

func (w *Writer) pad() {
	for len(w.block)%4 != 0 {
		w.block = append(w.block, 0)
	}
}

func (w *Writer) u16(v uint16) { w.block = binary.NativeEndian.AppendUint16(w.block, v) }
func (w *Writer) u32(v uint32) { w.block = binary.NativeEndian.AppendUint32(w.block, v) }
