package perf

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"
)

// exchanges are the two ends of one connection.
func exchanges(t *testing.T) (server, client *exchange, sctx, cctx context.Context) {
	t.Helper()
	a, b := net.Pipe()
	server, sctx = newExchange(t.Context(), a, false)
	client, cctx = newExchange(t.Context(), b, true)
	t.Cleanup(func() {
		server.close()
		client.close()
	})
	return server, client, sctx, cctx
}

func TestSwap(t *testing.T) {
	server, client, sctx, cctx := exchanges(t)
	done := make(chan error, 1)
	go func() {
		got, err := swap(sctx, server, "keys", keys{QPN: 1})
		if err == nil && got.QPN != 2 {
			err = errors.New("wrong keys")
		}
		done <- errors.Join(err, server.barrier(sctx))
	}()
	got, err := swap(cctx, client, "keys", keys{QPN: 2, RKey: 3})
	if err != nil || got.QPN != 1 {
		t.Errorf("client got %+v, %v", got, err)
	}
	if err := client.barrier(cctx); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if server.waiting() || client.waiting() {
		t.Error("a line is thought to wait when all were taken")
	}
}

func TestWrongStep(t *testing.T) {
	server, client, sctx, _ := exchanges(t)
	go client.put("report", report{})
	var v struct{}
	if err := server.get(sctx, "barrier", &v, time.Second); err == nil ||
		!strings.Contains(err.Error(), "same version") {
		t.Errorf("got %v", err)
	}
}

func TestPeerGone(t *testing.T) {
	server, client, sctx, _ := exchanges(t)
	woken := make(chan struct{})
	server.onLine(func() {
		select {
		case <-woken:
		default:
			close(woken)
		}
	})
	client.close()
	select {
	case <-woken:
	case <-time.After(5 * time.Second):
		t.Fatal("nobody is told that the other end is gone")
	}
	if !server.waiting() {
		t.Error("a loop would go on")
	}
	if err := server.barrier(sctx); !errors.Is(err, errGone) {
		t.Errorf("barrier: %v, want errGone", err)
	}
}

func TestReasonArrives(t *testing.T) {
	server, client, sctx, _ := exchanges(t)
	go client.fail(errors.New("no more memory"))
	if err := server.barrier(sctx); !errors.Is(err, errTold) ||
		!strings.Contains(err.Error(), "no more memory") {
		t.Errorf("barrier: %v", err)
	}
}

func TestSilence(t *testing.T) {
	server, _, sctx, _ := exchanges(t)
	var v struct{}
	if err := server.get(sctx, "barrier", &v, time.Millisecond); err == nil ||
		!strings.Contains(err.Error(), "silent") {
		t.Errorf("got %v", err)
	}
}

func TestAgree(t *testing.T) {
	ours := hello{Roxie: exchangeVersion, Test: "send_bw", Transport: RC, Size: 64, QPs: 1, PMTU: 4096}
	for _, tt := range []struct {
		name   string
		change func(h *hello)
		want   string // empty: agreed
	}{
		{"equal", func(*hello) {}, ""},
		{"smaller PMTU", func(h *hello) { h.PMTU = 1024 }, ""},
		{"version", func(h *hello) { h.Roxie++ }, "exchange format"},
		{"test", func(h *hello) { h.Test = "send_lat" }, "test: send_bw here, send_lat"},
		{"transport", func(h *hello) { h.Transport = UC }, "-c"},
		{"size", func(h *hello) { h.Size = 65 }, "-s"},
		{"all", func(h *hello) { h.All = true }, "-a"},
		{"iterations", func(h *hello) { h.Iters = 5 }, "-n"},
		{"QPs", func(h *hello) { h.QPs = 2 }, "-q"},
		{"verify", func(h *hello) { h.Verify = true }, "--verify"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			theirs := ours
			tt.change(&theirs)
			pmtu, err := agree(ours, theirs)
			switch {
			case tt.want == "" && (err != nil || pmtu != min(ours.PMTU, theirs.PMTU)):
				t.Errorf("got %d, %v", pmtu, err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want %q in it", err, tt.want)
			}
		})
	}
}
