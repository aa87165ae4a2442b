// Package channel is what the guest's agent and its host say to each other over a virtio-serial
// port: commands to run, what goes into them and comes out of them, and how they ended. Many run at
// once over one port. A port has no begin and no end of its own, so that everything travels in
// frames:
//
//	┌──────┬────────────────┬────────────────┬─────────────────┐
//	│ kind │ command number │ payload length │ payload         │
//	│  1   │       4        │       4        │ at most 64 KiB  │
//	└──────┴────────────────┴────────────────┴─────────────────┘
package channel

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// PortName is the name of the virtio-serial port.
const PortName = "roxie"

// MaxPayload is the longest payload of a frame, in bytes.
const MaxPayload = 64 << 10

// Kind says what a frame is.
type Kind byte

// The kinds of frames; who sends them and what they carry.
const (
	Start  Kind = 1 + iota // host: a Command
	Stdin                  // host: bytes; none mean end of file
	Signal                 // host: one byte, the number of a signal for the command's process group
	Hello                  // guest, once: a Greeting
	Stdout                 // guest: bytes
	Stderr                 // guest: bytes
	Exit                   // guest: a Status, the last frame of a command
)

// Greeting is the guest's first word: it can run commands now.
type Greeting struct {
	Kernel string // uname -r
	Uptime float64
	Error  string // what went wrong while it came up
}

// Command is a program to run, found in the guest's PATH.
type Command struct {
	Argv []string
}

// Status is how a command ended.
type Status struct {
	Code   int    // exit code, -1 if a signal ended it
	Signal int    // that signal
	Error  string // why it never ran
}

// Frame is one frame.
type Frame struct {
	Kind    Kind
	ID      uint32 // the command's number, given by the host
	Payload []byte
}

// Decode reads the payload as one of the structures.
func (f *Frame) Decode(v any) error {
	if err := json.Unmarshal(f.Payload, v); err != nil {
		return fmt.Errorf("guest channel: frame of kind %d: %w", f.Kind, err)
	}
	return nil
}

const headerLen = 9

// Conn is one end. Send may be called from several goroutines, Receive from one.
type Conn struct {
	rw io.ReadWriter
	mu sync.Mutex // guards out and the writer
	// in and out hold one frame, so that a frame is one write and its payload one read.
	in, out []byte
}

// New returns an end over an open port or socket.
func New(rw io.ReadWriter) *Conn {
	return &Conn{rw: rw, in: make([]byte, headerLen+MaxPayload),
		out: make([]byte, 0, headerLen+MaxPayload)}
}

// Send sends one frame.
func (c *Conn) Send(kind Kind, id uint32, payload []byte) error {
	if len(payload) > MaxPayload {
		return fmt.Errorf("guest channel: payload of %d bytes", len(payload))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = append(c.out[:0], byte(kind))
	c.out = binary.BigEndian.AppendUint32(c.out, id)
	c.out = binary.BigEndian.AppendUint32(c.out, uint32(len(payload)))
	c.out = append(c.out, payload...)
	_, err := c.rw.Write(c.out)
	return err
}

// SendJSON sends one frame whose payload is v.
func (c *Conn) SendJSON(kind Kind, id uint32, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.Send(kind, id, b)
}

// Receive waits for a frame. Its payload is valid until the next call.
func (c *Conn) Receive() (Frame, error) {
	if _, err := io.ReadFull(c.rw, c.in[:headerLen]); err != nil {
		return Frame{}, err
	}
	n := binary.BigEndian.Uint32(c.in[5:])
	if n > MaxPayload {
		return Frame{}, fmt.Errorf("guest channel: payload of %d bytes", n)
	}
	payload := c.in[headerLen : headerLen+n]
	if _, err := io.ReadFull(c.rw, payload); err != nil {
		return Frame{}, err
	}
	return Frame{Kind(c.in[0]), binary.BigEndian.Uint32(c.in[1:]), payload}, nil
}

// Writer returns a writer that sends what it gets as frames of one kind.
func (c *Conn) Writer(kind Kind, id uint32) io.Writer { return &writer{c, kind, id} }

type writer struct {
	c    *Conn
	kind Kind
	id   uint32
}

func (w *writer) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n := min(len(p)-done, MaxPayload)
		if err := w.c.Send(w.kind, w.id, p[done:done+n]); err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}
