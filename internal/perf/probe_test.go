package perf

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/verbs"
)

// An end whose messages are all acknowledged, and which waits for an answer, notices that the other
// end has vanished, although the connection that they met by stays open.
func TestProbe(t *testing.T) {
	ends := openBoth(t, Config{Test: testNamed(t, "write_lat"), Progress: Poller, GIDIndex: -1})
	a, b := net.Pipe()
	server, serverCtx := newExchange(t.Context(), a, false)
	client, clientCtx := newExchange(t.Context(), b, true)
	defer server.close()
	defer client.close()
	connected, done := make(chan error, 1), make(chan error, 1)
	go func() {
		err := ends[0].connect(serverCtx, server)
		if err == nil {
			err = server.barrier(serverCtx)
		}
		connected <- err
	}()
	go func() {
		err := ends[1].connect(clientCtx, client)
		if err == nil {
			_, err = ends[1].one(clientCtx, client, 8, &Hooks{})
		}
		done <- err
	}()
	if err := <-connected; err != nil {
		t.Fatal(err)
	}
	arrived := &ends[0].conns[0].ring[7]
	for verbs.LoadFlag(arrived) == 0 {
		time.Sleep(time.Millisecond)
	}
	select {
	case err := <-done:
		t.Fatalf("the client does not wait: %v", err)
	case <-time.After(3 * probeEvery): // the server's engine answers, too, what asks for it
	}
	if err := ends[0].dev.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "retry counter exceeded") {
			t.Errorf("the client says: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the client still waits")
	}
}
