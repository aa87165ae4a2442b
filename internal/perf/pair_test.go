package perf

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"
)

// A child whose configuration is as long as what the decoder reads at a time finds the newline
// behind it later. That is not the parent's end.
func TestChildKeepsRunning(t *testing.T) {
	in, parent := io.Pipe()
	var cfg struct{ Capture string }
	b, _ := json.Marshal(cfg)
	cfg.Capture = strings.Repeat("x", 512-len(b))
	if b, _ = json.Marshal(cfg); len(b) != 512 {
		t.Fatalf("%d bytes", len(b))
	}
	go parent.Write(append(b, '\n'))
	if err := json.NewDecoder(in).Decode(&cfg); err != nil {
		t.Fatal(err)
	}
	cancelled := make(chan struct{})
	go untilClosed(in, func() { close(cancelled) })
	select {
	case <-cancelled:
		t.Fatal("a newline ends the run")
	case <-time.After(50 * time.Millisecond):
	}
	if err := parent.Close(); err != nil {
		t.Fatal(err)
	}
	<-cancelled
}
