package main

import (
	"context"
	"os"
	"testing"
)

// TestShellEnds: an interrupt ends the shell while it waits for a line, as the end of input does.
func TestShellEnds(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	old := os.Stdin
	os.Stdin = r
	defer func() { os.Stdin = old }()
	ctx, interrupt := context.WithCancel(context.Background())
	interrupt()
	if err := shell(ctx, nil); err != nil {
		t.Errorf("interrupted: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := shell(context.Background(), nil); err != nil {
		t.Errorf("at the end of input: %v", err)
	}
}
