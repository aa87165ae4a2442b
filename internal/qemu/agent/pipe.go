package main

import (
	"io"
	"sync"
)

// pipe holds what a command has not read yet of its standard input. It has no limit, so that a
// command that does not read never holds the channel up.
type pipe struct {
	mu    sync.Mutex
	more  sync.Cond
	data  []byte
	ended bool
}

func newPipe() *pipe {
	p := &pipe{}
	p.more.L = &p.mu
	return p
}

// add appends a copy of b; none ends the input.
func (p *pipe) add(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.data = append(p.data, b...)
	p.ended = p.ended || len(b) == 0
	p.more.Signal()
}

// close ends the input and forgets what is left.
func (p *pipe) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.data, p.ended = nil, true
	p.more.Signal()
}

// Read implements io.Reader.
func (p *pipe) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.data) == 0 && !p.ended {
		p.more.Wait()
	}
	if len(p.data) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.data)
	p.data = p.data[n:]
	return n, nil
}
